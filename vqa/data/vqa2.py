"""VQA v2: the official questions and annotations, several detectors' regions, a list of answers."""

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from seqarena.common.data.counter import hash64
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.runs.roles import Role, role
from seqarena.vqa.answers import LEAST, vocabulary
from seqarena.vqa.data import PEOPLE, Data, Layer, Part, Split, VqaData
from seqarena.vqa.data import words as spelling
from seqarena.vqa.data.detected import Detected, Detector, detected, fingerprint_of, read_detector, read_layer
from seqarena.vqa.data.genome import read_genome
from seqarena.vqa.data.options import options_of
from seqarena.vqa.data.published import (
    ANNOTATIONS,
    PAIRS,
    QUESTIONS,
    Annotation,
    Question,
    paired,
    published,
    read_annotations,
    read_answers,
    read_pairs,
    read_questions,
)
from seqarena.vqa.data.scenes import Scenes
from seqarena.vqa.data.written import NAMES, write_scenes

TYPES = ("answer_type", "question_type")
Answered = Sequence[tuple[Question, Annotation]]


@dataclass(frozen=True, kw_only=True)
class Vqa2(Data):
    """Which files, and how questions, answers and boxes are taken from them."""

    path: str | None = field(default=None, metadata=role(Role.LOCATION))
    """Folder of the official JSON files of train2014 and val2014, packed by gzip or not; none: generated scenes,
    written as such files."""
    regions: tuple[str, ...] = field(default=(), metadata=role(Role.LOCATION))
    """A folder of regions for each detector (seqarena prepare vqa features), the primary first; or one that holds such
    folders, one for each split."""
    boxes: int = 100
    """Boxes of a detector that are read."""
    width: int = 2048
    """Numbers of a box."""
    aligned: bool = False
    """Whether all detectors looked at the same boxes."""
    missing: int = 0
    """Pictures of a split that a detector may lack; one that it lacks stands as a box of zeros."""
    answer_list: str | None = field(default=None, metadata=role(Role.OPTIONAL_FILE))
    """A list of answers, JSON or text; none: those that lead at least ``least`` questions of train2014 and val2014."""
    answer_count: int | None = 3_129
    """How many answers the list must have; none: any number."""
    least: int = LEAST
    """Questions that an answer must lead to be in the list."""
    normalized_targets: bool = False
    """Whether people's answers are normalised before they are looked up in the list, to train on (MCAN, OpenVQA) or
    taken as they are (bottom-up-attention, Pythia); scores are official in any case."""
    length: int = 14
    """Words of a question that are read."""
    held_out: float = 0.05
    """Share of the pictures of train2014, by a hash of their numbers, whose questions validate instead."""
    glove: str | None = field(default=None, metadata=role(Role.OPTIONAL_FILE))
    """A text file of words' vectors to begin with; none: they are drawn."""
    fc7: tuple[str, ...] = field(default=(), metadata=role(Role.OPTIONAL_FILE))
    """Of each detector an .npz with weight and bias of its last layer; none: drawn, where the model has them."""
    visual_genome: str | None = field(default=None, metadata=role(Role.OPTIONAL_FILE))
    """Folder of Visual Genome's question_answers.json and image_data.json, to train on too."""
    generated: int = 6_000
    """Generated scenes to train on where there is no path; a sixth as many test."""

    @property
    def views(self) -> tuple[int, int, int]:
        """Detectors, boxes of each, numbers of a box."""
        return len(self.regions) or 3, self.boxes, self.width

    @property
    def aligned_views(self) -> bool:
        """Whether box i is of the same place in all views."""
        return self.aligned

    def check(self) -> None:
        """Raises a ``WrongUseError`` for settings that describe no data."""
        if self.path is not None and not self.regions:
            raise WrongUseError(
                "data.regions: expected a folder for each detector, the primary first; seqarena prepare vqa features "
                "makes one of what a detector found"
            )
        if self.path is None and (self.regions or self.answer_list or self.visual_genome or self.fc7):
            raise WrongUseError(
                "data.path: expected the folder of VQA v2's questions and annotations; without it scenes are generated"
            )
        if len(set(self.regions)) < len(self.regions):
            raise WrongUseError(f"data.regions: expected different folders, found {', '.join(self.regions)}")
        for name in ("boxes", "width", "least", "length"):
            if getattr(self, name) < 1:
                raise WrongUseError(f"data.{name}: expected at least 1, found {getattr(self, name)}")
        if self.missing < 0 or not 0 < self.held_out < 1 or self.generated < 100:
            raise WrongUseError(
                "expected data.missing of at least 0, data.held_out between 0 and 1, data.generated of at least 100"
            )
        if self.fc7 and len(self.fc7) != len(self.regions):
            raise WrongUseError(f"data.fc7: expected {len(self.regions)} files, as data.regions, found {len(self.fc7)}")

    def load(self, folder: Path) -> VqaData:
        """Returns what the files hold; generated ones are kept below ``folder``.

        Raises:
            BadDataError: files that are missing or damaged, questions without annotations, pictures that detectors
                lack, regions of another width, a list of another length.
        """
        self.check()
        if self.path is None:
            if (self.boxes, self.width) != (Scenes.boxes, Scenes.width) or self.answer_count is not None:
                raise WrongUseError(
                    "data.path: expected the folder of VQA v2's questions and annotations; the scenes that are "
                    f"generated without it have {Scenes.boxes} boxes of {Scenes.width} numbers (--preset quick)"
                )
            where = write_scenes(folder / "vqa", self.generated)
            try:
                for name in NAMES:
                    read_detector(where / name, verify=True)
                there = replace(self, path=str(where), regions=tuple(str(where / name) for name in NAMES))
                return there._read()
            except BadDataError as error:
                raise BadDataError(f"generated files are damaged: delete {where} and run again ({error})") from error
        return self._read()

    def _read(self) -> VqaData:
        path = Path(self.path or "")
        detectors = [read_detector(Path(each)) for each in self.regions]
        theirs, test = (read_answered(path, name) for name in ("train2014", "val2014"))
        theirs = self._untested(theirs, test)
        answers = self._answers([annotation for _, annotation in (*theirs, *test)])
        asked: dict[str, Answered] = {**self._apart(theirs), "test": test}
        if self.visual_genome is not None:
            pictures = {question.picture for question, _ in asked["train"]}
            asked["train"] = [*asked["train"], *read_genome(Path(self.visual_genome), pictures, set(answers))]
        types = {name: sorted({getattr(said, name) for _, said in (*theirs, *test)} - {""}) for name in TYPES}
        cut = {name: [spelling.cut(question.text) for question, _ in some] for name, some in asked.items()}
        words = spelling.vocabulary(each for some in cut.values() for each in some)
        pairs = published(path, PAIRS)
        splits = {
            name: split_of(
                some, spelling.numbered(cut[name], words, self.length), answers, types, detectors, self,
                read_pairs(pairs) if name == "test" and pairs is not None else [],
            )
            for name, some in asked.items()
        }  # fmt: skip
        if not any(split.people.any() for split in splits.values()):
            raise BadDataError(f"{self.answer_list}: nobody gave any of these {len(answers):,} answers")
        if self.aligned:
            for split in splits.values():
                assert isinstance(split.views, Detected)
                split.views.require_aligned()
        vectors = None if self.glove is None else spelling.glove(Path(self.glove), words)
        fc7 = [read_layer(Path(each)) for each in self.fc7]
        digest = hashlib.sha256(json.dumps([answers, words, self.boxes, fingerprint_of(detectors)]).encode())
        for name, split in splits.items():
            about = np.array([question.picture for question, _ in asked[name]])
            for array in (about, split.ids, split.words, split.options, split.people):
                digest.update(np.ascontiguousarray(array, dtype="<i8").data)
            digest.update(np.ascontiguousarray(split.scores, dtype="<f8").data)
        for layer in (*fc7, *([] if vectors is None else [Layer(weight=vectors, bias=np.zeros(0))])):
            for given in (layer.weight, layer.bias):
                digest.update(np.ascontiguousarray(given, dtype="<f4").data)
        return VqaData(
            splits=splits, answers=answers, words=words, checksum=digest.hexdigest(), vectors=vectors, fc7=fc7
        )

    def _answers(self, annotations: Sequence[Annotation]) -> Sequence[str]:
        """Returns the list of answers, given or made; a ``BadDataError`` says that it has another length."""
        if self.answer_list is not None:
            found, where = read_answers(Path(self.answer_list)), self.answer_list
        else:
            found, where = vocabulary(annotations, self.least), f"{self.path}: answers that lead {self.least} questions"
        if not found:
            raise BadDataError(f"{where}: there is none; --data.least lowers how many an answer must lead")
        if self.answer_count not in (None, len(found)):
            raise BadDataError(
                f"{where}: {len(found):,} answers, expected {self.answer_count:,}; --data.answer-count none takes any "
                "number"
            )
        return found

    def _untested(self, theirs: Answered, test: Answered) -> Answered:
        """Returns the questions about pictures that no question of the test is about; says how many are left out.

        The official files share none; cuts of them that go around do.
        """
        tested = {question.picture for question, _ in test}
        left = [each for each in theirs if each[0].picture not in tested]
        if len(left) < len(theirs):
            print(
                f"{self.path}: {len(theirs) - len(left):,} of {len(theirs):,} questions of train2014 are left out: "
                "val2014, which tests, asks about their pictures",
                file=sys.stderr,
            )
        return left

    def _apart(self, asked: Answered) -> dict[str, Answered]:
        """Returns the questions that are trained on and those that validate, told apart by their pictures."""
        out = hash64(np.array([question.picture for question, _ in asked])) / 2.0**64 < self.held_out
        found = {
            "train": [each for each, is_out in zip(asked, out, strict=True) if not is_out],
            "validation": [each for each, is_out in zip(asked, out, strict=True) if is_out],
        }
        for name, some in found.items():
            if not some:
                raise BadDataError(f"{self.path}: of {len(asked):,} questions of train2014 none is left for {name}")
        return {**found}


def read_answered(path: Path, name: str) -> Answered:
    """Returns the questions of an official split, each with its annotation.

    Raises:
        BadDataError: files that are missing, damaged, or do not belong together; an annotation without ten answers.
    """
    files = [published(path, each.format(name)) for each in (QUESTIONS, ANNOTATIONS)]
    for file, each in zip(files, (QUESTIONS, ANNOTATIONS), strict=True):
        if file is None:
            raise BadDataError(f"{path}: there is no {each.format(name)} in it, packed or not; visualqa.org has it")
    asked = [file for file in files if file is not None]
    questions = read_questions(asked[0])
    annotations = paired(questions, read_annotations(asked[1]), str(asked[1]))
    other = [each for each in annotations if len(each.answers) != PEOPLE]
    if other:
        raise BadDataError(f"{asked[1]}: expected {PEOPLE} answers to each question, found {len(other[0].answers)} to "
                           f"{other[0].id}")  # fmt: skip
    return list(zip(questions, annotations, strict=True))


def split_of(
    asked: Answered, words: spelling.Numbers, answers: Sequence[str], types: Mapping[str, Sequence[str]],
    detectors: Sequence[Detector], config: Vqa2, pairs: Sequence[tuple[int, int]],
) -> Split:  # fmt: skip
    """Returns questions with what people answered and what detectors saw."""
    ids = np.array([question.id for question, _ in asked], dtype=np.int64)
    pictures, rows = np.unique([question.picture for question, _ in asked], return_inverse=True)
    options = options_of([said for _, said in asked], answers, normalized_targets=config.normalized_targets)
    place = {int(id): at for at, id in enumerate(ids)}
    both = [(place[one], place[other]) for one, other in pairs if one in place and other in place]
    return Split(
        ids=ids, words=words, pictures=rows.reshape(-1),
        options=options.places, people=options.people, scores=options.scores,
        views=detected(detectors, pictures, boxes=config.boxes, width=config.width, missing=config.missing),
        parts={name: _part([getattr(said, name) for _, said in asked], names) for name, names in types.items()},
        groups={}, pairs=np.array(both, dtype=np.int64).reshape(-1, 2),
    )  # fmt: skip


def _part(each: Sequence[str], names: Sequence[str]) -> Part:
    places = {name: place for place, name in enumerate(names)}
    return Part(names=names, of=np.array([places.get(name, -1) for name in each]))

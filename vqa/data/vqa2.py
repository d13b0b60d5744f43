"""VQA v2: the official questions and annotations, regions of several detectors, and an answer list."""

import contextlib
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from seqarena.common.data.counter import hash64
from seqarena.common.data.prepared import origin
from seqarena.common.errors import BadDataError, WrongUseError, named_by
from seqarena.common.runs.roles import Role, role
from seqarena.vqa.answers import LEAST, vocabulary
from seqarena.vqa.data import PEOPLE, Data, Layer, Part, Reals, Split, VqaData
from seqarena.vqa.data import words as spelling
from seqarena.vqa.data.detected import DetectedViews, Detector, fingerprint_of, make_views, read_detector, read_layer
from seqarena.vqa.data.genome import read_genome
from seqarena.vqa.data.options import options_of
from seqarena.vqa.data.published import (
    ANNOTATIONS,
    PAIRS,
    QUESTIONS,
    Annotation,
    Question,
    find_file,
    match_annotations,
    read_annotations,
    read_answers,
    read_pairs,
    read_questions,
)
from seqarena.vqa.data.scenes import Scenes
from seqarena.vqa.data.written import NAMES, write_scenes

TYPES = ("answer_type", "question_type")
AnnotatedQuestions = Sequence[tuple[Question, Annotation]]


@dataclass(frozen=True, kw_only=True)
class Vqa2(Data):
    """Config of the files, and of the questions, answers and boxes read from them."""

    path: str | None = field(default=None, metadata=role(Role.LOCATION))
    """Folder of the official JSON files of train2014 and val2014, plain or compressed by gzip. none: generated scenes,
    written in the same formats."""
    regions: tuple[str, ...] = field(default=(), metadata=role(Role.LOCATION))
    """One folder of regions per detector (made by seqarena prepare vqa features), the primary first. A folder may also
    contain such folders, one per split."""
    boxes: int = 100
    """Number of boxes read per detector and picture."""
    width: int = 2048
    """Number of features per box."""
    aligned: bool = False
    """Whether all detectors use the same boxes."""
    missing: int = 0
    """Maximum number of pictures of a split without regions, per detector. Each gets a box of zeros."""
    answer_list: str | None = field(default=None, metadata=role(Role.OPTIONAL_FILE))
    """File of the answer list, JSON or text. none: all answers that are the most frequent one of at least ``least``
    questions of train2014 and val2014."""
    answer_count: int | None = 3_129
    """Required length of the answer list. none: any."""
    least: int = LEAST
    """Minimum number of questions in which an answer of the list is the most frequent one."""
    normalized_targets: bool = False
    """Whether annotators' answers are normalised before they are looked up as training targets (MCAN, OpenVQA), or used
    unchanged (bottom-up-attention, Pythia). Scores follow the official rules in both cases."""
    length: int = 14
    """Maximum number of words of a question. The rest is truncated."""
    held_out: float = 0.05
    """Fraction of the pictures of train2014, chosen by a hash of their ids, whose questions form the validation set."""
    glove: str | None = field(default=None, metadata=role(Role.OPTIONAL_FILE))
    """Text file of initial word vectors. none: random."""
    fc7: tuple[str, ...] = field(default=(), metadata=role(Role.OPTIONAL_FILE))
    """One .npz per detector with weight and bias of its last layer. none: random, if the model has such layers."""
    visual_genome: str | None = field(default=None, metadata=role(Role.OPTIONAL_FILE))
    """Folder of Visual Genome's question_answers.json and image_data.json, used as additional training data."""
    generated: int = 6_000
    """Number of generated training scenes if there is no path. The test set has a sixth as many."""

    @property
    def views(self) -> tuple[int, int, int]:
        """Number of detectors, of boxes per detector, and of features per box."""
        return len(self.regions) or 3, self.boxes, self.width

    @property
    def longest(self) -> int:
        """Maximum number of words of a question."""
        return self.length

    @property
    def aligned_views(self) -> bool:
        """Whether box i is at the same position in all views."""
        return self.aligned

    @property
    def without_effect(self) -> Mapping[str, str]:
        """The number of generated scenes, if there are files, and the frequency of answers, if there is a list."""
        found = {} if self.path is None else {"generated": "data.path"}
        return found if self.answer_list is None else found | {"least": "data.answer_list"}

    def check(self) -> None:
        """Raises a ``WrongUseError`` for invalid settings."""
        if self.path is not None and not self.regions:
            raise WrongUseError(
                "data.regions: expected a folder for each detector, the primary first; make them from the detectors' "
                "output with seqarena prepare vqa features"
            )
        if self.path is None and (self.regions or self.answer_list or self.visual_genome or self.fc7):
            raise WrongUseError(
                "data.path: expected the folder of VQA v2's questions and annotations; without it scenes are generated"
            )
        if len(set(self.regions)) < len(self.regions):
            raise WrongUseError(f"data.regions: expected distinct folders, found {', '.join(self.regions)}")
        for name in ("boxes", "width", "least", "length"):
            if getattr(self, name) < 1:
                raise WrongUseError(f"data.{name}: expected at least 1, found {getattr(self, name)}")
        if self.missing < 0 or not 0 < self.held_out < 1 or self.generated < 100:
            raise WrongUseError(
                "expected data.missing of at least 0, data.held_out between 0 and 1, data.generated of at least 100"
            )
        if self.fc7 and len(self.fc7) != len(self.regions):
            raise WrongUseError(
                f"data.fc7: expected {len(self.regions)} files, one per folder of data.regions, found {len(self.fc7)}"
            )

    def load(self, folder: Path) -> VqaData:
        """Reads the files. Generated files are stored below ``folder``.

        Raises:
            BadDataError: files are missing or damaged, questions lack annotations, pictures lack regions, or regions or
                the answer list have another size than configured.
        """
        self.check()
        if self.path is None:
            if (self.boxes, self.width) != (Scenes.boxes, Scenes.width) or self.answer_count is not None:
                raise WrongUseError(
                    "data.path: expected the folder of VQA v2's questions and annotations; without it, generated "
                    f"scenes need data.boxes {Scenes.boxes}, data.width {Scenes.width} and data.answer_count none "
                    "(--preset quick)"
                )
            where = write_scenes(folder / "vqa", self.generated)
            try:
                for name in NAMES:
                    read_detector(where / name, verify=True)
                there = replace(self, path=str(where), regions=tuple(str(where / name) for name in NAMES))
                return there._read([read_detector(Path(each)) for each in there.regions])
            except BadDataError as error:
                raise BadDataError(f"generated files are damaged: delete {where} and run again ({error})") from error
        detectors = []
        for each in self.regions:
            with named_by("--data.regions", each, "a folder that seqarena prepare vqa features made") as regions:
                detectors.append(_read_verified(regions, folder / "vqa"))
        return self._read(detectors)

    def _read(self, detectors: Sequence[Detector]) -> VqaData:
        with named_by("--data.path", self.path or "", "a folder of VQA v2's questions and annotations") as path:
            theirs, test = (read_annotated(path, name) for name in ("train2014", "val2014"))
            pairs = find_file(path, PAIRS)
            complementary = [] if pairs is None else read_pairs(pairs)
        theirs = self._without_test_pictures(theirs, test)
        answers = self._answers([annotation for _, annotation in (*theirs, *test)])
        asked: dict[str, AnnotatedQuestions] = {**self._split_validation(theirs), "test": test}
        if self.visual_genome is not None:
            pictures = {question.picture for question, _ in asked["train"]}
            kind = "a folder with question_answers.json and image_data.json"
            with named_by("--data.visual-genome", self.visual_genome, kind) as folder:
                asked["train"] = [*asked["train"], *read_genome(folder, pictures, set(answers))]
        types = {name: sorted({getattr(said, name) for _, said in (*theirs, *test)} - {""}) for name in TYPES}
        cut = {name: [spelling.tokenize(question.text) for question, _ in some] for name, some in asked.items()}
        words = spelling.vocabulary(each for some in cut.values() for each in some)
        splits = {
            name: split_of(
                some, spelling.word_ids(cut[name], words, self.length), answers, types, detectors, self,
                complementary if name == "test" else [],
            )
            for name, some in asked.items()
        }  # fmt: skip
        if not any(split.people.any() for split in splits.values()):
            raise BadDataError(
                f"{self.answer_list}: expected answers that annotators gave, found none among {len(answers):,} entries"
            )
        if self.aligned:
            for split in splits.values():
                assert isinstance(split.views, DetectedViews)
                split.views.require_aligned()
        vectors, fc7 = self._initial_values(words)
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

    def _initial_values(self, words: Sequence[str]) -> tuple[Reals | None, list[Layer]]:
        """Returns the vectors of the words, if a file has them, and the detectors' last layers."""
        vectors, layers = None, []
        if self.glove is not None:
            with named_by("--data.glove", self.glove, "a text file of word vectors") as path:
                vectors = spelling.glove(path, words)
        for each in self.fc7:
            with named_by("--data.fc7", each, "an .npz with weight and bias of a detector's last layer") as path:
                layers.append(read_layer(path))
        return vectors, layers

    def _answers(self, annotations: Sequence[Annotation]) -> Sequence[str]:
        """Returns the answer list, read or built from annotations. Raises a ``BadDataError`` for another length."""
        if self.answer_list is not None:
            with named_by("--data.answer-list", self.answer_list, "a list of answers, as JSON or text") as path:
                found, where = read_answers(path), self.answer_list
        else:
            found = vocabulary(annotations, self.least)
            where = f"{self.path}: most frequent answers of at least {self.least} questions (data.least)"
        if not found:
            raise BadDataError(f"{where}: expected answers, found none; lower --data.least")
        if self.answer_count not in (None, len(found)):
            raise BadDataError(
                f"{where}: expected {self.answer_count:,} answers (data.answer_count), found {len(found):,}; "
                "--data.answer-count none accepts any number"
            )
        return found

    def _without_test_pictures(self, theirs: AnnotatedQuestions, test: AnnotatedQuestions) -> AnnotatedQuestions:
        """Removes the questions about test pictures from training, and prints their number.

        The official files share no pictures, but some published subsets of them do.
        """
        tested = {question.picture for question, _ in test}
        remaining = [each for each in theirs if each[0].picture not in tested]
        if len(remaining) < len(theirs):
            print(
                f"{self.path}: {len(theirs) - len(remaining):,} of {len(theirs):,} questions of train2014 are skipped: "
                "their pictures are in val2014, the test set",
                file=sys.stderr,
            )
        return remaining

    def _split_validation(self, asked: AnnotatedQuestions) -> dict[str, AnnotatedQuestions]:
        """Splits the questions into training and validation, by their pictures."""
        out = hash64(np.array([question.picture for question, _ in asked])) / 2.0**64 < self.held_out
        found = {
            "train": [each for each, is_out in zip(asked, out, strict=True) if not is_out],
            "validation": [each for each, is_out in zip(asked, out, strict=True) if is_out],
        }
        for name, some in found.items():
            if not some:
                raise BadDataError(
                    f"{self.path}: expected questions for {name}, none of the {len(asked):,} of train2014 remains; "
                    f"data.held_out is {self.held_out}"
                )
        return {**found}


def _read_verified(regions: Path, folder: Path) -> Detector:
    """Returns a detector's regions. Their checksums are compared once, and again whenever a file was changed.

    Comparing reads all features, so a file in ``folder`` records that it was done for this state of the files.
    """
    found = read_detector(regions)
    record = folder / f"verified-{origin(regions)}"
    if not record.exists():
        print(f"{regions}: comparing its checksum, which is done once", file=sys.stderr)
        read_detector(regions, verify=True)
        with contextlib.suppress(OSError):  # a folder that cannot be written: compared each time
            folder.mkdir(parents=True, exist_ok=True)
            record.touch()
    return found


def read_annotated(path: Path, name: str) -> AnnotatedQuestions:
    """Returns the questions of an official split, each with its annotation.

    Raises:
        BadDataError: files are missing, damaged, or do not match; or an annotation does not have ten answers.
    """
    files = [find_file(path, each.format(name)) for each in (QUESTIONS, ANNOTATIONS)]
    for file, each in zip(files, (QUESTIONS, ANNOTATIONS), strict=True):
        if file is None:
            raise BadDataError(
                f"{path}: expected {each.format(name)} in it, plain or as .gz; download it from visualqa.org"
            )
    asked = [file for file in files if file is not None]
    questions = read_questions(asked[0])
    annotations = match_annotations(questions, read_annotations(asked[1]), str(asked[1]))
    other = [each for each in annotations if len(each.answers) != PEOPLE]
    if other:
        raise BadDataError(f"{asked[1]}: expected {PEOPLE} answers to each question, found {len(other[0].answers)} to "
                           f"{other[0].id}")  # fmt: skip
    return list(zip(questions, annotations, strict=True))


def split_of(
    asked: AnnotatedQuestions, words: spelling.Numbers, answers: Sequence[str], types: Mapping[str, Sequence[str]],
    detectors: Sequence[Detector], config: Vqa2, pairs: Sequence[tuple[int, int]],
) -> Split:  # fmt: skip
    """Returns the split of annotated questions, with the regions of their pictures."""
    ids = np.array([question.id for question, _ in asked], dtype=np.int64)
    pictures, rows = np.unique([question.picture for question, _ in asked], return_inverse=True)
    options = options_of([said for _, said in asked], answers, normalized_targets=config.normalized_targets)
    index = {int(id): at for at, id in enumerate(ids)}
    both = [(index[one], index[other]) for one, other in pairs if one in index and other in index]
    return Split(
        ids=ids, words=words, pictures=rows.reshape(-1),
        options=options.places, people=options.people, scores=options.scores,
        views=make_views(detectors, pictures, boxes=config.boxes, width=config.width, missing=config.missing),
        parts={name: _part([getattr(said, name) for _, said in asked], names) for name, names in types.items()},
        groups={}, pairs=np.array(both, dtype=np.int64).reshape(-1, 2),
    )  # fmt: skip


def _part(each: Sequence[str], names: Sequence[str]) -> Part:
    index = {name: at for at, name in enumerate(names)}
    return Part(names=names, of=np.array([index.get(name, -1) for name in each]))

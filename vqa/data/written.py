"""Writes generated scenes in VQA v2's formats: JSON of questions and annotations, a folder of regions per detector."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from seqarena.common.data.prepared import report_outdated
from seqarena.common.errors import damage
from seqarena.common.files import new_folder, write_json
from seqarena.common.runs.sources import imported_by
from seqarena.vqa.data import Arrays, Split
from seqarena.vqa.data.published import ANNOTATIONS, QUESTIONS
from seqarena.vqa.data.scenes import ANSWERS, VERSION, Scenes, question_text
from seqarena.vqa.regions import PictureRegions, write

SIZE = (640, 480)
"""Width and height of a picture in pixels."""
EXTENT = 0.08
"""Half of a box's width and height, as a fraction of the picture's: large enough that boxes on one object overlap."""
NAMES = "ABC"
SOURCES = "sources.json"
WRITTEN = 2
"""Version of the written files."""
KINDS = {"material": ("other", "what material"), "shape": ("other", "what shape"), "there": ("yes/no", "is there")}
"""Type of answer and of question, for each kind of question."""


def write_scenes(folder: Path, scenes: int) -> Path:
    """Writes the files of ``scenes`` training scenes and a sixth as many test scenes, and returns their folder.

    A folder that is there is taken as it is: it is made whole or not at all. Where other sources made it than there are
    now, this is printed.

    Raises:
        BadDataError: the record of its sources is damaged.
    """
    where = folder / f"written-scenes-{VERSION}.{WRITTEN}-{scenes}"
    sources = imported_by(__name__)
    if where.exists():
        record = where / SOURCES
        with damage(where, "folder of generated scenes", "delete the folder and run again"):
            before = json.loads(record.read_bytes()) if record.exists() else None
        report_outdated(where, before, sources)
        return where
    print(f"writing generated scenes in VQA v2's formats, stored in {where}", file=sys.stderr)
    config = Scenes(scenes=scenes, held_out=max(scenes // 6, 4))
    with new_folder(where) as unfinished:
        if unfinished is not None:
            _write_split(unfinished, "train2014", 1, config.split(0, config.scenes))
            _write_split(unfinished, "val2014", 1 + config.scenes, config.split(1, config.held_out))
            write_json(unfinished / SOURCES, sources)
    return where


def _write_split(folder: Path, name: str, first: int, split: Split) -> None:
    """Writes the files of a split. Its pictures have ids from ``first``."""
    kind = split.parts["kind"]
    pictures = (first + split.pictures).tolist()
    ids = [1_000 * picture + number for picture, number in zip(pictures, kind.of.tolist(), strict=True)]
    head = {"info": {"description": "generated scenes in the format of VQA v2"}, "data_subtype": name}
    questions = [
        {"question_id": id, "image_id": picture, "question": question_text(words)}
        for id, picture, words in zip(ids, pictures, split.words.tolist(), strict=True)
    ]
    annotations = [
        {
            "question_id": id, "image_id": picture, "answer_type": KINDS[kind.names[of]][0],
            "question_type": KINDS[kind.names[of]][1],
            "multiple_choice_answer": ANSWERS[options[int(np.argmax(people))]],
            "answers": [
                {"answer_id": number, "answer": answer, "answer_confidence": "yes"}
                for number, answer in enumerate(_expand_answers(options, people), start=1)
            ],
        }
        for id, picture, of, options, people in zip(
            ids, pictures, kind.of.tolist(), split.options.tolist(), split.people.tolist(), strict=True
        )
    ]  # fmt: skip
    write_json(folder / QUESTIONS.format(name), {**head, "questions": questions})
    write_json(folder / ANNOTATIONS.format(name), {**head, "annotations": annotations})
    assert isinstance(split.views, Arrays)
    count, (_, boxes, width) = len(split.views.features), split.views.sizes
    for view, letter in enumerate(NAMES):
        write(
            folder / letter / name, _regions(split.views, view, first), detector=f"scenes {letter}", pictures=count,
            boxes=boxes, width=width, source="generated",
        )  # fmt: skip


def _expand_answers(options: list[int], people: list[int]) -> list[str]:
    return [ANSWERS[option] for option, count in zip(options, people, strict=True) for _ in range(count)]


def _regions(views: Arrays, view: int, first: int) -> Iterator[PictureRegions]:
    for picture in range(len(views.features)):
        middle = views.centres[picture, view].astype(np.float64)
        corners = np.concatenate([middle - EXTENT, middle + EXTENT], axis=1).clip(0, 1) * [*SIZE, *SIZE]
        yield PictureRegions(id=first + picture, size=SIZE, boxes=corners, features=views.features[picture, view])

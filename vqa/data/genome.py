"""Visual Genome's questions about VQA v2's training pictures, as additional training data (Pythia, MCAN)."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from seqarena.common.data.readers import member, read_json
from seqarena.common.errors import BadDataError
from seqarena.vqa.data import PEOPLE
from seqarena.vqa.data.published import Annotation, Question
from seqarena.vqa.official import normalize

FILES = ("question_answers.json", "image_data.json")


def read_genome(folder: Path, pictures: Collection[int], answers: Collection[str]) -> list[tuple[Question, Annotation]]:
    """Returns the questions about ``pictures`` whose normalised answer is in the answer list.

    The answer counts as given by all ten annotators. Half of Visual Genome's pictures are COCO's, including test
    pictures of VQA v2; therefore only ``pictures`` (COCO ids) are used.

    Raises:
        BadDataError: files are missing or in another format, or no question is about the pictures.
    """
    question_rows, picture_rows = (_rows(folder / name) for name in FILES)
    coco = {member(row, "image_id", int, where): row.get("coco_id") for where, row in picture_rows}
    found = []
    for where, row in question_rows:
        picture = coco.get(member(row, "id", int, where))
        if picture is None or picture not in pictures:
            continue
        for each in member(row, "qas", list, where):
            answer = normalize(member(each, "answer", str, where))
            if answer in answers:
                number = member(each, "qa_id", int, where)
                question = Question(id=number, picture=picture, text=member(each, "question", str, where))
                said = Annotation(
                    id=number, question_type="", answer_type="", common=answer, answers=(answer,) * PEOPLE
                )
                found.append((question, said))
    if not found:
        raise BadDataError(
            f"{folder}: expected questions about the training pictures with answers in the answer list, found none"
        )
    return found


def _rows(path: Path) -> list[tuple[str, Any]]:
    values = read_json(path)
    if not isinstance(values, list):
        raise BadDataError(f"{path}: expected Visual Genome's list of objects, found {type(values).__name__}")
    return [(f"{path}[{number}]", row) for number, row in enumerate(values)]

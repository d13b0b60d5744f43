"""Visual Genome's questions about pictures that VQA v2 trains on, as more to train on (Pythia, MCAN)."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from seqarena.common.data.readers import member, read_json
from seqarena.common.errors import BadDataError
from seqarena.vqa.data import PEOPLE
from seqarena.vqa.data.published import Annotation, Question
from seqarena.vqa.official import normalized

FILES = ("question_answers.json", "image_data.json")


def read_genome(folder: Path, pictures: Collection[int], answers: Collection[str]) -> list[tuple[Question, Annotation]]:
    """Returns the questions about some of COCO's pictures whose answer, normalised, is in the list; as all ten's.

    Half of Visual Genome's pictures are COCO's, some of which VQA v2 tests on: only ``pictures`` are taken.

    Raises:
        BadDataError: files that are missing or of another form, or no question about the pictures.
    """
    asked, known = (_rows(folder / name) for name in FILES)
    coco = {member(row, "image_id", int, where): row.get("coco_id") for where, row in known}
    found = []
    for where, row in asked:
        picture = coco.get(member(row, "id", int, where))
        if picture is None or picture not in pictures:
            continue
        for each in member(row, "qas", list, where):
            answer = normalized(member(each, "answer", str, where))
            if answer in answers:
                number = member(each, "qa_id", int, where)
                question = Question(id=number, picture=picture, text=member(each, "question", str, where))
                said = Annotation(
                    id=number, question_type="", answer_type="", common=answer, answers=(answer,) * PEOPLE
                )
                found.append((question, said))
    if not found:
        raise BadDataError(f"{folder}: no question about the pictures that are trained on, with an answer in the list")
    return found


def _rows(path: Path) -> list[tuple[str, Any]]:
    values = read_json(path)
    if not isinstance(values, list):
        raise BadDataError(f"{path}: expected Visual Genome's list of objects")
    return [(f"{path}[{number}]", row) for number, row in enumerate(values)]

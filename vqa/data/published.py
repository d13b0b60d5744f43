"""Readers of VQA v2's official files and of published answer lists; reader and writer of submissions."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqarena.common.data.readers import member, read_json, read_text
from seqarena.common.errors import BadDataError
from seqarena.common.files import write_atomically

QUESTIONS = "v2_OpenEnded_mscoco_{}_questions.json"
ANNOTATIONS = "v2_mscoco_{}_annotations.json"
PAIRS = "v2_mscoco_val2014_complementary_pairs.json"
"""Official file names. In QUESTIONS and ANNOTATIONS, {} is train2014 or val2014."""
UNKNOWN = "<unk>"
"""Entry of some answer lists for all answers that are not in the list. It is never predicted."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question about a picture."""

    id: int
    picture: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """Annotators' answers to a question."""

    id: int
    """Id of the question."""
    question_type: str
    """First words of the question, one of 65 types; empty if the file has none."""
    answer_type: str
    """yes/no, number or other; empty if the file has none."""
    common: str
    """The most frequent answer, as stated in the file."""
    answers: tuple[str, ...]
    picture: int | None = None
    """Id of the question's picture. None: not in the file."""


def find_file(folder: Path, name: str) -> Path | None:
    """Returns the path of a file in a folder, plain or compressed by gzip, or None if it does not exist.

    Raises:
        BadDataError: the folder does not exist.
    """
    if not folder.is_dir():
        raise BadDataError(
            f"{folder}: expected a folder of VQA v2's files, found {'a file' if folder.exists() else 'nothing'}"
        )
    return next((each for each in (folder / name, folder / f"{name}.gz") if each.exists()), None)


def read_questions(path: Path) -> list[Question]:
    """Returns the questions of an official file.

    Raises:
        BadDataError: the format is another one, a question lacks an id, picture or text, or an id is repeated.
    """
    rows = _rows(path, "questions")
    found = [
        Question(
            id=member(row, "question_id", int, where), picture=member(row, "image_id", int, where),
            text=member(row, "question", str, where),
        )
        for where, row in rows
    ]  # fmt: skip
    _require_different([each.id for each in found], path)
    return found


def read_annotations(path: Path) -> list[Annotation]:
    """Returns the annotations of an official file.

    Raises:
        BadDataError: the format is another one, an annotation lacks an id or answers, or a question has two.
    """
    found = []
    for where, row in _rows(path, "annotations"):
        answers = tuple(member(each, "answer", str, where) for each in member(row, "answers", list, where))
        if not answers:
            raise BadDataError(f"{where}: expected answers, found none")
        types = [member(row, name, str, where) if name in row else "" for name in ("question_type", "answer_type")]
        common = member(row, "multiple_choice_answer", str, where) if "multiple_choice_answer" in row else ""
        found.append(
            Annotation(
                id=member(row, "question_id", int, where), question_type=types[0], answer_type=types[1],
                answers=answers, common=common or max(answers, key=answers.count),
                picture=member(row, "image_id", int, where) if "image_id" in row else None,
            )
        )  # fmt: skip
    _require_different([each.id for each in found], path)
    return found


def _rows(path: Path, name: str) -> list[tuple[str, Any]]:
    values = read_json(path)
    rows = values.get(name) if isinstance(values, dict) else None
    if not isinstance(rows, list) or not rows:
        raise BadDataError(f"{path}: expected VQA's format {{{name!r}: [...]}} with entries, found none")
    return [(f"{path}, {name}[{number}]", row) for number, row in enumerate(rows)]


def _require_different(ids: Sequence[int], path: Path) -> None:
    twice = [each for each, count in Counter(ids).items() if count > 1]
    if twice:
        raise BadDataError(f"{path}: expected distinct question ids, found {twice[0]} twice")


def match_annotations(questions: Sequence[Question], annotations: Sequence[Annotation], where: str) -> list[Annotation]:
    """Returns the annotation of each question, in the order of the questions.

    Raises:
        BadDataError: a question has no annotation, or one about another picture. The message has the number of
            questions and an example.
    """
    by_id = {each.id: each for each in annotations}
    missing = [each.id for each in questions if each.id not in by_id]
    if missing:
        raise BadDataError(
            f"{where}: expected an annotation for every question, {len(missing):,} have none, such as {missing[0]}"
        )
    found = [by_id[each.id] for each in questions]
    other = [each.id for each, said in zip(questions, found, strict=True) if said.picture not in (None, each.picture)]
    if other:
        raise BadDataError(
            f"{where}: expected annotations with their question's picture, {len(other):,} have another, such as that "
            f"of question {other[0]}"
        )
    return found


def read_submission(path: Path) -> dict[int, str]:
    """Returns the answers of a submission: a JSON list of {question_id, answer}.

    Raises:
        BadDataError: the format is another one, or a question has two answers.
    """
    rows = read_json(path)
    if not isinstance(rows, list):
        raise BadDataError(f"{path}: expected a list of {{question_id, answer}}, found {type(rows).__name__}")
    located = [(f"{path}[{number}]", row) for number, row in enumerate(rows)]
    answers = [(member(row, "question_id", int, where), member(row, "answer", str, where)) for where, row in located]
    _require_different([each for each, _ in answers], path)
    return dict(answers)


def write_submission(path: Path, answers: Mapping[int, str], ids: Sequence[int]) -> None:
    """Writes answers in the format of VQA's server: a JSON list of {question_id, answer}, written atomically.

    Raises:
        BadDataError: see ``require_complete``.
    """
    require_complete(answers, ids, str(path))
    rows = [{"question_id": each, "answer": answers[each]} for each in ids]
    write_atomically(path, lambda file: file.write(json.dumps(rows).encode()))


def require_complete(answers: Mapping[int, str], questions: Sequence[int], where: str) -> None:
    """Raises a ``BadDataError`` unless there is exactly one answer per question id, and none is ``UNKNOWN``."""
    ids = set(questions)
    missing, more = ids - set(answers), set(answers) - ids
    if missing or more:
        parts = [f"{len(missing):,} have none, such as {min(missing)}"] if missing else []
        parts += [f"{len(more):,} are of other questions, such as {min(more)}"] if more else []
        raise BadDataError(f"{where}: expected an answer to each of {len(ids):,} questions; {' and '.join(parts)}")
    unknown = [each for each, answer in answers.items() if answer == UNKNOWN]
    if unknown:
        raise BadDataError(
            f"{where}: expected answers, found {UNKNOWN} for {len(unknown):,} questions, such as {unknown[0]}"
        )


def read_pairs(path: Path) -> list[tuple[int, int]]:
    """Returns the complementary pairs of an official file: the same question about two pictures.

    Raises:
        BadDataError: the format is another one.
    """
    rows = read_json(path)
    if not isinstance(rows, list) or not all(
        isinstance(row, list) and len(row) == 2 and all(isinstance(each, int) for each in row) for row in rows
    ):
        raise BadDataError(f"{path}: expected a list of pairs of question ids")
    return [(row[0], row[1]) for row in rows]


def read_answers(path: Path) -> list[str]:
    """Returns an answer list: JSON (a list, or answer -> index) or text with one answer per line; never a pickle.

    Raises:
        BadDataError: the file is a pickle or of another format, or an answer is repeated.
    """
    if path.suffix in (".pkl", ".pickle", ".pth", ".pt"):
        raise BadDataError(f"{path}: expected JSON or text; pickles may run code and are not read, convert it to JSON")
    found = read_json(path) if path.name.split(".")[-1] == "json" else read_text(path).splitlines()
    if isinstance(found, dict):
        indices = sorted(found.values()) if all(isinstance(each, int) for each in found.values()) else []
        if indices != list(range(len(found))):
            raise BadDataError(f"{path}: expected answer -> index, from 0 to {len(found) - 1}, each once")
        found = sorted(found, key=found.__getitem__)
    if not isinstance(found, list) or not found or not all(isinstance(each, str) for each in found):
        raise BadDataError(f"{path}: expected a list of answers, or answer -> index")
    if len(set(found)) < len(found):
        raise BadDataError(f"{path}: expected distinct answers, found {max(found, key=found.count)!r} twice")
    return found

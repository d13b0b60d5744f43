"""Trainings behind a figure, each kept when it ends: an interrupted figure goes on, one drawn again trains nothing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from common.checkpoint import write_atomically
from common.config import fingerprint, from_json, to_json
from common.errors import BadDataError

Course = TypeVar("Course")


def kept(folder: Path, name: str, trial: object, kind: type[Course], train: Callable[[], Course]) -> Course:
    """Returns how the training of ``trial`` went: as an earlier call kept it, else by ``train``.

    Args:
        folder: Of the trainings; what is in it was trained by the code of its time: deleted, all is trained anew.
        name: Of the experiment, for a person who looks into the folder.
        trial: A config that says all that the training depends on, its data included.
        kind: The dataclass, of plain values, that says how it went.
        train: Trains.

    Raises:
        BadDataError: a file there is not what was kept.
    """
    path = folder / f"{name}-{fingerprint(trial)}.json"
    if path.exists():
        try:
            found = json.loads(path.read_text())
            if found["trial"] != to_json(trial):
                raise ValueError("it is of another training")
            return from_json(kind, found["course"])
        except (ValueError, KeyError, TypeError) as error:
            raise BadDataError(f"{path} is damaged ({error}); delete it, and it is trained again") from error
    course = train()
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"trial": to_json(trial), "course": to_json(course)})  # NaN, where it diverged, is read back
    write_atomically(path, lambda file: file.write(text.encode()))
    return course

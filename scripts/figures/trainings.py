"""Trainings behind a figure, each kept when it ends: an interrupted figure goes on, one drawn again trains nothing."""

import hashlib
import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from seqarena.common.errors import BadDataError
from seqarena.common.files import write_atomically
from seqarena.common.runs.config import fingerprint, from_json, to_json
from seqarena.scripts.figures.drawing import Line

Course = TypeVar("Course")


def kept(folder: Path, name: str, trial: object, kind: type[Course], train: Callable[[], Course]) -> Course:
    """Returns how the training of ``trial`` went: as an earlier call kept it, else by ``train``.

    Args:
        folder: Of the trainings; what is in it was trained by the code of its time: deleted, all is trained anew.
        name: Of the experiment and its version, raised whenever the same trial would go otherwise.
        trial: A config that says what else the training depends on, its data included.
        kind: The dataclass, of plain values, that says how it went.
        train: Trains.

    Raises:
        BadDataError: a file there is not what was kept.
    """
    path = folder / f"{name}-{fingerprint(trial)}.json"
    if path.exists():
        try:
            found = json.loads(path.read_bytes())
            if found["trial"] != to_json(trial) or found["sha256"] != _digest(found["course"]):
                raise ValueError("its checksum is another")
            return from_json(kind, found["course"])
        except (ValueError, KeyError, TypeError) as error:
            raise BadDataError(f"{path} is damaged ({error}); delete it, and it is trained again") from error
    course = to_json(train())
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"trial": to_json(trial), "sha256": _digest(course), "course": course})
    write_atomically(path, lambda file: file.write(text.encode()))
    return from_json(kind, course)  # as it will be read


def _digest(course: object) -> str:
    return hashlib.sha256(json.dumps(course, sort_keys=True).encode()).hexdigest()  # NaN, where it diverged, is a word


def end_of(losses: Sequence[float]) -> float:
    """Returns the mean of the last tenth; infinite where training broke off at a loss that is no number."""
    if not math.isfinite(losses[-1]):
        return math.inf
    return statistics.fmean(losses[-max(len(losses) // 10, 1) :])


def curve(label: str, seeds: Sequence[Sequence[float]]) -> Line:
    """Returns losses as a line: the mean of the seeds, over every fortieth of the steps that all of them took."""
    steps = min(len(each) - (not math.isfinite(each[-1])) for each in seeds)
    width = max(steps // 40, 1)
    mean = [statistics.fmean(each[at] for each in seeds) for at in range(steps)]
    ends = range(width, steps + 1, width)
    return Line(label=label, x=list(ends), y=[statistics.fmean(mean[end - width : end]) for end in ends])

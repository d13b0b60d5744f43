"""Cache of trainings for figures: interrupted figures resume, and redrawn figures train nothing."""

import hashlib
import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from seqarena.common.errors import BadDataError
from seqarena.common.files import write_atomically
from seqarena.common.runs.config import fingerprint, from_json, to_json
from seqarena.scripts.figures.drawing import Line

TrainingRecord = TypeVar("TrainingRecord")


def cached(
    folder: Path, name: str, trial: object, kind: type[TrainingRecord], train: Callable[[], TrainingRecord]
) -> TrainingRecord:
    """Returns the record of a training from the cache, or trains and stores it.

    Args:
        folder: Folder of the cache. Records do not depend on the code version; delete the folder to train again.
        name: Name of the experiment and its version, raised whenever the same trial would give another result.
        trial: Config of everything else that the training depends on, its data included.
        kind: Class of the record, a dataclass of JSON values.
        train: Function that trains and returns the record.

    Raises:
        BadDataError: a damaged file in the cache.
    """
    path = folder / f"{name}-{fingerprint(trial)}.json"
    if path.exists():
        try:
            found = json.loads(path.read_bytes())
            if found["trial"] != to_json(trial) or found["sha256"] != _digest(found["course"]):
                raise ValueError("its checksum does not match")
            return from_json(kind, found["course"])
        except (ValueError, KeyError, TypeError) as error:
            raise BadDataError(f"{path} is damaged ({error}); delete it to train again") from error
    course = _rounded(to_json(train()))
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"trial": to_json(trial), "sha256": _digest(course), "course": course})
    write_atomically(path, lambda file: file.write(text.encode()))
    return from_json(kind, course)  # equal to a record read from the cache


def _rounded(value: Any) -> Any:
    """Returns JSON values with six significant digits, more than a figure shows. Records are then half as long."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _digest(course: object) -> str:
    return hashlib.sha256(json.dumps(course, sort_keys=True).encode()).hexdigest()  # json writes NaN as a word


def end_of(losses: Sequence[float]) -> float:
    """Returns the mean of the last tenth; infinite if the last loss is not finite."""
    if not math.isfinite(losses[-1]):
        return math.inf
    return statistics.fmean(losses[-max(len(losses) // 10, 1) :])


def curve(label: str, seeds: Sequence[Sequence[float]]) -> Line:
    """Returns the mean loss over seeds as a line of about 40 points, up to the last step that all seeds took."""
    steps = min(len(each) - (not math.isfinite(each[-1])) for each in seeds)
    width = max(steps // 40, 1)
    mean = [statistics.fmean(each[at] for each in seeds) for at in range(steps)]
    ends = range(width, steps + 1, width)
    return Line(label=label, x=list(ends), y=[statistics.fmean(mean[end - width : end]) for end in ends])

"""A run that was trained, read back from its directory: what it was, and the weights that were chosen."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch import nn

from common.checkpoint import load_weights, read_json
from common.config import from_json
from common.errors import BadDataError, WrongUseError
from common.restart import chosen_weights
from common.results import Result
from common.run import BaseRun

Run = TypeVar("Run", bound=BaseRun)


@dataclass(frozen=True, kw_only=True)
class TrainedRun(Generic[Run]):
    """A directory's run and what became of it."""

    folder: Path
    run: Run
    step: int
    """The step whose weights were chosen."""
    data_checksum: str
    """Of the data that it was trained on."""
    is_finished: bool

    def load(self, model: nn.Module) -> None:
        """Gives a model the chosen weights.

        Raises:
            BadDataError: weights that are missing or damaged, or of another model.
        """
        load_weights(chosen_weights(self.folder / "checkpoint", self.step), model)


def read_trained(
    folder: Path, kind: type[Run], package: str, tasks: Collection[str], *, unfinished: bool = False
) -> TrainedRun[Run]:
    """Returns the run in a directory, one of these tasks.

    ``unfinished``: also one that was interrupted or diverged, by the weights that were chosen so far.

    Raises:
        WrongUseError: no run, one of another task, one that is not finished or diverged.
        BadDataError: a run or result that is damaged, or of another version.
    """
    wanted = f"{folder}: expected the directory of a {'' if unfinished else 'finished '}run of {' or '.join(tasks)}"
    result = Result.read(folder)
    values = _begun(folder, wanted) if result is None else result.run
    task = values.get("task") if isinstance(values, dict) else None
    if task not in tasks or (result is not None and result.package != package):
        raise WrongUseError(f"{wanted}, found one of {task}")
    try:
        run = from_json(kind, values)
    except (ValueError, TypeError) as error:
        raise BadDataError(f"{folder}: not a run of this version ({error})") from error
    if result is None or (unfinished and result.status != "finished"):
        return _unfinished(folder, run, wanted, allowed=unfinished)
    if result.status != "finished":
        raise WrongUseError(f"{wanted}; this one {result.status}: {result.message}")
    return TrainedRun(
        folder=folder, run=run, step=result.chosen_step, data_checksum=result.data_checksum, is_finished=True
    )


def _begun(folder: Path, wanted: str) -> Any:
    """Returns what is in the directory's ``run.json``."""
    try:
        return read_json(folder / "run.json")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise WrongUseError(f"{wanted}; there is no run in it") from error
    except (OSError, ValueError) as error:
        raise BadDataError(f"{folder / 'run.json'}: not readable ({error})") from error


def _unfinished(folder: Path, run: Run, wanted: str, *, allowed: bool) -> TrainedRun[Run]:
    weights = sorted((folder / "checkpoint").glob("chosen-*.safetensors"))
    if not allowed:
        raise WrongUseError(f"{wanted}; this one is not finished: the command that began it goes on with it")
    if not weights:
        raise WrongUseError(f"{wanted}; there are no weights yet, they come with the first evaluation")
    try:
        checksum = str(read_json(folder / "checkpoint" / "data.json")["sha256"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadDataError(f"{folder / 'checkpoint' / 'data.json'}: not readable ({error})") from error
    step = int(weights[-1].stem.split("-")[1])
    return TrainedRun(folder=folder, run=run, step=step, data_checksum=checksum, is_finished=False)

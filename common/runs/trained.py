"""A trained run, read back from its directory with its chosen weights."""

import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch import nn

from seqarena.common.errors import BadDataError, WrongUseError, short_list
from seqarena.common.files import read_strict_json
from seqarena.common.runs.config import from_json
from seqarena.common.runs.external import external_modules, import_code
from seqarena.common.runs.fields import set_fields
from seqarena.common.runs.inputs import sources_in
from seqarena.common.runs.named import changed_fields
from seqarena.common.runs.results import Result
from seqarena.common.runs.run import BaseRun
from seqarena.common.runs.sources import changed_sources, imported_by, model_sources
from seqarena.common.training.checkpoint import load_weights
from seqarena.common.training.restart import chosen_weights

Run = TypeVar("Run", bound=BaseRun)


@dataclass(frozen=True, kw_only=True)
class TrainedRun(Generic[Run]):
    """The run of a directory, and the outcome of its training."""

    folder: Path
    run: Run
    step: int
    """The step whose weights were chosen."""
    data_checksum: str
    """Checksum of the data that it was trained on."""
    is_finished: bool

    def load(self, model: nn.Module) -> None:
        """Loads the chosen weights into a model.

        Raises:
            BadDataError: weights that are missing or damaged, or of another model.
        """
        load_weights(chosen_weights(self.folder / "checkpoint", self.step), model)


def read_trained(
    folder: Path,
    kind: type[Run],
    package: str,
    tasks: Collection[str],
    *,
    code: Iterable[str] = (),
    unfinished: bool = False,
) -> TrainedRun[Run]:
    """Returns the run in a directory, which must be of one of these tasks.

    ``code``: files or modules of the run's external variants, as for ``import_code``.
    ``unfinished``: also accepts an interrupted or diverged run, with the weights chosen so far.

    Raises:
        WrongUseError: no run, one of another task, one that is not finished or diverged, or one whose external variant
            has changed.
        BadDataError: a damaged run or result, or one of another version.
    """
    import_code(code)
    wanted = f"{folder}: expected the directory of a {'' if unfinished else 'finished '}run of {' or '.join(tasks)}"
    result = Result.read(folder)
    values = _begun(folder, wanted) if result is None else result.run
    task = values.get("task") if isinstance(values, dict) else None
    if task not in tasks or (result is not None and result.package != package):
        raise WrongUseError(f"{wanted}, found one of {task}")
    try:
        run = from_json(kind, values)
    except (ValueError, TypeError) as error:
        raise BadDataError(f"{folder}: not a run that can be read here ({error})") from error
    _require_same_code(folder, run)
    if result is None or (unfinished and result.status != "finished"):
        return _unfinished(folder, run, wanted, allowed=unfinished)
    if result.status != "finished":
        raise WrongUseError(f"{wanted}; this one {result.status}: {result.message}")
    return TrainedRun(
        folder=folder, run=run, step=result.chosen_step, data_checksum=result.data_checksum, is_finished=True
    )


def _require_same_code(folder: Path, run: BaseRun) -> None:
    """Compares the code with that which trained the run.

    Prints the files of its model that changed; raises a ``WrongUseError`` if they are of an external variant.
    """
    before = sources_in(folder) or {}
    for module in external_modules(run):
        now = imported_by(module)
        common = {path for path in before.keys() & now.keys() if "/" not in path}  # the files outside the project
        changed = [path for path in changed_sources(before, now) if path in common]
        if changed:
            raise WrongUseError(
                f"{folder}: {short_list(changed)} changed since this run was trained; restore it, or train again"
            )
    model = model_sources(run)
    changed = sorted(path for path in before.keys() & model.keys() if before[path] != model[path])
    if changed:
        print(
            f"{folder}: {short_list(changed)} changed since this run was trained; its weights are used with the "
            "present version",
            file=sys.stderr,
        )


def changed_run(run: Run, fields: Sequence[str], free: tuple[str, ...], prog: str) -> Run:
    """Returns a trained run with typed fields set, which must begin with one of the paths in ``free``.

    Raises:
        WrongUseError: no such field, an invalid value, or a field that cannot change after training.
    """
    found = set_fields(run, fields, prog)
    assert isinstance(found, type(run))
    others = [path for path in changed_fields(run, found) if not path.startswith(free)]
    if others:
        raise WrongUseError(
            f"{', '.join(others)}: fixed when the run was trained; here only {' '.join(free)} can be set"
        )
    found.check()
    return found


def require_empty(folder: Path) -> None:
    """Raises a ``WrongUseError`` if the output folder for predictions is not empty, or is a file."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WrongUseError(f"--out {folder}: expected a folder that is empty or not there yet")


def _begun(folder: Path, wanted: str) -> Any:
    """Returns the content of the directory's ``run.json``."""
    try:
        return read_strict_json(folder / "run.json")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise WrongUseError(f"{wanted}; it contains no run") from error
    except (OSError, ValueError) as error:
        raise BadDataError(f"{folder / 'run.json'}: not readable ({error})") from error


def _unfinished(folder: Path, run: Run, wanted: str, *, allowed: bool) -> TrainedRun[Run]:
    weights = sorted((folder / "checkpoint").glob("chosen-*.safetensors"))
    if not allowed:
        raise WrongUseError(f"{wanted}; this one is not finished; repeat the command that began it to resume it")
    if not weights:
        raise WrongUseError(f"{wanted}; there are no weights yet; the first evaluation writes them")
    try:
        checksum = str(read_strict_json(folder / "checkpoint" / "data.json")["sha256"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadDataError(f"{folder / 'checkpoint' / 'data.json'}: not readable ({error})") from error
    step = int(weights[-1].stem.split("-")[1])
    return TrainedRun(folder=folder, run=run, step=step, data_checksum=checksum, is_finished=False)

"""Runs and tables from Python, for notebooks: the typed configs, run folders and results of the commands."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from seqarena.common.attention import AttentionConfig, attention_name, find_attention
from seqarena.common.errors import WrongUseError
from seqarena.common.runs.cli import build_run
from seqarena.common.runs.named import changed_fields
from seqarena.common.runs.results import Result
from seqarena.common.runs.run import BaseRun
from seqarena.common.runs.session import Session, execute
from seqarena.common.runs.sources import read_again
from seqarena.scripts.leaderboard import BASELINE
from seqarena.scripts.leaderboard.output import load_tables, plain_rows
from seqarena.scripts.packages import find_package


def build(
    package: str,
    task: str,
    *,
    attention: str | AttentionConfig | None = None,
    norm: str | None = None,
    preset: str | None = None,
    seed: int = 0,
    fields: Mapping[str, Any] = MappingProxyType({}),
) -> BaseRun:
    """Returns the run that a command describes, a frozen dataclass. It is checked, and nothing is loaded.

    Args:
        package: Package of the task, such as ``lra``.
        task: Name of the task in the package.
        attention: Name or config of the variant. None, here and below: the preset's.
        norm: Name of the block normalisation.
        preset: Name of the preset that the run starts from; None: quick.
        seed: Seed of initial values, data order and dropout.
        fields: Path of a field -> its value, as in ``{"train.steps": 200}``.

    Raises:
        WrongUseError: an unknown name or field, or a run that cannot work.
    """
    if isinstance(attention, AttentionConfig):
        name = attention_name(attention).partition("[")[0]
        changes = changed_fields(find_attention(name), attention)
        fields = {f"model.attention.{path}": value for path, (_, value) in changes.items()} | dict(fields)
        attention = name
    arguments = [word for path, value in fields.items() for word in (f"--{path}", *_words(value))]
    return build_run(
        find_package(package), task, preset, attention, norm, seed, arguments, f"seqarena {package} {task}"
    )


def measure(run: BaseRun, *, runs: str | Path = "runs", data: str | Path = "data", overwrite: bool = False) -> Result:
    """Trains and evaluates a run, or returns its result if it is finished. An interrupted run is resumed.

    ``runs`` and ``data`` are the folders of run directories and of prepared data.

    Raises:
        WrongUseError: an invalid run, another process measures it, or a source was edited since Python began: start
            the kernel again.
        BadDataError: missing or damaged data.
    """
    if not isinstance(run, BaseRun):
        raise WrongUseError(f"expected a run, as build returns it; found {run!r}")
    read_again()
    package = find_package(type(run).__module__.split(".")[1])
    session = Session(
        runs=Path(runs), data=Path(data), overwrite=overwrite, command="seqarena.scripts.notebook.measure"
    )
    return execute(package, run, session)


def rows(runs: str | Path = "runs", *, baseline: str = BASELINE) -> list[dict[str, Any]]:
    """Returns every row of the leaderboard of a folder, as numbers: ``pandas.DataFrame(rows())``.

    Scores are fractions or nats. Files that cannot be read are named on standard error.

    Raises:
        WrongUseError: the folder does not exist or has no results.
    """
    return plain_rows(load_tables(Path(runs), baseline))


def _words(value: Any) -> list[str]:
    """Returns a field's value as the command line writes it."""
    if isinstance(value, tuple | list):
        return [word for each in value for word in _words(each)]
    return ["none"] if value is None else [str(value)]

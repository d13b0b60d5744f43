"""One run of a sweep: its place, the command that makes it alone, and how another process is told of it."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.runs.config import from_json, to_json
from seqarena.common.runs.folder import outdated_sources, run_folder
from seqarena.common.runs.package import Package
from seqarena.common.runs.results import Result
from seqarena.common.runs.roles import CONFIG_VERSION
from seqarena.common.runs.run import BaseRun, changed_from, row_name, row_of
from seqarena.common.runs.session import Session, execute
from seqarena.common.runs.sources import Sources, changed_sources, short_list
from seqarena.scripts.packages import find_package

IN_USE = 3
"""Exit code of a worker whose run another process holds."""
HELD = "another sweep or command is running it"
"""Reason that is printed for such a run."""


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run of a sweep, and the command that makes it alone."""

    package: Package
    run: BaseRun
    session: Session

    @property
    def folder(self) -> Path:
        """The directory the run will be in."""
        return run_folder(self.run, self.package.name, self.session.runs, self.sources)

    @property
    def sources(self) -> Sources:
        """The sources that it will be measured by."""
        return self.package.sources(self.run)

    @property
    def title(self) -> str:
        """Name for people."""
        return f"{self.run.task} {row_name(row_of(self.run, self.package.preset(self.run)))} seed {self.run.seed}"

    def entry(self) -> dict[str, Any]:
        """Returns what the saved plan says of this run, enough to show it as missing."""
        preset = self.package.preset(self.run)
        changes = changed_from(preset, self.run)
        return {
            "folder": str(self.folder.relative_to(self.session.runs)),
            "package": self.package.name,
            "task": self.run.task,
            "preset": self.run.preset,
            "changed": {path: [to_json(old), to_json(new)] for path, (old, new) in changes.items()},
            "run": to_json(self.run),
            "config_version": CONFIG_VERSION,
            "row": row_of(self.run, preset),
            "seed": self.run.seed,
            "command": self.session.command,
        }

    def result(self) -> Result | None:
        """Returns the result that is there; none where there is none that can be read."""
        try:
            return Result.read(self.folder)
        except BadDataError:  # the run itself says what is wrong with it
            return None

    def finished(self) -> Result | None:
        """Returns the result that is there and is not to be made anew."""
        return None if self.session.overwrite else self.result()

    def reason(self) -> str:
        """Returns why there is something to measure: ``new``, or which sources changed; empty: it is finished."""
        if self.finished() is not None:
            return ""
        if self.session.overwrite:
            return "--overwrite"
        if (self.folder / "checkpoint" / "last.pt").exists():
            return "goes on from its last checkpoint"
        changed = outdated_sources(self.folder, self.sources)
        return f"{changed} changed" if changed else "new"

    def measure(self) -> Result:
        """Runs it, or returns its result if it is finished."""
        return execute(self.package, self.run, self.session)

    def described(self) -> dict[str, Any]:
        """Returns plain values from which ``from_description`` makes the same on another machine: paths are whole."""
        session = self.session
        return {
            "package": self.package.name,
            "run": to_json(self.run),
            "sources": dict(self.sources),
            "session": dataclasses.asdict(session)
            | {"runs": str(session.runs.absolute()), "data": str(session.data.absolute())},
        }


def from_description(values: Mapping[str, Any]) -> PlannedRun:
    """Returns the run that ``described`` told of.

    Raises:
        WrongUseError: of another version of seqarena, or by other sources than the sweep's.
    """
    package = find_package(values["package"])
    told = values["session"]
    session = Session(
        **told | {name: Path(told[name]) for name in ("runs", "data")} | {"trackers": tuple(told["trackers"])}
    )
    try:
        kind = type(package.presets[values["run"]["task"]][values["run"]["preset"]].run)
        made = PlannedRun(package=package, run=from_json(kind, values["run"]), session=session)
    except (KeyError, ValueError) as error:
        raise WrongUseError(f"not a run of this version of seqarena: {error}") from error
    changed = changed_sources(values["sources"], made.sources)
    if changed:
        raise WrongUseError(
            f"other sources here than where the sweep began ({short_list(changed)}); install the same on all machines, "
            "and type the sweep again where a file was edited meanwhile"
        )
    return made

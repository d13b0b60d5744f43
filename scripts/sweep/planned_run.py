"""One run of a sweep: its directory, the command that runs it alone, and its description for another process."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqarena.common.errors import BadDataError, WrongUseError, short_list
from seqarena.common.runs.config import from_json, to_json
from seqarena.common.runs.external import external_modules, import_code, location_of
from seqarena.common.runs.folder import outdated_sources, run_folder
from seqarena.common.runs.inputs import has_same_files
from seqarena.common.runs.package import Package
from seqarena.common.runs.results import RESULT, TRIAL, Result
from seqarena.common.runs.roles import CONFIG_VERSION
from seqarena.common.runs.run import BaseRun, changed_from, row_name, row_of
from seqarena.common.runs.session import Session, execute
from seqarena.common.runs.sources import Sources, changed_sources
from seqarena.scripts.packages import find_package

IN_USE = 3
"""Exit code of a worker whose run is in use by another process."""
HELD = "another sweep or command is running it"
"""Reason printed for a run in use."""


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run of a sweep, and the session that would run it alone."""

    package: Package
    run: BaseRun
    session: Session
    tuned: str = ""
    """Values of the tuned fields, for messages."""

    @property
    def folder(self) -> Path:
        """Directory of the run."""
        return run_folder(self.run, self.package.name, self.session.runs, self.sources)

    @property
    def sources(self) -> Sources:
        """Source files that the run's numbers depend on, with hashes."""
        return self.package.sources(self.run)

    @property
    def title(self) -> str:
        """Name of the run in tables and messages."""
        name = row_name(row_of(self.run, self.package.preset(self.run)))
        return f"{self.run.task} {name} seed {self.run.seed}{self.tuned and f' ({self.tuned})'}"

    def entry(self) -> dict[str, Any]:
        """Returns the run's entry in the saved plan, enough to show it as missing."""
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

    @property
    def result_path(self) -> Path:
        """File of the result, or of the trial."""
        return self.folder / (TRIAL if self.session.validate_only else RESULT)

    def result(self) -> Result | None:
        """Returns the stored result; for a trial, that of the trial or of the tested run. None if it is unreadable."""
        try:
            return Result.read_finished(self.folder, validate_only=self.session.validate_only)[1]
        except BadDataError:  # reported when the run is started
            return None

    def finished(self) -> Result | None:
        """Returns the stored result, unless it is to be overwritten or its data files have changed."""
        is_current = not self.session.overwrite and has_same_files(self.folder, self.run)
        return self.result() if is_current else None

    def reason(self) -> str:
        """Returns why the run will be measured: ``no result yet``, or the changed sources; empty if it is finished."""
        if self.finished() is not None:
            return ""
        if self.session.overwrite:
            return "--overwrite"
        if self.result() is not None:
            return "its data files changed; their content is compared when it runs"
        if (self.folder / "checkpoint" / "last.pt").exists():
            return "resumes from its last checkpoint"
        changed = outdated_sources(self.folder, self.sources)
        return f"{changed} changed" if changed else "no result yet"

    def measure(self) -> Result:
        """Runs it, or returns its result if it is finished."""
        return execute(self.package, self.run, self.session)

    def description(self) -> dict[str, Any]:
        """Returns JSON values for ``from_description`` on another machine; paths are absolute."""
        session = self.session
        return {
            "package": self.package.name,
            "run": to_json(self.run),
            "sources": dict(self.sources),
            "code": sorted(map(location_of, external_modules(self.run))),
            "session": dataclasses.asdict(session)
            | {"runs": str(session.runs.absolute()), "data": str(session.data.absolute())},
        }


def from_description(values: Mapping[str, Any]) -> PlannedRun:
    """Returns the run of a description from ``description``.

    Raises:
        WrongUseError: the description is of another version of seqarena, the code of an external variant is missing
            here, or the sources differ from the sweep's.
    """
    package = find_package(values["package"])
    session_values = values["session"]
    session = Session(
        **session_values
        | {name: Path(session_values[name]) for name in ("runs", "data")}
        | {"trackers": tuple(session_values["trackers"])}
    )
    import_code(values["code"])
    try:
        kind = type(package.presets[values["run"]["task"]][values["run"]["preset"]].run)
        made = PlannedRun(package=package, run=from_json(kind, values["run"]), session=session)
    except (KeyError, ValueError) as error:
        raise WrongUseError(f"not a run of this version of seqarena: {error}") from error
    changed = changed_sources(values["sources"], made.sources)
    if changed:
        raise WrongUseError(
            f"the sources here differ from the sweep's ({short_list(changed)}); install the same version on all "
            "machines, and start the sweep again if a file was edited meanwhile"
        )
    return made

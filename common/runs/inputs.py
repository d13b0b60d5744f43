"""Records the data and weights that a run begins with, and compares them when the run is resumed or requested again."""

import contextlib
import functools
import hashlib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from seqarena.common.data.prepared import origin
from seqarena.common.errors import BadDataError
from seqarena.common.files import read_strict_json, write_json
from seqarena.common.model.bert.checkpoint import folder_of, weights_checksum
from seqarena.common.runs.config import field_paths, fingerprint
from seqarena.common.runs.roles import LOCATIONS, Role, role_at, role_of
from seqarena.common.runs.run import BaseRun
from seqarena.common.runs.sources import digest

SOURCES = "sources.json"
"""File of a run's directory with the hashes of its sources."""
DATA = "data.json"
"""File of a run's ``checkpoint`` with the sha256 of its data, the state of the files that they were read from, and the
hashes of its run and its sources."""
WEIGHTS = "weights.json"
"""File of a run's ``checkpoint`` with the sha256 of the weights that it started from."""

EXTRA = "extra.json"
"""File of a run's ``checkpoint`` with the sha256 of each file that is scored but not compared."""


def run_in(folder: Path) -> Any:
    """Returns the JSON of the run in a directory; None: there is none, or it is unreadable."""
    try:
        return read_strict_json(folder / "run.json")
    except (OSError, ValueError):
        return None


def sources_in(folder: Path) -> dict[str, str] | None:
    """Returns the hashes of the sources recorded in a directory; None: there are none, or they are unreadable."""
    try:
        values = read_strict_json(folder / SOURCES)
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None


def recorded_checksum(folder: Path) -> str | None:
    """Returns the checksum of the data that a run began on."""
    path = folder / "checkpoint" / DATA
    try:
        return str(read_strict_json(path)["sha256"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise BadDataError(f"{path} is damaged ({error}); delete {folder} to start this run again") from error


class Inputs(NamedTuple):
    """State of the files that a run reads. To be taken before they are read.

    A file that is edited while it is read then has another state afterwards, and not the state of what was read.
    """

    files: Mapping[str, str]
    """Field -> state of the files at its location, and of its checkpoint: see ``origin``."""
    weights: Mapping[str, str]
    """Field -> sha256 of the weights that the run starts from."""
    extra: Mapping[str, str]
    """Field -> sha256 of a file that is scored but not compared."""


def inputs_of(run: BaseRun) -> Inputs:
    """Returns the present state of the files that a run reads. Files that do not exist have no entry."""
    return Inputs(_file_states(run), _weights(run), _extra_files(run))


def _file_states(run: BaseRun) -> dict[str, str]:
    found = {}
    for path in field_paths(run):
        value: Any = functools.reduce(getattr, path.split("."), run)
        if value and role_at(run, path) in {*LOCATIONS, Role.OPTIONAL_FILE, Role.WEIGHTS}:
            names = [Path(name) for name in (value if isinstance(value, tuple) else (value,))]
            if role_at(run, path) is Role.ORIGIN and not names[0].exists():  # data sets ID:CONFIG, joined with commas
                names = [Path(name.partition(":")[0]) for name in value.split(",")]
            if all(name.exists() for name in names):  # else a data set of a hub, or deleted since
                found[path] = " ".join(origin(name) for name in names)
    return found


def _weights(run: BaseRun) -> dict[str, str]:
    found = {}
    for name in (each.name for each in fields(run.model) if role_of(type(run.model), each.name) is Role.WEIGHTS):
        source = getattr(run.model, name)
        if source is not None:
            # A finished run no longer needs the weights. An unfinished one reports missing weights itself.
            with contextlib.suppress(BadDataError):
                found[f"model.{name}"] = weights_checksum(folder_of(source))
    return found


def _extra_files(run: BaseRun) -> dict[str, str]:
    found = {}
    for name in field_paths(run):
        value: Any = functools.reduce(getattr, name.split("."), run)
        if role_at(run, name) is Role.ASIDE and isinstance(value, str):
            with contextlib.suppress(OSError), Path(value).open("rb") as file:  # deleted since
                found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def has_same_files(folder: Path, run: BaseRun) -> bool:
    """Returns whether the files that a run reads are as they were when its data checksum was last compared.

    True also where nothing is recorded, and for files that no longer exist: a finished run does not need them.
    """
    try:
        recorded = read_strict_json(folder / "checkpoint" / DATA)["files"]
        return all(state in recorded[path] for path, state in _file_states(run).items())
    except (OSError, ValueError, TypeError, KeyError):  # version 0.2.0 did not record them
        return True


def check_data(folder: Path, checksum: str, files: Mapping[str, str]) -> None:
    """Records the run, sources, data and files of a checkpoint, or compares them with those recorded.

    Raises:
        BadDataError: the run began on other data, or the checkpoint is a copy from another directory.
    """
    began = recorded_checksum(folder)
    if began not in (None, checksum):
        raise BadDataError(
            f"{folder}: this run began on data of sha256 {began}, now they are {checksum}; --overwrite starts it "
            "again, another --runs or --out keeps both"
        )
    path = folder / "checkpoint" / DATA
    owner = {"run": fingerprint(run_in(folder)), "sources": digest(sources_in(folder) or {})}
    states = {name: [state] for name, state in files.items()}
    if began is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"sha256": checksum, **owner, "files": states})
        return
    recorded = read_strict_json(path)
    if any(recorded.get(name, own) != own for name, own in owner.items()):  # 0.1.0 did not record them
        raise BadDataError(
            f"{path.parent} is of another run or other sources than {folder}; delete it, or --overwrite starts this "
            "run again"
        )
    known = recorded.get("files", {})
    all_states = {name: list(dict.fromkeys(known.get(name, []) + states.get(name, []))) for name in {*known, *states}}
    if all_states != known:  # the same content below another name, or written again
        write_json(path, {**recorded, "files": all_states})


def check_weights(folder: Path, now: Mapping[str, str], *, record: bool) -> None:
    """Compares the weights that a run starts from with those that it began with, after recording them if ``record``.

    Raises:
        BadDataError: the weights have changed.
    """
    path = folder / "checkpoint" / WEIGHTS
    try:
        began = read_strict_json(path)
        changed = [name for name in now if began[name] != now[name]]
    except FileNotFoundError:
        if record and now:
            write_json(path, dict(now))
        return
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise BadDataError(f"{path} is damaged ({error}); --overwrite starts this run again") from error
    if changed:
        raise BadDataError(
            f"{folder}: the weights of {', '.join(changed)} have changed since this run began (sha256 "
            f"{began[changed[0]][:12]} then, {now[changed[0]][:12]} now); restore the old ones, or "
            "--overwrite measures again"
        )


def check_extra(folder: Path, now: Mapping[str, str], *, record: bool) -> None:
    """Compares files that are scored but not compared with those that a finished run scored; ``record``: records them.

    The data checksum does not cover these files.

    Raises:
        BadDataError: a file has changed.
    """
    path = folder / "checkpoint" / EXTRA
    try:
        scored = read_strict_json(path)
        changed = [name for name in now if scored.get(name, now[name]) != now[name]]
    except FileNotFoundError:
        scored, changed = {}, []
    except (OSError, ValueError, AttributeError) as error:
        raise BadDataError(f"{path} is damaged ({error}); --overwrite starts this run again") from error
    if record and now != scored:
        write_json(path, dict(now))
    elif changed:
        raise BadDataError(
            f"{folder}: the file of {changed[0]} has changed since this run scored it (sha256 "
            f"{scored[changed[0]][:12]} then, {now[changed[0]][:12]} now); restore the old one, or --overwrite "
            "measures again"
        )

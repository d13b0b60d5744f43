"""A run's directory: named by the run and its sources, made, locked, refused, emptied."""

import contextlib
import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from seqarena.common.attention import attention_name
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.files import LOCK, locked, read_strict_json, write_json
from seqarena.common.model.attention_maps import FILE
from seqarena.common.model.bert.checkpoint import folder_of, weights_of
from seqarena.common.runs.config import fingerprint, from_json, to_json
from seqarena.common.runs.named import changed_fields
from seqarena.common.runs.package import OUTPUTS
from seqarena.common.runs.results import Result
from seqarena.common.runs.roles import Role, role_of
from seqarena.common.runs.run import BaseRun, is_same_run
from seqarena.common.runs.sources import Sources, changed_sources, digest, listed

SOURCES = "sources.json"
"""File of a run's directory with the hashes of its sources."""
DATA = "data.json"
"""File of a run's ``checkpoint`` with the sha256 of its data, and with the hashes of its run and its sources."""
WEIGHTS = "weights.json"
"""File of a run's ``checkpoint`` with the sha256 of the weights that it started from."""


def run_folder(run: BaseRun, package: str, runs: Path, sources: Sources) -> Path:
    """Returns the run's directory below ``runs``: its readable name, its fingerprint and that of its sources."""
    name = f"{run.preset}-{attention_name(run.model.attention)}-{run.model.norm_label}-seed{run.seed}"
    safe = "".join(letter if letter.isalnum() or letter in "-_.=" else "_" for letter in name)
    return runs / package / run.task / f"{safe}-{fingerprint(run)}-{digest(sources)}"


def other_versions(folder: Path) -> list[Path]:
    """Returns the directories of the same run by other sources, the newest last."""
    stem = folder.name.rpartition("-")[0]
    found = [each for each in folder.parent.glob(f"{stem}*") if (each / "run.json").exists() and each != folder]
    own = [each for each in found if each.name == stem or each.name.startswith(f"{stem}-")]
    return sorted(own, key=lambda each: (each / "run.json").stat().st_mtime)


def outdated(folder: Path, sources: Sources) -> str:
    """Returns the files that changed since this run was last measured or begun elsewhere; empty: it never was."""
    if (folder / "result.json").exists() or (folder / "checkpoint").exists():
        return ""
    versions = other_versions(folder)
    return _difference(versions[-1], sources) if versions else ""


def tell_other_versions(folder: Path, sources: Sources) -> None:
    """Says that the run is measured anew because its sources changed, and where the result or checkpoint before is."""
    changed = outdated(folder, sources)
    if not changed:
        return
    before = other_versions(folder)[-1]
    if (before / "result.json").exists():
        print(
            f"{changed} changed since this run was measured in {before}. It is measured again in {folder}; the result "
            "before stays a row of its own (--overwrite or --overwrite-outdated deletes it)",
            file=sys.stderr,
        )
    else:
        print(
            f"{changed} changed since this run was begun in {before}. It begins again in {folder}: undo the change to "
            "go on there (--overwrite or --overwrite-outdated deletes it)",
            file=sys.stderr,
        )


def _difference(folder: Path, sources: Sources) -> str:
    """Returns the files that differ between a directory's sources and these."""
    before = _sources_in(folder)
    return "sources (which it did not record)" if before is None else listed(changed_sources(before, sources))


def _sources_in(folder: Path) -> dict[str, str] | None:
    try:
        values = read_strict_json(folder / SOURCES)
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None


@contextlib.contextmanager
def opened(folder: Path, run: BaseRun, sources: Sources, *, overwrite: bool, is_named: bool) -> Iterator[None]:
    """Makes and locks a run's directory; leaves none behind where the run is refused before it began.

    ``is_named``: the directory was named by a person, not by the run and its sources.

    Raises:
        WrongUseError: the directory holds another run, or this one by other sources; or another process runs in it.
    """
    was_there, is_new = folder.exists(), False
    if folder.is_symlink() and not was_there:  # what it led to was deleted
        folder.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with locked(folder):
            _refuse_another(folder, run, overwrite=overwrite)
            if overwrite:
                _empty(folder)
            else:
                _refuse_other_sources(folder, sources, is_named=is_named)
            is_new = not (folder / "run.json").exists()
            write_json(folder / SOURCES, dict(sources))
            if is_new:
                write_json(folder / "run.json", to_json(run))
            yield
    except BaseException:  # an interrupt while data are prepared, too
        if is_new and not (folder / "checkpoint").exists():
            _withdraw(folder, was_there=was_there)
        raise


def _withdraw(folder: Path, *, was_there: bool) -> None:
    """Removes what a refused run left: the directory stays free for the command as it was meant."""
    with contextlib.suppress(OSError, ValueError):
        for name in ("run.json", SOURCES):
            (folder / name).unlink(missing_ok=True)
        if not was_there:
            (folder / LOCK).unlink(missing_ok=True)
            folder.rmdir()


def delete_versions(run: BaseRun, folder: Path) -> None:
    """Deletes the directories of the same run by other sources.

    Raises:
        WrongUseError: another process runs in one of them.
    """
    for each in other_versions(folder):
        if each.is_symlink():
            each.unlink()
            continue
        with locked(each):
            _refuse_another(each, run, overwrite=True)
            _empty(each)
        shutil.rmtree(each)


def start_anew(run: BaseRun, folder: Path) -> None:
    """Deletes what an earlier run left in the directory of this run.

    Raises:
        WrongUseError: the directory holds something else, or somebody runs in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        _refuse_another(folder, run, overwrite=True)
        _empty(folder)


def twin(folder: Path, run: BaseRun, checksum: str) -> Path | None:
    """Returns another directory with this run on the same data by the same sources, typed with other file names."""
    if _data_in(folder) is not None:  # it began here
        return None
    version, began = folder.name.rpartition("-")[2], None
    for each in sorted(folder.parent.glob(f"*-{version}")):
        if each == folder or each.is_symlink():
            continue
        with contextlib.suppress(BadDataError):  # a stranger's damage is no matter of this run
            began = _data_in(each)
        if began == checksum and is_same_run(type(run), _run_in(each), to_json(run), anywhere=True):
            return each
    return None


def link(folder: Path, target: Path) -> None:
    """Makes a directory in which nothing has begun a link to another one beside it."""
    if folder.exists():
        for name in ("run.json", SOURCES, LOCK):
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()
    folder.symlink_to(target.name)


def _run_in(folder: Path) -> Any:
    try:
        return read_strict_json(folder / "run.json")
    except (OSError, ValueError):
        return None


def _data_in(folder: Path) -> str | None:
    """Returns the checksum of the data that a run began on."""
    path = folder / "checkpoint" / DATA
    try:
        return str(read_strict_json(path)["sha256"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise BadDataError(f"{path} is damaged ({error}); delete {folder} to start this run again") from error


def hold_to_data(folder: Path, checksum: str) -> None:
    """Records of which run, sources and data a checkpoint is; refuses to go on from one of others.

    Raises:
        BadDataError: the run began on other data, or the checkpoint is a copy from another directory.
    """
    began = _data_in(folder)
    if began not in (None, checksum):
        raise BadDataError(
            f"{folder}: this run began on data of sha256 {began}, now they are {checksum}; --overwrite starts again"
        )
    path = folder / "checkpoint" / DATA
    owner = {"run": fingerprint(_run_in(folder)), "sources": digest(_sources_in(folder) or {})}
    if began is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"sha256": checksum, **owner})
        return
    recorded = read_strict_json(path)
    if any(recorded.get(name, own) != own for name, own in owner.items()):  # 0.1.0 did not record it
        raise BadDataError(
            f"{path.parent} is of another run or other sources than {folder}; delete it, or --overwrite starts this "
            "run again"
        )


def hold_to_weights(folder: Path, run: BaseRun, *, record: bool) -> None:
    """Compares the weights that a run starts from with those that it began with, which it can ``record``.

    Raises:
        BadDataError: they are others now.
    """
    path, now = folder / "checkpoint" / WEIGHTS, {}
    for name in (each.name for each in fields(run.model) if role_of(type(run.model), each.name) is Role.WEIGHTS):
        source = getattr(run.model, name)
        if source is not None:
            # A finished run needs them no more; an unfinished one says itself that they are gone.
            with contextlib.suppress(BadDataError), weights_of(folder_of(source)).open("rb") as file:
                now[f"model.{name}"] = hashlib.file_digest(file, "sha256").hexdigest()
    try:
        began = read_strict_json(path)
        changed = [name for name in now if began[name] != now[name]]
    except FileNotFoundError:
        if record and now:
            write_json(path, now)
        return
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise BadDataError(f"{path} is damaged ({error}); --overwrite starts this run again") from error
    if changed:
        raise BadDataError(
            f"{folder}: the weights of {', '.join(changed)} have changed since this run began (sha256 "
            f"{began[changed[0]][:12]} then, {now[changed[0]][:12]} now); bring those back, or "
            "--overwrite measures again"
        )


def _empty(folder: Path) -> None:
    for name in ("result.json", "run.json", SOURCES, "metrics.jsonl", FILE):  # without a result nothing counts
        (folder / name).unlink(missing_ok=True)
    for name in ("checkpoint", OUTPUTS):
        shutil.rmtree(folder / name, ignore_errors=True)


def _refuse_another(folder: Path, run: BaseRun, *, overwrite: bool) -> None:
    path = folder / "run.json"
    if not path.exists():
        strangers = sorted(
            each.name for each in folder.iterdir() if each.name != SOURCES and not each.name.startswith(".")
        )
        if strangers:
            raise WrongUseError(
                f"{folder} holds other files ({', '.join(strangers[:3])}) and no run; name another directory with --out"
            )
        return
    try:
        values = json.loads(path.read_bytes())
        ours = isinstance(values, dict) and values.get("class") == type(run).__name__
        there = None if overwrite and ours else from_json(type(run), values)
    except ValueError as error:
        hint = "name another directory with --out" + (
            "" if overwrite else ", or --overwrite if it is one of this suite"
        )
        raise WrongUseError(f"{path}: not a run of this version ({error}); {hint}") from error
    # A link was made when the data behind other file names had been seen to be the same.
    if there is None or is_same_run(type(run), to_json(there), to_json(run), anywhere=folder.is_symlink()):
        return
    shown = "; ".join(f"{name} is {old} there, {new} here" for name, (old, new) in changed_fields(there, run).items())
    raise WrongUseError(
        f"{folder} holds another run: {shown}; name another directory with --out, or --overwrite this one"
    )


def _refuse_other_sources(folder: Path, sources: Sources, *, is_named: bool) -> None:
    known = _sources_in(folder)
    if not (folder / "run.json").exists() or known == dict(sources) or (known is None and not is_named):
        return
    there = "measured" if Result.read(folder) is not None else "begun"
    raise WrongUseError(
        f"{folder}: this run was {there} there by other sources ({_difference(folder, sources)} changed); --overwrite "
        "starts it again, another --out keeps it as a row of its own"
    )

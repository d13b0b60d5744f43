"""Run directories: named by the run and its sources, created, locked, checked, emptied."""

import contextlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from seqarena.common.attention import attention_name
from seqarena.common.errors import BadDataError, WrongUseError, short_list
from seqarena.common.files import LOCK, lock_folder, write_json, writing
from seqarena.common.model.attention_maps import FILE
from seqarena.common.runs.config import fingerprint, from_json, to_json
from seqarena.common.runs.inputs import SOURCES, recorded_checksum, run_in, sources_in
from seqarena.common.runs.named import changed_fields
from seqarena.common.runs.package import OUTPUTS
from seqarena.common.runs.results import Result
from seqarena.common.runs.run import BaseRun, is_same_run
from seqarena.common.runs.sources import Sources, changed_sources, digest

CURVES = "curves.png"
"""Plot of the run's curves, drawn by ``seqarena curves``."""


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


def outdated_sources(folder: Path, sources: Sources) -> str:
    """Returns the files that changed since this run was last measured or begun elsewhere; empty if it never was."""
    if (folder / "result.json").exists() or (folder / "checkpoint").exists():
        return ""
    versions = other_versions(folder)
    return _difference(versions[-1], sources) if versions else ""


def report_other_versions(folder: Path, sources: Sources) -> None:
    """Prints that the run is measured again because its sources changed, and the directory of its earlier version."""
    changed = outdated_sources(folder, sources)
    if not changed:
        return
    before = other_versions(folder)[-1]
    if (before / "result.json").exists():
        print(
            f"{changed} changed since this run was measured in {before}. It is measured again in {folder}; the earlier "
            "result stays a row of its own (--overwrite or --overwrite-outdated deletes it)",
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
    before = sources_in(folder)
    return "sources (which it did not record)" if before is None else short_list(changed_sources(before, sources))


@contextlib.contextmanager
def open_run_folder(folder: Path, run: BaseRun, sources: Sources, *, overwrite: bool, is_named: bool) -> Iterator[None]:
    """Creates and locks a run's directory. Removes a new one if the run is refused before it begins.

    ``is_named``: the directory was named by the user, not by the run and its sources.

    Raises:
        WrongUseError: the directory holds another run, or this one by other sources; or another process uses it.
    """
    was_there, is_new = folder.exists(), False
    if folder.is_symlink() and not was_there:  # its target was deleted
        folder.unlink()
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with lock_folder(folder):
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
    except BaseException:  # includes an interrupt while data are prepared
        if is_new and not (folder / "checkpoint").exists():
            _withdraw(folder, was_there=was_there)
        raise


def _withdraw(folder: Path, *, was_there: bool) -> None:
    """Removes the files of a refused run, so that the corrected command can use the directory."""
    with contextlib.suppress(OSError, ValueError):
        for name in ("run.json", SOURCES):
            (folder / name).unlink(missing_ok=True)
        if not was_there:
            (folder / LOCK).unlink(missing_ok=True)
            folder.rmdir()


def delete_versions(run: BaseRun, folder: Path) -> None:
    """Deletes the directories of the same run by other sources.

    Raises:
        WrongUseError: another process uses one of them.
    """
    for each in other_versions(folder):
        if each.is_symlink():
            each.unlink()
            continue
        with lock_folder(each):
            _refuse_another(each, run, overwrite=True)
            _empty(each)
        shutil.rmtree(each)


def start_anew(run: BaseRun, folder: Path) -> None:
    """Deletes the output of an earlier run in the directory of this run.

    Raises:
        WrongUseError: the directory holds something else, or another process uses it.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder):
        _refuse_another(folder, run, overwrite=True)
        _empty(folder)


def find_same_run(folder: Path, run: BaseRun, checksum: str) -> Path | None:
    """Returns another directory with this run on the same data by the same sources, typed with other file names."""
    if recorded_checksum(folder) is not None:  # the run began in this directory
        return None
    version, began = folder.name.rpartition("-")[2], None
    for each in sorted(folder.parent.glob(f"*-{version}")):
        if each == folder or each.is_symlink():
            continue
        with contextlib.suppress(BadDataError):  # damage in other directories does not concern this run
            began = recorded_checksum(each)
        if began == checksum and is_same_run(type(run), run_in(each), to_json(run), anywhere=True):
            return each
    return None


def link(folder: Path, target: Path) -> None:
    """Replaces a directory in which nothing has begun by a link to another one beside it."""
    if folder.exists():
        for name in ("run.json", SOURCES, LOCK):
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()
    folder.symlink_to(target.name)


def _empty(folder: Path) -> None:
    # The rest needs a result.
    for name in ("result.json", "trial.json", "run.json", SOURCES, "metrics.jsonl", CURVES, FILE):
        (folder / name).unlink(missing_ok=True)
    for name in ("checkpoint", OUTPUTS):
        shutil.rmtree(folder / name, ignore_errors=True)


def _refuse_another(folder: Path, run: BaseRun, *, overwrite: bool) -> None:
    path = folder / "run.json"
    if not path.exists():
        others = sorted(
            each.name for each in folder.iterdir() if each.name != SOURCES and not each.name.startswith(".")
        )
        if others:
            raise WrongUseError(
                f"{folder} holds other files ({', '.join(others[:3])}) and no run; name another directory with --out"
            )
        return
    try:
        values = json.loads(path.read_bytes())
        ours = isinstance(values, dict) and values.get("class") == type(run).__name__
        existing = None if overwrite and ours else from_json(type(run), values)
    except ValueError as error:
        hint = "name another directory with --out" + (
            "" if overwrite else ", or --overwrite if it is a run of seqarena"
        )
        raise WrongUseError(f"{path}: not a run of this version ({error}); {hint}") from error
    # A link was made only after the data behind other file names were found to be the same.
    if existing is None or is_same_run(type(run), to_json(existing), to_json(run), anywhere=folder.is_symlink()):
        return
    changes = changed_fields(existing, run).items()
    shown = "; ".join(f"{name} is {old} there, {new} here" for name, (old, new) in changes)
    raise WrongUseError(
        f"{folder} holds another run: {shown}; name another directory with --out, or --overwrite this one"
    )


def _refuse_other_sources(folder: Path, sources: Sources, *, is_named: bool) -> None:
    known = sources_in(folder)
    if not (folder / "run.json").exists() or known == dict(sources) or (known is None and not is_named):
        return
    state = "measured" if Result.read(folder) is not None else "begun"
    raise WrongUseError(
        f"{folder}: this run was {state} there by other sources ({_difference(folder, sources)} changed); --overwrite "
        "starts it again, another --out keeps it as a row of its own"
    )

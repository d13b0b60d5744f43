"""Data that are made once: a folder that is there whole or not at all, its bytes known by a checksum."""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from seqarena.common.data.batches import Ragged
from seqarena.common.errors import BadDataError, damage
from seqarena.common.files import paths_below, whole
from seqarena.common.runs.sources import Sources, changed_sources, imported_by, listed

Splits = dict[str, Ragged]
ARRAYS = ("tokens", "offsets", "labels")
NOT_RECORDED = "by sources that were not recorded"


def prepared(folder: Path, what: str, make: Callable[[], Splits], expected: str | None = None) -> tuple[Splits, str]:
    """Returns the splits kept in a folder, mapped into memory, and their checksum; made first where there are none.

    Where they were made by other sources than ``make`` has now, this is printed: they are not made again.

    Raises:
        BadDataError: what was made has not the ``expected`` checksum, and is not kept; or the folder is damaged, and
            the message says that deleting it makes it anew.
    """
    sources = imported_by(make.__module__)
    if not folder.exists():
        print(f"{what}, kept in {folder}", file=sys.stderr)
        with whole(folder) as unfinished:
            if unfinished is not None:
                splits = make()
                made = checksum(splits)
                if expected not in (None, made):
                    raise BadDataError(
                        f"{what}: sha256 {made}, expected {expected}; a file was changed, or is of another set"
                    )
                save_splits(unfinished, splits, {"sha256": made, "sources": dict(sources)})
    splits, manifest = load_splits(folder)
    found = checksum(splits)
    if found != manifest.get("sha256"):
        raise BadDataError(f"{folder}: prepared data are damaged (sha256 {found}); delete the folder and run again")
    report_outdated(folder, manifest.get("sources"), sources)
    return splits, found


def report_outdated(folder: Path, before: object, now: Sources) -> None:
    """Prints it where kept data were made by other sources than there are ``now``: they are not made again.

    ``before``: the sources that made them as the folder records them; None: it does not.
    """
    if before == now:
        return
    by = f"before {listed(changed_sources(before, now))} changed" if isinstance(before, dict) else NOT_RECORDED
    print(f"{folder}: kept as made {by}; delete it to make it again", file=sys.stderr)


def checksum(splits: Splits) -> str:
    """Returns the sha256 over the bytes of all splits, the same on every machine."""
    digest = hashlib.sha256()
    for name, split in sorted(splits.items()):
        digest.update(name.encode())
        for array in (getattr(split, name) for name in ARRAYS):
            digest.update(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).data)
    return digest.hexdigest()


def save_splits(folder: Path, splits: Splits, manifest: Mapping[str, object]) -> None:
    """Writes splits and their manifest into a folder."""
    for name, split in splits.items():
        for array in ARRAYS:
            np.save(folder / f"{name}.{array}.npy", getattr(split, array))
    shifts = {name: split.shift for name, split in splits.items()}
    (folder / "manifest.json").write_text(json.dumps({**manifest, "shifts": shifts}, indent=1) + "\n")


def load_splits(folder: Path) -> tuple[Splits, dict[str, object]]:
    """Returns memory-mapped splits and their manifest.

    Raises:
        BadDataError: a damaged folder; names it, and says that deleting it makes it anew.
    """
    with damage(folder, "folder of prepared data", "delete the folder and run again"):
        manifest: dict[str, object] = json.loads((folder / "manifest.json").read_bytes())
        shifts: Any = manifest["shifts"]
        splits = {
            name: Ragged(
                **{array: np.load(folder / f"{name}.{array}.npy", mmap_mode="r") for array in ARRAYS}, shift=int(shift)
            )
            for name, shift in shifts.items()
        }
    return splits, manifest


def origin(path: Path) -> str:
    """Returns 12 hex digits that stand for a file or folder as it is now.

    Raises:
        BadDataError: there is no such file, or a pipe or a device.
    """
    if not path.exists():
        raise BadDataError(f"--data.path {path}: no such file or folder")
    if not (path.is_file() or path.is_dir()):  # could be read once at most
        raise BadDataError(f"--data.path {path}: a pipe or a device; write what it gives to a file, and name that")
    digest = hashlib.sha256(os.fsencode(path.resolve()))
    files = paths_below(path) if path.is_dir() else [path]
    for each in (file for file in files if file.exists()):  # a link may lead nowhere
        status = each.stat()
        digest.update(os.fsencode(each) + f"\n{status.st_size}\n{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:12]

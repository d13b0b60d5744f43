"""Data that are prepared once, in a folder that is complete or absent, and identified by a checksum."""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from seqarena.common.data.batches import Ragged
from seqarena.common.data.tokenization import BESIDE
from seqarena.common.errors import BadDataError, damage, short_list
from seqarena.common.files import new_folder, paths_below
from seqarena.common.runs.sources import Sources, changed_sources, imported_by

Splits = dict[str, Ragged]
ARRAYS = ("tokens", "offsets", "labels")
NOT_RECORDED = "by sources that were not recorded"


def prepared(folder: Path, what: str, make: Callable[[], Splits], expected: str | None = None) -> tuple[Splits, str]:
    """Returns the splits in a folder, memory-mapped, and their checksum. A missing folder is made first.

    If the data were made by other sources than ``make`` has now, a warning is printed and they are used unchanged.

    Raises:
        BadDataError: new data that do not have the ``expected`` checksum, which are discarded; or a damaged folder,
            to be deleted.
    """
    sources = imported_by(make.__module__)
    if not folder.exists():
        print(f"{what}, stored in {folder}", file=sys.stderr)
        with new_folder(folder) as unfinished:
            if unfinished is not None:
                splits = make()
                made = checksum(splits)
                if expected not in (None, made):
                    raise BadDataError(
                        f"{what}: sha256 {made}, expected {expected}; a file was changed, or belongs to other data"
                    )
                save_splits(unfinished, splits, {"sha256": made, "sources": dict(sources)})
    splits, manifest = load_splits(folder)
    found = checksum(splits)
    if found != manifest.get("sha256"):
        raise BadDataError(f"{folder}: prepared data are damaged (sha256 {found}); delete the folder and run again")
    report_outdated(folder, manifest.get("sources"), sources)
    return splits, found


def report_outdated(folder: Path, before: object, now: Sources) -> None:
    """Prints a line if prepared data were made by other sources than the present ones. They are not made again.

    ``before``: the sources recorded in the folder; None: none are.
    """
    if before == now:
        return
    when = f"before {short_list(changed_sources(before, now))} changed" if isinstance(before, dict) else NOT_RECORDED
    print(f"{folder} was made {when} and is used as it is; delete it to make it again", file=sys.stderr)


def checksum(splits: Splits) -> str:
    """Returns the sha256 of the bytes of all splits, the same on every machine."""
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
    layout = {"shifts": {name: split.shift for name, split in splits.items()}, "layout": _layout(splits)}
    (folder / "manifest.json").write_text(json.dumps({**manifest, **layout}, indent=1) + "\n")


def _layout(splits: Splits) -> str:
    """Returns a hash of what ``checksum`` leaves out: the shift of each split, and the types of its arrays."""
    found = {name: [split.shift, *(getattr(split, array).dtype.str for array in ARRAYS)]
             for name, split in splits.items()}  # fmt: skip
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16]


def load_splits(folder: Path) -> tuple[Splits, dict[str, object]]:
    """Returns memory-mapped splits and their manifest.

    Raises:
        BadDataError: a damaged folder; names it and advises deleting it.
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
        if manifest.get("layout", _layout(splits)) != _layout(splits):  # folders of earlier versions have none
            raise ValueError("a shift or the type of an array was changed")
    return splits, manifest


def origin(path: Path) -> str:
    """Returns 12 hex digits that identify the present state of a file or folder: names, sizes and times of change.

    The time of the last change of a file's status is one of them: programs that keep the time of the last change of
    the content, such as ``cp -p``, do not set it. Vocabulary files are identified with the files beside them that are
    read together with them.

    Raises:
        BadDataError: no such file, or a pipe or a device.
    """
    if not path.exists():
        raise BadDataError(f"--data.path {path}: no such file or folder")
    if not (path.is_file() or path.is_dir()):  # can be read only once
        raise BadDataError(f"--data.path {path}: a pipe or a device; write its output to a file and name that file")
    digest = hashlib.sha256(os.fsencode(path.resolve()))
    files = paths_below(path) if path.is_dir() else [path, *(path.with_name(name) for name in BESIDE)]
    for each in (file for file in files if file.exists()):  # a link may lead nowhere
        status = each.stat()
        digest.update(os.fsencode(each) + f"\n{status.st_size}\n{status.st_mtime_ns}\n{status.st_ctime_ns}\n".encode())
    return digest.hexdigest()[:12]

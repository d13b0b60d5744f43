"""Data that are made once: a folder that is there whole or not at all, its bytes known by a checksum."""

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from common.data import Ragged
from common.errors import BadDataError

Splits = dict[str, Ragged]
ARRAYS = ("tokens", "offsets", "labels")


def prepared(folder: Path, what: str, make: Callable[[], Splits], expected: str | None = None) -> tuple[Splits, str]:
    """Returns the splits kept in a folder, mapped into memory, and their checksum; made first where there are none.

    Raises:
        BadDataError: what was made has not the ``expected`` checksum, and is not kept; or the folder is damaged, and
            the message says that deleting it makes it anew.
    """
    if not folder.exists():
        print(f"{what}, kept in {folder}", file=sys.stderr)
        splits = make()
        made = checksum(splits)
        if expected not in (None, made):
            raise BadDataError(f"{what}: sha256 {made}, expected {expected}; a file was changed, or is of another set")
        save_splits(folder, splits, {"sha256": made})
    splits, manifest = load_splits(folder)
    found = checksum(splits)
    if found != manifest["sha256"]:
        raise BadDataError(f"{folder}: prepared data are damaged (sha256 {found}); delete the folder and run again")
    return splits, found


def checksum(splits: Splits) -> str:
    """Returns the sha256 over the bytes of all splits, the same on every machine."""
    digest = hashlib.sha256()
    for name, split in sorted(splits.items()):
        digest.update(name.encode())
        for array in (getattr(split, name) for name in ARRAYS):
            digest.update(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).data)
    return digest.hexdigest()


def save_splits(folder: Path, splits: Splits, manifest: Mapping[str, object]) -> None:
    """Writes splits and their manifest so that the folder exists whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    unfinished.chmod(folder.parent.stat().st_mode)  # as open to others as the folder of all data
    try:
        for name, split in splits.items():
            for array in ARRAYS:
                np.save(unfinished / f"{name}.{array}.npy", getattr(split, array))
        shifts = {name: split.shift for name, split in splits.items()}
        (unfinished / "manifest.json").write_text(json.dumps({**manifest, "shifts": shifts}, indent=1) + "\n")
        try:
            os.replace(unfinished, folder)
        except OSError:
            if not (folder / "manifest.json").exists():
                raise  # otherwise another process finished the same data first
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def load_splits(folder: Path) -> tuple[Splits, dict[str, object]]:
    """Returns memory-mapped splits and their manifest.

    Raises:
        BadDataError: a damaged folder; names it, and says that deleting it makes it anew.
    """
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        splits = {
            name: Ragged(
                **{array: np.load(folder / f"{name}.{array}.npy", mmap_mode="r") for array in ARRAYS}, shift=int(shift)
            )
            for name, shift in manifest["shifts"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadDataError(f"{folder}: prepared data are damaged ({error}); delete the folder and run again") from error
    return splits, manifest


def origin(path: Path) -> str:
    """Returns 12 hex digits that stand for a file or folder as it is now.

    Raises:
        BadDataError: there is no such file.
    """
    if not path.exists():
        raise BadDataError(f"--data.path {path}: no such file or folder")
    digest = hashlib.sha256(str(path.resolve()).encode())
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    for each in (file for file in files if file.exists()):  # a link may lead nowhere
        status = each.stat()
        digest.update(f"{each}\n{status.st_size}\n{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:12]

"""Checksums of files, in a file beside them."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from seqarena.common.errors import BadDataError
from seqarena.common.files import read_strict_json, write_json

CHECKSUMS = "checksums.json"
"""File with the sha256 of each of some files of its folder."""


def sha256(path: Path) -> str:
    """Returns the sha256 of a file, in hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_checksums(folder: Path, names: Iterable[str]) -> None:
    """Writes the checksums of the files of a folder."""
    write_json(folder / CHECKSUMS, {name: sha256(folder / name) for name in names})


def require_checksum(path: Path) -> None:
    """Raises a ``BadDataError`` if a file was changed after its checksum was written. Public files have none."""
    sums = path.with_name(CHECKSUMS)
    if not sums.exists():
        return
    try:
        expected = read_strict_json(sums)[path.name]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadDataError(f"{sums}: expected the sha256 of {path.name} ({error})") from error
    if expected != sha256(path):
        raise BadDataError(
            f"{path} is damaged or was changed: {CHECKSUMS} has another sha256; delete {CHECKSUMS} if you changed it"
        )

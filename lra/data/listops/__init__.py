"""ListOps: nested list operations on digits, from a seeded generator or from the official TSV files."""

import sys
from pathlib import Path

from common.config import fingerprint
from common.data import Ragged, checksum, load_splits, save_splits
from common.errors import BadDataError
from lra.data.listops.files import read_official
from lra.data.listops.generator import ListOps, generate

GENERATOR_VERSION = 1
"""Raised whenever the generator's bytes change, so that prepared data are not taken for newer ones."""


def load(data: ListOps, folder: Path) -> tuple[dict[str, Ragged], str]:
    """Returns the splits and their checksum; what was generated once is kept below ``folder``.

    Raises:
        BadDataError: a file of ``data.path`` is missing or breaks the format; names file and line.
    """
    if data.path is not None:
        splits = read_official(Path(data.path))
        return splits, checksum(splits)
    data.check()
    prepared = folder / "lra" / f"listops-v{GENERATOR_VERSION}-{fingerprint(data)}"
    if not prepared.exists():
        count = data.train + data.validation + data.test
        print(f"listops: generating {count:,} expressions, kept in {prepared}", file=sys.stderr)
        splits = generate(data)
        save_splits(prepared, splits, {"sha256": checksum(splits)})
    splits, manifest = load_splits(prepared)
    found = checksum(splits)
    if found != manifest["sha256"]:
        raise BadDataError(f"{prepared}: prepared data are damaged (sha256 {found}); delete the folder and run again")
    return splits, found

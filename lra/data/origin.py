"""Where data come from, as a name for what is prepared of them."""

import hashlib
from pathlib import Path

from common.errors import BadDataError


def origin(path: str | None) -> str:
    """Returns ``hub``, or a name that changes when the user's file or folder does: its path, size and time.

    Raises:
        BadDataError: there is no such file.
    """
    if path is None:
        return "hub"
    there = Path(path)
    if not there.exists():
        raise BadDataError(f"--data.path {path}: no such file or folder")
    status = there.stat()
    known = f"{there.resolve()}\n{status.st_size}\n{status.st_mtime_ns}"
    return hashlib.sha256(known.encode()).hexdigest()[:12]

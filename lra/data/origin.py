"""Where data come from, and so where what is prepared of them is kept."""

import hashlib
from pathlib import Path

from common.errors import BadDataError


def kept_in(folder: Path, name: str, path: str | None) -> Path:
    """Returns the folder of a data set's prepared form, below ``folder``.

    It changes when the user's file does, or any file of the folder: name, size or time. Without one, what was prepared
    before is taken, wherever it came from: every source gives the same bytes.

    Raises:
        BadDataError: there is no such file.
    """
    if path is None:
        hub = folder / "lra" / f"{name}-hub"
        others = sorted(folder.glob(f"lra/{name}-{'[0-9a-f]' * 12}"))
        return others[0] if others and not hub.exists() else hub
    return folder / "lra" / f"{name}-{origin(Path(path))}"


def origin(path: Path) -> str:
    """Returns 12 hex digits that stand for a file or folder as it is now.

    Raises:
        BadDataError: there is no such file.
    """
    if not path.exists():
        raise BadDataError(f"--data.path {path}: no such file or folder")
    digest = hashlib.sha256(str(path.resolve()).encode())
    for each in sorted(path.rglob("*")) if path.is_dir() else [path]:
        status = each.stat()
        digest.update(f"{each}\n{status.st_size}\n{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:12]

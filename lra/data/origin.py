"""Folders of prepared data, named by the source of the data."""

from pathlib import Path

from seqarena.common.data.prepared import origin
from seqarena.common.errors import BadDataError


def kept_in(folder: Path, name: str, path: str | None, *, alike: bool = True) -> Path:
    """Returns the folder of a data set's prepared form, below ``folder``.

    It changes when the user's file does, or any file of the folder: name, size or time. Without a path, what was
    prepared before is taken, wherever it came from: all sources are ``alike``, that is, a checksum has seen to it.

    Raises:
        BadDataError: there is no such file; or without a path, sources that may differ were prepared.
    """
    if path is None:
        hub = folder / "lra" / f"{name}-hub"
        others = sorted(folder.glob(f"lra/{name}-{'[0-9a-f]' * 12}"))
        if len(others) > 1 and not alike:
            raise BadDataError(f"{len(others)} copies of {name} were prepared below {folder}; --data.path says which")
        return others[0] if others and not hub.exists() else hub
    return folder / "lra" / f"{name}-{origin(Path(path))}"

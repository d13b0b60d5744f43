"""Folders of prepared data, named by the source of the data."""

from pathlib import Path

from seqarena.common.data.prepared import origin
from seqarena.common.errors import BadDataError


def prepared_folder(folder: Path, name: str, path: str | None, *, alike: bool = True) -> Path:
    """Returns the folder below ``folder`` for a data set's prepared form.

    With a path, the folder's name depends on the name, size and time of the user's file or files. Without a path, data
    prepared earlier are reused, whatever their source. ``alike`` states that a checksum makes all sources equal.

    Raises:
        BadDataError: the file does not exist; or there is no path, and several sources that may differ were prepared.
    """
    if path is None:
        hub = folder / "lra" / f"{name}-hub"
        others = sorted(folder.glob(f"lra/{name}-{'[0-9a-f]' * 12}"))
        if len(others) > 1 and not alike:
            raise BadDataError(
                f"{len(others)} copies of {name} were prepared below {folder}; choose one by its --data.path"
            )
        return others[0] if others and not hub.exists() else hub
    return folder / "lra" / f"{name}-{origin(Path(path))}"

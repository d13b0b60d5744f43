"""Official archives and the hub's copies: read one member after the other, whatever they are packed in."""

import tarfile
from collections.abc import Iterator
from pathlib import Path

from seqarena.common.errors import BadDataError, damage
from seqarena.common.files import paths_below

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")


def members(path: Path, suffixes: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """Yields name (as a path with slashes) and content of the files that end in ``suffixes``, of a folder or tar.

    Raises:
        BadDataError: there is nothing there, or an archive that is cut short or none at all.
    """
    if path.is_dir():
        for each in paths_below(path):
            if each.name.endswith(suffixes) and each.is_file():
                yield each.relative_to(path).as_posix(), each.read_bytes()
        return
    if not path.is_file():
        raise BadDataError(f"{path}: expected an archive ({', '.join(ARCHIVES)}) or a folder; there is none")
    if not path.name.endswith(ARCHIVES):
        raise BadDataError(f"{path}: expected an archive ({', '.join(ARCHIVES)}) or a folder, found another file")
    advice = f"{path.stat().st_size:,} bytes are there; fetch it again"
    with damage(path, "tar archive", advice), tarfile.open(path) as archive:
        for entry in archive:
            if entry.isfile() and entry.name.endswith(suffixes):
                file = archive.extractfile(entry)
                assert file is not None
                content = file.read()
                if len(content) != entry.size:
                    raise EOFError(f"{entry.name} has {len(content):,} of {entry.size:,} bytes")
                yield entry.name, content
        _require_end(archive)


def _require_end(archive: tarfile.TarFile) -> None:
    """Reads to the last byte: the checksum of gzip and xz is there, and tarfile stops at whatever is no member."""
    assert archive.fileobj is not None
    while part := archive.fileobj.read(2**20):
        if part.strip(b"\0"):
            raise EOFError("there is more behind what can be read of it")


def is_hub_layout(path: Path) -> bool:
    """Returns whether a folder holds a data set as the hub does: Parquet files."""
    return path.is_dir() and any(each.suffix == ".parquet" for each in paths_below(path))


def folder_of(path: Path, inner: str) -> Path:
    """Returns the folder, at or below ``path``, that holds ``inner``: the release unpacks to one to three levels.

    Without any it is ``path`` itself, and whoever opens ``inner`` there says that it is missing.

    Raises:
        BadDataError: more than one.
    """
    if (path / inner).exists() or not path.is_dir():
        return path
    copies: dict[Path, Path] = {}
    for each in paths_below(path):
        if (each / inner).exists():
            copies.setdefault((each / inner).resolve(), each)
    found = list(copies.values())
    if len(found) > 1:
        raise BadDataError(
            f"{path}: {len(found)} copies of {inner}, such as those in {found[0]} and {found[1]}; name one of these"
        )
    return found[0] if found else path

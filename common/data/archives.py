"""Readers of official archives and of the hub's copies: members are read one by one, from a folder or any tar."""

import tarfile
from collections.abc import Iterator
from pathlib import Path

from seqarena.common.errors import BadDataError, damage
from seqarena.common.files import paths_below

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")


def members(path: Path, suffixes: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """Yields name (a path with slashes) and content of each file of a folder or tar that ends in one of ``suffixes``.

    Raises:
        BadDataError: the path does not exist, is not an archive, or is a truncated one.
    """
    if path.is_dir():
        for each in paths_below(path):
            if each.name.endswith(suffixes) and each.is_file():
                yield each.relative_to(path).as_posix(), each.read_bytes()
        return
    if not path.is_file():
        raise BadDataError(f"{path} does not exist; expected an archive ({', '.join(ARCHIVES)}) or a folder")
    if not path.name.endswith(ARCHIVES):
        raise BadDataError(f"{path}: expected an archive ({', '.join(ARCHIVES)}) or a folder, found another file")
    advice = f"the file has {path.stat().st_size:,} bytes; download it again"
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
    """Reads an archive to its last byte, so that the checksum of gzip or xz is verified.

    tarfile stops at the first block that is not a member.
    """
    assert archive.fileobj is not None
    while part := archive.fileobj.read(2**20):
        if part.strip(b"\0"):
            raise EOFError("data follow the last readable member")


def is_hub_layout(path: Path) -> bool:
    """Returns whether a folder contains a data set in the hub's layout: Parquet files."""
    return path.is_dir() and any(each.suffix == ".parquet" for each in paths_below(path))


def folder_of(path: Path, inner: str) -> Path:
    """Returns the folder at or below ``path`` that contains ``inner``. The release unpacks to one to three levels.

    If no folder does, returns ``path`` itself; the caller reports the missing file.

    Raises:
        BadDataError: several folders contain ``inner``.
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
            f"{path}: expected one copy of {inner}, found {len(found)}, such as {found[0]} and {found[1]}; "
            "pass the folder of one of them"
        )
    return found[0] if found else path

"""Archives: damage that unpacking alone does not notice."""

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from seqarena.common.errors import BadDataError
from seqarena.lra.data.archives import members

NAMES = ("a.txt", "b.txt", "c.txt")


def packed() -> bytes:
    """Returns a tar of three texts."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name in NAMES:
            entry = tarfile.TarInfo(name)
            entry.size = 5
            tar.addfile(entry, io.BytesIO(b"text\n"))
    return file.getvalue()


def read(path: Path, content: bytes) -> list[tuple[str, bytes]]:
    path.write_bytes(content)
    return list(members(path, (".txt",)))


def test_the_checksum_of_a_packed_archive_is_looked_at(tmp_path: Path) -> None:
    whole = gzip.compress(packed(), compresslevel=0)  # stored: a byte can change and all still unpacks
    assert read(tmp_path / "a.tar.gz", whole) == [(name, b"text\n") for name in NAMES]
    with pytest.raises(BadDataError, match=r"not a whole tar archive \(CRC check failed.*download it again"):
        read(tmp_path / "a.tar.gz", whole.replace(b"text", b"next", 1))


def test_members_behind_a_damaged_one_are_not_dropped_in_silence(tmp_path: Path) -> None:
    whole = packed()
    with pytest.raises(BadDataError, match="data follow the last readable member"):
        read(tmp_path / "a.tar", whole.replace(b"b.txt", b"d.txt", 1))  # the checksum of its head

"""Archives: damage that unpacking alone does not notice."""

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from seqarena.common.data.archives import folder_of, is_hub_layout, members
from seqarena.common.errors import BadDataError

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


def test_a_link_to_a_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "disk" / "inner").mkdir(parents=True)
    for name in ("a.txt", "b.parquet", "inner/c.txt"):
        (tmp_path / "disk" / name).write_text("text\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "link").symlink_to(tmp_path / "disk")
    names = [name for name, _ in members(tmp_path / "data", (".txt",))]
    assert names == ["link/a.txt", "link/inner/c.txt"]
    assert is_hub_layout(tmp_path / "data")
    assert folder_of(tmp_path / "data", "inner/c.txt") == tmp_path / "data" / "link"


def test_two_names_of_one_folder_are_one_copy(tmp_path: Path) -> None:
    (tmp_path / "v1" / "inner").mkdir(parents=True)
    (tmp_path / "latest").symlink_to("v1")
    assert (folder_of(tmp_path, "inner") / "inner").samefile(tmp_path / "v1" / "inner")
    (tmp_path / "v2" / "inner").mkdir(parents=True)
    with pytest.raises(BadDataError, match="expected one copy of inner, found 2"):
        folder_of(tmp_path, "inner")

"""Damage of packed files, of which their libraries notice only a part."""

import gzip
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from seqarena.common.data.readers import npz_arrays, text_lines
from seqarena.common.errors import BadDataError
from seqarena.pretraining.data.documents import Text, documents

NAMES = ("x", "size", "absent")


def test_no_bit_of_an_npz_file_changes_what_is_read(tmp_path: Path) -> None:
    """Every bit is changed once: those of both arrays, and those of the directory, where a change can hide an array."""
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(6.0).reshape(2, 3), size=np.array(7), info=np.array({"a": 1}, dtype=object))
    content = path.read_bytes()
    expected = npz_arrays(path, NAMES)
    assert sorted(expected) == ["size", "x"]
    refused = 0
    for place in range(len(content)):
        changed = bytes([content[place] ^ 1 << place % 8])
        path.write_bytes(content[:place] + changed + content[place + 1 :])
        try:
            found = npz_arrays(path, NAMES)
        except BadDataError:
            refused += 1
            continue
        assert sorted(found) == sorted(expected)
        for name, array in found.items():
            np.testing.assert_array_equal(array, expected[name])
    assert refused > len(content) / 2


def test_pickled_entries_of_an_npz_file_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array({"a": 1}, dtype=object))
    with pytest.raises(BadDataError, match=r"a\.npz: not a whole \.npz file"):
        npz_arrays(tmp_path / "a.npz", NAMES)
    with pytest.raises(BadDataError, match="does not exist"):
        npz_arrays(tmp_path / "b.npz", NAMES)


def test_a_compressed_npz_file_and_one_with_a_comment_are_read(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.savez_compressed(file, x=np.arange(9))
    with zipfile.ZipFile(file, "a") as archive:
        archive.comment = b"a comment that is longer than the last record"
    (tmp_path / "a.npz").write_bytes(file.getvalue())
    assert npz_arrays(tmp_path / "a.npz", NAMES)["x"].tolist() == list(range(9))


@pytest.mark.parametrize("ending", [".gz", ".xz"])
def test_a_packed_file_of_0_bytes_is_damaged_and_not_empty(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"part.txt{ending}"
    path.touch()
    with pytest.raises(BadDataError, match=rf"part\.txt\{ending}: cannot be read to its end \(it has 0 bytes\)"):
        list(text_lines(path))
    with pytest.raises(BadDataError, match=rf"part\.txt\{ending}: not a whole text file \(it has 0 bytes\)"):
        list(documents(path, Text(strict=False)))


def test_a_packed_file_of_an_empty_text_is_read(tmp_path: Path) -> None:
    (tmp_path / "part.txt.gz").write_bytes(gzip.compress(b""))
    assert not list(text_lines(tmp_path / "part.txt.gz"))

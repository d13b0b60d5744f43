"""Readers of published files: JSON, JSON lines, tables, Parquet, .npz; compressed or not."""

import contextlib
import gzip
import io
import json
import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet

from seqarena.common.errors import BadDataError, damage, machine_error

OPENED: Mapping[str, Callable[..., AbstractContextManager[Any]]] = MappingProxyType(
    {".gz": gzip.open, ".xz": lzma.open}
)
END_OF_ZIP = struct.Struct("<4sHHHHIIH")
"""Last record of a zip without a comment: signature, disks, number of entries on this disk, number of entries, size
and place of the directory, length of the comment."""


def open_unpacked(path: Path) -> AbstractContextManager[Any]:
    """Opens a file in binary mode, decompressed.

    Raises:
        EOFError: a compressed file of 0 bytes, which gzip would read as no text.
    """
    if path.suffix in OPENED and path.stat().st_size == 0:
        raise EOFError("it has 0 bytes")
    file: AbstractContextManager[Any] = OPENED.get(path.suffix, open)(path, "rb")
    return file


@contextlib.contextmanager
def _open_bytes(path: Path) -> Iterator[Any]:
    """Opens a file in binary mode, decompressed.

    Raises:
        BadDataError: no such file, a damaged one, or a ``UnicodeDecodeError`` of the code inside the context.
    """
    try:
        with open_unpacked(path) as file:
            yield file
    except FileNotFoundError as error:
        raise BadDataError(f"{path} does not exist") from error
    except UnicodeDecodeError as error:
        raise BadDataError(f"{path}: expected UTF-8 text ({error})") from error
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        found = machine_error(error, path)
        raise found or BadDataError(f"{path}: cannot be read to its end ({error})") from error


def read_text(path: Path) -> str:
    """Returns a file's text, decompressed.

    Raises:
        BadDataError: no such file, a damaged one, or one that is not UTF-8.
    """
    with _open_bytes(path) as file:
        text: str = file.read().decode("utf-8-sig")
    return text


def kind_of(path: Path) -> str:
    """Returns a file's suffix, without that of its compression."""
    return Path(path.stem).suffix if path.suffix in OPENED else path.suffix


def read_json(path: Path) -> Any:
    """Returns the content of a JSON file.

    Raises:
        BadDataError: a missing file, or one that is not JSON.
    """
    return _parse_json(read_text(path), str(path))


def _parse_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadDataError(f"{where}: expected JSON ({error})") from error


def read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the objects of a JSON lines file, each with its location for messages.

    Raises:
        BadDataError: a line that is not an object; names it.
    """
    for number, line in enumerate(text_lines(path), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        row = _parse_json(line, where)
        if not isinstance(row, dict):
            raise BadDataError(f"{where}: expected an object, found {type(row).__name__}")
        yield where, row


def read_parquet(path: Path) -> tuple[Iterator[tuple[str, dict[str, Any]]], Mapping[str, Any]]:
    """Returns the rows of a Parquet file, each with its location, and the column features that the hub's library wrote.

    Raises:
        BadDataError: a damaged file or one of another kind; also while rows are read.
    """
    if not path.exists():
        raise BadDataError(f"{path} does not exist")
    with damage(path, "Parquet file"):
        file = pyarrow.parquet.ParquetFile(path, page_checksum_verification=True)
    return _rows(path, file), _features(file)


def _features(file: pyarrow.parquet.ParquetFile) -> Mapping[str, Any]:
    """Returns the column features that the hub's library wrote; empty for files of other writers."""
    try:
        metadata: Any = json.loads((file.schema_arrow.metadata or {}).get(b"huggingface", b"{}"))
        features = metadata["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


def _rows(path: Path, file: pyarrow.parquet.ParquetFile) -> Iterator[tuple[str, dict[str, Any]]]:
    number = 0
    with damage(path, "Parquet file"):
        for batch in file.iter_batches():
            for row in batch.to_pylist():
                number += 1
                yield f"{path}, row {number}", row


def npz_arrays(path: Path, names: Iterable[str]) -> dict[str, npt.NDArray[Any]]:
    """Returns those of the named arrays that a .npz file contains. Pickled entries are not loaded.

    All entries are read to their checksums, and counted: numpy itself verifies neither an entry that it does not read
    to the end nor the directory, without which an optional array is silently missing.

    Raises:
        BadDataError: the file does not exist, is damaged or is no .npz file; or a named entry is pickled.
    """
    with damage(path, ".npz file"), zipfile.ZipFile(path) as archive, path.open("rb") as file:
        contents = {each.filename.removesuffix(".npy"): archive.read(each) for each in archive.infolist()}
        file.seek(-END_OF_ZIP.size, os.SEEK_END)
        signature, *_, counted, _, _, _ = END_OF_ZIP.unpack(file.read())
        if signature == b"PK\5\6" and counted != len(contents):
            raise ValueError(f"expected {counted} entries, found {len(contents)}")
        return {
            name: np.lib.format.read_array(io.BytesIO(contents[name]), allow_pickle=False)
            for name in names
            if name in contents
        }


def member(row: Any, name: str, kind: type, where: str) -> Any:
    """Returns a value of a row.

    Raises:
        BadDataError: a missing value or one of another type, or a row that is not an object; names the location.
    """
    if not isinstance(row, dict):
        raise BadDataError(f"{where}: expected an object with {name}, found {type(row).__name__}")
    value = row.get(name)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        found = "nothing" if name not in row else f"{type(value).__name__}"
        raise BadDataError(f"{where}: expected {name} ({kind.__name__}), found {found}")
    return value


def text_lines(path: Path) -> Iterator[str]:
    """Yields the lines of a file without their ends, decompressed while reading.

    Raises:
        BadDataError: no such file, a damaged one, or a line that is not UTF-8; names it.
    """
    with _open_bytes(path) as file:
        yield from decode_lines(file, str(path))


def decode_lines(lines: Iterable[bytes], where: str) -> Iterator[str]:
    """Yields lines as text, without their ends and without a byte-order mark before the first.

    Raises:
        BadDataError: a line that is not UTF-8; names it.
    """
    for number, line in enumerate(lines, start=1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise BadDataError(f"{where}, line {number}: expected UTF-8 text ({error})") from error
        yield text

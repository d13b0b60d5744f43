"""Checkpoints of TensorFlow, read without TensorFlow: ``NAME.index`` and ``NAME.data-00000-of-00001``, ....

The data files are the numbers of all tensors, one after the other. The index is a table in the format of LevelDB, whose
keys are the names of the tensors in sorted order:

- at the end of the file, 48 bytes: two handles (where a block is: start and size), zeros, and ``MAGIC``. The first
  handle is of a block of further tables, which is empty here, the second of a block with the handles of the others;
- a block: entries, then their restart points, which are not needed to read all. Of its key, an entry stores only what
  differs from the key before. A byte (whether the block is compressed) and a checksum follow;
- the first value is the header, with the number of data files. Each other value is a tensor: type, shape, data file,
  start and size in it, and checksum. Both are messages in protocol buffers.

A file may be damaged or malicious. So every checksum is verified, and nothing is larger than the files themselves: no
two blocks, and no two tensors, share bytes.

Sources: tensorflow/tensorflow, core/lib/io/format.cc and core/protobuf/tensor_bundle.proto; google/leveldb,
doc/table_format.md.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from seqarena.common.data.crc32c import crc32c
from seqarena.common.data.protobuf import fields, varint
from seqarena.common.errors import BadDataError, damage

MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
FOOTER = 48
"""Bytes of the two handles, zeros and ``MAGIC``."""
CHECKSUM = 4
LARGEST_INDEX = 2**22
"""Bytes; an entry has about 30."""
LONGEST_NAME = 512
MOST_SHARDS = 10_000
MOST_DIMENSIONS = 8
MOST_NUMBERS = 2**48
TYPES = {1: torch.float32, 2: torch.float64, 3: torch.int32, 9: torch.int64, 14: torch.bfloat16, 19: torch.float16}
"""Types of TensorFlow (core/framework/types.proto) that are read."""
ADVICE = "download it again"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A tensor in the index."""

    name: str
    kind: int = 0
    """Number of its type."""
    shape: tuple[int, ...] = ()
    shard: int = 0
    """Number of the data file."""
    start: int = 0
    size: int = 0
    """Bytes in the data file."""
    checksum: int = 0
    is_partitioned: bool = False
    """Whether it is stored in parts, which have entries of their own."""


def read_tensors(index: Path, is_wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    """Returns the tensors of a checkpoint whose names are wanted, by name.

    ``index``: the file whose name ends with ``.index``.

    Raises:
        BadDataError: a missing, damaged or truncated file, or a wanted tensor of another type than ``TYPES``.
    """
    with damage(index, "index of a TensorFlow checkpoint", ADVICE):
        paths, entries = _read_index(index)
    for each in filter(lambda entry: is_wanted(entry.name), entries):
        if each.is_partitioned or each.kind not in TYPES:
            kind = "it is stored in parts" if each.is_partitioned else f"TensorFlow's type {each.kind}"
            raise BadDataError(f"{index}: expected whole tensors of numbers, found {each.name} ({kind})")
    found = {}
    for path, group in itertools.groupby(entries, lambda entry: paths[entry.shard]):
        with damage(path, "data file of a TensorFlow checkpoint", ADVICE):
            inside = list(group)
            _check_places(inside, path.stat().st_size)
            with path.open("rb") as file:
                found.update({each.name: _read(file, each) for each in inside if is_wanted(each.name)})
    return found


def data_files(index: Path) -> list[Path]:
    """Returns the data files of a checkpoint, which may be missing.

    Raises:
        BadDataError: the index is missing or damaged.
    """
    with damage(index, "index of a TensorFlow checkpoint", ADVICE):
        return _read_index(index)[0]


def _read_index(index: Path) -> tuple[list[Path], list[Entry]]:
    """Returns the data files, and the tensors sorted by data file and start."""
    with index.open("rb") as file:
        content = file.read(LARGEST_INDEX + 1)
    if len(content) > LARGEST_INDEX:
        raise ValueError(f"expected at most {LARGEST_INDEX:,} bytes, found more")
    table = _table(content)
    name, header = next(table, (b"", b""))
    if name:
        raise ValueError("the header is missing")
    shards = _shards(header)
    # Keys that begin with 0 are parts of a tensor that is stored in parts.
    entries = [_entry(key.decode(), value) for key, value in table if not key.startswith(b"\0")]
    outside = next((each.name for each in entries if each.shard >= shards), None)
    if outside is not None:
        raise ValueError(f"{outside} is in none of the {shards} data files")
    paths = [index.with_name(f"{index.stem}.data-{number:05d}-of-{shards:05d}") for number in range(shards)]
    return paths, sorted(entries, key=lambda entry: (entry.shard, entry.start, entry.size))


def _table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values of a table."""
    footer = content[-FOOTER:]
    if len(footer) < FOOTER or not footer.endswith(MAGIC):
        raise ValueError("its last bytes are not those of such a file")
    *further, at = _handle(footer, 0)
    *index, at = _handle(footer, at)
    if any(footer[at : -len(MAGIC)]) or list(_entries(_block(content, *further))):
        raise ValueError("it has parts that no checkpoint has")
    end, before = 0, None
    for _, handle in _entries(_block(content, *index)):
        start, size, at = _handle(handle, 0)
        if start < end or at != len(handle):
            raise ValueError("its blocks overlap")
        end = start + size
        for key, value in _entries(_block(content, start, size)):
            if before is not None and key <= before:
                raise ValueError("its names are not sorted")
            before = key
            yield key, value


def _handle(content: bytes, at: int) -> tuple[int, int, int]:
    """Returns the start and the size of a block, and the index after its handle."""
    start, at = varint(content, at)
    size, at = varint(content, at)
    return start, size, at


def _block(content: bytes, start: int, size: int) -> bytes:
    """Returns a block, whose checksum is right, without it."""
    end = start + size + 1
    if end + CHECKSUM > len(content) - FOOTER:
        raise ValueError("a block is outside the file")
    block = bytearray(content[start:end])
    if _masked(np.frombuffer(block, np.uint8)) != int.from_bytes(content[end : end + CHECKSUM], "little"):
        raise ValueError("the checksum of a block is wrong")
    if block.pop() != 0:
        raise ValueError("it is compressed; expected a file written by TensorFlow 1.2 or later")
    return bytes(block)


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values of a block."""
    stop = len(block) - 4 * (int.from_bytes(block[-4:], "little") + 1)
    if stop < 0:
        raise ValueError("a block has too many restart points")
    key, at = b"", 0
    while at < stop:
        shared, at = varint(block, at)
        own, at = varint(block, at)
        size, at = varint(block, at)
        if shared > len(key) or shared + own > LONGEST_NAME or at + own + size > stop:
            raise ValueError("an entry of a block has impossible sizes")
        key = key[:shared] + block[at : at + own]
        yield key, block[at + own : at + own + size]
        at += own + size


def _masked(content: npt.NDArray[np.uint8]) -> int:
    """Returns a checksum as TensorFlow and LevelDB store it: turned by 15 bits, plus a constant."""
    checksum = crc32c(content)
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _shards(header: bytes) -> int:
    """Returns the number of data files."""
    values = dict(fields(header))
    if values.get(2, 0):
        raise ValueError("it was written on a machine of another byte order")
    shards = _integer(values.get(1, 0))
    if not 1 <= shards <= MOST_SHARDS:
        raise ValueError(f"expected 1 to {MOST_SHARDS:,} data files, found {shards:,}")
    return shards


def _entry(name: str, message: bytes) -> Entry:
    """Returns a tensor of the index."""
    values = dict(fields(message))
    kind, shard, start, size = (_integer(values.get(number, 0)) for number in (1, 3, 4, 5))
    sizes = [
        dict(fields(_bytes(value))).get(1, 0) for number, value in fields(_bytes(values.get(2, b""))) if number == 2
    ]
    if len(sizes) > MOST_DIMENSIONS:
        raise ValueError(f"expected at most {MOST_DIMENSIONS} dimensions, found {len(sizes):,}")
    shape = tuple(map(_integer, sizes))
    if math.prod(max(1, each) for each in shape) > MOST_NUMBERS:  # also if another dimension is 0
        raise ValueError(f"{name} has the impossible shape {shape}")
    return Entry(
        name=name, kind=kind, shape=shape, shard=shard, start=start, size=size,
        checksum=int.from_bytes(_bytes(values.get(6, b"")), "little"), is_partitioned=7 in values,
    )  # fmt: skip


def _integer(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("a field of a message has bytes in place of a number")
    return value


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a field of a message has a number in place of bytes")
    return value


def _check_places(entries: list[Entry], size: int) -> None:
    """Raises a ``ValueError`` for tensors that share bytes of a data file of this size, or are outside it."""
    end = 0
    for each in entries:
        if each.start < end:
            raise ValueError(f"{each.name} shares bytes with another tensor")
        end = each.start + each.size
    if end > size:
        raise ValueError(f"expected at least {end:,} bytes, found {size:,}")


def _read(file: BufferedReader, entry: Entry) -> Tensor:
    """Returns a tensor of a data file."""
    kind = TYPES[entry.kind]
    if math.prod(entry.shape) * kind.itemsize != entry.size:
        raise ValueError(f"{entry.name} of shape {entry.shape} cannot have {entry.size:,} bytes")
    buffer = bytearray(entry.size)
    file.seek(entry.start)
    content = np.frombuffer(buffer, np.uint8)
    if file.readinto(buffer) != entry.size or _masked(content) != entry.checksum:
        raise ValueError(f"the checksum of {entry.name} is wrong")
    return torch.from_numpy(content).view(kind).reshape(entry.shape)

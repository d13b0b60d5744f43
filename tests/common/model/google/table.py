"""TensorFlow checkpoints with valid checksums and any content, for the tests of what is refused."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from seqarena.common.model.bert.tensorflow import MAGIC, _masked

Field = tuple[int, int | bytes]


def varint(value: int) -> bytes:
    parts = []
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def message(*fields: Field) -> bytes:
    """Returns a message of protocol buffers. Bytes of field 6 are a fixed number of four bytes."""
    made = b""
    for number, value in fields:
        if isinstance(value, int):
            made += varint(number << 3) + varint(value)
        elif number == 6:
            made += varint(number << 3 | 5) + value
        else:
            made += varint(number << 3 | 2) + varint(len(value)) + value
    return made


def shape(*sizes: int) -> bytes:
    return message(*((2, message((1, size))) for size in sizes))


def checksum(content: bytes) -> bytes:
    return _masked(np.frombuffer(bytearray(content), np.uint8)).to_bytes(4, "little")


def tensor(*fields: Field, content: bytes = b"", sizes: Sequence[int] = (2,)) -> bytes:
    """Returns an entry of float32 numbers at the start of the first data file, with some fields changed."""
    usual: dict[int, int | bytes] = {1: 1, 2: shape(*sizes), 5: len(content), 6: checksum(content)}
    return message(*(usual | dict(fields)).items())


def block(entries: Sequence[tuple[bytes, bytes]], compressed: int = 0) -> bytes:
    """Returns a block whose entries have whole keys, with its type and checksum."""
    made = b"".join(b"\0" + varint(len(key)) + varint(len(value)) + key + value for key, value in entries)
    made += bytes(4) + (1).to_bytes(4, "little") + bytes([compressed])
    return made + checksum(made)


def handle(start: int, made: bytes) -> bytes:
    return varint(start) + varint(len(made) - 5)


def table(*blocks: bytes, further: Sequence[tuple[bytes, bytes]] = (), repeated: int = 1) -> bytes:
    """Returns a table. ``repeated``: how often the index names each block."""
    content, handles = b"", []
    for made in blocks:
        handles += [handle(len(content), made)] * repeated
        content += made
    index = block([(bytes([number]), each) for number, each in enumerate(handles)])
    extra = block(further)
    footer = handle(len(content), extra) + handle(len(content) + len(extra), index)
    return content + extra + index + footer.ljust(40, b"\0") + MAGIC


HEADER = (b"", message((1, 1), (3, message((1, 1)))))


def write(folder: Path, index: bytes, data: bytes = b"") -> Path:
    """Writes a checkpoint, and returns its index."""
    (folder / "x.data-00000-of-00001").write_bytes(data)
    (folder / "x.index").write_bytes(index)
    return folder / "x.index"

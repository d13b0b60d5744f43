"""Messages of protocol buffers, read field by field without their definitions (protobuf.dev, Encoding)."""

from collections.abc import Iterator

VARINT, BYTES = 0, 2
SIZES = {1: 8, 5: 4}
"""Kind of field -> bytes of its value."""
MOST_BITS = 64


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields the number and the value of each field: an integer, or bytes (a text, a message, a fixed-size number).

    Raises:
        ValueError: not a message, or one that is cut.
    """
    index = 0
    while index < len(message):
        key, index = varint(message, index)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, index = varint(message, index)
            yield number, value
            continue
        if kind != BYTES and kind not in SIZES:
            raise ValueError(f"field {number} of a message has the unknown kind {kind}")
        length, index = varint(message, index) if kind == BYTES else (SIZES[kind], index)
        if index + length > len(message):
            raise ValueError(f"a message ends inside its field {number}")
        yield number, message[index : index + length]
        index += length


def varint(message: bytes, index: int) -> tuple[int, int]:
    """Returns the integer at an index, seven bits per byte, and the index after it.

    Raises:
        ValueError: the message ends inside the integer, or the integer has more than 64 bits.
    """
    value = 0
    for shift in range(0, MOST_BITS + 6, 7):
        if index >= len(message):
            raise ValueError("the bytes end inside an integer")
        byte = message[index]
        index += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> MOST_BITS:
                break
            return value, index
    raise ValueError(f"an integer has more than {MOST_BITS} bits")

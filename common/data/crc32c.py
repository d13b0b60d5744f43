"""CRC-32C (Castagnoli), the checksum of TensorFlow's files, eight bytes at a time."""

from typing import no_type_check

import numpy as np
import numpy.typing as npt

from seqarena.common.data.compiled import compiled

POLYNOMIAL = 0x82F63B78
"""With its bits reversed (RFC 3720, B.4)."""


def _tables() -> npt.NDArray[np.uint64]:
    """Returns the checksum of each byte that is followed by 0 to 7 zero bytes (8 256)."""
    table = np.arange(256, dtype=np.uint64)
    for _ in range(8):
        table = np.where(table & np.uint64(1), table >> np.uint64(1) ^ np.uint64(POLYNOMIAL), table >> np.uint64(1))
    tables = [table]
    for _ in range(7):
        tables.append(table[tables[-1] & np.uint64(255)] ^ tables[-1] >> np.uint64(8))
    return np.stack(tables)


TABLES = _tables()


def crc32c(content: npt.NDArray[np.uint8]) -> int:
    """Returns the checksum of contiguous bytes, at more than 1 GB per second."""
    whole = len(content) // 8 * 8
    return int(_update(content[:whole].view("<u8"), content[whole:], TABLES))


@compiled(nogil=True)
@no_type_check
def _update(words, rest, tables):
    low, ones = np.uint64(255), np.uint64(0xFFFFFFFF)
    state = ones
    for word in words:
        mixed = word ^ state
        state = np.uint64(0)
        for place in range(8):
            state ^= tables[7 - place, (mixed >> np.uint64(8 * place)) & low]
    for byte in rest:
        state = tables[0, (state ^ byte) & low] ^ (state >> np.uint64(8))
    return state ^ ones

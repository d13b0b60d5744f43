"""What the kernels share: how a tile is found in memory, and how large tiles are."""

import os
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

INTERPRETED: tl.constexpr = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


class Tiles(NamedTuple):
    """How large the tiles of a kernel are, and how it is launched."""

    rows: int
    keys: int
    warps: int
    stages: int


TILES = {16: Tiles(128, 64, 4, 3), 32: Tiles(128, 64, 4, 3), 64: Tiles(128, 64, 4, 3), 128: Tiles(128, 64, 8, 3)}
"""Width of a head, up to the next power of two -> tiles of numbers of two bytes; of four bytes, half the rows and keys.
A fixed table, so that nobody waits for a search. Not measured: no GPU was at hand."""


def tiles_for(query: Tensor, width: int) -> Tiles:
    """Returns the tiles for tensors like ``query`` whose wider heads have ``width`` numbers."""
    found = TILES[room(width)]
    return found if query.element_size() == 2 else found._replace(rows=found.rows // 2, keys=found.keys // 2)


def room(width: int) -> int:
    """Returns the next power of two, 16 at least: what a tile holds of a head."""
    return max(16, 1 << (width - 1).bit_length())


@triton.jit
def tile(start, rows, width, first, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Returns pointers to ROWS rows from ``first`` on, and which of them are inside."""
    row = first + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    inside = (row[:, None] < rows) & (column[None, :] < width)
    return start + row[:, None].to(tl.int64) * width + column[None, :], inside


@triton.jit
def product(left, right):
    """Returns the matrix product with float32 sums; float32 factors are not rounded to tf32."""
    if INTERPRETED:  # the interpreter multiplies the bits of bfloat16; of its numbers the product is the same
        return tl.dot(left.to(tl.float32), right.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(left, right, input_precision="ieee")

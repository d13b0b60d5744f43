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


FORWARD = {16: Tiles(128, 64, 4, 2), 32: Tiles(128, 64, 4, 2), 64: Tiles(128, 64, 4, 2), 128: Tiles(64, 64, 4, 2)}
BACKWARD = {16: Tiles(64, 64, 4, 2), 32: Tiles(64, 64, 4, 2), 64: Tiles(64, 64, 4, 1), 128: Tiles(32, 32, 4, 1)}
"""Width of a head, up to the next power of two -> tiles of numbers of two bytes; of four bytes, half the rows and keys.
Fixed tables, so that nobody waits for a search; chosen so that the shared memory of every card since 2020 holds them
(99 KiB), which is tested by compiling them. How fast they are was not measured: no GPU was at hand."""


def tiles_for(query: Tensor, width: int, *, backward: bool) -> Tiles:
    """Returns the tiles for tensors like ``query`` whose wider heads have ``width`` numbers."""
    found = (BACKWARD if backward else FORWARD)[room(width)]
    if query.element_size() == 2:
        return found
    return found._replace(rows=max(found.rows // 2, 16), keys=max(found.keys // 2, 16))


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
def load_tile(start, rows, width, first, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Returns ROWS rows from ``first`` on, 0 beyond the last and beyond their width."""
    pointers, inside = tile(start, rows, width, first, ROWS, WIDTH)
    return tl.load(pointers, mask=inside, other=0.0)


@triton.jit
def store_tile(start, values, rows, width, first, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Writes ROWS rows from ``first`` on, in the type that is there."""
    pointers, inside = tile(start, rows, width, first, ROWS, WIDTH)
    tl.store(pointers, values.to(start.dtype.element_ty), mask=inside)


@triton.jit
def block_of(length, SIZE: tl.constexpr):
    """Returns where a program's block begins, and its head: blocks first, for CUDA has room for many along one axis."""
    blocks = tl.cdiv(length, SIZE)
    return (tl.program_id(0) % blocks) * SIZE, (tl.program_id(0) // blocks).to(tl.int64)


@triton.jit
def product(left, right):
    """Returns the matrix product with float32 sums; float32 factors are not rounded to tf32."""
    if INTERPRETED:  # the interpreter multiplies the bits of bfloat16; of its numbers the product is the same
        return tl.dot(left.to(tl.float32), right.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(left, right, input_precision="ieee")

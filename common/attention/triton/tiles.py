"""Functions that all kernels use: addresses of a tile in memory, and products of tiles."""

import os

import triton
import triton.language as tl

INTERPRETED: tl.constexpr = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def tile(start, rows, width, first, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Returns pointers to ROWS rows from ``first`` on, and which of them are inside."""
    row = first + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    inside = (row[:, None] < rows) & (column[None, :] < width)
    return start + (row[:, None] * width + column[None, :]), inside


@triton.jit
def load_tile(start, rows, width, first, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Returns ROWS rows from ``first`` on, 0 beyond the last and beyond their width."""
    pointers, inside = tile(start, rows, width, first, ROWS, WIDTH)
    return tl.load(pointers, mask=inside, other=0.0)


@triton.jit
def load_numbers(start, length, first, SIZE: tl.constexpr, other):
    """Returns SIZE numbers from ``first`` on, and beyond the last ``other``."""
    place = first + tl.arange(0, SIZE)
    return tl.load(start + place, mask=place < length, other=other)


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
    """Returns the matrix product with float32 sums.

    Of float32 factors each is taken as the sum of two tf32 numbers, and three of their four products: 21 bits or more
    are left of 24, where tf32 alone leaves 11. Without tensor cores, it would take ten times the instructions.
    """
    if INTERPRETED:  # the interpreter multiplies the bits of bfloat16; of its numbers the product is the same
        return tl.dot(left.to(tl.float32), right.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(left, right, input_precision="tf32x3")

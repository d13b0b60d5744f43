"""Functions shared by all kernels: loads, stores and products of tiles."""

import os

import triton
import triton.language as tl

INTERPRETED: tl.constexpr = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def tile(start, rows, width, first, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Returns pointers to ROWS rows from ``first`` on, and a mask of those within bounds."""
    row = first + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    inside = (row[:, None] < rows) & (column[None, :] < width)
    return start + (row[:, None] * width + column[None, :]), inside


@triton.jit
def load_tile(start, rows, width, first, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Loads ROWS rows from ``first`` on; 0 out of bounds."""
    pointers, inside = tile(start, rows, width, first, ROWS, WIDTH)
    return tl.load(pointers, mask=inside, other=0.0)


@triton.jit
def load_numbers(start, length, first, SIZE: tl.constexpr, other):
    """Loads SIZE numbers from ``first`` on; ``other`` out of bounds."""
    position = first + tl.arange(0, SIZE)
    return tl.load(start + position, mask=position < length, other=other)


@triton.jit
def store_tile(start, values, rows, width, first, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Stores ROWS rows from ``first`` on, in the dtype of the destination."""
    pointers, inside = tile(start, rows, width, first, ROWS, WIDTH)
    tl.store(pointers, values.to(start.dtype.element_ty), mask=inside)


@triton.jit
def block_of(length, SIZE: tl.constexpr):
    """Returns the start of a program's block and its head, from one grid axis: CUDA limits the others to 65,535."""
    blocks = tl.cdiv(length, SIZE)
    return (tl.program_id(0) % blocks) * SIZE, (tl.program_id(0) // blocks).to(tl.int64)


@triton.jit
def dropout_keeps(row_bits, key_bits, limit):
    """Returns which weights dropout keeps: the same function of the bits as ``Call.dropout_mask``."""
    mixed = (row_bits ^ key_bits) * 0x7FEB352D
    mixed = (mixed ^ (mixed >> 15)) * -2073254261
    return limit - (mixed >> 1) < 0


@triton.jit
def in_one_segment(segments, head, heads, rows, keys, row, position):
    """Returns which pairs of row and key, broadcast, are of one packed sequence; the rows are the last keys."""
    first = segments + (head // heads) * keys
    own = tl.load(first + (keys - rows) + row, mask=row < rows, other=0)
    return own == tl.load(first + position, mask=position < keys, other=0)


@triton.jit
def is_in_order(row, position, memory, window, WINDOWED: tl.constexpr):
    """Returns which pairs of row and key, broadcast, are in causal order: no later key, and none before the window."""
    visible = position <= memory + row
    if WINDOWED:
        visible = visible & (position > memory + row - window)
    return visible


@triton.jit
def oldest_tile(first, memory, window, KEYS: tl.constexpr):
    """Returns the start of the tile with the oldest key in the windows of a block of rows."""
    return tl.maximum(memory + first - window + 1, 0) // KEYS * KEYS


@triton.jit
def end_of_rows(start, rows, memory, window, KEYS: tl.constexpr):
    """Returns the end of the rows to which a key of a block is visible in a window."""
    return tl.minimum(rows, tl.maximum(start + KEYS - 1 - memory + window, 0))


@triton.jit
def bits_of(bits, head, length, position, DROPS: tl.constexpr):
    """Returns the random bits of positions for dropout; an unused value without dropout."""
    if DROPS:
        return tl.load(bits + head * length + position, mask=position < length, other=0)
    else:
        return position


@triton.jit
def product(left, right):
    """Returns the matrix product with float32 sums.

    Each float32 factor is split into two tf32 numbers, and three of the four products are computed: this keeps at least
    21 of 24 bits, while tf32 alone keeps 11. Without tensor cores it would take ten times the instructions.
    """
    if INTERPRETED:  # the interpreter cannot multiply bfloat16; the float32 product is the same
        return tl.dot(left.to(tl.float32), right.to(tl.float32), input_precision="ieee")
    elif tl.target_info.is_hip():  # AMD's compiler has no tf32x3
        return tl.dot(left, right, input_precision="ieee")
    else:
        return tl.dot(left, right, input_precision="tf32x3")

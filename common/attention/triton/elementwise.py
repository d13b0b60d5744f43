"""Kernels of the elementwise variants, phi(s_ij)^power: no row statistics, and for polynomials no exponential.

Tensors are flat: L heads of all examples, N queries, M keys, widths D and E of a head. Scores and sums are float32.
Products of float32 tensors are never rounded to tf32. Callers set padding in queries, keys and values to 0, so that the
only mask is the causal one, applied to tiles in which some keys are hidden. With BIASED, s_ij includes a bias (B H N M
of any strides). With SEGMENTED, keys of other packed sequences are hidden (``segments``, B M). With WINDOWED, all keys
but the newest ``window`` are hidden too.

Beside the matrix products a kernel does as few operations per pair as possible. For polynomials the scale of the scores
is part of the row factor (scale^power). The row factor multiplies the sum over keys, except in float16, where a cube
without it may overflow.
"""

import triton
import triton.language as tl

from seqarena.common.attention.triton.tiles import (
    bits_of,
    block_of,
    dropout_keeps,
    end_of_rows,
    in_one_segment,
    is_in_order,
    load_numbers,
    load_tile,
    oldest_tile,
    product,
    store_tile,
)

ROOT_OF_HALF: tl.constexpr = tl.constexpr(0.7071067811865476)
ROOT_OF_TWO_PI: tl.constexpr = tl.constexpr(2.5066282746310002)


@triton.jit
def tanh(scores):
    """Returns the hyperbolic tangent; for small scores by its series, because the difference would cancel."""
    square = scores * scores
    series = scores * (1.0 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315))))
    return tl.where(square < 0.01, series, 2.0 * tl.sigmoid(2.0 * scores) - 1.0)


@triton.jit
def activation(scores, PHI: tl.constexpr):
    """Returns phi of the scores; no exponential for polynomials."""
    if PHI == "relu":
        return tl.maximum(scores, 0.0)
    elif PHI == "elu":
        series = scores * (1.0 + scores * (1 / 2 + scores * (1 / 6 + scores * (1 / 24 + scores * (1 / 120)))))
        lower = tl.where(
            scores > -0.05, series, tl.exp(tl.minimum(scores, 0.0)) - 1.0
        )  # which cancels for small scores
        return tl.where(scores > 0, scores, lower)
    elif PHI == "gelu":
        return 0.5 * scores * (1.0 + tl.erf(scores * ROOT_OF_HALF))
    elif PHI == "tanh":
        return tanh(scores)
    elif PHI == "exp":
        return tl.exp(scores)
    else:
        return scores


@triton.jit
def derivative(scores, PHI: tl.constexpr):
    """Returns phi' of the scores; not called for x, where it is 1."""
    if PHI == "relu":
        return tl.where(scores > 0, 1.0, 0.0)
    elif PHI == "elu":
        return tl.where(scores > 0, 1.0, tl.exp(tl.minimum(scores, 0.0)))
    elif PHI == "gelu":
        density = tl.exp(-0.5 * scores * scores) / ROOT_OF_TWO_PI
        return 0.5 * (1.0 + tl.erf(scores * ROOT_OF_HALF)) + scores * density
    elif PHI == "tanh":
        found = tanh(scores)
        return 1.0 - found * found
    else:
        return tl.exp(scores)


@triton.jit
def power(values, POWER: tl.constexpr):
    """Returns an integer power by repeated multiplication."""
    found = values
    for _ in tl.static_range(POWER - 1):
        found = found * values
    return found


@triton.jit
def mask_weights(
    weights, row, position, row_bits, key_bits, segments, head, heads, rows, keys, memory, window, limit,
    HIDES: tl.constexpr, DROPS: tl.constexpr, SEGMENTED: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    """Sets weights to 0 for later keys, keys before the window or of other packed sequences, and what dropout drops.

    ``row`` and ``position`` are broadcast.
    """
    if SEGMENTED:
        weights = tl.where(in_one_segment(segments, head, heads, rows, keys, row, position), weights, 0.0)
    if HIDES:
        weights = tl.where(is_in_order(row, position, memory, window, WINDOWED), weights, 0.0)
    if DROPS:
        weights = tl.where(dropout_keeps(row_bits, key_bits, limit), weights, 0.0)
    return weights


@triton.jit
def visible_keys(
    first, keys, memory, window, ROWS: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr
):
    """Returns where the keys of a block of rows begin, where tiles begin to need a mask, and where its keys end.

    The first two are starts of tiles. With a window all tiles need a mask.
    """
    if WINDOWED:
        oldest = oldest_tile(first, memory, window, KEYS)
        return oldest, oldest, tl.minimum(keys, memory + first + ROWS)
    elif CAUSAL:
        return 0, tl.minimum(keys, memory + first + 1) // KEYS * KEYS, tl.minimum(keys, memory + first + ROWS)
    else:
        return 0, keys, keys


@triton.jit
def bias_of(
    bias, row_real, key_real, head, heads, rows, keys, row, position, batch_stride, head_stride, row_stride,
    key_stride, scale, PHI: tl.constexpr,
):  # fmt: skip
    """Returns the bias of a tile in the unit of ``scores_of``; 0 for padding, where it may be NaN.

    ``row`` and ``position`` are broadcast.
    """
    example = head // heads
    is_row = tl.load(row_real + example * rows + row, mask=row < rows, other=0) != 0
    is_key = tl.load(key_real + example * keys + position, mask=position < keys, other=0) != 0
    start = bias + example * batch_stride + (head % heads) * head_stride
    found = tl.load(start + row * row_stride + position * key_stride, mask=is_row & is_key, other=0.0).to(tl.float32)
    return found * (1.0 / scale) if PHI == "x" else found


@triton.jit
def scores_of(
    own, others, bias, row_real, key_real, head, heads, rows, keys, row, position, batch_stride, head_stride,
    row_stride, key_stride, scale, PHI: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """Returns s_ij of a tile; for polynomials without the scale, which is part of the row factor.

    ``row`` and ``position`` are broadcast to the shape of the tile.
    """
    scores = product(own, tl.trans(others))
    if PHI != "x":
        scores = scores * scale
    if BIASED:
        scores += bias_of(
            bias, row_real, key_real, head, heads, rows, keys, row, position,
            batch_stride, head_stride, row_stride, key_stride, scale, PHI,
        )  # fmt: skip
    return scores


@triton.jit
def store_bias_gradient(
    grad_bias, grad_scores, head, rows, keys, row, position, scale,
    IS_FLOAT16: tl.constexpr, PHI: tl.constexpr, POWER: tl.constexpr,
):  # fmt: skip
    """Stores the gradient of a tile's bias, given ``score_gradient`` after its masks."""
    if not IS_FLOAT16:
        grad_scores *= POWER / scale if PHI == "x" else POWER
    inside = (row < rows) & (position < keys)
    pointers = grad_bias + head * rows * keys + (row * keys + position)
    tl.store(pointers, grad_scores.to(grad_bias.dtype.element_ty), mask=inside)


@triton.jit
def scale_early(grad_weights, row_factor, scale, PHI: tl.constexpr, POWER: tl.constexpr):
    """Multiplies the gradient of the weights by all factors at once, before a cast to float16 could underflow."""
    return grad_weights * (row_factor * (POWER / scale if PHI == "x" else POWER))


@triton.jit
def apply_factors(total, scale, IS_FLOAT16: tl.constexpr, PHI: tl.constexpr, POWER: tl.constexpr):
    """Multiplies the gradients of queries or keys by the remaining factors."""
    if IS_FLOAT16 or PHI != "x":
        total *= scale
    if not IS_FLOAT16:
        total *= POWER
    return total


@triton.jit
def score_gradient(scores, grad_weights, PHI: tl.constexpr, POWER: tl.constexpr):
    """Returns the gradient of the scores, given that of the weights, without the factors of ``apply_factors``."""
    if POWER > 1:
        grad_weights = grad_weights * power(activation(scores, PHI), POWER - 1)
    if PHI != "x":
        grad_weights = grad_weights * derivative(scores, PHI)
    return grad_weights


@triton.jit(do_not_specialize=["window"])
def elementwise_forward(
    query, key, value, out, row_scale, row_bits, key_bits, bias, row_real, key_real, segments,
    batch_stride, head_stride, row_stride, key_stride,
    heads, rows, keys, width, value_width, scale, memory, window, limit,
    PHI: tl.constexpr, POWER: tl.constexpr, CAUSAL: tl.constexpr, DROPS: tl.constexpr,
    BIASED: tl.constexpr, SEGMENTED: tl.constexpr, WINDOWED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Computes sum_j phi(s_ij)^power value_j times the row factor, for a block of rows of a head."""
    first, head = block_of(rows, ROWS)
    row = first + tl.arange(0, ROWS)
    own = load_tile(query + head * rows * width, rows, width, first, ROWS, WIDTH)
    own_bits = bits_of(row_bits, head, rows, row, DROPS)[:, None]
    row_factor = load_numbers(row_scale + (head // heads) * rows, rows, first, ROWS, 0.0)[:, None]
    total = tl.zeros((ROWS, VALUE_WIDTH), dtype=tl.float32)
    oldest, seen, stop = visible_keys(first, keys, memory, window, ROWS, KEYS, CAUSAL, WINDOWED)
    for hides in tl.static_range(2 if CAUSAL else 1):
        for start in range(seen if hides else oldest, stop if hides else seen, KEYS):
            position = start + tl.arange(0, KEYS)
            others = load_tile(key + head * keys * width, keys, width, start, KEYS, WIDTH)
            values = load_tile(value + head * keys * value_width, keys, value_width, start, KEYS, VALUE_WIDTH)
            bits = bits_of(key_bits, head, keys, position, DROPS)[None, :]
            scores = scores_of(
                own, others, bias, row_real, key_real, head, heads, rows, keys, row[:, None], position[None, :],
                batch_stride, head_stride, row_stride, key_stride, scale, PHI, BIASED,
            )  # fmt: skip
            weights = power(activation(scores, PHI), POWER)
            weights = mask_weights(
                weights, row[:, None], position[None, :], own_bits, bits, segments, head, heads, rows, keys,
                memory, window, limit, hides, DROPS, SEGMENTED, WINDOWED,
            )  # fmt: skip
            if own.dtype == tl.float16:
                weights *= row_factor
            total += product(weights.to(values.dtype), values)
    if own.dtype != tl.float16:
        total *= row_factor
    store_tile(out + head * rows * value_width, total, rows, value_width, first, ROWS, VALUE_WIDTH)


@triton.jit(do_not_specialize=["window"])
def elementwise_backward_keys(
    query, key, value, grad, grad_key, grad_value, row_scale, row_bits, key_bits, bias, row_real, key_real, segments,
    batch_stride, head_stride, row_stride, key_stride,
    heads, rows, keys, width, value_width, scale, memory, window, limit,
    PHI: tl.constexpr, POWER: tl.constexpr, CAUSAL: tl.constexpr, DROPS: tl.constexpr,
    BIASED: tl.constexpr, SEGMENTED: tl.constexpr, WINDOWED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Computes the gradients of a block of keys and values of a head.

    ``grad`` includes the row factor, except in float16. Tiles have keys as rows, so that weights and their gradients
    need not be transposed for the products.
    """
    start, head = block_of(keys, KEYS)
    position = start + tl.arange(0, KEYS)
    own = load_tile(key + head * keys * width, keys, width, start, KEYS, WIDTH)
    values = load_tile(value + head * keys * value_width, keys, value_width, start, KEYS, VALUE_WIDTH)
    own_bits = bits_of(key_bits, head, keys, position, DROPS)[:, None]
    keys_total = tl.zeros((KEYS, WIDTH), dtype=tl.float32)
    values_total = tl.zeros((KEYS, VALUE_WIDTH), dtype=tl.float32)
    begin = tl.maximum(start - memory, 0) // ROWS * ROWS  # the first row to which a key of the block is visible
    if WINDOWED:
        stop = end_of_rows(start, rows, memory, window, KEYS)
        all_seen = stop
    else:
        all_seen = tl.minimum(rows, tl.cdiv(tl.maximum(start + KEYS - 1 - memory, 0), ROWS) * ROWS) if CAUSAL else 0
        stop = rows
    for hides in tl.static_range(2 if CAUSAL else 1):
        for first in range(begin if hides else all_seen, all_seen if hides else stop, ROWS):
            row = first + tl.arange(0, ROWS)
            queries = load_tile(query + head * rows * width, rows, width, first, ROWS, WIDTH)
            grads = load_tile(grad + head * rows * value_width, rows, value_width, first, ROWS, VALUE_WIDTH)
            bits = bits_of(row_bits, head, rows, row, DROPS)[None, :]
            scores = scores_of(
                own, queries, bias, row_real, key_real, head, heads, rows, keys, row[None, :], position[:, None],
                batch_stride, head_stride, row_stride, key_stride, scale, PHI, BIASED,
            )  # fmt: skip
            grad_weights = product(values, tl.trans(grads))
            weights = power(activation(scores, PHI), POWER)
            if own.dtype == tl.float16:
                row_factor = load_numbers(row_scale + (head // heads) * rows, rows, first, ROWS, 0.0)[None, :]
                weights, grad_weights = weights * row_factor, scale_early(grad_weights, row_factor, scale, PHI, POWER)
            grad_scores = score_gradient(scores, grad_weights, PHI, POWER)
            weights = mask_weights(
                weights, row[None, :], position[:, None], bits, own_bits, segments, head, heads, rows, keys,
                memory, window, limit, hides, DROPS, SEGMENTED, WINDOWED,
            )  # fmt: skip
            grad_scores = mask_weights(
                grad_scores, row[None, :], position[:, None], bits, own_bits, segments, head, heads, rows, keys,
                memory, window, limit, hides, DROPS, SEGMENTED, WINDOWED,
            )  # fmt: skip
            values_total += product(weights.to(grads.dtype), grads)
            keys_total += product(grad_scores.to(queries.dtype), queries)
    keys_total = apply_factors(keys_total, scale, own.dtype == tl.float16, PHI, POWER)
    store_tile(grad_key + head * keys * width, keys_total, keys, width, start, KEYS, WIDTH)
    store_tile(grad_value + head * keys * value_width, values_total, keys, value_width, start, KEYS, VALUE_WIDTH)


@triton.jit(do_not_specialize=["window"])
def elementwise_backward_queries(
    query, key, value, grad, grad_query, grad_bias, row_scale, row_bits, key_bits, bias, row_real, key_real, segments,
    batch_stride, head_stride, row_stride, key_stride,
    heads, rows, keys, width, value_width, scale, memory, window, limit,
    PHI: tl.constexpr, POWER: tl.constexpr, CAUSAL: tl.constexpr, DROPS: tl.constexpr,
    BIASED: tl.constexpr, SEGMENTED: tl.constexpr, WINDOWED: tl.constexpr, LEARNS: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Computes the gradient of a block of queries of a head, and with LEARNS that of their bias (L N M).

    ``grad`` includes the row factor, except in float16. The gradient of keys that are hidden from the whole block is
    not stored.
    """
    first, head = block_of(rows, ROWS)
    row = first + tl.arange(0, ROWS)
    own = load_tile(query + head * rows * width, rows, width, first, ROWS, WIDTH)
    grads = load_tile(grad + head * rows * value_width, rows, value_width, first, ROWS, VALUE_WIDTH)
    own_bits = bits_of(row_bits, head, rows, row, DROPS)[:, None]
    row_factor = load_numbers(row_scale + (head // heads) * rows, rows, first, ROWS, 0.0)[:, None]
    total = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    oldest, seen, stop = visible_keys(first, keys, memory, window, ROWS, KEYS, CAUSAL, WINDOWED)
    for hides in tl.static_range(2 if CAUSAL else 1):
        for start in range(seen if hides else oldest, stop if hides else seen, KEYS):
            position = start + tl.arange(0, KEYS)
            others = load_tile(key + head * keys * width, keys, width, start, KEYS, WIDTH)
            values = load_tile(value + head * keys * value_width, keys, value_width, start, KEYS, VALUE_WIDTH)
            bits = bits_of(key_bits, head, keys, position, DROPS)[None, :]
            scores = scores_of(
                own, others, bias, row_real, key_real, head, heads, rows, keys, row[:, None], position[None, :],
                batch_stride, head_stride, row_stride, key_stride, scale, PHI, BIASED,
            )  # fmt: skip
            grad_weights = product(grads, tl.trans(values))
            if own.dtype == tl.float16:
                grad_weights = scale_early(grad_weights, row_factor, scale, PHI, POWER)
            grad_scores = score_gradient(scores, grad_weights, PHI, POWER)
            grad_scores = mask_weights(
                grad_scores, row[:, None], position[None, :], own_bits, bits, segments, head, heads, rows, keys,
                memory, window, limit, hides, DROPS, SEGMENTED, WINDOWED,
            )  # fmt: skip
            if LEARNS:
                store_bias_gradient(
                    grad_bias, grad_scores, head, rows, keys, row[:, None], position[None, :], scale,
                    own.dtype == tl.float16, PHI, POWER,
                )  # fmt: skip
            total += product(grad_scores.to(others.dtype), others)
    total = apply_factors(total, scale, own.dtype == tl.float16, PHI, POWER)
    store_tile(grad_query + head * rows * width, total, rows, width, first, ROWS, WIDTH)

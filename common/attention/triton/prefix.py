"""Kernels of prefix-normalised attention: the column sum of a key runs over the queries so far, in time order.

Notation: c_ij = logsumexp of s_i'j over the queries i' <= i to which key j is visible. T_ij = s_ij - c_ij. rho_i =
logsumexp_j T_ij (``row_lse``). The weights are P_ij = exp(T_ij - rho_i). With MIXED, hybrid attention, as in
``doubly_normalized.py``; DROPS is explained there, and BIASED, SEGMENTED and WINDOWED in ``elementwise.py``.

Queries are processed in blocks of ROWS. ``states`` (L, blocks + 1, M) has c_j before each block from which key j is
visible, and after the last block. From it, and from the scores of a block, c_ij of that block follows. The gradient
through c_ij runs back in time: ``later`` (L, blocks, M) has, for each such block, the sum over later rows i of g_ij
exp(c_j - c_ij). There g_ij is the gradient of T_ij, and c_j is the value after the block. Logarithms have the base 2,
and all statistics are float32.
"""

import triton
import triton.language as tl

from seqarena.common.attention.triton.doubly_normalized import (
    FAR,
    LOG2_E,
    add_tile,
    drop,
    mixing_of,
    store_softmax,
)
from seqarena.common.attention.triton.elementwise import bias_of
from seqarena.common.attention.triton.tiles import (
    bits_of,
    block_of,
    end_of_rows,
    in_one_segment,
    is_in_order,
    load_numbers,
    load_tile,
    oldest_tile,
    product,
    store_tile,
)

RANGE: tl.constexpr = tl.constexpr(80.0)
"""Largest difference of two logarithms in a column for which a block's exponentials are summed directly."""
LEAST: tl.constexpr = tl.constexpr(1e-30)
"""Lower bound of sums, below 2^-RANGE; reached where no key of a column is visible yet."""


@triton.jit
def add_logarithms(one, other):
    """Returns log2(2^one + 2^other)."""
    return tl.maximum(one, other) + tl.log2(1.0 + tl.exp2(-tl.abs(one - other)))


@triton.jit
def add_spans(one_lse, one, other_lse, other):
    """Adds the sums over two spans of rows, each relative to the logsumexp of its first row.

    The logsumexp grows with time, so that the span with the smaller one is the earlier.
    """
    ratio = tl.exp2(-tl.abs(one_lse - other_lse))
    is_later = one_lse > other_lse
    return tl.minimum(one_lse, other_lse), tl.where(is_later, one * ratio + other, one + other * ratio)


@triton.jit
def scores_of(
    queries, others, query_real, key_real, bias, segments, head, heads, rows, keys, first, start, memory, window, scale,
    batch_stride, head_stride, row_stride, key_stride,
    CAUSAL: tl.constexpr, BIASED: tl.constexpr, SEGMENTED: tl.constexpr, WINDOWED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Returns s_ij of a tile times log2(e); exactly -FAR for hidden pairs, even if their score is NaN."""
    row, position = (first + tl.arange(0, ROWS))[:, None], (start + tl.arange(0, KEYS))[None, :]
    scores = product(queries, tl.trans(others)) * scale
    visible = load_numbers(query_real + (head // heads) * rows, rows, first, ROWS, 0)[:, None] != 0
    visible = visible & (load_numbers(key_real + (head // heads) * keys, keys, start, KEYS, 0)[None, :] != 0)
    if SEGMENTED:
        visible = visible & in_one_segment(segments, head, heads, rows, keys, row, position)
    if CAUSAL:
        visible = visible & is_in_order(row, position, memory, window, WINDOWED)
    if BIASED:
        scores += bias_of(
            bias, query_real, key_real, head, heads, rows, keys, row, position,
            batch_stride, head_stride, row_stride, key_stride, scale, "exp",
        )  # fmt: skip
        visible = visible & ~(scores <= -FAR)  # not NaN
    return tl.where(visible, scores * LOG2_E, -FAR)


@triton.jit
def prefix_logsumexp(scores, before):
    """Returns c_ij of a tile, given c_j before its first row."""
    top = tl.maximum(before, tl.max(scores, 0))
    visible_least = tl.where(scores == -FAR, top[None, :], tl.maximum(scores, before[None, :]))
    if tl.max(top - tl.min(visible_least, 0), 0) <= RANGE:
        sums = tl.cumsum(tl.exp2(scores - top[None, :]), 0) + tl.exp2(before - top)[None, :]
        # The larger of NaN and a number is the number on a GPU.
        found = tl.log2(tl.where(sums < LEAST, LEAST, sums)) + top[None, :]
    else:
        found = add_logarithms(tl.associative_scan(scores, 0, add_logarithms), before[None, :])
    return found


@triton.jit
def shifted_scores(scores, lse):
    """Returns T_ij of a tile; -FAR for hidden pairs."""
    return tl.where(scores == -FAR, -FAR, scores - lse)


@triton.jit
def sums_from_row(grad, scores, lse, later):
    """Returns the sum over rows i' >= i of g_i'j exp(c_ij - c_i'j), given that over the rows after the tile."""
    last = tl.max(lse, 0)
    exponents = tl.where(scores == -FAR, 0.0, lse - last[None, :])
    if tl.min(tl.min(exponents, 0), 0) >= -RANGE:
        factors = tl.exp2(exponents)
        found = factors * (tl.cumsum(grad / factors, 0, reverse=True) + later[None, :])
    else:
        _, found = tl.associative_scan((lse, grad), 0, add_spans, reverse=True)
        found += later[None, :] * tl.exp2(exponents)
    return found


@triton.jit
def score_gradients(
    scores, before, later, grad_weights, row_lse, row_delta, softmax_lse, softmax_delta, u, MIXED: tl.constexpr
):
    """Returns the gradient of s_ij, the weights, and ``later`` of the block before."""
    lse = prefix_logsumexp(scores, before)
    shifted = shifted_scores(scores, lse)
    weights = tl.exp2(shifted - row_lse[:, None])
    grad = u * weights * (grad_weights - row_delta[:, None])
    grad_scores = grad - tl.exp2(tl.minimum(shifted, 0.0)) * sums_from_row(grad, scores, lse, later)
    if MIXED:
        softmax = (1 - u) * tl.exp2(scores - softmax_lse[:, None])
        grad_scores += softmax * (grad_weights - softmax_delta[:, None])
        weights = u * weights + softmax
    earlier = tl.sum(grad * tl.exp2(tl.minimum(before[None, :] - lse, 0.0)), 0)
    earlier += later * tl.exp2(tl.minimum(before - tl.max(lse, 0), 0.0))
    return grad_scores, weights, earlier


@triton.jit(do_not_specialize=["window"])
def prefix_columns(
    query, key, states, query_real, key_real, bias, segments, batch_stride, head_stride, row_stride, key_stride,
    heads, rows, keys, width, scale, memory, window,
    CAUSAL: tl.constexpr, BIASED: tl.constexpr, SEGMENTED: tl.constexpr, WINDOWED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Computes ``states`` of a block of keys, given those before the first block of queries."""
    start, head = block_of(keys, KEYS)
    position = start + tl.arange(0, KEYS)
    others = load_tile(key + head * keys * width, keys, width, start, KEYS, WIDTH)
    blocks = tl.cdiv(rows, ROWS)
    state = load_numbers(states + head * (blocks + 1) * keys, keys, start, KEYS, -FAR)
    begin = tl.maximum(start - memory, 0) // ROWS if CAUSAL else 0
    stop = tl.cdiv(end_of_rows(start, rows, memory, window, KEYS), ROWS) if WINDOWED else blocks
    for block in range(begin, stop):
        tl.store(states + (head * (blocks + 1) + block) * keys + position, state, mask=position < keys)
        queries = load_tile(query + head * rows * width, rows, width, block * ROWS, ROWS, WIDTH)
        scores = scores_of(
            queries, others, query_real, key_real, bias, segments, head, heads, rows, keys, block * ROWS, start,
            memory, window, scale, batch_stride, head_stride, row_stride, key_stride,
            CAUSAL, BIASED, SEGMENTED, WINDOWED, ROWS, KEYS,
        )  # fmt: skip
        top = tl.maximum(state, tl.max(scores, 0))
        total = tl.sum(tl.exp2(scores - top[None, :]), 0) + tl.exp2(state - top)
        state = top + tl.log2(total)
    tl.store(states + (head * (blocks + 1) + blocks) * keys + position, state, mask=position < keys)


@triton.jit(do_not_specialize=["window"])
def prefix_forward(
    query, key, value, states, out, row_lse, softmax_out, softmax_lse, row_bits, key_bits, query_real, key_real,
    bias, segments, batch_stride, head_stride, row_stride, key_stride,
    heads, rows, keys, width, value_width, scale, memory, window, limit, kept,
    MIXED: tl.constexpr, CAUSAL: tl.constexpr, BIASED: tl.constexpr, DROPS: tl.constexpr,
    SEGMENTED: tl.constexpr, WINDOWED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Computes sum_j P_ij value_j and rho_i (L N) of a block of queries; 0 and FAR for padded queries.

    With MIXED also the same sum with the softmax, and its logsumexp.
    """
    first, head = block_of(rows, ROWS)
    row = first + tl.arange(0, ROWS)
    states += (head * (tl.cdiv(rows, ROWS) + 1) + first // ROWS) * keys
    queries = load_tile(query + head * rows * width, rows, width, first, ROWS, WIDTH)
    own_bits = bits_of(row_bits, head, rows, row, DROPS)[:, None]
    top = tl.full((ROWS,), -FAR, dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    mean = tl.zeros((ROWS, VALUE_WIDTH), dtype=tl.float32)
    if MIXED:
        softmax_top = tl.full((ROWS,), -FAR, dtype=tl.float32)
        softmax_total = tl.zeros((ROWS,), dtype=tl.float32)
        softmax_mean = tl.zeros((ROWS, VALUE_WIDTH), dtype=tl.float32)
    oldest = oldest_tile(first, memory, window, KEYS) if WINDOWED else 0
    for start in range(oldest, tl.minimum(keys, memory + first + ROWS) if CAUSAL else keys, KEYS):
        others = load_tile(key + head * keys * width, keys, width, start, KEYS, WIDTH)
        values = load_tile(value + head * keys * value_width, keys, value_width, start, KEYS, VALUE_WIDTH)
        bits = bits_of(key_bits, head, keys, start + tl.arange(0, KEYS), DROPS)[None, :]
        scores = scores_of(
            queries, others, query_real, key_real, bias, segments, head, heads, rows, keys, first, start,
            memory, window, scale, batch_stride, head_stride, row_stride, key_stride,
            CAUSAL, BIASED, SEGMENTED, WINDOWED, ROWS, KEYS,
        )  # fmt: skip
        lse = prefix_logsumexp(scores, load_numbers(states, keys, start, KEYS, -FAR))
        top, total, mean = add_tile(
            top, total, mean, shifted_scores(scores, lse), values, own_bits, bits, limit, kept, DROPS
        )  # fmt: skip
        if MIXED:
            softmax_top, softmax_total, softmax_mean = add_tile(
                softmax_top, softmax_total, softmax_mean, scores, values, own_bits, bits, limit, kept, DROPS
            )  # fmt: skip
    # A row without a visible key has counted its hidden pairs. A row of NaN alone has no largest score.
    has_keys = (top != -FAR) | ~(total >= 0.0)
    store_softmax(out, row_lse, top, total, mean, has_keys, head, rows, value_width, first, ROWS, VALUE_WIDTH)
    if MIXED:
        store_softmax(
            softmax_out, softmax_lse, softmax_top, softmax_total, softmax_mean, has_keys, head, rows, value_width,
            first, ROWS, VALUE_WIDTH,
        )  # fmt: skip


@triton.jit(do_not_specialize=["window"])
def prefix_backward_keys(
    query, key, value, grad, states, row_lse, delta, softmax_lse, softmax_delta, mixing, grad_key, grad_value, later,
    row_bits, key_bits, query_real, key_real, bias, segments, batch_stride, head_stride, row_stride,
    key_stride, heads, rows, keys, width, value_width, scale, memory, window, limit, kept,
    MIXED: tl.constexpr, CAUSAL: tl.constexpr, BIASED: tl.constexpr, DROPS: tl.constexpr,
    SEGMENTED: tl.constexpr, WINDOWED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Computes ``later`` and the gradients of a block of keys and values, from the last block of queries back."""
    start, head = block_of(keys, KEYS)
    position = start + tl.arange(0, KEYS)
    others = load_tile(key + head * keys * width, keys, width, start, KEYS, WIDTH)
    values = load_tile(value + head * keys * value_width, keys, value_width, start, KEYS, VALUE_WIDTH)
    bits = bits_of(key_bits, head, keys, position, DROPS)[None, :]
    u = mixing_of(mixing, head, heads, MIXED)
    blocks = tl.cdiv(rows, ROWS)
    keys_total = tl.zeros((KEYS, WIDTH), dtype=tl.float32)
    values_total = tl.zeros((KEYS, VALUE_WIDTH), dtype=tl.float32)
    block_later = tl.zeros((KEYS,), dtype=tl.float32)
    begin = tl.maximum(start - memory, 0) // ROWS if CAUSAL else 0
    stop = tl.cdiv(end_of_rows(start, rows, memory, window, KEYS), ROWS) if WINDOWED else blocks
    for back in range(begin, stop):
        block = begin + stop - 1 - back
        first = block * ROWS
        tl.store(later + (head * blocks + block) * keys + position, block_later, mask=position < keys)
        before = load_numbers(states + (head * (blocks + 1) + block) * keys, keys, start, KEYS, -FAR)
        queries = load_tile(query + head * rows * width, rows, width, first, ROWS, WIDTH)
        grads = load_tile(grad + head * rows * value_width, rows, value_width, first, ROWS, VALUE_WIDTH)
        own_bits = bits_of(row_bits, head, rows, first + tl.arange(0, ROWS), DROPS)[:, None]
        scores = scores_of(
            queries, others, query_real, key_real, bias, segments, head, heads, rows, keys, first, start,
            memory, window, scale, batch_stride, head_stride, row_stride, key_stride,
            CAUSAL, BIASED, SEGMENTED, WINDOWED, ROWS, KEYS,
        )  # fmt: skip
        grad_scores, weights, block_later = score_gradients(
            scores, before, block_later,
            drop(product(grads, tl.trans(values)), own_bits, bits, limit, kept, DROPS),
            load_numbers(row_lse + head * rows, rows, first, ROWS, FAR),
            load_numbers(delta + head * rows, rows, first, ROWS, 0.0),
            load_numbers(softmax_lse + head * rows, rows, first, ROWS, FAR) if MIXED else 0.0,
            load_numbers(softmax_delta + head * rows, rows, first, ROWS, 0.0) if MIXED else 0.0,
            u, MIXED,
        )  # fmt: skip
        weights = drop(weights, own_bits, bits, limit, kept, DROPS)
        values_total += product(tl.trans(weights.to(grads.dtype)), grads)
        keys_total += product(tl.trans(grad_scores.to(queries.dtype)), queries)
    store_tile(grad_key + head * keys * width, keys_total * scale, keys, width, start, KEYS, WIDTH)
    store_tile(grad_value + head * keys * value_width, values_total, keys, value_width, start, KEYS, VALUE_WIDTH)


@triton.jit(do_not_specialize=["window"])
def prefix_backward_queries(
    query, key, value, grad, states, row_lse, delta, softmax_lse, softmax_delta, mixing, later, grad_query, grad_bias,
    row_bits, key_bits, query_real, key_real, bias, segments, batch_stride, head_stride, row_stride,
    key_stride, heads, rows, keys, width, value_width, scale, memory, window, limit, kept,
    MIXED: tl.constexpr, CAUSAL: tl.constexpr, BIASED: tl.constexpr, DROPS: tl.constexpr, LEARNS: tl.constexpr,
    SEGMENTED: tl.constexpr, WINDOWED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Computes the gradient of a block of queries, and with LEARNS that of their bias (L N M).

    The gradient of keys that are hidden from the whole block is not stored.
    """
    first, head = block_of(rows, ROWS)
    row = first + tl.arange(0, ROWS)
    blocks = tl.cdiv(rows, ROWS)
    states += (head * (blocks + 1) + first // ROWS) * keys
    later += (head * blocks + first // ROWS) * keys
    queries = load_tile(query + head * rows * width, rows, width, first, ROWS, WIDTH)
    grads = load_tile(grad + head * rows * value_width, rows, value_width, first, ROWS, VALUE_WIDTH)
    own_bits = bits_of(row_bits, head, rows, row, DROPS)[:, None]
    u = mixing_of(mixing, head, heads, MIXED)
    total = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    oldest = oldest_tile(first, memory, window, KEYS) if WINDOWED else 0
    for start in range(oldest, tl.minimum(keys, memory + first + ROWS) if CAUSAL else keys, KEYS):
        position = start + tl.arange(0, KEYS)
        others = load_tile(key + head * keys * width, keys, width, start, KEYS, WIDTH)
        values = load_tile(value + head * keys * value_width, keys, value_width, start, KEYS, VALUE_WIDTH)
        bits = bits_of(key_bits, head, keys, position, DROPS)[None, :]
        scores = scores_of(
            queries, others, query_real, key_real, bias, segments, head, heads, rows, keys, first, start,
            memory, window, scale, batch_stride, head_stride, row_stride, key_stride,
            CAUSAL, BIASED, SEGMENTED, WINDOWED, ROWS, KEYS,
        )  # fmt: skip
        grad_scores, _, _ = score_gradients(
            scores, load_numbers(states, keys, start, KEYS, -FAR), load_numbers(later, keys, start, KEYS, 0.0),
            drop(product(grads, tl.trans(values)), own_bits, bits, limit, kept, DROPS),
            load_numbers(row_lse + head * rows, rows, first, ROWS, FAR),
            load_numbers(delta + head * rows, rows, first, ROWS, 0.0),
            load_numbers(softmax_lse + head * rows, rows, first, ROWS, FAR) if MIXED else 0.0,
            load_numbers(softmax_delta + head * rows, rows, first, ROWS, 0.0) if MIXED else 0.0,
            u, MIXED,
        )  # fmt: skip
        if LEARNS:
            inside = (row[:, None] < rows) & (position[None, :] < keys)
            pointers = grad_bias + head * rows * keys + (row[:, None] * keys + position[None, :])
            tl.store(pointers, grad_scores.to(grad_bias.dtype.element_ty), mask=inside)
        total += product(grad_scores.to(others.dtype), others)
    store_tile(grad_query + head * rows * width, total * scale, rows, width, first, ROWS, WIDTH)

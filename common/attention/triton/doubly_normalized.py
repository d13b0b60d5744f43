"""Kernels of doubly-normalised attention: column logsumexps, then a softmax of the scores minus these.

Notation: c_j = logsumexp_i s_ij over real queries (``column_lse``). T_ij = s_ij - c_j. rho_i = logsumexp_j T_ij over
real keys (``row_lse``). The weights are P_ij = exp(T_ij - rho_i). X_ij = exp(T_ij) = P_ij exp(rho_i) is the softmax
over queries. Tensors are flat, as in ``elementwise.py``; statistics are float32.

With MIXED, the kernels compute hybrid attention, W_ij = u P_ij + (1 - u) S_ij, where S_ij = exp(s_ij - sigma_i) is the
softmax and sigma_i = logsumexp_j s_ij over real keys (``softmax_lse``). Both halves are made of the same scores. With
DROPS, weights are dropped by the same function of the seed as in the blockwise engine, and the others multiplied by
``kept`` = 1 / (1 - dropout).

Beside the matrix products a kernel does as few operations per pair as possible. Logarithms have the base 2, because
GPUs compute exp2. Padding needs no operations per pair: c_j of a padded key and rho_i of a padded query are ``FAR``, so
that their weights are 0. With SEGMENTED, pairs of different packed sequences (``segments``, B M) have the score -FAR.
"""

import triton
import triton.language as tl

from seqarena.common.attention.triton.tiles import (
    bits_of,
    block_of,
    dropout_keeps,
    in_one_segment,
    load_numbers,
    load_tile,
    product,
    store_tile,
)

FAR: tl.constexpr = tl.constexpr(1e30)
"""Number subtracted from the scores of hidden pairs; finite, so that the difference of two is not NaN."""
LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def scores_of(own, others, scale, segments, head, heads, rows, keys, row, position, SEGMENTED: tl.constexpr):
    """Returns s_ij of a tile, times log2(e); -FAR for pairs of different packed sequences.

    ``row`` and ``position`` are broadcast to the shape of the tile.
    """
    scores = product(own, tl.trans(others)) * (scale * LOG2_E)
    if SEGMENTED:
        scores = tl.where(in_one_segment(segments, head, heads, rows, keys, row, position), scores, -FAR)
    return scores


@triton.jit
def drop(weights, row_bits, key_bits, limit, kept, DROPS: tl.constexpr):
    """Returns the weights with some set to 0 and the others multiplied by ``kept``; unchanged without dropout."""
    if DROPS:
        weights = tl.where(dropout_keeps(row_bits, key_bits, limit), weights * kept, 0.0)
    return weights


@triton.jit
def add_tile(top, total, mean, scores, values, row_bits, key_bits, limit, kept, DROPS: tl.constexpr):
    """Adds a tile to the softmax of each row: largest score, sum of exponentials, and sum of weighted values."""
    higher = tl.maximum(top, tl.max(scores, 1))
    weights = tl.exp2(scores - higher[:, None])
    faded = tl.exp2(top - higher)
    total = total * faded + tl.sum(weights, 1)
    weights = drop(weights, row_bits, key_bits, limit, kept, DROPS)
    return higher, total, mean * faded[:, None] + product(weights.to(values.dtype), values)


@triton.jit
def store_softmax(
    out, lse, top, total, mean, has_weights, head, rows, value_width, first,
    ROWS: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Stores the output and the logsumexp of a block of rows; 0 and FAR for rows without weights."""
    row = first + tl.arange(0, ROWS)
    tl.store(lse + head * rows + row, tl.where(has_weights, top + tl.log2(total), FAR), mask=row < rows)
    mean = tl.where(has_weights[:, None], mean / total[:, None], 0.0)
    store_tile(out + head * rows * value_width, mean, rows, value_width, first, ROWS, VALUE_WIDTH)


@triton.jit
def softmax_scores(scores, offset):
    """Returns the scores with those of padded keys, whose ``offset`` is c_j, hidden."""
    return tl.where(offset > 0.5 * FAR, -FAR, scores)


@triton.jit
def mixing_of(mixing, head, heads, MIXED: tl.constexpr):
    """Returns u of a head; 1 for doubly-normalised attention."""
    if MIXED:
        return tl.load(mixing + head % heads)
    else:
        return 1.0


@triton.jit
def column_logsumexp(
    query, key, query_offset, key_offset, column_lse, segments, heads, rows, keys, width, scale,
    SEGMENTED: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Computes c_j (L M) of a block of keys; ``query_offset`` and ``key_offset`` are FAR for padding, otherwise 0."""
    start, head = block_of(keys, KEYS)
    position = start + tl.arange(0, KEYS)
    own = load_tile(key + head * keys * width, keys, width, start, KEYS, WIDTH)
    top = tl.full((KEYS,), -FAR, dtype=tl.float32)
    total = tl.zeros((KEYS,), dtype=tl.float32)
    for first in range(0, rows, ROWS):
        queries = load_tile(query + head * rows * width, rows, width, first, ROWS, WIDTH)
        offset = load_numbers(query_offset + (head // heads) * rows, rows, first, ROWS, FAR)
        row = first + tl.arange(0, ROWS)
        scores = scores_of(
            own, queries, scale, segments, head, heads, rows, keys, row[None, :], position[:, None], SEGMENTED
        )
        scores -= offset[None, :]
        higher = tl.maximum(top, tl.max(scores, 1))
        # As long as all queries are padding, this counts them; the first real query scales the count to 0.
        total = total * tl.exp2(top - higher) + tl.sum(tl.exp2(scores - higher[:, None]), 1)
        top = higher
    found = tl.where(top > -0.5 * FAR, top + tl.log2(total), 0.0)
    found += load_numbers(key_offset + (head // heads) * keys, keys, start, KEYS, FAR)
    tl.store(column_lse + head * keys + position, found, mask=position < keys)


@triton.jit
def normalized_forward(
    query, key, value, column_lse, query_offset, out, row_lse,
    softmax_out, softmax_lse, row_bits, key_bits, segments,
    heads, rows, keys, width, value_width, scale, limit, kept,
    MIXED: tl.constexpr, DROPS: tl.constexpr, SEGMENTED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Computes sum_j P_ij value_j and rho_i (L N) of a block of queries; 0 and FAR for padded queries.

    With MIXED also sum_j S_ij value_j and sigma_i.
    """
    first, head = block_of(rows, ROWS)
    row = first + tl.arange(0, ROWS)
    own = load_tile(query + head * rows * width, rows, width, first, ROWS, WIDTH)
    own_bits = bits_of(row_bits, head, rows, row, DROPS)[:, None]
    top = tl.full((ROWS,), -FAR, dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    mean = tl.zeros((ROWS, VALUE_WIDTH), dtype=tl.float32)
    if MIXED:
        softmax_top = tl.full((ROWS,), -FAR, dtype=tl.float32)
        softmax_total = tl.zeros((ROWS,), dtype=tl.float32)
        softmax_mean = tl.zeros((ROWS, VALUE_WIDTH), dtype=tl.float32)
    for start in range(0, keys, KEYS):
        others = load_tile(key + head * keys * width, keys, width, start, KEYS, WIDTH)
        values = load_tile(value + head * keys * value_width, keys, value_width, start, KEYS, VALUE_WIDTH)
        position = start + tl.arange(0, KEYS)
        bits = bits_of(key_bits, head, keys, position, DROPS)[None, :]
        offset = load_numbers(column_lse + head * keys, keys, start, KEYS, FAR)[None, :]
        scores = scores_of(
            own, others, scale, segments, head, heads, rows, keys, row[:, None], position[None, :], SEGMENTED
        )
        top, total, mean = add_tile(top, total, mean, scores - offset, values, own_bits, bits, limit, kept, DROPS)
        if MIXED:
            softmax_top, softmax_total, softmax_mean = add_tile(
                softmax_top, softmax_total, softmax_mean, softmax_scores(scores, offset), values,
                own_bits, bits, limit, kept, DROPS,
            )  # fmt: skip
    query_offsets = load_numbers(query_offset + (head // heads) * rows, rows, first, ROWS, FAR)
    # A row of NaN alone has no largest score.
    real = (query_offsets == 0) & ((top > -0.5 * FAR) | ~(total >= 0.0))
    store_softmax(out, row_lse, top, total, mean, real, head, rows, value_width, first, ROWS, VALUE_WIDTH)
    if MIXED:
        store_softmax(
            softmax_out, softmax_lse, softmax_top, softmax_total, softmax_mean, real, head, rows, value_width, first,
            ROWS, VALUE_WIDTH,
        )  # fmt: skip


@triton.jit
def row_products(
    grad, out, row_lse, delta, row_sum, rows, value_width,
    SUMS: tl.constexpr, ROWS: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Computes delta_i = grad_i . out_i (L N), and with SUMS exp(rho_i), of a block of queries; both 0 for padding."""
    first, head = block_of(rows, ROWS)
    row = first + tl.arange(0, ROWS)
    grads = load_tile(grad + head * rows * value_width, rows, value_width, first, ROWS, VALUE_WIDTH).to(tl.float32)
    outs = load_tile(out + head * rows * value_width, rows, value_width, first, ROWS, VALUE_WIDTH).to(tl.float32)
    tl.store(delta + head * rows + row, tl.sum(grads * outs, 1), mask=row < rows)
    if SUMS:
        own = load_numbers(row_lse + head * rows, rows, first, ROWS, FAR)
        tl.store(row_sum + head * rows + row, tl.exp2(tl.where(own < 0.5 * FAR, own, -FAR)), mask=row < rows)


@triton.jit
def normalized_backward_keys(
    query, key, value, grad, column_lse, row_lse, row_sum, delta, grad_key, grad_value, column_grad,
    softmax_lse, softmax_delta, mixing, row_bits, key_bits, segments,
    heads, rows, keys, width, value_width, scale, limit, kept,
    MIXED: tl.constexpr, DROPS: tl.constexpr, SEGMENTED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Computes the gradients of a block of keys and values, and g_j = sum_i dT_ij (L M), minus the gradient of c_j.

    dK_j = scale (sum_i ds_ij q_i - g_j sum_i X_ij q_i), where ds_ij is dT_ij plus the gradient through S_ij: the second
    sum needs one more product, but no further pass. Tiles have keys as rows, so that weights and their gradients need
    not be transposed for the products.
    """
    start, head = block_of(keys, KEYS)
    position = start + tl.arange(0, KEYS)
    own = load_tile(key + head * keys * width, keys, width, start, KEYS, WIDTH)
    values = load_tile(value + head * keys * value_width, keys, value_width, start, KEYS, VALUE_WIDTH)
    own_bits = bits_of(key_bits, head, keys, position, DROPS)[:, None]
    u = mixing_of(mixing, head, heads, MIXED)
    offset = load_numbers(column_lse + head * keys, keys, start, KEYS, FAR)[:, None]
    grad_sum = tl.zeros((KEYS,), dtype=tl.float32)
    direct = tl.zeros((KEYS, WIDTH), dtype=tl.float32)
    mean_query = tl.zeros((KEYS, WIDTH), dtype=tl.float32)
    values_total = tl.zeros((KEYS, VALUE_WIDTH), dtype=tl.float32)
    for first in range(0, rows, ROWS):
        queries = load_tile(query + head * rows * width, rows, width, first, ROWS, WIDTH)
        grads = load_tile(grad + head * rows * value_width, rows, value_width, first, ROWS, VALUE_WIDTH)
        row = first + tl.arange(0, ROWS)
        bits = bits_of(row_bits, head, rows, row, DROPS)[None, :]
        row_own = load_numbers(row_lse + head * rows, rows, first, ROWS, FAR)
        row_sums = load_numbers(row_sum + head * rows, rows, first, ROWS, 0.0)
        row_delta = load_numbers(delta + head * rows, rows, first, ROWS, 0.0)
        scores = scores_of(
            own, queries, scale, segments, head, heads, rows, keys, row[None, :], position[:, None], SEGMENTED
        )
        weights = tl.exp2(scores - offset - row_own[None, :])
        columns = weights * row_sums[None, :]
        grad_weights = drop(product(values, tl.trans(grads)), bits, own_bits, limit, kept, DROPS)
        grad_scores = u * weights * (grad_weights - row_delta[None, :])
        grad_sum += tl.sum(grad_scores, 1)
        if MIXED:
            softmax_own = load_numbers(softmax_lse + head * rows, rows, first, ROWS, FAR)
            softmax_row_delta = load_numbers(softmax_delta + head * rows, rows, first, ROWS, 0.0)
            softmax = (1 - u) * tl.exp2(softmax_scores(scores, offset) - softmax_own[None, :])
            grad_scores += softmax * (grad_weights - softmax_row_delta[None, :])
            weights = u * weights + softmax
        weights = drop(weights, bits, own_bits, limit, kept, DROPS)
        values_total += product(weights.to(grads.dtype), grads)
        direct += product(grad_scores.to(queries.dtype), queries)
        mean_query += product(columns.to(queries.dtype), queries)
    tl.store(column_grad + head * keys + position, grad_sum, mask=position < keys)
    total = (direct - grad_sum[:, None] * mean_query) * scale
    store_tile(grad_key + head * keys * width, total, keys, width, start, KEYS, WIDTH)
    store_tile(grad_value + head * keys * value_width, values_total, keys, value_width, start, KEYS, VALUE_WIDTH)


@triton.jit
def normalized_backward_queries(
    query, key, value, grad, column_lse, row_lse, row_sum, delta, column_grad, grad_query,
    softmax_lse, softmax_delta, mixing, row_bits, key_bits, segments,
    heads, rows, keys, width, value_width, scale, limit, kept,
    MIXED: tl.constexpr, DROPS: tl.constexpr, SEGMENTED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Computes dq_i = scale sum_j (ds_ij - X_ij g_j) k_j; 0 for padded queries."""
    first, head = block_of(rows, ROWS)
    own = load_tile(query + head * rows * width, rows, width, first, ROWS, WIDTH)
    grads = load_tile(grad + head * rows * value_width, rows, value_width, first, ROWS, VALUE_WIDTH)
    row = first + tl.arange(0, ROWS)
    own_bits = bits_of(row_bits, head, rows, row, DROPS)[:, None]
    u = mixing_of(mixing, head, heads, MIXED)
    row_own = load_numbers(row_lse + head * rows, rows, first, ROWS, FAR)[:, None]
    row_delta = load_numbers(delta + head * rows, rows, first, ROWS, 0.0)[:, None]
    row_sums = load_numbers(row_sum + head * rows, rows, first, ROWS, 0.0)[:, None]
    if MIXED:
        softmax_own = load_numbers(softmax_lse + head * rows, rows, first, ROWS, FAR)[:, None]
        softmax_row_delta = load_numbers(softmax_delta + head * rows, rows, first, ROWS, 0.0)[:, None]
    total = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    for start in range(0, keys, KEYS):
        others = load_tile(key + head * keys * width, keys, width, start, KEYS, WIDTH)
        values = load_tile(value + head * keys * value_width, keys, value_width, start, KEYS, VALUE_WIDTH)
        position = start + tl.arange(0, KEYS)
        bits = bits_of(key_bits, head, keys, position, DROPS)[None, :]
        offset = load_numbers(column_lse + head * keys, keys, start, KEYS, FAR)[None, :]
        grad_sum = load_numbers(column_grad + head * keys, keys, start, KEYS, 0.0)[None, :]
        scores = scores_of(
            own, others, scale, segments, head, heads, rows, keys, row[:, None], position[None, :], SEGMENTED
        )
        weights = tl.exp2(scores - offset - row_own)
        grad_weights = drop(product(grads, tl.trans(values)), own_bits, bits, limit, kept, DROPS)
        grad_scores = weights * (u * (grad_weights - row_delta) - row_sums * grad_sum)
        if MIXED:
            softmax = (1 - u) * tl.exp2(softmax_scores(scores, offset) - softmax_own)
            grad_scores += softmax * (grad_weights - softmax_row_delta)
        total += product(grad_scores.to(others.dtype), others)
    store_tile(grad_query + head * rows * width, total * scale, rows, width, first, ROWS, WIDTH)

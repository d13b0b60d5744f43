"""Kernels of doubly-normalised attention: column logsumexps, then a softmax of the scores minus these.

Notation: c_j = logsumexp_i s_ij over real queries (``column_lse``). T_ij = s_ij - c_j. rho_i = logsumexp_j T_ij over
real keys (``row_lse``). The weights are P_ij = exp(T_ij - rho_i). X_ij = exp(T_ij) = P_ij exp(rho_i) is the softmax
over queries. Tensors are flat, as in ``elementwise.py``; statistics are float32.

Beside the matrix products a kernel does as few operations per pair as possible. Logarithms have the base 2, because
GPUs compute exp2. Padding needs no operations per pair: c_j of a padded key and rho_i of a padded query are ``FAR``, so
that their weights are 0.
"""

import triton
import triton.language as tl

from seqarena.common.attention.triton.tiles import block_of, load_numbers, load_tile, product, store_tile

FAR: tl.constexpr = tl.constexpr(1e30)
"""Number subtracted from the scores of hidden pairs; finite, so that the difference of two is not NaN."""
LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def scores_of(upright, others, scale):
    """Returns s_ij of a tile, times log2(e)."""
    return product(upright, tl.trans(others)) * (scale * LOG2_E)


@triton.jit
def column_logsumexp(
    query, key, query_less, key_less, mass, heads, rows, keys, width, scale,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Computes c_j (L M) of a block of keys; ``query_less`` and ``key_less`` are FAR for padding, otherwise 0."""
    start, head = block_of(keys, KEYS)
    place = start + tl.arange(0, KEYS)
    own = load_tile(key + head * keys * width, keys, width, start, KEYS, WIDTH)
    top = tl.full((KEYS,), -FAR, dtype=tl.float32)
    total = tl.zeros((KEYS,), dtype=tl.float32)
    for first in range(0, rows, ROWS):
        queries = load_tile(query + head * rows * width, rows, width, first, ROWS, WIDTH)
        less = load_numbers(query_less + (head // heads) * rows, rows, first, ROWS, FAR)
        scores = scores_of(own, queries, scale) - less[None, :]
        higher = tl.maximum(top, tl.max(scores, 1))
        # As long as all queries are padding, this counts them; the first real query scales the count to 0.
        total = total * tl.exp2(top - higher) + tl.sum(tl.exp2(scores - higher[:, None]), 1)
        top = higher
    found = tl.where(top > -0.5 * FAR, top + tl.log2(total), 0.0)
    found += load_numbers(key_less + (head // heads) * keys, keys, start, KEYS, FAR)
    tl.store(mass + head * keys + place, found, mask=place < keys)


@triton.jit
def normalized_forward(
    query, key, value, mass, query_less, out, row_sum,
    heads, rows, keys, width, value_width, scale,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Computes sum_j P_ij value_j and rho_i (L N) of a block of queries; 0 and FAR for padded queries."""
    first, head = block_of(rows, ROWS)
    row = first + tl.arange(0, ROWS)
    own = load_tile(query + head * rows * width, rows, width, first, ROWS, WIDTH)
    top = tl.full((ROWS,), -FAR, dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    mean = tl.zeros((ROWS, VALUE_WIDTH), dtype=tl.float32)
    for start in range(0, keys, KEYS):
        others = load_tile(key + head * keys * width, keys, width, start, KEYS, WIDTH)
        values = load_tile(value + head * keys * value_width, keys, value_width, start, KEYS, VALUE_WIDTH)
        shifted = scores_of(own, others, scale) - load_numbers(mass + head * keys, keys, start, KEYS, FAR)[None, :]
        higher = tl.maximum(top, tl.max(shifted, 1))
        weights = tl.exp2(shifted - higher[:, None])
        faded = tl.exp2(top - higher)
        total = total * faded + tl.sum(weights, 1)
        mean = mean * faded[:, None] + product(weights.to(values.dtype), values)
        top = higher
    less = load_numbers(query_less + (head // heads) * rows, rows, first, ROWS, FAR)
    real = (less == 0) & (top > -0.5 * FAR)
    tl.store(row_sum + head * rows + row, tl.where(real, top + tl.log2(total), FAR), mask=row < rows)
    mean = tl.where(real[:, None], mean / total[:, None], 0.0)
    store_tile(out + head * rows * value_width, mean, rows, value_width, first, ROWS, VALUE_WIDTH)


@triton.jit
def row_products(
    grad, out, row_sum, delta, row_share, rows, value_width, ROWS: tl.constexpr, VALUE_WIDTH: tl.constexpr
):
    """Computes delta_i = grad_i . out_i (L N) and exp(rho_i) of a block of queries; exp(rho_i) is 0 for padding."""
    first, head = block_of(rows, ROWS)
    row = first + tl.arange(0, ROWS)
    grads = load_tile(grad + head * rows * value_width, rows, value_width, first, ROWS, VALUE_WIDTH).to(tl.float32)
    outs = load_tile(out + head * rows * value_width, rows, value_width, first, ROWS, VALUE_WIDTH).to(tl.float32)
    tl.store(delta + head * rows + row, tl.sum(grads * outs, 1), mask=row < rows)
    own = load_numbers(row_sum + head * rows, rows, first, ROWS, FAR)
    tl.store(row_share + head * rows + row, tl.exp2(tl.where(own < 0.5 * FAR, own, -FAR)), mask=row < rows)


@triton.jit
def normalized_backward_keys(
    query, key, value, grad, mass, row_sum, row_share, delta, of_key, of_value, of_mass,
    rows, keys, width, value_width, scale,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Computes the gradients of a block of keys and values, and g_j = sum_i dT_ij (L M), minus the gradient of c_j.

    dK_j = scale (sum_i dT_ij q_i - g_j sum_i X_ij q_i): the second sum needs one more product, but no further pass.
    Tiles have keys as rows, so that weights and their gradients need not be transposed for the products.
    """
    start, head = block_of(keys, KEYS)
    place = start + tl.arange(0, KEYS)
    own = load_tile(key + head * keys * width, keys, width, start, KEYS, WIDTH)
    values = load_tile(value + head * keys * value_width, keys, value_width, start, KEYS, VALUE_WIDTH)
    less = load_numbers(mass + head * keys, keys, start, KEYS, FAR)[:, None]
    through = tl.zeros((KEYS,), dtype=tl.float32)
    direct = tl.zeros((KEYS, WIDTH), dtype=tl.float32)
    mean_query = tl.zeros((KEYS, WIDTH), dtype=tl.float32)
    values_total = tl.zeros((KEYS, VALUE_WIDTH), dtype=tl.float32)
    for first in range(0, rows, ROWS):
        queries = load_tile(query + head * rows * width, rows, width, first, ROWS, WIDTH)
        grads = load_tile(grad + head * rows * value_width, rows, value_width, first, ROWS, VALUE_WIDTH)
        row_own = load_numbers(row_sum + head * rows, rows, first, ROWS, FAR)
        shares = load_numbers(row_share + head * rows, rows, first, ROWS, 0.0)
        row_delta = load_numbers(delta + head * rows, rows, first, ROWS, 0.0)
        weights = tl.exp2(scores_of(own, queries, scale) - less - row_own[None, :])
        owed = weights * (product(values, tl.trans(grads)) - row_delta[None, :])
        through += tl.sum(owed, 1)
        values_total += product(weights.to(grads.dtype), grads)
        direct += product(owed.to(queries.dtype), queries)
        mean_query += product((weights * shares[None, :]).to(queries.dtype), queries)
    tl.store(of_mass + head * keys + place, through, mask=place < keys)
    total = (direct - through[:, None] * mean_query) * scale
    store_tile(of_key + head * keys * width, total, keys, width, start, KEYS, WIDTH)
    store_tile(of_value + head * keys * value_width, values_total, keys, value_width, start, KEYS, VALUE_WIDTH)


@triton.jit
def normalized_backward_queries(
    query, key, value, grad, mass, row_sum, row_share, delta, of_mass, of_query,
    rows, keys, width, value_width, scale,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Computes dq_i = scale sum_j P_ij (dP_ij - delta_i - exp(rho_i) g_j) k_j; 0 for padded queries."""
    first, head = block_of(rows, ROWS)
    own = load_tile(query + head * rows * width, rows, width, first, ROWS, WIDTH)
    grads = load_tile(grad + head * rows * value_width, rows, value_width, first, ROWS, VALUE_WIDTH)
    row_own = load_numbers(row_sum + head * rows, rows, first, ROWS, FAR)
    row_delta = load_numbers(delta + head * rows, rows, first, ROWS, 0.0)
    shares = load_numbers(row_share + head * rows, rows, first, ROWS, 0.0)
    total = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    for start in range(0, keys, KEYS):
        others = load_tile(key + head * keys * width, keys, width, start, KEYS, WIDTH)
        values = load_tile(value + head * keys * value_width, keys, value_width, start, KEYS, VALUE_WIDTH)
        less = load_numbers(mass + head * keys, keys, start, KEYS, FAR)
        through = load_numbers(of_mass + head * keys, keys, start, KEYS, 0.0)
        weights = tl.exp2(scores_of(own, others, scale) - less[None, :] - row_own[:, None])
        of_weights = product(grads, tl.trans(values)) - row_delta[:, None] - shares[:, None] * through[None, :]
        total += product((weights * of_weights).to(others.dtype), others)
    store_tile(of_query + head * rows * width, total * scale, rows, width, first, ROWS, WIDTH)

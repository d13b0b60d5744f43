"""Kernels of doubly-normalised attention: each key's logsumexp over the queries, then a softmax less that.

Names: c_j = logsumexp_i s_ij over real queries; T_ij = s_ij - c_j; rho_i = logsumexp_j T_ij over real keys;
P_ij = exp(T_ij - rho_i) are the weights, X_ij = exp(T_ij) the shares of a key's queries. Tensors are flat, as in
``elementwise.py``; statistics are float32.
"""

import triton
import triton.language as tl

from common.attention.triton.tiles import block_of, load_tile, product, store_tile

FAR: tl.constexpr = tl.constexpr(-1e30)
"""Score of a hidden pair: finite, so that no difference of two is no number."""


@triton.jit
def scores_of(queries, keys, scale):
    """Returns s_ij of a tile."""
    return product(queries, tl.trans(keys)) * scale


@triton.jit
def real_of(real, head, heads, length, place):
    """Returns which positions of a head's example are real; none beyond its end."""
    return tl.load(real + (head // heads) * length + place, mask=place < length, other=0) != 0


@triton.jit
def column_logsumexp(
    query, key, query_real, mass, heads, rows, keys, width, scale,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Writes c_j (L M) of a block of keys."""
    start, head = block_of(keys, KEYS)
    place = start + tl.arange(0, KEYS)
    own = load_tile(key + head * keys * width, keys, width, start, KEYS, WIDTH)
    top = tl.full((KEYS,), FAR, dtype=tl.float32)
    total = tl.zeros((KEYS,), dtype=tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)
        queries = load_tile(query + head * rows * width, rows, width, first, ROWS, WIDTH)
        real = real_of(query_real, head, heads, rows, row)[None, :]
        scores = tl.where(real, scores_of(own, queries, scale), FAR)  # a row a key
        higher = tl.maximum(top, tl.max(scores, 1))
        total = total * tl.exp(top - higher) + tl.sum(tl.where(real, tl.exp(scores - higher[:, None]), 0.0), 1)
        top = higher
    found = tl.where(total > 0, top + tl.log(tl.maximum(total, 1e-30)), 0.0)
    tl.store(mass + head * keys + place, found, mask=place < keys)


@triton.jit
def forward(
    query, key, value, mass, query_real, key_real, out, row_sum,
    heads, rows, keys, width, value_width, scale,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Writes sum_j P_ij value_j and rho_i (L N) of a block of queries; 0 of padded ones."""
    first, head = block_of(rows, ROWS)
    row = first + tl.arange(0, ROWS)
    own = load_tile(query + head * rows * width, rows, width, first, ROWS, WIDTH)
    top = tl.full((ROWS,), FAR, dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    mean = tl.zeros((ROWS, VALUE_WIDTH), dtype=tl.float32)
    for start in range(0, keys, KEYS):
        place = start + tl.arange(0, KEYS)
        others = load_tile(key + head * keys * width, keys, width, start, KEYS, WIDTH)
        values = load_tile(value + head * keys * value_width, keys, value_width, start, KEYS, VALUE_WIDTH)
        real = real_of(key_real, head, heads, keys, place)[None, :]
        less = tl.load(mass + head * keys + place, mask=place < keys, other=0.0)
        shifted = tl.where(real, scores_of(own, others, scale) - less[None, :], FAR)
        higher = tl.maximum(top, tl.max(shifted, 1))
        weights = tl.where(real, tl.exp(shifted - higher[:, None]), 0.0)
        faded = tl.exp(top - higher)
        total = total * faded + tl.sum(weights, 1)
        mean = mean * faded[:, None] + product(weights.to(values.dtype), values)
        top = higher
    real = real_of(query_real, head, heads, rows, row) & (total > 0)
    safe = tl.maximum(total, 1e-30)
    mean = tl.where(real[:, None], mean / safe[:, None], 0.0)
    tl.store(row_sum + head * rows + row, tl.where(real, top + tl.log(safe), 0.0), mask=row < rows)
    store_tile(out + head * rows * value_width, mean, rows, value_width, first, ROWS, VALUE_WIDTH)


@triton.jit
def pulled(shifted, visible, of_weights, row_sum, delta):
    """Returns P_ij of a tile and its gradient by T_ij: P_ij (dP_ij - delta_i)."""
    weights = tl.where(visible, tl.exp(tl.minimum(shifted - row_sum[:, None], 0.0)), 0.0)
    return weights, weights * (of_weights - delta[:, None])


@triton.jit
def backward_keys(
    query, key, value, grad, mass, row_sum, delta, query_real, key_real, of_key, of_value, of_mass,
    heads, rows, keys, width, value_width, scale,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Writes the gradients of a block of keys and values, and g_j = sum_i dT_ij (L M), which is less that of c_j.

    dK_j = scale (sum_i dT_ij q_i - g_j sum_i X_ij q_i): the second sum costs one product more, and no pass.
    """
    start, head = block_of(keys, KEYS)
    place = start + tl.arange(0, KEYS)
    own = load_tile(key + head * keys * width, keys, width, start, KEYS, WIDTH)
    values = load_tile(value + head * keys * value_width, keys, value_width, start, KEYS, VALUE_WIDTH)
    less = tl.load(mass + head * keys + place, mask=place < keys, other=0.0)
    seen = real_of(key_real, head, heads, keys, place)
    through = tl.zeros((KEYS,), dtype=tl.float32)
    direct = tl.zeros((KEYS, WIDTH), dtype=tl.float32)
    mean_query = tl.zeros((KEYS, WIDTH), dtype=tl.float32)
    values_total = tl.zeros((KEYS, VALUE_WIDTH), dtype=tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)
        queries = load_tile(query + head * rows * width, rows, width, first, ROWS, WIDTH)
        grads = load_tile(grad + head * rows * value_width, rows, value_width, first, ROWS, VALUE_WIDTH)
        asking = real_of(query_real, head, heads, rows, row)
        row_own = tl.load(row_sum + head * rows + row, mask=row < rows, other=0.0)
        row_delta = tl.load(delta + head * rows + row, mask=row < rows, other=0.0)
        shifted = scores_of(queries, own, scale) - less[None, :]
        of_weights = product(grads, tl.trans(values))
        weights, owed = pulled(shifted, asking[:, None] & seen[None, :], of_weights, row_own, row_delta)
        shares = tl.where(asking[:, None], tl.exp(tl.minimum(shifted, 0.0)), 0.0)
        through += tl.sum(owed, 0)
        values_total += product(tl.trans(weights.to(grads.dtype)), grads)
        direct += product(tl.trans(owed.to(queries.dtype)), queries)
        mean_query += product(tl.trans(shares.to(queries.dtype)), queries)
    tl.store(of_mass + head * keys + place, through, mask=place < keys)
    total = (direct - through[:, None] * mean_query) * scale
    store_tile(of_key + head * keys * width, total, keys, width, start, KEYS, WIDTH)
    store_tile(of_value + head * keys * value_width, values_total, keys, value_width, start, KEYS, VALUE_WIDTH)


@triton.jit
def backward_queries(
    query, key, value, grad, mass, row_sum, delta, query_real, key_real, of_mass, of_query,
    heads, rows, keys, width, value_width, scale,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Writes scale sum_j (dT_ij - X_ij g_j) k_j of a block of queries; 0 of padded ones."""
    first, head = block_of(rows, ROWS)
    row = first + tl.arange(0, ROWS)
    own = load_tile(query + head * rows * width, rows, width, first, ROWS, WIDTH)
    grads = load_tile(grad + head * rows * value_width, rows, value_width, first, ROWS, VALUE_WIDTH)
    asking = real_of(query_real, head, heads, rows, row)
    row_own = tl.load(row_sum + head * rows + row, mask=row < rows, other=0.0)
    row_delta = tl.load(delta + head * rows + row, mask=row < rows, other=0.0)
    total = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    for start in range(0, keys, KEYS):
        place = start + tl.arange(0, KEYS)
        others = load_tile(key + head * keys * width, keys, width, start, KEYS, WIDTH)
        values = load_tile(value + head * keys * value_width, keys, value_width, start, KEYS, VALUE_WIDTH)
        seen = real_of(key_real, head, heads, keys, place)
        less = tl.load(mass + head * keys + place, mask=place < keys, other=0.0)
        through = tl.load(of_mass + head * keys + place, mask=place < keys, other=0.0)
        shifted = scores_of(own, others, scale) - less[None, :]
        of_weights = product(grads, tl.trans(values))
        _, owed = pulled(shifted, asking[:, None] & seen[None, :], of_weights, row_own, row_delta)
        owed -= tl.where(asking[:, None], tl.exp(tl.minimum(shifted, 0.0)), 0.0) * through[None, :]
        total += product(owed.to(others.dtype), others)
    store_tile(of_query + head * rows * width, (total * scale), rows, width, first, ROWS, WIDTH)

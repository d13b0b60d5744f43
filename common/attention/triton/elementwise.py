"""Kernels of the elementwise variants: phi(s_ij)^power, no row statistics, and without phi no exponential.

Tensors are flat: L heads of all examples, N queries, M keys, D and E numbers of a head. Scores and sums are float32;
products of float32 tensors are never rounded to tf32. Padding in queries, keys and values is 0 before it comes here, so
that no mask is needed but that of time.
"""

import triton
import triton.language as tl

from common.attention.triton.tiles import block_of, load_tile, product, store_tile

ROOT_OF_HALF: tl.constexpr = tl.constexpr(0.7071067811865476)
ROOT_OF_TWO_PI: tl.constexpr = tl.constexpr(2.5066282746310002)


@triton.jit
def activated(scores, PHI: tl.constexpr):
    """Returns phi of the scores; the polynomials use no exponential."""
    if PHI == "relu":
        return tl.maximum(scores, 0.0)
    elif PHI == "elu":
        return tl.where(scores > 0, scores, tl.exp(tl.minimum(scores, 0.0)) - 1.0)
    elif PHI == "gelu":
        return 0.5 * scores * (1.0 + tl.erf(scores * ROOT_OF_HALF))
    elif PHI == "tanh":
        return 2.0 * tl.sigmoid(2.0 * scores) - 1.0
    elif PHI == "exp":
        return tl.exp(scores)
    else:
        return scores


@triton.jit
def derivative(scores, PHI: tl.constexpr):
    """Returns phi' of the scores, but that of x, which is 1."""
    if PHI == "relu":
        return tl.where(scores > 0, 1.0, 0.0)
    elif PHI == "elu":
        return tl.where(scores > 0, 1.0, tl.exp(tl.minimum(scores, 0.0)))
    elif PHI == "gelu":
        density = tl.exp(-0.5 * scores * scores) / ROOT_OF_TWO_PI
        return 0.5 * (1.0 + tl.erf(scores * ROOT_OF_HALF)) + scores * density
    elif PHI == "tanh":
        found = 2.0 * tl.sigmoid(2.0 * scores) - 1.0
        return 1.0 - found * found
    else:
        return tl.exp(scores)


@triton.jit
def power(values, POWER: tl.constexpr):
    """Returns an integer power by products."""
    found = values
    for _ in tl.static_range(POWER - 1):
        found = found * values
    return found


@triton.jit
def kept(row_bits, key_bits, limit):
    """Returns which weights dropout leaves: of seed, head, query and key, the function of ``Call.kept``."""
    mixed = (row_bits[:, None] ^ key_bits[None, :]) * 0x7FEB352D
    mixed = (mixed ^ (mixed >> 15)) * -2073254261
    return limit - (mixed >> 1) < 0


@triton.jit
def elementwise_forward(
    query, key, value, out, row_scale, row_bits, key_bits,
    heads, rows, keys, width, value_width, scale, memory, limit,
    PHI: tl.constexpr, POWER: tl.constexpr, CAUSAL: tl.constexpr, DROPS: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Writes sum_j phi(s_ij)^power value_j times the row's scale, for a block of rows of a head."""
    first, head = block_of(rows, ROWS)
    row = first + tl.arange(0, ROWS)
    own = load_tile(query + head * rows * width, rows, width, first, ROWS, WIDTH)
    share = tl.load(row_scale + (head // heads) * rows + row, mask=row < rows, other=0.0)[:, None]
    total = tl.zeros((ROWS, VALUE_WIDTH), dtype=tl.float32)
    stop = tl.minimum(keys, memory + first + ROWS) if CAUSAL else keys
    if DROPS:
        own_bits = tl.load(row_bits + head * rows + row, mask=row < rows, other=0)
    for start in range(0, stop, KEYS):
        others = load_tile(key + head * keys * width, keys, width, start, KEYS, WIDTH)
        values = load_tile(value + head * keys * value_width, keys, value_width, start, KEYS, VALUE_WIDTH)
        scores = product(own, tl.trans(others)) * scale
        weights = power(activated(scores, PHI), POWER)
        place = start + tl.arange(0, KEYS)
        if CAUSAL:
            weights = tl.where(place[None, :] <= memory + row[:, None], weights, 0.0)
        if DROPS:
            bits = tl.load(key_bits + head * keys + place, mask=place < keys, other=0)
            weights = tl.where(kept(own_bits, bits, limit), weights, 0.0)
        total += product((weights * share).to(values.dtype), values)  # a cube itself may be beyond float16
    store_tile(out + head * rows * value_width, (total), rows, value_width, first, ROWS, VALUE_WIDTH)


@triton.jit
def elementwise_pulled(
    scores, of_weights, place, row, own_bits, bits, memory, limit,
    PHI: tl.constexpr, POWER: tl.constexpr, CAUSAL: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """Returns the weights that are left of a tile, and the gradient of its scores given that of the weights."""
    value = activated(scores, PHI)
    weights = power(value, POWER)
    if CAUSAL:
        sees = place[None, :] <= memory + row[:, None]
        weights, of_weights = tl.where(sees, weights, 0.0), tl.where(sees, of_weights, 0.0)
    if DROPS:
        left = kept(own_bits, bits, limit)
        weights, of_weights = tl.where(left, weights, 0.0), tl.where(left, of_weights, 0.0)
    pulled = of_weights
    if POWER > 1:
        pulled = pulled * (power(value, POWER - 1) * POWER)
    if PHI != "x":
        pulled = pulled * derivative(scores, PHI)
    return weights, pulled


@triton.jit
def elementwise_backward_keys(
    query, key, value, grad, of_key, of_value, row_scale, row_bits, key_bits,
    heads, rows, keys, width, value_width, scale, memory, limit,
    PHI: tl.constexpr, POWER: tl.constexpr, CAUSAL: tl.constexpr, DROPS: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Writes the gradients of a block of keys and values of a head."""
    start, head = block_of(keys, KEYS)
    place = start + tl.arange(0, KEYS)
    own = load_tile(key + head * keys * width, keys, width, start, KEYS, WIDTH)
    values = load_tile(value + head * keys * value_width, keys, value_width, start, KEYS, VALUE_WIDTH)
    keys_total = tl.zeros((KEYS, WIDTH), dtype=tl.float32)
    values_total = tl.zeros((KEYS, VALUE_WIDTH), dtype=tl.float32)
    bits = place
    if DROPS:
        bits = tl.load(key_bits + head * keys + place, mask=place < keys, other=0)
    begin = tl.maximum(start - memory, 0) // ROWS * ROWS if CAUSAL else 0
    for first in range(begin, rows, ROWS):
        row = first + tl.arange(0, ROWS)
        queries = load_tile(query + head * rows * width, rows, width, first, ROWS, WIDTH)
        grads = load_tile(grad + head * rows * value_width, rows, value_width, first, ROWS, VALUE_WIDTH)
        share = tl.load(row_scale + (head // heads) * rows + row, mask=row < rows, other=0.0)[:, None]
        row_own = row
        if DROPS:
            row_own = tl.load(row_bits + head * rows + row, mask=row < rows, other=0)
        scores = product(queries, tl.trans(own)) * scale
        of_weights = product(grads, tl.trans(values)) * share
        weights, pulled = elementwise_pulled(
            scores, of_weights, place, row, row_own, bits, memory, limit, PHI, POWER, CAUSAL, DROPS
        )
        values_total += product(tl.trans((weights * share).to(grads.dtype)), grads)
        keys_total += product(tl.trans(pulled.to(queries.dtype)), queries)
    store_tile(of_key + head * keys * width, (keys_total * scale), keys, width, start, KEYS, WIDTH)
    store_tile(of_value + head * keys * value_width, values_total, keys, value_width, start, KEYS, VALUE_WIDTH)


@triton.jit
def elementwise_backward_queries(
    query, key, value, grad, of_query, row_scale, row_bits, key_bits,
    heads, rows, keys, width, value_width, scale, memory, limit,
    PHI: tl.constexpr, POWER: tl.constexpr, CAUSAL: tl.constexpr, DROPS: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Writes the gradient of a block of queries of a head."""
    first, head = block_of(rows, ROWS)
    row = first + tl.arange(0, ROWS)
    own = load_tile(query + head * rows * width, rows, width, first, ROWS, WIDTH)
    grads = load_tile(grad + head * rows * value_width, rows, value_width, first, ROWS, VALUE_WIDTH)
    share = tl.load(row_scale + (head // heads) * rows + row, mask=row < rows, other=0.0)[:, None]
    total = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    own_bits = row
    if DROPS:
        own_bits = tl.load(row_bits + head * rows + row, mask=row < rows, other=0)
    stop = tl.minimum(keys, memory + first + ROWS) if CAUSAL else keys
    for start in range(0, stop, KEYS):
        place = start + tl.arange(0, KEYS)
        others = load_tile(key + head * keys * width, keys, width, start, KEYS, WIDTH)
        values = load_tile(value + head * keys * value_width, keys, value_width, start, KEYS, VALUE_WIDTH)
        bits = place
        if DROPS:
            bits = tl.load(key_bits + head * keys + place, mask=place < keys, other=0)
        scores = product(own, tl.trans(others)) * scale
        of_weights = product(grads, tl.trans(values)) * share
        _, pulled = elementwise_pulled(
            scores, of_weights, place, row, own_bits, bits, memory, limit, PHI, POWER, CAUSAL, DROPS
        )
        total += product(pulled.to(others.dtype), others)
    store_tile(of_query + head * rows * width, (total * scale), rows, width, first, ROWS, WIDTH)

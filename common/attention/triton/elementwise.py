"""Kernels of the elementwise variants: phi(s_ij)^power, no row statistics, and without phi no exponential.

Tensors are flat: L heads of all examples, N queries, M keys, D and E numbers of a head. Scores and sums are float32;
products of float32 tensors are never rounded to tf32. Padding in queries, keys and values is 0 before it comes here, so
that no mask is needed but that of time.
"""

import triton
import triton.language as tl

from common.attention.triton.tiles import product, tile

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
    first, head = tl.program_id(0) * ROWS, tl.program_id(1).to(tl.int64)
    row = first + tl.arange(0, ROWS)
    pointers, inside = tile(query + head * rows * width, rows, width, first, ROWS, WIDTH)
    own = tl.load(pointers, mask=inside, other=0.0)
    total = tl.zeros((ROWS, VALUE_WIDTH), dtype=tl.float32)
    stop = tl.minimum(keys, memory + first + ROWS) if CAUSAL else keys
    if DROPS:
        own_bits = tl.load(row_bits + head * rows + row, mask=row < rows, other=0)
    for start in range(0, stop, KEYS):
        pointers, inside = tile(key + head * keys * width, keys, width, start, KEYS, WIDTH)
        others = tl.load(pointers, mask=inside, other=0.0)
        pointers, inside = tile(value + head * keys * value_width, keys, value_width, start, KEYS, VALUE_WIDTH)
        values = tl.load(pointers, mask=inside, other=0.0)
        scores = product(own, tl.trans(others)) * scale
        weights = power(activated(scores, PHI), POWER)
        place = start + tl.arange(0, KEYS)
        if CAUSAL:
            weights = tl.where(place[None, :] <= memory + row[:, None], weights, 0.0)
        if DROPS:
            bits = tl.load(key_bits + head * keys + place, mask=place < keys, other=0)
            weights = tl.where(kept(own_bits, bits, limit), weights, 0.0)
        total += product(weights.to(values.dtype), values)
    share = tl.load(row_scale + (head // heads) * rows + row, mask=row < rows, other=0.0)
    pointers, inside = tile(out + head * rows * value_width, rows, value_width, first, ROWS, VALUE_WIDTH)
    tl.store(pointers, (total * share[:, None]).to(out.dtype.element_ty), mask=inside)


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
    start, head = tl.program_id(0) * KEYS, tl.program_id(1).to(tl.int64)
    place = start + tl.arange(0, KEYS)
    pointers, inside = tile(key + head * keys * width, keys, width, start, KEYS, WIDTH)
    own = tl.load(pointers, mask=inside, other=0.0)
    pointers, inside = tile(value + head * keys * value_width, keys, value_width, start, KEYS, VALUE_WIDTH)
    values = tl.load(pointers, mask=inside, other=0.0)
    keys_total = tl.zeros((KEYS, WIDTH), dtype=tl.float32)
    values_total = tl.zeros((KEYS, VALUE_WIDTH), dtype=tl.float32)
    bits = place
    if DROPS:
        bits = tl.load(key_bits + head * keys + place, mask=place < keys, other=0)
    begin = tl.maximum(start - memory, 0) // ROWS * ROWS if CAUSAL else 0
    for first in range(begin, rows, ROWS):
        row = first + tl.arange(0, ROWS)
        pointers, inside = tile(query + head * rows * width, rows, width, first, ROWS, WIDTH)
        queries = tl.load(pointers, mask=inside, other=0.0)
        pointers, inside = tile(grad + head * rows * value_width, rows, value_width, first, ROWS, VALUE_WIDTH)
        grads = tl.load(pointers, mask=inside, other=0.0)
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
    pointers, inside = tile(of_key + head * keys * width, keys, width, start, KEYS, WIDTH)
    tl.store(pointers, (keys_total * scale).to(of_key.dtype.element_ty), mask=inside)
    pointers, inside = tile(of_value + head * keys * value_width, keys, value_width, start, KEYS, VALUE_WIDTH)
    tl.store(pointers, values_total.to(of_value.dtype.element_ty), mask=inside)


@triton.jit
def elementwise_backward_queries(
    query, key, value, grad, of_query, row_scale, row_bits, key_bits,
    heads, rows, keys, width, value_width, scale, memory, limit,
    PHI: tl.constexpr, POWER: tl.constexpr, CAUSAL: tl.constexpr, DROPS: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Writes the gradient of a block of queries of a head."""
    first, head = tl.program_id(0) * ROWS, tl.program_id(1).to(tl.int64)
    row = first + tl.arange(0, ROWS)
    pointers, inside = tile(query + head * rows * width, rows, width, first, ROWS, WIDTH)
    own = tl.load(pointers, mask=inside, other=0.0)
    pointers, inside = tile(grad + head * rows * value_width, rows, value_width, first, ROWS, VALUE_WIDTH)
    grads = tl.load(pointers, mask=inside, other=0.0)
    share = tl.load(row_scale + (head // heads) * rows + row, mask=row < rows, other=0.0)[:, None]
    total = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    own_bits = row
    if DROPS:
        own_bits = tl.load(row_bits + head * rows + row, mask=row < rows, other=0)
    stop = tl.minimum(keys, memory + first + ROWS) if CAUSAL else keys
    for start in range(0, stop, KEYS):
        place = start + tl.arange(0, KEYS)
        pointers, inside = tile(key + head * keys * width, keys, width, start, KEYS, WIDTH)
        others = tl.load(pointers, mask=inside, other=0.0)
        pointers, inside = tile(value + head * keys * value_width, keys, value_width, start, KEYS, VALUE_WIDTH)
        values = tl.load(pointers, mask=inside, other=0.0)
        bits = place
        if DROPS:
            bits = tl.load(key_bits + head * keys + place, mask=place < keys, other=0)
        scores = product(own, tl.trans(others)) * scale
        of_weights = product(grads, tl.trans(values)) * share
        _, pulled = elementwise_pulled(
            scores, of_weights, place, row, own_bits, bits, memory, limit, PHI, POWER, CAUSAL, DROPS
        )
        total += product(pulled.to(others.dtype), others)
    pointers, inside = tile(of_query + head * rows * width, rows, width, first, ROWS, WIDTH)
    tl.store(pointers, (total * scale).to(of_query.dtype.element_ty), mask=inside)

"""Attention weights, a block of queries at a time, for diagnostics that must not store the whole matrix.

Variants with a rule also return the norm of the derivative of the weights by the scores.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from seqarena.common.attention.blockwise import initial_state
from seqarena.common.attention.column_logsumexp import column_logsumexp, prefix
from seqarena.common.attention.rule import Rule
from seqarena.common.attention.tiles import Call, Tile
from seqarena.common.attention.visibility import Visibility
from seqarena.common.shapes import Bias, Key, Query

MOST_ROWS = 64
"""Maximum number of queries whose weights are computed at once."""


class WeightRows(NamedTuple):
    """Weights of a block of queries, before dropout, in float32 or wider. G of the B H heads, R queries, W keys."""

    heads: slice
    """Range within the heads of all examples, in the order of the examples."""
    queries: slice
    keys: slice
    """Range of keys; weights of all other keys are 0."""
    weights: Tensor
    """Weights; G R W; 0 for invisible pairs."""
    slope: Tensor | None
    """Squared Frobenius norm of the derivative by the scores; G. None if not available: for iterated and prefix forms,
    and for variants without a rule."""


def rows_by_rule(
    rule: Rule, mixing_weight: Tensor | None, query: Query, key: Key, visibility: Visibility, bias: Bias | None
) -> Iterator[WeightRows]:
    """Yields the weights of a variant with a rule, by the engine's tiles, in memory linear in the length.

    No input requires a gradient.
    """
    call = Call(query, key, key, bias, visibility, rule, mixing_weight, 0.0, 0, most_rows=MOST_ROWS)
    known = rule.is_mixture or not rule.whole_rows
    is_defined = known and not call.is_prefix and rule.rounds <= 1
    for some in call.head_blocks:
        for tile, weights, slope in _whole_rows(call, some):
            yield WeightRows(some, tile.rows, tile.keys, weights, slope if is_defined else None)


def _whole_rows(call: Call, heads: slice) -> Iterator[tuple[Tile, Tensor, Tensor]]:
    """Yields whole rows of weights (G R W), and the squared norm of their derivative by the scores (G).

    The norm is 0 if it is not available.
    """
    lse = column_logsumexp(call, heads)[:, -1:] if call.column_rounds else None
    state = initial_state(call, None)[heads] if call.is_prefix else None
    column_norm = torch.zeros(())
    if lse is not None:
        column_norm = torch.zeros_like(lse)
        for tile in call.tiles(heads):
            column_norm += call.scores(tile).sub_(lse).exp_().square_().sum(dim=1, keepdim=True)
    mixing_weight = None if call.mixing_weight is None else call.mixing_weight[heads]
    for tile in call.tiles(heads):
        scores, scale = call.scores(tile), call.row_scale[heads, tile.rows]
        if not call.rule.whole_rows:
            yield tile, *_elementwise(call, tile, scores, scale)
            continue
        doubly = columns = None
        if lse is not None:
            columns = (scores - lse).exp_()
            doubly = (scores - lse).softmax(dim=-1).mul_(scale)
        elif state is not None:
            block = prefix(scores, state[:, :, tile.keys], call.late(tile), call.masked, call)
            doubly, state[:, :, tile.keys] = block.doubly.clone().mul_(scale), block.last
        slope = scores.new_zeros(len(scores))
        if columns is not None and doubly is not None:
            slope = jacobian_doubly(doubly, columns, column_norm)
            if mixing_weight is not None:
                softmax = scores.softmax(dim=-1).mul_(scale)
                slope = jacobian_mixed(mixing_weight[:, 0, 0], softmax, doubly, columns, column_norm)
        elif state is None:
            slope = jacobian_softmax(scores.softmax(dim=-1).mul_(scale))
        weights, _ = call.rule.apply(scores, doubly, mixing_weight, call)
        yield tile, weights * scale, slope


def _elementwise(call: Call, tile: Tile, scores: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Returns whole rows of elementwise weights, and the squared norm of their derivative, also elementwise."""
    real = call.visibility.key_real
    seen = scale if real is None else scale * real[:, tile.keys].repeat_interleave(call.heads, dim=0)[tile.heads, None]
    weights, saved = call.rule.apply(scores, None, None, call)
    weights = call.hide(weights * seen, tile)
    gradient = call.rule.backward(saved, torch.ones_like(weights), call)
    assert gradient.scores is not None
    return weights, call.hide(gradient.scores * (gradient.factor * seen), tile).square().sum(dim=(1, 2))


def jacobian_softmax(weights: Tensor) -> Tensor:
    """Returns the squared Frobenius norm of d softmax / d scores over the last two axes, given weights P (... R M).

    Per row it is the sum over l of P_il^2 (1 - 2 P_il + ||P_i.||^2), from P1's Jacobian.
    """
    return _own_rows(weights, weights).sum(dim=(-2, -1))


def jacobian_doubly(weights: Tensor, columns: Tensor, column_norm: Tensor) -> Tensor:
    """Returns the squared Frobenius norm of d dnas / d scores, given weights P.

    ``columns`` is X = exp(s - c), ``column_norm`` is ||X_.l||^2 over all queries. The norm is the sum over i, l of
    P_il^2 (1 - 2 P_il + ||P_i.||^2) (1 - 2 X_il + ||X_.l||^2).
    """
    return (_own_rows(weights, weights) * (1 - 2 * columns + column_norm)).sum(dim=(-2, -1))


def jacobian_mixed(u: Tensor, softmax: Tensor, doubly: Tensor, columns: Tensor, column_norm: Tensor) -> Tensor:
    """Returns the squared Frobenius norm of d hnas / d scores.

    It is u^2 and (1 - u)^2 times those of the halves, plus 2 u (1 - u) times the inner product of their derivatives.
    """
    inner = (_own_rows(doubly, softmax) * (1 - columns)).sum(dim=(-2, -1))
    own = u**2 * jacobian_doubly(doubly, columns, column_norm) + (1 - u) ** 2 * jacobian_softmax(softmax)
    return own + 2 * u * (1 - u) * inner


def _own_rows(one: Tensor, other: Tensor) -> Tensor:
    """Returns sum_j dP_ij/ds_il dQ_ij/ds_il for two softmaxes P, Q over the row's scores; ... R M."""
    product = one * other
    return product * (1 - one - other + product.sum(dim=-1, keepdim=True))

"""Column logsumexps of the scores, and with them the doubly-normalised weights of a block and their gradients.

The column logsumexp of key j is c_j = log sum_i exp s_ij over the queries to which it is visible: over all of them
(P2), or over those up to the current query (the prefix form, ours), where c_j is the state passed from block to block.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from seqarena.common.attention.rule import EMPTY_LOGSUMEXP, Scratch, softmax_backward_
from seqarena.common.attention.tiles import Call, Tile
from seqarena.common.attention.visibility import Visibility

RANGE = 60.0
"""Maximum difference of logarithms for which exponentials are summed directly: exp(60) is well within float32, and the
terms that are lost are below 1e-12 of the sum."""
LEAST = 1e-30
"""Lower bound of column sums, below exp(-RANGE); reached where no key of a column is visible yet."""

Accumulate = Callable[[Tile, Tensor], None]


def column_logsumexp(call: Call, heads: slice) -> Tensor:
    """Returns the column logsumexp over all queries in each round of Sinkhorn's algorithm; G rounds M."""
    found: list[Tensor] = []
    for _ in range(call.rule.rounds):
        group = call.key[heads]
        state = group.new_full((len(group), 1, group.shape[1]), EMPTY_LOGSUMEXP)
        for tile in call.tiles(heads):
            scores = call.scores(tile)
            state = add_block(state, _row_normalized(scores, found[-1])[0] if found else scores, call.masked)
        found.append(state)
    return torch.cat(found, dim=1)


def columns_backward(call: Call, heads: slice, lses: Tensor, grad: Tensor, accumulate: Accumulate) -> None:
    """Passes the gradient of each tile's scores to ``accumulate``, given that of the last round's logsumexp; G 1 M."""
    for last in reversed(range(lses.shape[1])):
        lse, before = lses[:, last : last + 1], lses[:, last - 1 : last] if last else None
        earlier = torch.zeros_like(grad)
        for tile in call.tiles(heads):
            scores = call.scores(tile)
            if before is None:
                accumulate(tile, exp_(scores.sub_(lse), call.masked).mul_(grad))
                continue
            normalized, weights = _row_normalized(scores, before)
            grad_scores = exp_(normalized.sub_(lse), call.masked).mul_(grad)
            weights *= grad_scores.sum(dim=2, keepdim=True)
            earlier += weights.sum(dim=1, keepdim=True)
            accumulate(tile, grad_scores.sub_(weights))
        grad = earlier


def aligned_state(state: Tensor, keys: int, visibility: Visibility) -> Tensor:
    """Returns the column logsumexps of a call's keys over earlier queries (..., M), given the state before it (..., K).

    The last entries of the state belong to the keys before the first query. Other keys start with an empty sum. So do
    those that no query has seen: the formula's state is lower there, and a hidden score minus it would not be hidden.
    """
    earlier = visibility.memory if visibility.order == "causal" else keys
    known = min(earlier, state.shape[-1])
    aligned = state.new_full((*state.shape[:-1], keys), EMPTY_LOGSUMEXP)
    aligned[..., earlier - known : earlier] = state[..., state.shape[-1] - known :].clamp(min=EMPTY_LOGSUMEXP)
    return aligned


def exp_(exponents: Tensor, masked: bool) -> Tensor:
    """Computes exponentials in place.

    ``masked`` means that many of them underflow, for which exp on a CPU is a hundred times as slow. Then exponents are
    clamped first, and results below the least normal number are set to 0.
    """
    if not masked:
        return exponents.exp_()
    tiny = torch.finfo(exponents.dtype).tiny
    return torch.threshold_(exponents.clamp_(min=math.log(tiny) + 1).exp_(), 4 * tiny, 0.0)


def add_block(state: Tensor, scores: Tensor, masked: bool) -> Tensor:
    """Returns the column logsumexp with the rows of a block included; G 1 W. Overwrites the scores."""
    top = torch.maximum(state, scores.amax(dim=1, keepdim=True))
    total = exp_(scores.sub_(top), masked).sum(dim=1, keepdim=True)
    return total.add_((state - top).exp_()).log_().add_(top)


def _row_normalized(scores: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Returns s_ij - logsumexp_j(s_ij - c_j), and softmax_j(s_ij - c_j), its derivative."""
    shifted = scores - lse
    row = shifted.logsumexp(dim=2, keepdim=True).clamp_(min=EMPTY_LOGSUMEXP)
    return scores - row, shifted.sub_(row).exp_()


class Prefix(NamedTuple):
    """Prefix-normalised weights of a block of rows, and the tensors needed for their gradient."""

    doubly: Tensor
    """Weights xi_ij / sum_j xi_ij, xi_ij = exp(s_ij - c_ij); G R W."""
    scores: Tensor
    state: Tensor
    """Column logsumexp before the block; G 1 W."""
    last: Tensor
    """Column logsumexp after the block; G 1 W."""
    top: Tensor
    """Maximum of each column over the scores and the state; G 1 W."""
    exponentials: Tensor
    """exp(s_ij - top_j); G R W."""
    sums: Tensor
    """exp(c_ij - top_j); G R W."""
    wide: Tensor
    """Indices of columns whose range exceeds ``RANGE``."""


def prefix(scores: Tensor, state: Tensor, late: int, masked: bool, scratch: Scratch) -> Prefix:
    """Returns the weights of a block of rows, where c_ij = log(exp state_j + sum over i' <= i of exp s_i'j).

    The sums are a product with a triangular matrix of ones. Columns where float32 could lose a sum next to the largest
    exponential are computed by a cumulative logsumexp instead. So are columns with a score that is not finite, which
    must not affect earlier rows. The last ``late`` columns are keys newer than the first query of the block: the first
    of them is visible from the second row on, and so on.
    """
    rows, columns = scores.shape[1:]
    top = torch.maximum(scores.amax(dim=1, keepdim=True), state)
    first = scores[:, :1]
    if late:
        newest = scores[:, 1:, columns - late :].diagonal(dim1=1, dim2=2)[:, None]
        first = torch.cat([first[..., : columns - late], newest], dim=2)
    spread = top - torch.maximum(first, state)
    wide = (~(spread <= RANGE)).any(dim=0).flatten().nonzero().flatten()  # also selects NaN
    exponentials = exp_(torch.sub(scores, top, out=scratch.like("exponentials", scores)), masked)
    until = scores.new_ones(rows, rows).tril_().expand(len(scores), rows, rows)
    sums = torch.bmm(until, exponentials, out=scratch.like("sums", scores))
    sums.add_((state - top).exp_()).clamp_(min=LEAST)
    doubly = torch.div(exponentials, sums, out=scratch.like("doubly", scores))
    last = sums[:, -1:].log().add_(top)
    lses = None
    if len(wide):
        lses = _wide_logsumexp(scores[:, :, wide], state[:, :, wide])
        doubly[:, :, wide] = (scores[:, :, wide] - lses).exp_()
        last[:, :, wide] = lses[:, -1:]
    total = doubly.sum(dim=2, keepdim=True)
    if bool((total < _least_total(scores)).any()):
        logarithms = sums.log().add_(top)
        if lses is not None:
            logarithms[:, :, wide] = lses
        doubly = torch.softmax(scores - logarithms, dim=-1)
    else:
        doubly /= total
    return Prefix(doubly, scores, state, last, top, exponentials, sums, wide)


def _least_total(scores: Tensor) -> float:
    """Returns the sum of a row's xi_ij above which the quotients of exponentials are exact to the dtype's precision.

    An exponential exp(s_ij - top_j) may underflow where xi_ij is below exp(``RANGE``) times the least normal number.
    Rows with a lower sum are computed from logarithms: all of their scores are far below the column logsumexps.
    """
    numbers = torch.finfo(scores.dtype)
    return max(LEAST, scores.shape[2] * math.exp(RANGE) * 4 * numbers.tiny / numbers.eps)


def prefix_backward(block: Prefix, grad: Tensor, later: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the gradient of a block's scores, given that of its weights, and ``later`` for the previous block.

    ``later`` (G 1 W) is the sum over later rows i of dT_ij exp(c_j - c_ij), where dT is the gradient of s - c and c_j
    the column logsumexp after this block. It is the contribution of those rows to the gradient of every earlier score,
    in a form that neither overflows nor underflows.
    """
    rows = grad.shape[1]
    grad = softmax_backward_(block.doubly, grad)
    since = grad.new_ones(rows, rows).triu_().expand(len(grad), rows, rows)
    # The weights and the sums are no longer needed: their memory is reused.
    torch.div(grad, block.sums, out=block.doubly)
    through = torch.bmm(since, block.doubly, out=block.sums).add_((block.top - block.last).exp_().mul_(later))
    before = through[:, :1] * (block.state - block.top).exp_()
    through *= block.exponentials
    if len(wide := block.wide):
        some = [tensor[:, :, wide] for tensor in (block.scores, block.state, grad, later)]
        through[:, :, wide], before[:, :, wide] = _wide_backward(*some)
    return grad.sub_(through), before


def _wide_logsumexp(scores: Tensor, state: Tensor) -> Tensor:
    return torch.logaddexp(scores.logcumsumexp(dim=1), state).clamp_(min=EMPTY_LOGSUMEXP)


def _wide_backward(scores: Tensor, state: Tensor, grad: Tensor, later: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the gradient of a block's scores through c_ij, and ``later`` for the previous block, row after row.

    The sums A_i over rows i' >= i of dT_i'j exp(c_ij - c_i'j) follow from each other, A_i = dT_ij + exp(c_ij - c_i+1,j)
    A_i+1, with factors of at most 1, because c_ij grows with i.
    """
    lses = _wide_logsumexp(scores, state)
    factors = (lses[:, :-1] - lses[:, 1:]).exp_()
    sums = grad.clone()
    sums[:, -1:] += later
    for row in reversed(range(scores.shape[1] - 1)):
        sums[:, row].addcmul_(factors[:, row], sums[:, row + 1])
    # A score exceeds the logsumexp only in rows to which the key is not visible.
    through = (scores - lses).clamp_(max=0.0).exp_().mul_(sums)
    return through, (state - lses[:, :1]).clamp_(max=0.0).exp_() * sums[:, :1]

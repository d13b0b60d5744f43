"""Doubly-normalised weights of a block, from the masses its keys have received, and their gradients.

The mass of key j is the sum of exp s_ij over the queries that see it: over all of them (P2), or over those up to query
i (the prefix form, ours), where each block carries on from the one before. All are held as logarithms.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from seqarena.common.attention.rule import NOTHING, Scratch, pull_softmax_, softmax_
from seqarena.common.attention.tiles import Call, Tile

RANGE = 60.0
"""Largest difference of logarithms for which sums of exponentials are taken as they are: exp(60) is far inside
float32, and what is lost below is 1e-12 of the sum."""
WIDE_COLUMNS = 256
"""Such columns whose rows are taken pair by pair at once."""
LEAST = 1e-30
"""Below exp(-RANGE): the sum of a column of which the row sees nothing yet."""

Accumulate = Callable[[Tile, Tensor], None]


def column_masses(call: Call, heads: slice) -> Tensor:
    """Returns the masses of each round of Sinkhorn's algorithm, over all queries; G rounds M."""
    found: list[Tensor] = []
    for _ in range(call.rule.rounds):
        group = call.key[heads]
        carry = group.new_full((len(group), 1, group.shape[1]), NOTHING)
        for tile in _blocks(call, heads):
            scores = call.scores(tile)
            carry = added(carry, _row_normalized(scores, found[-1])[0] if found else scores, call.masked)
        found.append(carry)
    return torch.cat(found, dim=1)


def pull_columns(call: Call, heads: slice, masses: Tensor, grad: Tensor, accumulate: Accumulate) -> None:
    """Gives ``accumulate`` the gradient of each tile's scores, given that of the last round's masses; G 1 M."""
    for last in reversed(range(masses.shape[1])):
        mass, before = masses[:, last : last + 1], masses[:, last - 1 : last] if last else None
        earlier = torch.zeros_like(grad)
        for tile in _blocks(call, heads):
            scores = call.scores(tile)
            if before is None:
                accumulate(tile, exp_(scores.sub_(mass), call.masked).mul_(grad))
                continue
            normalized, weights = _row_normalized(scores, before)
            pulled = exp_(normalized.sub_(mass), call.masked).mul_(grad)
            weights *= pulled.sum(dim=2, keepdim=True)
            earlier += weights.sum(dim=1, keepdim=True)
            accumulate(tile, pulled.sub_(weights))
        grad = earlier


def exp_(exponents: Tensor, masked: bool) -> Tensor:
    """Returns the exponentials, in place; 0 where they are below the least normal number.

    ``masked`` says that many are: on a CPU exp takes those that underflow one by one, a hundred times as slowly.
    """
    if not masked:
        return exponents.exp_()
    tiny = torch.finfo(exponents.dtype).tiny
    return torch.threshold_(exponents.clamp_(min=math.log(tiny) + 1).exp_(), 4 * tiny, 0.0)


def added(carry: Tensor, scores: Tensor, masked: bool) -> Tensor:
    """Returns the masses with a block's added to them; G 1 W. Overwrites the scores."""
    top = torch.maximum(carry, scores.amax(dim=1, keepdim=True))
    total = exp_(scores.sub_(top), masked).sum(dim=1, keepdim=True)
    return total.add_((carry - top).exp_()).log_().add_(top)


def _blocks(call: Call, heads: slice) -> Iterator[Tile]:
    return (tile for rows in call.row_blocks() for tile in call.tiles(heads, rows))


def _row_normalized(scores: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """Returns s_ij - logsumexp_j(s_ij - mass_j), and the softmax that is its gradient."""
    shifted = scores - mass
    row = shifted.logsumexp(dim=2, keepdim=True).clamp_(min=NOTHING)
    return scores - row, shifted.sub_(row).exp_()


class Prefix(NamedTuple):
    """The prefix-normalised weights of a block of rows, and what their gradient needs."""

    doubly: Tensor
    """The weights: xi_ij / sum_j xi_ij, xi_ij = exp(s_ij - c_ij); G R W."""
    scores: Tensor
    carry: Tensor
    """Masses before the block; G 1 W."""
    last: Tensor
    """Masses after it; G 1 W."""
    top: Tensor
    """Each column's largest logarithm; G 1 W."""
    exponentials: Tensor
    """exp(s_ij - top_j)."""
    sums: Tensor
    """exp(c_ij - top_j)."""
    wide: Tensor
    """Indices of columns that range too far for sums of exponentials."""


def prefix(scores: Tensor, carry: Tensor, late: int, masked: bool, scratch: Scratch) -> Prefix:
    """Returns the weights of a block of rows, where c_ij = log(exp carry_j + sum over i' <= i of exp s_i'j).

    The sums are a product with a triangle of ones. In columns where one could be so much smaller than the column's
    largest exponential that float32 would lose it, they are a true cumulative logsumexp; and where a score is no finite
    number, which then reaches no earlier row. The last ``late`` columns belong to keys as new as the block's last
    queries: the first of them is seen by the second row, and so on.
    """
    rows, columns = scores.shape[1:]
    top = torch.maximum(scores.amax(dim=1, keepdim=True), carry)
    first = scores[:, :1]
    if late:
        newest = scores[:, 1:, columns - late :].diagonal(dim1=1, dim2=2)[:, None]
        first = torch.cat([first[..., : columns - late], newest], dim=2)
    spread = top - torch.maximum(first, carry)
    wide = (~(spread <= RANGE)).any(dim=0).flatten().nonzero().flatten()  # so is a NaN
    exponentials = exp_(torch.sub(scores, top, out=scratch.like("exponentials", scores)), masked)
    until = scores.new_ones(rows, rows).tril_().expand(len(scores), rows, rows)
    sums = torch.bmm(until, exponentials, out=scratch.like("sums", scores))
    sums.add_((carry - top).exp_()).clamp_(min=LEAST)
    doubly = torch.div(exponentials, sums, out=scratch.like("doubly", scores))
    last = sums[:, -1:].log().add_(top)
    masses = None
    if len(wide):
        masses = _wide_masses(scores[:, :, wide], carry[:, :, wide])
        doubly[:, :, wide] = (scores[:, :, wide] - masses).exp_()
        last[:, :, wide] = masses[:, -1:]
    total = doubly.sum(dim=2, keepdim=True)
    if bool((total < LEAST).any()):  # no key's latest query is this row's own: all may lie far below the masses
        logarithms = sums.log().add_(top)
        if masses is not None:
            logarithms[:, :, wide] = masses
        doubly = softmax_(scores - logarithms)
    else:
        doubly /= total
    return Prefix(doubly, scores, carry, last, top, exponentials, sums, wide)


def pull_prefix(block: Prefix, grad: Tensor, later: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the gradient of a block's scores, given that of its weights, and ``later`` for the block before it.

    ``later`` is the sum over later rows i of dT_ij exp(c_j - c_ij), dT the gradient of s - c, c_j the mass after this
    block (G 1 W): what those rows owe to every earlier score, in a form that neither over- nor underflows.
    """
    rows = grad.shape[1]
    grad = pull_softmax_(block.doubly, grad)
    since = grad.new_ones(rows, rows).triu_().expand(len(grad), rows, rows)
    # The weights and the sums have done their service: their room is taken.
    torch.div(grad, block.sums, out=block.doubly)
    owed = torch.bmm(since, block.doubly, out=block.sums).add_((block.top - block.last).exp_().mul_(later))
    before = owed[:, :1] * (block.carry - block.top).exp_()
    owed *= block.exponentials
    for wide in torch.split(block.wide, WIDE_COLUMNS):
        some = [tensor[:, :, wide] for tensor in (block.scores, block.carry, grad, later)]
        owed[:, :, wide], before[:, :, wide] = _pull_wide(*some)
    return grad.sub_(owed), before


def _wide_masses(scores: Tensor, carry: Tensor) -> Tensor:
    return torch.logaddexp(scores.logcumsumexp(dim=1), carry).clamp_(min=NOTHING)


def _pull_wide(scores: Tensor, carry: Tensor, grad: Tensor, later: Tensor) -> tuple[Tensor, Tensor]:
    """Returns what a block's scores owe, and ``later`` for the block before, pair of rows by pair of rows."""
    masses, rows = _wide_masses(scores, carry), scores.shape[1]
    order = torch.ones(rows, rows, dtype=torch.bool, device=scores.device).triu_()[:, :, None]
    # No score exceeds a later mass, but where that row does not see the key.
    owed = (scores[:, :, None] - masses[:, None]).clamp_(max=0.0).exp_().mul_(order).mul_(grad[:, None])  # G R R W
    whole = owed.sum(dim=2) + (scores - masses[:, -1:]).clamp_(max=0.0).exp_() * later
    before = ((carry - masses).clamp_(max=0.0).exp_() * grad).sum(dim=1, keepdim=True)
    return whole, before + (carry - masses[:, -1:]).clamp_(max=0.0).exp_() * later

"""Reference implementation of each variant: the paper's formula on the full matrix, tested in float64.

P1 = "Rethinking Softmax: Self-Attention with Polynomial Activations"; P2 = "Attention that does not Explain Away".
``visible`` marks the visible pairs. Every function returns exactly 0 elsewhere, also in rows without a visible key.
Hidden scores are filled with the lowest finite number rather than minus infinity, whose gradient is NaN. In variants
that normalise scores, a pair is also hidden if a bias lowers its score to ``HIDDEN`` or below (minus infinity).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from seqarena.common.attention.rule import HIDDEN
from seqarena.common.shapes import Bias, ColumnLse, EarlierLse, Key, Pairs, Query, Scores, Weights


def scaled_scores(query: Query, key: Key, bias: Bias | None) -> Scores:
    """Returns s_ij in float32 or wider, also under autocast: cubes and exponentials overflow half precision."""
    with torch.autocast(query.device.type, enabled=False):
        wide = torch.promote_types(query.dtype, torch.float32)
        scores: Tensor = (query.to(wide) * query.shape[-1] ** -0.5) @ key.to(wide).transpose(-1, -2)  # B H N M
        return scores if bias is None else scores + bias.to(wide)


def lowest(scores: Scores) -> float:
    """Returns the fill value of hidden scores: finite, with an exponential of exactly 0."""
    return torch.finfo(scores.dtype).min


def unhidden(scores: Scores, visible: Pairs) -> Tensor:
    """Returns the visible pairs that no bias hides; B H N M. A pair whose score is NaN counts as visible."""
    return visible & ~(scores <= HIDDEN)


def softmax(scores: Scores, visible: Pairs) -> Weights:
    """Returns pi_ij = exp s_ij / sum_j exp s_ij (LNAS in P2)."""
    seen = unhidden(scores, visible)
    return scores.masked_fill(~seen, lowest(scores)).softmax(dim=-1) * seen


def recency(scores: Scores, visible: Pairs, memory: int) -> Weights:
    """Returns the softmax of s_ij - log(distance + 1), for key j at distance ``memory`` + i - j before query i.

    The control for prefix-normalised attention, where xi_jj = 1 for the newest key acts as a recency bias.
    """
    query, key = (torch.arange(length, device=scores.device) for length in scores.shape[-2:])
    distance = (memory + query[:, None] - key[None, :]).clamp(min=0)
    return softmax(scores - distance.to(scores.dtype).log1p(), visible)


def doubly_normalized(scores: Scores, visible: Pairs, iterations: int = 1) -> Weights:
    """Returns DNAS of P2: xi_ji = exp s_ij / sum_i exp s_ij over real queries, pi_ij = xi_ji / sum_j xi_ji.

    ``iterations`` = 1 is the paper's. Further iterations are rounds of Sinkhorn's algorithm on the same matrix.
    """
    log_weights, seen = scores, unhidden(scores, visible)
    for _ in range(iterations):
        for axis in (-2, -1):
            log_weights = log_weights.masked_fill(~seen, lowest(scores))
            log_weights = log_weights - log_weights.logsumexp(dim=axis, keepdim=True)
    return log_weights.masked_fill(~seen, lowest(scores)).exp() * seen


def prefix_normalized(
    scores: Scores, visible: Pairs, state: EarlierLse | None, earlier: int
) -> tuple[Weights, ColumnLse]:
    """Returns the weights of prefix-normalised DNAS and the state after the last query.

    For row i the column sum of key j runs over the visible queries up to i. This form is ours: the paper's sum includes
    later queries, which would leak the future. The arguments are those of ``prefix_logsumexp``.
    """
    lse = prefix_logsumexp(scores, visible, state, earlier)
    shifted = (scores - lse).masked_fill(~unhidden(scores, visible), lowest(scores))
    return softmax(shifted, visible), lse[..., -1, :]


def prefix_logsumexp(scores: Scores, visible: Pairs, state: EarlierLse | None, earlier: int) -> Scores:
    """Returns the logsumexp of each key over the visible queries up to i, for each query i; B H N M.

    ``state`` is each key's logsumexp over earlier queries (B H K). The first ``earlier`` keys of this call correspond
    to its last entries; keys without an entry start with an empty sum.
    """
    hidden = scores.masked_fill(~unhidden(scores, visible), lowest(scores))
    lse = hidden.logcumsumexp(dim=-2)
    if state is not None:
        known = min(earlier, state.shape[-1])
        before = state.new_full((*state.shape[:2], scores.shape[-1]), lowest(scores))  # B H M
        before[..., earlier - known : earlier] = state[..., state.shape[-1] - known :]
        lse = torch.logaddexp(lse, before[..., None, :])
    return lse


def elementwise(
    scores: Scores,
    visible: Pairs,
    phi: Callable[[Tensor], Tensor],
    power: int,
    scale: float | None,
    length_exponent: float,
) -> Weights:
    """Returns phi(s_ij)^power / scale (P1); ``scale`` None is N^length_exponent, N the number of keys of query i.

    P1 states sqrt(N) for N = the sequence length. Counting real, visible keys makes the result independent of padding
    and later keys.
    The mask is a factor: a large negative number added to a score would not vanish under a cube.
    """
    raised = phi(scores.masked_fill(~visible, 0.0)) ** power * visible
    if scale is not None:
        return raised / scale
    return raised * visible.sum(dim=-1, keepdim=True).clamp(min=1).to(scores.dtype).pow(-length_exponent)

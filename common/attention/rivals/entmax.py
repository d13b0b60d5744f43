"""Sparse attention weights: sparsemax (Martins and Astudillo 2016) and entmax-1.5 (Peters et al. 2019)."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from seqarena.common.attention.base import AttentionConfig, Kernel
from seqarena.common.attention.reference import lowest, unhidden
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import ColumnLse, EarlierLse, Pairs, Scores, Weights


@dataclass(frozen=True, kw_only=True)
class Entmax(AttentionConfig):
    """Entmax: pi_ij = max(0, (alpha - 1) s_ij - tau_i)^(1 / (alpha - 1)), tau_i such that they sum to 1 over j.

    alpha = 2 is sparsemax. Weights of low scores are exactly 0. Scores, thresholds and gradients are exact.
    """

    alpha: float = 1.5
    """Degree of sparsity: 1.5 or 2."""

    def __post_init__(self) -> None:
        if self.alpha not in (1.5, 2.0):
            raise WrongUseError(f"alpha: expected 1.5 (entmax) or 2 (sparsemax), found {self.alpha}")

    @property
    def formula(self) -> str:
        """The weights as text."""
        weights = "max(0, s_ij - tau_i)" if self.alpha == 2 else "max(0, s_ij / 2 - tau_i)^2"
        return f"sparse: pi_ij = {weights}, tau_i such that they sum to 1 over j"

    @property
    def bias_hides(self) -> bool:
        """True: a score more than 1 / (alpha - 1) below the row's maximum has weight 0."""
        return True

    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        """Returns the kernel."""
        return EntmaxKernel(self, dropout)


class EntmaxKernel(Kernel):
    """Kernel of sparsemax and entmax-1.5."""

    def __init__(self, config: Entmax, dropout: float) -> None:
        super().__init__(config, dropout)
        self.alpha = config.alpha

    def normalize(
        self, scores: Scores, visible: Pairs, visibility: Visibility, state: EarlierLse | None
    ) -> tuple[Weights, ColumnLse | None]:
        """Returns the weights; there is no state."""
        seen = unhidden(scores, visible)
        filled = scores.masked_fill(~seen, lowest(scores))
        # The threshold is at most 1 below the row's maximum, so that everything lower has weight 0.
        shifted = ((self.alpha - 1) * (filled - filled.amax(dim=-1, keepdim=True).detach())).clamp(min=-1.0)
        excess = F.relu(shifted - _threshold(shifted, self.alpha))
        return (excess if self.alpha == 2 else excess.square()) * seen, None


def _threshold(shifted: Tensor, alpha: float) -> Tensor:
    """Returns tau of each row, differentiable as a function of the scores in the support; B H N 1."""
    with torch.no_grad():
        ordered = shifted.sort(dim=-1, descending=True).values
        count = torch.arange(1, shifted.shape[-1] + 1, device=shifted.device, dtype=shifted.dtype)
        found = _threshold_of(ordered.cumsum(dim=-1), ordered.square().cumsum(dim=-1), count, alpha)
        # Strictly above: scores at the threshold have weight 0 and no part in the gradient.
        largest = (ordered > found).sum(dim=-1, keepdim=True) - 1
        support = (shifted >= ordered.gather(-1, largest)).to(shifted.dtype)
    inside = shifted * support
    sums = inside.sum(dim=-1, keepdim=True), inside.square().sum(dim=-1, keepdim=True)
    return _threshold_of(*sums, support.sum(dim=-1, keepdim=True), alpha)


def _threshold_of(total: Tensor, squares: Tensor, count: Tensor, alpha: float) -> Tensor:
    """Returns the threshold for which ``count`` scores, of this sum and sum of squares, have weights that sum to 1."""
    mean = total / count
    if alpha == 2:
        return mean - 1 / count
    return mean - ((1 - squares) / count + mean.square()).clamp(min=torch.finfo(mean.dtype).tiny).sqrt()

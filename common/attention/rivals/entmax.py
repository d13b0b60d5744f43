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
        support = _support(shifted.detach(), self.alpha)
        excess = F.relu(shifted - _threshold(shifted, support, self.alpha)) * support
        return (excess if self.alpha == 2 else excess.square()) * seen, None


def _support(shifted: Tensor, alpha: float) -> Tensor:
    """Returns 1 for the scores with a positive weight, else 0.

    The sums are in float64, because for alpha = 1.5 the root of their difference is compared with single scores.
    """
    ordered = shifted.sort(dim=-1, descending=True).values.double()
    count = torch.arange(1, shifted.shape[-1] + 1, device=shifted.device, dtype=ordered.dtype)
    mean = ordered.cumsum(dim=-1) / count
    if alpha == 2:
        found = mean - 1 / count
    else:
        found = mean - ((1 - ordered.square().cumsum(dim=-1)) / count + mean.square()).clamp(min=0.0).sqrt()
    # Strictly above: scores at the threshold have weight 0 and no part in the gradient. In exact numbers the threshold
    # is never below -1, where lower scores were clamped.
    largest = (((ordered > found) & (ordered > -1)).sum(dim=-1, keepdim=True) - 1).clamp(min=0)  # NaN exceeds nothing
    return (shifted >= ordered.gather(-1, largest)).to(shifted.dtype)


def _threshold(shifted: Tensor, support: Tensor, alpha: float) -> Tensor:
    """Returns tau of each row, differentiable as a function of the scores in the support; B H N 1."""
    count = support.sum(dim=-1, keepdim=True)
    mean = (shifted * support).sum(dim=-1, keepdim=True) / count
    if alpha == 2:
        return mean - 1 / count
    squares = ((shifted - mean) * support).square().sum(dim=-1, keepdim=True)
    return mean - ((1 - squares) / count).clamp(min=torch.finfo(mean.dtype).tiny).sqrt()

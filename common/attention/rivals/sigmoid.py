"""Sigmoid attention (Ramapuram et al. 2024, "Theory, Analysis, and Best Practices for Sigmoid Self-Attention")."""

from dataclasses import dataclass

from seqarena.common.attention.base import AttentionConfig, Kernel
from seqarena.common.attention.reference import unhidden
from seqarena.common.attention.visibility import Visibility
from seqarena.common.shapes import ColumnLse, EarlierLse, Pairs, Scores, Weights


@dataclass(frozen=True, kw_only=True)
class Sigmoid(AttentionConfig):
    """Sigmoid attention: pi_ij = 1 / (1 + exp(-(s_ij - log N))), N the number of keys.

    The paper's bias is -log of the sequence length. Here N counts the keys that query i sees, so that padding and later
    keys change nothing.
    """

    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        """Returns the kernel."""
        return SigmoidKernel(self, dropout)


class SigmoidKernel(Kernel):
    """Kernel of sigmoid(s_ij - log N)."""

    def normalize(
        self, scores: Scores, visible: Pairs, visibility: Visibility, state: EarlierLse | None
    ) -> tuple[Weights, ColumnLse | None]:
        """Returns the weights; there is no state."""
        seen = unhidden(scores, visible)
        counts = seen.sum(dim=-1, keepdim=True).clamp(min=1).to(scores.dtype)
        return (scores.masked_fill(~seen, 0.0) - counts.log()).sigmoid() * seen, None

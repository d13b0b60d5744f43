"""An ablation of relu: its weights are divided by their sum over keys, as those of softmax are.

The variant relu is relu(s_ij) / sqrt(N): nothing keeps the sum of a row in bounds. Here the weights of a row are
relu(s_ij) / (c + sum_k relu(s_ik)), whose sum is below 1. The constant c > 0 keeps the gradient finite where all scores
are negative.

    seqarena sweep pretraining wikitext2 --attention softmax relu scripts/reproduce/row_sum.py:RowSum --seeds 0 1 2 3 4
"""

from dataclasses import dataclass

from seqarena.common.attention.base import AttentionConfig, Kernel
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import ColumnLse, EarlierLse, Pairs, Scores, Weights


@dataclass(frozen=True, kw_only=True)
class RowSum(AttentionConfig):
    """Weights by relu of the scores, divided by their sum."""

    constant: float = 1.0
    """The constant c."""

    def __post_init__(self) -> None:
        if self.constant <= 0:
            raise WrongUseError(f"constant: expected above 0, found {self.constant}")

    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        """Returns the kernel."""
        return RowSumKernel(self, dropout)


class RowSumKernel(Kernel):
    """The formula on the full matrix."""

    def __init__(self, config: RowSum, dropout: float) -> None:
        super().__init__(config, dropout)
        self.constant = config.constant

    def normalize(
        self, scores: Scores, visible: Pairs, visibility: Visibility, state: EarlierLse | None
    ) -> tuple[Weights, ColumnLse | None]:
        """Returns the weights; rows need no state."""
        weights = scores.relu().masked_fill(~visible, 0.0)
        return weights / (self.constant + weights.sum(dim=-1, keepdim=True)), None

"""An ablation of dnas in causal order: each key's column sum begins with a constant K.

In the prefix form of dnas, the sum of a key over the queries so far has a single term at the key's own position. There
exp(s_jj) / exp(s_jj) = 1 whatever the score. With K it is exp(s_jj) / (K + exp(s_jj)), as if K earlier queries had the
score 0. K = 0 is dnas. For large K all sums are equal, which is softmax.

    seqarena sweep pretraining wikitext2 --preset quick --attention scripts/reproduce/prior.py:Prior --seeds 0 1 2 3 4
"""

import math
from dataclasses import dataclass

import torch

from seqarena.common.attention import reference
from seqarena.common.attention.base import AttentionConfig, Kernel
from seqarena.common.attention.visibility import Order, Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import ColumnLse, EarlierLse, Pairs, Scores, Weights


@dataclass(frozen=True, kw_only=True)
class Prior(AttentionConfig):
    """Prefix-normalised dnas whose column sums begin with a constant."""

    count: float = 1.0
    """The constant K."""

    def __post_init__(self) -> None:
        if self.count <= 0:
            raise WrongUseError(f"count: expected above 0, found {self.count}; 0 is the variant dnas")

    @property
    def orders(self) -> tuple[Order, ...]:
        """Causal order, in which a key has a first query."""
        return ("causal",)

    @property
    def sums_over_queries(self) -> bool:
        """True: the sum of each key runs over the queries so far."""
        return True

    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        """Returns the kernel."""
        return PriorKernel(self, dropout)


class PriorKernel(Kernel):
    """The formula on the full matrix."""

    def __init__(self, config: Prior, dropout: float) -> None:
        super().__init__(config, dropout)
        self.log_count = math.log(config.count)

    def normalize(
        self, scores: Scores, visible: Pairs, visibility: Visibility, state: EarlierLse | None
    ) -> tuple[Weights, ColumnLse | None]:
        """Returns the weights, and each key's logsumexp over its queries, without the constant."""
        lse = reference.prefix_logsumexp(scores, visible, state, visibility.memory)
        constant = torch.full_like(lse, self.log_count)
        return reference.softmax(scores - torch.logaddexp(lse, constant), visible), lse[..., -1, :]

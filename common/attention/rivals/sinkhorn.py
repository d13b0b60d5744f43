"""Doubly stochastic attention by Sinkhorn's algorithm (Sander et al. 2021, "Sinkformers", arXiv 2110.11773)."""

from dataclasses import dataclass

from seqarena.common.attention.base import AttentionConfig, Kernel
from seqarena.common.attention.reference import lowest, unhidden
from seqarena.common.attention.visibility import Order, Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import ColumnLse, EarlierLse, Pairs, Scores, Weights


@dataclass(frozen=True, kw_only=True)
class Sinkhorn(AttentionConfig):
    """Sinkformer: exp s_ij normalised over keys, then over queries, then over keys again.

    With one normalisation it is the softmax. dnas begins with the queries: it has the last two of the three. The
    gradient passes through all normalisations. The authors' code takes those over queries as constants in the gradient.
    """

    normalizations: int = 3
    """Number of normalisations, odd, so that the last is over keys; 3 as in the authors' models of text and images."""

    def __post_init__(self) -> None:
        if self.normalizations < 1 or self.normalizations % 2 == 0:
            raise WrongUseError(f"normalizations: expected 1, 3, 5 or another odd number, found {self.normalizations}")

    @property
    def orders(self) -> tuple[Order, ...]:
        """Only ``none``: the sums over queries include later ones."""
        return ("none",)

    @property
    def stepwise(self) -> tuple[Order, ...]:
        """None, unless only the keys are normalised."""
        return ("none",) if self.normalizations == 1 else ()

    @property
    def sums_over_queries(self) -> bool:
        """True, unless only the keys are normalised."""
        return self.normalizations > 1

    @property
    def bias_hides(self) -> bool:
        """True with one normalisation, a softmax. Otherwise a normalisation over queries undoes a bias of a key."""
        return self.normalizations == 1

    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        """Returns the kernel."""
        return SinkhornKernel(self, dropout)


class SinkhornKernel(Kernel):
    """Kernel of Sinkhorn's algorithm."""

    def __init__(self, config: Sinkhorn, dropout: float) -> None:
        super().__init__(config, dropout)
        self.normalizations = config.normalizations

    def normalize(
        self, scores: Scores, visible: Pairs, visibility: Visibility, state: EarlierLse | None
    ) -> tuple[Weights, ColumnLse | None]:
        """Returns the weights; there is no state."""
        seen = unhidden(scores, visible)
        log_weights = scores
        for number in range(self.normalizations):
            log_weights = log_weights.masked_fill(~seen, lowest(scores))
            log_weights = log_weights - log_weights.logsumexp(dim=-2 if number % 2 else -1, keepdim=True)
        return log_weights.masked_fill(~seen, lowest(scores)).exp() * seen, None

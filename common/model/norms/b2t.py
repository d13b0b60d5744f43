"""B2T connection (Takase et al. 2022, arXiv 2206.00330): post-norm with a connection from bottom to top of a layer."""

from dataclasses import dataclass

from seqarena.common.attention.visibility import Visibility
from seqarena.common.model.deescalation import DeescalationState
from seqarena.common.model.norms.base import LayerPosition, NormConfig, Residual, Sublayers
from seqarena.common.model.norms.post import PostNormResidual
from seqarena.common.shapes import Hidden


class BottomToTopResidual(PostNormResidual):
    """B2T block: Y2 as in post-norm; Y4 = LN(X + Y2 + feed_forward(Y2)), with the layer's input X."""

    def forward(
        self, hidden: Hidden, sublayers: Sublayers, visibility: Visibility, state: DeescalationState | None = None
    ) -> tuple[Hidden, DeescalationState | None]:
        """Returns Y4."""
        middle = self.apply_attention(hidden, sublayers)
        return self.feed_forward_norm(self.add(hidden + middle, sublayers.feed_forward(middle), "feed_forward")), state


@dataclass(frozen=True, kw_only=True)
class BottomToTop(NormConfig):
    """Post-norm that adds a layer's input once more before its last LayerNorm (B2T, Takase et al. 2022).

    Initial weights are multiplied by 1 / sqrt(depth). We do not know which of them the authors scale: here they are
    those that DeepNorm scales.
    """

    def initial_scale(self, position: LayerPosition) -> float:
        """Returns 1 / sqrt(depth)."""
        return float(position.depth**-0.5)

    def residual(self, dim: int, eps: float, position: LayerPosition) -> Residual:
        """Returns the residual block of the layer at ``position``."""
        return BottomToTopResidual(self, dim, eps, position)

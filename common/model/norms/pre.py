"""Pre-norm: LayerNorm before each sublayer."""

from dataclasses import dataclass

from torch import Tensor, nn

from seqarena.common.attention.visibility import Visibility
from seqarena.common.model.deescalation import DeescalationState
from seqarena.common.model.norms.base import LayerPosition, NormConfig, Residual, Sublayers
from seqarena.common.model.norms.post import PostNormResidual
from seqarena.common.shapes import Context, Hidden


class PreNormResidual(PostNormResidual):
    """Pre-norm block: Y2 = X + alpha attention(LN(X)); Y4 = Y2 + feed_forward(LN(Y2))."""

    def memory_input(self, stream: Context) -> Context:
        """Returns LN(X)."""
        normalized: Tensor = self.attention_norm(stream)
        return normalized

    def forward(
        self, hidden: Hidden, sublayers: Sublayers, visibility: Visibility, state: DeescalationState | None = None
    ) -> tuple[Hidden, DeescalationState | None]:
        """Returns Y4."""
        hidden = self.add(hidden, sublayers.attention(self.attention_norm(hidden)), "attention")
        if sublayers.cross is not None:
            hidden = self.add(hidden, sublayers.cross(self.cross_norm(hidden)), "cross")
        return self.add(hidden, sublayers.feed_forward(self.feed_forward_norm(hidden)), "feed_forward"), state


@dataclass(frozen=True, kw_only=True)
class PreNorm(NormConfig):
    """LayerNorm before each sublayer, and one after the last layer."""

    final: bool = True
    """Whether the stream is normalised after the last layer."""

    def residual(self, dim: int, eps: float, position: LayerPosition) -> Residual:
        """Returns the residual block of the layer at ``position``."""
        return PreNormResidual(self, dim, eps, position)

    def final_norm(self, dim: int, eps: float) -> nn.Module:
        """Returns the last LayerNorm, or nothing."""
        return nn.LayerNorm(dim, eps=eps) if self.final else nn.Identity()

"""Post-norm: LayerNorm after each residual sum, as in the original Transformer (P3, Algorithm 1)."""

from dataclasses import dataclass

import torch
from torch import nn

from seqarena.common.attention.visibility import Visibility
from seqarena.common.model.deescalation import DeescalationState
from seqarena.common.model.norms.base import LayerPosition, NormConfig, Residual, SublayerName, Sublayers
from seqarena.common.shapes import Hidden


class PostNormResidual(Residual):
    """Post-norm block (P3, Algorithm 1): Y2 = LN(X + alpha attention(X)); Y4 = LN(Y2 + feed_forward(Y2)).

    With cross-attention, Y2 becomes LN(Y2 + alpha cross(Y2)) in between.
    """

    def __init__(self, config: NormConfig, dim: int, eps: float, position: LayerPosition) -> None:
        super().__init__()
        self.alpha = config.alpha
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(dim, eps=eps), nn.LayerNorm(dim, eps=eps)
        self.cross_norm = nn.LayerNorm(dim, eps=eps) if position.encoder_depth else nn.Identity()

    def add(self, stream: Hidden, output: Hidden, sublayer: SublayerName) -> Hidden:
        """Returns the residual sum of the stream and a sublayer's output."""
        return torch.add(stream, output, alpha=1.0 if sublayer == "feed_forward" else self.alpha)

    def apply_attention(self, hidden: Hidden, sublayers: Sublayers) -> Hidden:
        """Returns Y2, the input of the feed-forward."""
        hidden = self.attention_norm(self.add(hidden, sublayers.attention(hidden), "attention"))
        if sublayers.cross is not None:
            hidden = self.cross_norm(self.add(hidden, sublayers.cross(hidden), "cross"))
        return hidden

    def forward(
        self, hidden: Hidden, sublayers: Sublayers, visibility: Visibility, state: DeescalationState | None = None
    ) -> tuple[Hidden, DeescalationState | None]:
        """Returns Y4."""
        hidden = self.apply_attention(hidden, sublayers)
        return self.feed_forward_norm(self.add(hidden, sublayers.feed_forward(hidden), "feed_forward")), state


@dataclass(frozen=True, kw_only=True)
class PostNorm(NormConfig):
    """LayerNorm after each residual sum, as in the original Transformer (P3, Algorithm 1)."""

    def residual(self, dim: int, eps: float, position: LayerPosition) -> Residual:
        """Returns the residual block of the layer at ``position``."""
        return PostNormResidual(self, dim, eps, position)

"""ReZero (Bachlechner et al. 2020, arXiv 2003.04887): trained weights that start at 0, no LayerNorm."""

from dataclasses import dataclass

import torch
from torch import nn

from seqarena.common.attention.visibility import Visibility
from seqarena.common.model.deescalation import DeescalationState
from seqarena.common.model.norms.base import LayerPosition, NormConfig, Residual, Sublayers
from seqarena.common.shapes import Hidden


class ReZeroResidual(Residual):
    """ReZero block: Y2 = X + a attention(X); Y4 = Y2 + a feed_forward(Y2), with one trained ``a`` per layer."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.branch_weight = nn.Parameter(torch.tensor(alpha))

    def forward(
        self, hidden: Hidden, sublayers: Sublayers, visibility: Visibility, state: DeescalationState | None = None
    ) -> tuple[Hidden, DeescalationState | None]:
        """Returns Y4."""
        hidden = hidden + self.branch_weight * sublayers.attention(hidden)
        if sublayers.cross is not None:
            hidden = hidden + self.branch_weight * sublayers.cross(hidden)
        return hidden + self.branch_weight * sublayers.feed_forward(hidden), state


@dataclass(frozen=True, kw_only=True)
class ReZero(NormConfig):
    """No LayerNorm: every sublayer's output has a trained weight per layer, which starts at 0 (Bachlechner et al.)."""

    alpha: float = 0.0
    """Initial value of the trained weight, which all sublayers of a layer share."""

    def residual(self, dim: int, eps: float, position: LayerPosition) -> Residual:
        """Returns the residual block of the layer at ``position``."""
        return ReZeroResidual(self.alpha)

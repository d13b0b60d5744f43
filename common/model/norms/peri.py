"""Peri-LN (Kim et al. 2025, arXiv 2502.02732): LayerNorm before and after each sublayer."""

from dataclasses import dataclass

from torch import Tensor, nn

from seqarena.common.attention.visibility import Visibility
from seqarena.common.model.deescalation import DeescalationState
from seqarena.common.model.norms.base import LayerPosition, NormConfig, Residual, Sublayer, Sublayers
from seqarena.common.model.norms.pre import PreNormResidual
from seqarena.common.shapes import Context, Hidden


class PeriNormResidual(PreNormResidual):
    """Peri-LN block: Y2 = X + alpha LN(attention(LN(X))); Y4 = Y2 + LN(feed_forward(LN(Y2))).

    The first layer normalises its input, the embeddings.
    """

    def __init__(self, config: "PeriNorm", dim: int, eps: float, position: LayerPosition) -> None:
        super().__init__(config, dim, eps, position)
        self.input_norm = nn.LayerNorm(dim, eps=eps) if position.number == 0 else nn.Identity()
        self.attention_output_norm, self.feed_forward_output_norm = (nn.LayerNorm(dim, eps=eps) for _ in range(2))
        self.cross_output_norm = nn.LayerNorm(dim, eps=eps) if position.encoder_depth else nn.Identity()

    def memory_input(self, stream: Context) -> Context:
        """Returns LN(X)."""
        return super().memory_input(self.input_norm(stream))

    def forward(
        self, hidden: Hidden, sublayers: Sublayers, visibility: Visibility, state: DeescalationState | None = None
    ) -> tuple[Hidden, DeescalationState | None]:
        """Returns Y4."""

        def normalized(sublayer: Sublayer, norm: nn.Module) -> Sublayer:
            def output(tokens: Tensor) -> Tensor:
                return norm(sublayer(tokens))  # type: ignore[no-any-return]

            return output

        inner = Sublayers(
            normalized(sublayers.attention, self.attention_output_norm),
            normalized(sublayers.feed_forward, self.feed_forward_output_norm),
            None if sublayers.cross is None else normalized(sublayers.cross, self.cross_output_norm),
        )
        return super().forward(self.input_norm(hidden), inner, visibility, state)


@dataclass(frozen=True, kw_only=True)
class PeriNorm(NormConfig):
    """LayerNorm before and after each sublayer, of the embeddings, and after the last layer (Kim et al. 2025)."""

    def residual(self, dim: int, eps: float, position: LayerPosition) -> Residual:
        """Returns the residual block of the layer at ``position``."""
        return PeriNormResidual(self, dim, eps, position)

    def final_norm(self, dim: int, eps: float) -> nn.Module:
        """Returns the last LayerNorm."""
        return nn.LayerNorm(dim, eps=eps)

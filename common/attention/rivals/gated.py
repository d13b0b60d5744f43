"""Attention with a gated output (Qiu et al. 2025, "Gated Attention for Large Language Models", arXiv 2505.06708)."""

from dataclasses import dataclass

from torch import nn

from seqarena.common.attention.mixer import LayerShape, MixerConfig, TokenMixer
from seqarena.common.attention.module import kernel_attention
from seqarena.common.attention.softmax import Softmax
from seqarena.common.attention.visibility import CallOption, Order, Visibility
from seqarena.common.shapes import Hidden


@dataclass(frozen=True, kw_only=True)
class Gated(MixerConfig):
    """Gated softmax attention: each head's output times sigmoid(x_i W), W trained, before the output projection.

    W has a bias if the other projections have one.
    """

    @property
    def orders(self) -> tuple[Order, ...]:
        """None and causal."""
        return ("none", "causal")

    @property
    def supports(self) -> tuple[CallOption, ...]:
        """All options that concern self-attention of whole sequences."""
        return ("padding", "dropout", "segments", "window")

    def build_mixer(self, shape: LayerShape) -> TokenMixer:
        """Returns the mixer."""
        return GatedMixer(self, shape)


class GatedMixer(TokenMixer):
    """Softmax attention with a gate for each number of the heads' outputs."""

    has_weights = True

    def __init__(self, config: Gated, shape: LayerShape) -> None:
        super().__init__(config)
        self.attention = kernel_attention(Softmax(), shape)
        self.gate = nn.Linear(shape.dim, shape.width, bias=shape.projection_bias)

    @property
    def residual_matrices(self) -> tuple[nn.Linear, ...]:
        """Those of multi-head attention."""
        return self.attention.residual_matrices

    def mix(self, hidden: Hidden, visibility: Visibility) -> Hidden:
        """Returns the output."""
        attention = self.attention
        heads = attention.kernel(attention.project_query(hidden), *attention.project_key_value(hidden), visibility)
        gate = self.gate(hidden).sigmoid().unflatten(2, (attention.heads, -1)).transpose(1, 2)
        return attention.merge_heads(heads * gate)

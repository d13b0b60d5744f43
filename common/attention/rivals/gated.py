"""Attention with a gated output (Qiu et al. 2025, "Gated Attention for Large Language Models", arXiv 2505.06708)."""

from dataclasses import dataclass

from torch import nn

from seqarena.common.attention.mixer import LayerShape, TokenMixer
from seqarena.common.attention.rivals.projected import ProjectedMixer, SoftmaxMixerConfig
from seqarena.common.attention.visibility import Visibility
from seqarena.common.shapes import Hidden


@dataclass(frozen=True, kw_only=True)
class Gated(SoftmaxMixerConfig):
    """Gated softmax attention: each head's output times sigmoid(x_i W), W trained, before the output projection.

    W has a bias if the other projections have one.
    """

    def build_mixer(self, shape: LayerShape) -> TokenMixer:
        """Returns the mixer."""
        return GatedMixer(self, shape)


class GatedMixer(ProjectedMixer):
    """Softmax attention with a gate for each number of the heads' outputs."""

    has_weights = True

    def __init__(self, config: Gated, shape: LayerShape) -> None:
        super().__init__(config, shape)
        self.gate = nn.Linear(shape.dim, shape.width, bias=shape.projection_bias)

    def mix(self, hidden: Hidden, visibility: Visibility) -> Hidden:
        """Returns the output."""
        attention = self.attention
        heads = attention.kernel(attention.project_query(hidden), *attention.project_key_value(hidden), visibility)
        gate = self.gate(hidden).sigmoid().unflatten(2, (attention.heads, -1)).transpose(1, 2)
        return attention.merge_heads(heads * gate)

"""Token mixers with the projections of multi-head attention around softmax, or around another function of its parts."""

from dataclasses import dataclass

from torch import nn

from seqarena.common.attention.mixer import LayerShape, MixerConfig, TokenMixer
from seqarena.common.attention.module import kernel_attention
from seqarena.common.attention.softmax import Softmax
from seqarena.common.attention.visibility import CallOption, Order


@dataclass(frozen=True, kw_only=True)
class SoftmaxMixerConfig(MixerConfig):
    """Config of a mixer that computes softmax attention of the whole sequence, with any mask."""

    @property
    def orders(self) -> tuple[Order, ...]:
        """``none`` and ``causal``."""
        return ("none", "causal")

    @property
    def supports(self) -> tuple[CallOption, ...]:
        """All options that concern self-attention of whole sequences."""
        return ("padding", "dropout", "segments", "window")


class ProjectedMixer(TokenMixer):
    """Mixer with the projections of multi-head attention, ``attention``, whose kernel is that of softmax."""

    def __init__(self, config: MixerConfig, shape: LayerShape) -> None:
        super().__init__(config)
        self.attention = kernel_attention(Softmax(), shape)

    @property
    def residual_matrices(self) -> tuple[nn.Linear, ...]:
        """Those of multi-head attention."""
        return self.attention.residual_matrices

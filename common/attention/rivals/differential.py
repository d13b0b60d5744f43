"""Differential attention (Ye et al. 2024, "Differential Transformer", arXiv 2410.05258)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seqarena.common.attention.mixer import LayerShape, TokenMixer
from seqarena.common.attention.rivals.projected import ProjectedMixer, SoftmaxMixerConfig
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import Hidden


@dataclass(frozen=True, kw_only=True)
class Differential(SoftmaxMixerConfig):
    """Differential attention: (softmax(Q1 K1^T) - lambda softmax(Q2 K2^T)) V, normalised for each head.

    Q1 and Q2 (K1 and K2) are the halves of a head's queries (keys). lambda = exp(a . b) - exp(c . d) + lambda_0 with
    trained vectors and lambda_0 = 0.8 - 0.6 exp(-0.3 l) in layer l = 0, 1, ...; the outputs of a head pass an RMSNorm
    and are multiplied by 1 - lambda_0. The paper has half as many heads as its softmax, of twice the width.
    """

    def build_mixer(self, shape: LayerShape) -> TokenMixer:
        """Returns the mixer."""
        return DifferentialMixer(self, shape)


class DifferentialMixer(ProjectedMixer):
    """Difference of two softmax attentions."""

    def __init__(self, config: Differential, shape: LayerShape) -> None:
        head_dim = shape.width // shape.heads
        if head_dim % 2:
            raise WrongUseError(f"attention differential: expected heads of an even width, found {head_dim}")
        super().__init__(config, shape)
        self.initial = 0.8 - 0.6 * math.exp(-0.3 * shape.number)
        # One-dimensional, since matrices have weight decay.
        self.vectors = nn.ParameterList([nn.Parameter(0.1 * torch.randn(head_dim // 2)) for _ in range(4)])
        self.norm = nn.RMSNorm(head_dim, eps=1e-5)

    def mix(self, hidden: Hidden, visibility: Visibility) -> Hidden:
        """Returns the output."""
        query = self.attention.project_query(hidden)
        key, value = self.attention.project_key_value(hidden)
        a, b, c, d = self.vectors
        factor = (a * b).sum().exp() - (c * d).sum().exp() + self.initial  # in float32, also under autocast
        first, second = (
            self.attention.kernel(one, other, value, visibility)
            for one, other in zip(_halves(query, 2**0.5), _halves(key, 1.0), strict=True)
        )
        normalised = self.norm((first - factor * second).to(self.norm.weight.dtype))
        return self.attention.merge_heads((normalised * (1 - self.initial)).to(first.dtype))


def _halves(tokens: Tensor, scale: float) -> list[Tensor]:
    """Returns both halves of each head, filled up with zeros to the width of the values, which fused softmax needs.

    The scores are divided by the root of the whole width. With ``scale`` sqrt 2 they are those of the half width.
    """
    return [torch.cat([scale * half, torch.zeros_like(half)], dim=-1) for half in tokens.chunk(2, dim=-1)]

"""Cosine attention with a trained temperature (Liu et al. 2021, "Swin Transformer V2", arXiv 2111.09883)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqarena.common.attention.base import AttentionConfig, Kernel
from seqarena.common.attention.softmax import SoftmaxKernel
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import Key, Query, Value

LARGEST = 100.0
"""Largest factor of the cosines, as in Swin V2: the temperature is at least 0.01."""


@dataclass(frozen=True, kw_only=True)
class Cosine(AttentionConfig):
    """Cosine attention: softmax over keys of t cos(query_i, key_j), t trained, one per head.

    Swin V2 begins with t = 10 and trains log t. Its bias by position is not part of this variant.
    """

    initial: float = 10.0
    """Initial factor t of the cosines."""

    def __post_init__(self) -> None:
        if not 0 < self.initial <= LARGEST:
            raise WrongUseError(f"initial: expected a number above 0, at most {LARGEST:g}, found {self.initial}")

    @property
    def bias_hides(self) -> bool:
        """True, as for a softmax."""
        return True

    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        """Returns the kernel, with log t as a parameter."""
        return CosineKernel(self, heads, dropout)


class CosineKernel(SoftmaxKernel):
    """Softmax attention of normalised queries and keys."""

    def __init__(self, config: Cosine, heads: int, dropout: float) -> None:
        super().__init__(config, dropout)
        self.heads = heads
        self.log_factor = nn.Parameter(torch.full((heads,), math.log(config.initial)))

    def transform(self, query: Query, key: Key, value: Value, visibility: Visibility) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries and keys whose scores are t times their cosine; float32 or wider."""
        query, key, value = visibility.clear(query, key, value)
        wide = torch.promote_types(query.dtype, torch.float32)
        factor = self.log_factor.clamp(max=math.log(LARGEST)).exp().to(wide)[:, None, None]
        query, key = (F.normalize(each.to(wide), dim=-1) for each in (query, key))
        return query * factor * query.shape[-1] ** 0.5, key, value.to(wide)

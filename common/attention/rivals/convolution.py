"""Lightweight convolution (Wu et al. 2019, arXiv 1901.10430): fixed weights by distance, a floor for attention."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from seqarena.common.attention.base import Kernel
from seqarena.common.attention.direct import DirectConfig, DirectKernel
from seqarena.common.attention.visibility import CallOption, Order, Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import Bias, Key, Output, Query, Value


@dataclass(frozen=True, kw_only=True)
class Convolution(DirectConfig):
    """Lightweight convolution: pi_ij = softmax_k(w_k) at k = j - i, trained, for each head; queries and keys unused.

    In order causal, k runs from -(width - 1) to 0, otherwise from -(width / 2) to width / 2. The weights begin equal.
    The paper's gated linear unit before the convolution and its dropout of weights are left out.
    """

    width: int = 31
    """Number of positions, odd; 31 is the largest of the paper."""

    def __post_init__(self) -> None:
        if self.width < 1 or self.width % 2 == 0:
            raise WrongUseError(f"width: expected an odd number, found {self.width}")

    @property
    def orders(self) -> tuple[Order, ...]:
        """``none`` and ``causal``: in a cross-attention there is no distance."""
        return ("none", "causal")

    @property
    def supports(self) -> tuple[CallOption, ...]:
        """Padding, and a memory of earlier keys."""
        return ("padding", "memory")

    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        """Returns the kernel."""
        return ConvolutionKernel(self, heads, dropout)


class ConvolutionKernel(DirectKernel):
    """Kernel of the lightweight convolution."""

    def __init__(self, config: Convolution, heads: int, dropout: float) -> None:
        super().__init__(config, dropout)
        self.heads, self.width = heads, config.width
        self.raw = nn.Parameter(torch.zeros(heads, config.width))

    def attend(self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None) -> Output:
        """Returns the weighted sums of neighbouring values; padding and the outside count as 0."""
        batch, heads, keys, width = value.shape
        weights = self.raw.to(value.dtype).softmax(dim=-1)
        queries, later = query.shape[2], 0 if visibility.order == "causal" else self.width // 2
        padded = F.pad(value, (0, 0, self.width - 1 - later, later + max(0, queries - keys)))
        rows = padded.transpose(2, 3).reshape(batch, heads * width, -1)
        filters = weights.repeat_interleave(width, dim=0)[:, None]
        output = F.conv1d(rows, filters, groups=heads * width)
        output = output.view(batch, heads, width, -1).transpose(2, 3)
        return output[:, :, visibility.memory : visibility.memory + queries]

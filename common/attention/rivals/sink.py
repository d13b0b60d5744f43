"""Softmax with an additional term in the denominator, a sink of attention: constant or trained."""

import math
from dataclasses import dataclass

import torch
from torch import nn

from seqarena.common.attention import reference
from seqarena.common.attention.base import AttentionConfig, Kernel
from seqarena.common.attention.visibility import Visibility
from seqarena.common.shapes import ColumnLse, EarlierLse, Pairs, Scores, Weights


@dataclass(frozen=True, kw_only=True)
class SinkSoftmax(AttentionConfig):
    """Softmax with a sink: pi_ij = exp s_ij / (exp b + sum_j exp s_ij), so that a head can attend to nothing.

    A constant b = 0 is softmax-plus-one (Miller 2023, "Attention Is Off By One"). A trained b, one per head, is the
    sink of the model gpt-oss (OpenAI 2025).
    """

    trained: bool = False
    """Whether b is trained, one per head."""
    initial: float = 0.0
    """The constant b, or its initial value."""

    @property
    def formula(self) -> str:
        """The weights as text."""
        extra = "exp b" if self.trained else f"{math.exp(self.initial):.4g}"
        return (
            f"softmax with a sink: pi_ij = exp s_ij / ({extra} + sum_j exp s_ij){', b trained' if self.trained else ''}"
        )

    @property
    def bias_hides(self) -> bool:
        """True, as for a softmax."""
        return True

    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        """Returns the kernel."""
        return SinkKernel(self, heads, dropout)


class SinkKernel(Kernel):
    """Kernel of the softmax with a sink."""

    def __init__(self, config: SinkSoftmax, heads: int, dropout: float) -> None:
        super().__init__(config, dropout)
        sink = torch.full((heads,), config.initial)
        if config.trained:
            self.heads = heads
            self.sink = nn.Parameter(sink)
        else:
            self.register_buffer("sink", sink, persistent=False)

    def normalize(
        self, scores: Scores, visible: Pairs, visibility: Visibility, state: EarlierLse | None
    ) -> tuple[Weights, ColumnLse | None]:
        """Returns the weights of the keys, without that of the sink; there is no state."""
        sink = self.sink.to(scores.dtype)[:, None, None].expand(*scores.shape[:3], 1)
        with_sink = torch.cat([scores, sink], dim=-1)
        seen = torch.cat([visible, visible.new_ones(*visible.shape[:3], 1)], dim=-1)
        return reference.softmax(with_sink, seen)[..., :-1], None

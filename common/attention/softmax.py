"""Softmax attention, lower-normalised (LNAS) in P2's words, and its recency-biased control."""

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from common.attention import reference
from common.attention.base import AttentionConfig, Kernel, Order, Visibility
from common.shapes import Bias, EarlierMass, Key, KeyMass, Output, Pairs, Query, Scores, Value, Weights


@dataclass(frozen=True, kw_only=True)
class Softmax(AttentionConfig):
    """Softmax over keys: pi_ij = exp s_ij / sum_j exp s_ij."""

    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        """Returns the kernel."""
        del heads
        return SoftmaxKernel(self, dropout)


@dataclass(frozen=True, kw_only=True)
class Recency(AttentionConfig):
    """Softmax of s_ij - log(i - j + 1): causal, with nothing but a fixed preference for recent keys."""

    @property
    def orders(self) -> tuple[Order, ...]:
        """Causal alone: without an order there is no distance."""
        return ("causal",)

    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        """Returns the kernel."""
        del heads
        return RecencyKernel(self, dropout)


def fused_softmax(
    query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None, dropout: float
) -> Output | None:
    """Returns softmax attention by PyTorch's fused function, or None where that would round scores or the bias."""
    half = query.dtype in (torch.float16, torch.bfloat16)
    if query.device.type == "cpu" and half and (dropout > 0 or (bias is not None and bias.requires_grad)):
        return None
    if not query.dtype == key.dtype == value.dtype:
        return None
    if bias is not None and torch.promote_types(bias.dtype, query.dtype) != query.dtype:
        return None
    with torch.autocast(query.device.type, enabled=False):  # the inputs' precision, as for every other variant
        return _fused_softmax(query, key, value, visibility, bias, dropout)


def _fused_softmax(
    query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None, dropout: float
) -> Output:
    keys = key.shape[2]
    plain = visibility.key_real is None and visibility.segments is None and bias is None
    if plain and (visibility.order != "causal" or visibility.memory == 0):
        causal = visibility.order == "causal"
        output = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=causal)
        real = None
    else:
        # Queries that are padding may see what they like here: their output is set to 0 below.
        seen = Visibility(
            key_real=visibility.key_real,
            order=visibility.order,
            memory=visibility.memory,
            segments=visibility.segments,
        )
        mask = seen.pairs(1 if visibility.keys_only else query.shape[2], keys, query.device)
        real = mask.any(dim=-1, keepdim=True)  # a row without any visible key is 0/0 in a fused softmax
        mask = mask | ~real
        if bias is not None:
            bias = bias.to(query.dtype).masked_fill(~mask, float("-inf"))
        output = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask if bias is None else bias, dropout_p=dropout
        )
    if real is not None:
        output = output.masked_fill(~real, 0.0)
    if visibility.query_real is not None:
        output = output.masked_fill(~visibility.query_real[:, None, :, None], 0.0)
    return output


class SoftmaxKernel(Kernel):
    """Softmax over keys, through PyTorch's fused attention."""

    def normalize(
        self, scores: Scores, visible: Pairs, visibility: Visibility, state: EarlierMass | None
    ) -> tuple[Weights, KeyMass | None]:
        """Returns softmax weights; there is nothing to remember."""
        del visibility, state
        return reference.softmax(scores, visible), None

    def fused(self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None) -> Output | None:
        """Returns the output of the fused function."""
        return fused_softmax(query, key, value, visibility, bias, self.dropout if self.drops else 0.0)


class RecencyKernel(Kernel):
    """Softmax with the logarithm of the distance subtracted."""

    def normalize(
        self, scores: Scores, visible: Pairs, visibility: Visibility, state: EarlierMass | None
    ) -> tuple[Weights, KeyMass | None]:
        """Returns recency-biased weights; there is nothing to remember."""
        del state
        return reference.recency(scores, visible, visibility.memory), None

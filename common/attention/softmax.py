"""Softmax attention, called lower-normalised (LNAS) in P2, and its recency-biased control."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from seqarena.common.attention import conditions, reference
from seqarena.common.attention.base import AttentionConfig, Implementation, Kernel
from seqarena.common.attention.conditions import Inputs
from seqarena.common.attention.rule import HIDDEN, Rule, ScoreGradient, Scratch, softmax_backward_
from seqarena.common.attention.visibility import Order, Visibility
from seqarena.common.shapes import (
    Bias,
    ColumnLse,
    EarlierLse,
    Key,
    KeyMask,
    Output,
    Pairs,
    Query,
    Scores,
    Value,
    Weights,
)


@dataclass(frozen=True, kw_only=True)
class Softmax(AttentionConfig):
    """Softmax over keys: pi_ij = exp s_ij / sum_j exp s_ij."""

    @property
    def bias_hides(self) -> bool:
        """True: the exponential of a large negative score is 0."""
        return True

    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        """Returns the kernel."""
        return SoftmaxKernel(self, dropout)


@dataclass(frozen=True, kw_only=True)
class Recency(AttentionConfig):
    """Softmax of s_ij - log(i - j + 1): causal, with a fixed preference for recent keys."""

    @property
    def orders(self) -> tuple[Order, ...]:
        """Only ``causal``: without an order there is no distance."""
        return ("causal",)

    @property
    def bias_hides(self) -> bool:
        """True, as for ``Softmax``."""
        return True

    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        """Returns the kernel."""
        return RecencyKernel(self, dropout)


@dataclass(frozen=True, kw_only=True)
class SoftmaxRule(Rule):
    """Softmax over keys of a block of rows."""

    is_mixture: ClassVar[bool] = True

    def apply(
        self, scores: Tensor, doubly: Tensor | None, mixing_weight: Tensor | None, scratch: Scratch
    ) -> tuple[Tensor, Any]:
        """Returns the softmax, also as the tensor saved for ``backward``."""
        weights = torch.softmax(scores, dim=-1, out=scores)
        return weights, weights

    def backward(self, saved: Any, grad: Tensor, scratch: Scratch) -> ScoreGradient:
        """Returns the gradient of the scores."""
        return ScoreGradient(softmax_backward_(saved, grad))


def fused_softmax(
    query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None, dropout: float
) -> Output:
    """Computes softmax attention by PyTorch's fused function; ``conditions.fused_softmax`` must be None."""
    causal = visibility.order == "causal"
    query, key, value = map(_dense, visibility.clear(query, key, value))
    mask, empty_rows = None, None
    real = None if causal else visibility.key_real  # in order 'causal' real queries see no padding: it is at the end
    if bias is not None:
        clean_bias = (
            bias if real is None else bias.masked_fill(~real[:, None, None, :], 0.0)
        )  # the bias may be NaN at padding
        mask, empty_rows = _bias_mask(clean_bias.to(query.dtype), None if real is None else _seen_keys(real))
    elif real is not None:
        seen = visibility.share(("seen",), real, lambda: _seen_keys(real))
        dtype = query.dtype
        mask = visibility.share(("mask", dtype), real, lambda: additive_mask(seen, dtype)) if query.is_cuda else seen
    with torch.autocast(
        query.device.type, enabled=False
    ):  # computes in the inputs' precision, as every other variant does
        output = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal)
    return output if empty_rows is None else output.masked_fill(empty_rows, 0.0)


def _dense(tensor: Tensor) -> Tensor:
    """Returns a tensor whose last dimension is consecutive in memory, as PyTorch's fused function needs it."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _seen_keys(real: KeyMask) -> Tensor:
    """Returns the mask of the keys that a row attends to; B 1 1 M.

    A row without any visible key would be 0/0. It attends to all keys instead: their values are 0.
    """
    return (real >= real.any(dim=1, keepdim=True))[:, None, None, :]


def additive_mask(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns 0 where ``seen`` is True and minus infinity elsewhere, as PyTorch's kernels for a GPU need it.

    Its rows begin at multiples of 16 values. PyTorch would make it from ``seen`` in each layer.
    """
    length = seen.shape[-1]
    shape = *seen.shape[:-1], length + -length % 16
    rows = torch.full(shape, float("-inf"), dtype=dtype, device=seen.device)
    return rows[..., :length].masked_fill_(seen, 0.0)


def _bias_mask(bias: Tensor, seen: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns the bias with minus infinity where ``seen`` is False, and which rows have no visible key; #B #H #N 1.

    The caller must clear the output of those rows. On a GPU their bias is set to 0, because some fused softmax
    implementations compute 0/0 for them.
    """
    mask = bias if seen is None else bias.masked_fill(~seen, float("-inf"))
    empty_rows = mask.detach().amax(dim=-1, keepdim=True) <= HIDDEN
    return mask.masked_fill(empty_rows, 0.0) if mask.is_cuda else mask, empty_rows


def biased_softmax(query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias, dropout: float) -> Output:
    """Computes softmax attention by PyTorch's fused function with invisible pairs written into the bias."""
    seen = visibility.pairs(query.shape[2], key.shape[2], query.device)
    mask, empty_rows = _bias_mask(bias.to(query.dtype), seen)
    return _softmax_of_pairs(query, key, value, mask, empty_rows, dropout)


def masked_softmax(query: Query, key: Key, value: Value, visibility: Visibility, dropout: float) -> Output:
    """Computes softmax attention by PyTorch's fused function with a mask over all pairs; for a GPU."""
    size, dtype = (query.shape[2], key.shape[2]), query.dtype
    given = [each for each in (visibility.segments, visibility.key_real, visibility.query_real) if each is not None]

    def once(name: str, make: Callable[[], Tensor]) -> Tensor:
        return visibility.share((name, *size, dtype), given[0], make, *given[1:]) if given else make()

    seen = once("pairs", lambda: visibility.pairs(*size, query.device))
    empty_rows = once("empty rows", lambda: ~seen.any(dim=-1, keepdim=True))
    # A row without any visible key would be 0/0.
    mask = once("mask of pairs", lambda: additive_mask(seen | empty_rows, dtype))
    return _softmax_of_pairs(*visibility.clear(query, key, value), mask, empty_rows, dropout)


def _softmax_of_pairs(query: Query, key: Key, value: Value, mask: Tensor, empty_rows: Tensor, dropout: float) -> Output:
    """Computes softmax attention with ``mask`` added to the scores; 0 in empty rows.

    Heads are padded to a width divisible by 8, which PyTorch's kernels require. The scale is that of the true width.
    """
    width = query.shape[-1]
    more = -width % 8
    query, key, value = (F.pad(each, (0, more)) if more else _dense(each) for each in (query, key, value))
    with torch.autocast(query.device.type, enabled=False):
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, scale=width**-0.5)
    return found[..., :width].masked_fill(empty_rows, 0.0)


class SoftmaxKernel(Kernel):
    """Softmax over keys, by PyTorch's fused attention where that needs linear memory."""

    rule = SoftmaxRule()

    def normalize(
        self, scores: Scores, visible: Pairs, visibility: Visibility, state: EarlierLse | None
    ) -> tuple[Weights, ColumnLse | None]:
        """Returns softmax weights; there is no state."""
        return reference.softmax(scores, visible), None

    def limitation(self, implementation: Implementation, inputs: Inputs) -> str | None:
        """Returns the reason against all forms of PyTorch's function."""
        with_pairs = conditions.biased_softmax(inputs) and conditions.masked_softmax(inputs)
        return with_pairs and conditions.fused_softmax(inputs)

    def fused(self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None) -> Output:
        """Computes the output by PyTorch's fused function."""
        dropout = self.active_dropout
        inputs = Inputs(query, key, value, visibility, bias, dropout)
        if bias is not None and conditions.biased_softmax(inputs) is None:
            return biased_softmax(query, key, value, visibility, bias, dropout)
        if conditions.fused_softmax(inputs) is not None:
            return masked_softmax(query, key, value, visibility, dropout)
        return fused_softmax(query, key, value, visibility, bias, dropout)


class RecencyKernel(Kernel):
    """Softmax with the logarithm of the distance subtracted."""

    rule = SoftmaxRule(recency=True)

    def normalize(
        self, scores: Scores, visible: Pairs, visibility: Visibility, state: EarlierLse | None
    ) -> tuple[Weights, ColumnLse | None]:
        """Returns recency-biased weights; there is no state."""
        return reference.recency(scores, visible, visibility.memory), None

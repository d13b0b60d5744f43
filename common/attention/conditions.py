"""Which implementation computes a call: every condition of each, as the reason against it.

``Kernel.against`` asks these functions. Each returns why its implementation does not compute the call; None: it does.
docs/architecture.md has the same as a table.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from seqarena.common.attention.triton.available import DTYPES, INSTALLED, LEAST_WIDTH, MOST_WIDTH, interprets
from seqarena.common.attention.visibility import Visibility

ABSENT = "the variant has no such form"
FORMULA_ONLY = "forward-mode derivatives and transforms of torch.func need the formula"

FUSED_PAIRS = 2**19
"""From so many pairs of a query and a key on fused passes are faster than tiles: measured for head_dim 32 and 64."""
FEW_SCORES = 2**18
"""Up to so many scores in a call, causal attention on a CPU is faster by the formula than tile by tile: a third less
time on 64 x 4 heads of 16 to 32 queries, forward and backward. Not so where weights are normalised over queries, and
without an order."""
FEATURE_SHARE = 1.5
"""From so many keys a feature on linear forms are less work than scores: measured for head_dim 16 to 64 on a CPU."""


class Inputs(NamedTuple):
    """What decides which implementation computes a call."""

    query: Tensor
    key: Tensor
    value: Tensor
    visibility: Visibility
    bias: Tensor | None
    dropout: float
    """Probability of dropping a weight in this call: 0 in evaluation."""

    def one_dtype(self) -> bool:
        """Returns whether query, key and value have the same type."""
        return self.query.dtype == self.key.dtype == self.value.dtype

    def one_width(self) -> bool:
        """Returns whether values are as wide as keys."""
        return self.query.shape[-1] == self.value.shape[-1]


def features(inputs: Inputs, phi: str, power: int) -> str | None:
    """Returns why products of features do not compute phi(s)^power."""
    query, key, _, visibility, bias, dropout = inputs
    if phi != "x" or power > 2:
        return "only x and x^2 have features"
    if dropout:
        return "a linear form has no weights to drop"
    if bias is not None:
        return "a linear form has no scores to add a bias to"
    if visibility.segments is not None or visibility.window is not None:
        return "a linear form has no segments and no window"
    if key.shape[2] <= FEATURE_SHARE * query.shape[-1] ** power:
        return f"for fewer than {FEATURE_SHARE} head_dim^{power} keys the scores are less work"
    return None


def triton(inputs: Inputs) -> str | None:
    """Returns why no Triton kernel computes a call, whatever the variant."""
    query, key, value, visibility, bias, _ = inputs
    widths = (query.shape[3], value.shape[3])
    if not INSTALLED:
        return "Triton is not installed (pip install triton)"
    if not (query.is_cuda or interprets()):
        return f"tensors are on {query.device.type}, expected cuda"
    if query.dtype not in DTYPES:
        return f"{query.dtype} is none of float16, bfloat16 and float32"
    if not inputs.one_dtype():
        return f"query, key and value are {query.dtype}, {key.dtype}, {value.dtype}, expected one type"
    if not _within(widths, LEAST_WIDTH, MOST_WIDTH):
        return f"heads are {widths[0]} and {widths[1]} wide, expected {LEAST_WIDTH} to {MOST_WIDTH}"
    if max(query.shape[2], key.shape[2]) * max(widths) >= 2**31:
        return "a head has 2^31 numbers or more"
    if bias is not None:
        return "a bias is not supported"
    if visibility.segments is not None or visibility.window is not None:
        return "segments and windows are not supported"
    return None


def triton_doubly_normalized(inputs: Inputs, rounds: int) -> str | None:
    """Returns why the Triton kernels of doubly-normalised attention do not compute a call."""
    if inputs.dropout or rounds > 1 or inputs.visibility.order != "none":
        return "those of doubly-normalised attention have no order, no dropout and no iterations"
    return triton(inputs)


def triton_hybrid(inputs: Inputs, rounds: int) -> str | None:
    """Returns why a Triton kernel and PyTorch's softmax together do not compute a call."""
    return triton_doubly_normalized(inputs, rounds) or fused_softmax(inputs)


def fused_softmax(inputs: Inputs) -> str | None:
    """Returns why PyTorch's fused function does not: it would round, or keep a matrix over all pairs."""
    query, key, value, visibility, bias, dropout = inputs
    if not inputs.one_dtype():
        return f"query, key and value are {query.dtype}, {key.dtype}, {value.dtype}, expected one type"
    if not inputs.one_width():
        return "PyTorch's softmax takes values as wide as keys only"
    if query.device.type == "cpu" and dropout:
        return "PyTorch has no fused softmax with dropout on a CPU"
    if query.device.type != "cpu" and query.dtype == torch.float64:
        return "PyTorch's fused softmax has no float64 on a GPU"
    if visibility.segments is not None:
        return "segments need a mask over all pairs"
    causal = visibility.order == "causal"
    if causal and (visibility.memory or visibility.window is not None or visibility.key_real is not None):
        return "padding, a memory or a window in order 'causal' needs a mask over all pairs"
    return None if bias is None else _bias_of_softmax(inputs, bias)


def _bias_of_softmax(inputs: Inputs, bias: Tensor) -> str | None:
    query, _, _, visibility, _, _ = inputs
    if torch.promote_types(bias.dtype, query.dtype) != query.dtype:
        return f"the bias, {bias.dtype}, would be rounded to {query.dtype}"
    if visibility.order == "causal" or (bias.shape[2] > 1 and visibility.key_real is not None):
        return "a bias with an order or padded keys needs a mask over all pairs"
    if bias.shape[2] == query.shape[2] and visibility.query_real is not None:
        return "what a bias says of padded queries may be NaN, which would come back in the gradients of keys"
    return "the bias is trained" if bias.requires_grad else None


def biased_softmax(inputs: Inputs) -> str | None:
    """Returns why PyTorch's fused function does not with a bias over all pairs, the only such matrix to be kept.

    On a CPU PyTorch has no such form with dropout, or for gradients.
    """
    query, key, value, visibility, bias, dropout = inputs
    if bias is None or bias.shape != (*query.shape[:3], key.shape[2]):
        return "there is no bias over all pairs"
    if not inputs.one_dtype() or torch.promote_types(bias.dtype, query.dtype) != query.dtype:
        return "query, key, value and bias are of several types"
    if not inputs.one_width():
        return "PyTorch's softmax takes values as wide as keys only"
    if visibility.query_real is not None or visibility.key_real is not None:
        return "padding would need a second matrix over all pairs"
    if query.is_cuda:
        return "PyTorch's fused softmax has no float64 on a GPU" if query.dtype == torch.float64 else None
    learns = torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value, bias))
    return "on a CPU PyTorch has no such form with dropout or gradients" if dropout or learns else None


def fused_doubly_normalized(inputs: Inputs, rounds: int) -> str | None:
    """Returns why fused passes do not compute dnas or hnas."""
    query, key, _, visibility, bias, dropout = inputs
    if query.device.type != "cpu":
        return "the operator underneath is one for CPUs"
    if dropout or rounds > 1:
        return "fused passes have no dropout and no iterations"
    if visibility.order != "none" or visibility.segments is not None or bias is not None:
        return "fused passes have no order, no segments and no bias"
    if not inputs.one_dtype() or not inputs.one_width():
        return "query, key and value are not of one type and width"
    if query.shape[2] * key.shape[2] < FUSED_PAIRS:
        return f"for fewer than {FUSED_PAIRS} pairs of query and key tiles are faster"
    return None


def blockwise(inputs: Inputs, rounds: int) -> str | None:
    """Returns why the engine does not compute a call of a variant that has a rule."""
    query, key, _, visibility, _, _ = inputs
    is_small = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2] <= FEW_SCORES
    if is_small and visibility.order == "causal" and query.device.type == "cpu" and not rounds:
        return f"for at most {FEW_SCORES} causal scores the full matrix is faster"
    return None


def chunked(inputs: Inputs, stepwise: Sequence[str], chunks: int) -> str | None:
    """Returns why the formula is not evaluated for some queries at a time; ``chunks``: how many there would be."""
    visibility = inputs.visibility
    if visibility.order not in stepwise:
        return f"in order {visibility.order!r} weights depend on all queries at once"
    if visibility.segments is not None and visibility.order != "causal":
        return "segments without an order need all queries at once"
    return "all queries fit into one chunk" if chunks == 1 else None


def _within(widths: tuple[int, int], least: int, most: int) -> bool:
    return all(least <= each <= most for each in widths)

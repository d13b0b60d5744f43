"""Conditions under which each implementation can compute a call.

Each function returns the reason why its implementation cannot compute the call, or None if it can. They are called by
``Kernel.limitation``. The table in docs/architecture.md has the same conditions.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from seqarena.common.attention.triton.available import DTYPES, INSTALLED, INTERPRETED, LEAST_WIDTH, MOST_WIDTH
from seqarena.common.attention.visibility import Visibility

ABSENT = "not available for this variant"
FORMULA_ONLY = "only the formula computes forward-mode derivatives and transforms of torch.func"

FUSED_PAIRS = 2**19
"""Number of pairs of query and key from which fused passes are faster than tiles; measured for head_dim 32 and 64."""
FEW_SCORES = 2**18
"""Largest number of scores in a call for which causal attention on a CPU is faster by the formula than in tiles: by a
third on 64 x 4 heads of 16 to 32 queries, forward and backward. Weights that are normalised over queries, and attention
without an order, are faster in tiles at every size."""
MASK_BYTES = 2**28
"""Largest mask over all pairs that softmax makes on a GPU where PyTorch's fused function needs one."""
SMALL_MATRIX = 64 * 64
"""Largest number of scores of a head for which a GPU computes the full matrix in place of tiles. It takes fewer
launches, and little memory, although the formula stores several such matrices for its gradient. Not measured."""
KEYS_PER_FEATURE = 1.5
"""Keys per feature from which linear forms are faster than scores; measured for head_dim 16 to 64 on a CPU."""
FEW_KEYS = {power: f"scores are faster for fewer than {KEYS_PER_FEATURE} head_dim^{power} keys" for power in (1, 2)}
"""Power -> reason against linear forms. It is formatted here, because torch.compile(dynamic=True) formats no float."""

GPU_KEYS_PER_FEATURE = 32
"""Keys per feature of x^2 up to which a Triton kernel over scores is used on a GPU. There, features take several
launches for every 64 tokens of two heads. By a cost model of an H100, scores are faster up to 11 (float32) or 89
(bfloat16) keys per feature; it was not measured."""


class Inputs(NamedTuple):
    """Arguments of a call, from which the implementation is chosen."""

    query: Tensor
    key: Tensor
    value: Tensor
    visibility: Visibility
    bias: Tensor | None
    dropout: float
    """Probability of dropping a weight in this call; 0 in evaluation."""

    def one_dtype(self) -> bool:
        """Returns whether query, key and value have the same dtype."""
        return self.query.dtype == self.key.dtype == self.value.dtype

    def one_width(self) -> bool:
        """Returns whether values and keys have the same width."""
        return self.query.shape[-1] == self.value.shape[-1]


def features(inputs: Inputs, phi: str, power: int) -> str | None:
    """Returns why products of features cannot compute phi(s)^power, or None."""
    query, key, _, visibility, bias, dropout = inputs
    if phi != "x" or power > 2:
        return "only x and x^2 have a linear form"
    if dropout:
        return "a linear form has no weights to drop"
    if bias is not None:
        return "a linear form has no scores to add a bias to"
    if visibility.segments is not None or visibility.window is not None:
        return "segments and windows are not supported by linear forms"
    if key.shape[2] <= KEYS_PER_FEATURE * query.shape[-1] ** power:
        return FEW_KEYS[power]
    return None


def many_launches(inputs: Inputs, power: int) -> str | None:
    """Returns why features are slower than a Triton kernel that can compute the call, or None."""
    if power == 2 and inputs.query.is_cuda and inputs.key.shape[2] <= GPU_KEYS_PER_FEATURE * inputs.query.shape[3] ** 2:
        return f"on a GPU, scores are expected to be faster up to {GPU_KEYS_PER_FEATURE} head_dim^2 keys"
    return None


def triton(inputs: Inputs) -> str | None:
    """Returns why no Triton kernel can compute a call, for any variant; or None."""
    query, key, value, *_ = inputs
    widths = (query.shape[3], value.shape[3])
    if not INSTALLED:
        return "Triton is not installed (pip install triton)"
    if not (query.is_cuda or INTERPRETED):
        return f"tensors are on {query.device.type}, expected cuda"
    if query.dtype not in DTYPES:
        return f"{query.dtype} is not supported, only float16, bfloat16 and float32"
    if not inputs.one_dtype():
        return f"query, key and value are {query.dtype}, {key.dtype}, {value.dtype}, expected one dtype"
    if not _within(widths, LEAST_WIDTH, MOST_WIDTH):
        return f"heads are {widths[0]} and {widths[1]} wide, expected {LEAST_WIDTH} to {MOST_WIDTH}"
    if max(query.shape[2], key.shape[2]) * max(widths) >= 2**31:
        return "a head has 2^31 elements or more"
    return None


def triton_with_bias(inputs: Inputs) -> str | None:
    """Returns why no Triton kernel that supports a bias can compute a call, or None."""
    bias, full = inputs.bias, (*inputs.query.shape[:3], inputs.key.shape[2])
    if bias is None:
        return triton(inputs)
    if bias.dtype not in DTYPES:
        return f"a bias in {bias.dtype} is not supported, only float16, bfloat16 and float32"
    if sum((size - 1) * step for size, step in zip(bias.shape[2:], bias.stride()[2:], strict=True)) >= 2**31:
        return "a head of the bias has 2^31 elements or more"
    if bias.requires_grad and torch.is_grad_enabled():
        if bias.shape != full:
            return "a trained bias of several heads or examples needs a matrix over all pairs for each of them"
        if full[2] * full[3] >= 2**31:
            return "the gradient of a head of the bias has 2^31 elements or more"
    return triton(inputs)


def triton_doubly_normalized(inputs: Inputs, rounds: int) -> str | None:
    """Returns why the Triton kernels of doubly-normalised attention cannot compute a call, or None."""
    if rounds > 1:
        return "the kernels of doubly-normalised attention support one iteration only"
    if inputs.visibility.order == "none" and inputs.bias is not None:
        return "the kernels of doubly-normalised attention support a bias with an order only"
    return triton_with_bias(inputs)


def fused_softmax(inputs: Inputs) -> str | None:
    """Returns why PyTorch's fused softmax is not used: it would round, or store a matrix over all pairs; or None."""
    query, key, value, visibility, bias, dropout = inputs
    if not inputs.one_dtype():
        return f"query, key and value are {query.dtype}, {key.dtype}, {value.dtype}, expected one dtype"
    if not inputs.one_width():
        return "PyTorch's fused softmax needs values as wide as keys"
    if query.device.type == "cpu" and dropout:
        return "PyTorch's fused softmax has no dropout on a CPU"
    if query.device.type != "cpu" and query.dtype == torch.float64:
        return "PyTorch's fused softmax has no float64 on a GPU"
    if visibility.segments is not None:
        return "segments need a mask over all pairs"
    causal = visibility.order == "causal"
    has_inner_padding = visibility.key_real is not None and not visibility.padded_at_end
    if causal and (visibility.memory or visibility.window is not None or has_inner_padding):
        return "padding that may precede a token, a memory or a window in order 'causal' needs a mask over all pairs"
    return None if bias is None else _bias_of_softmax(inputs, bias)


def _bias_of_softmax(inputs: Inputs, bias: Tensor) -> str | None:
    query, _, _, visibility, _, _ = inputs
    if torch.promote_types(bias.dtype, query.dtype) != query.dtype:
        return f"the bias, {bias.dtype}, would be rounded to {query.dtype}"
    if visibility.order == "causal" or (bias.shape[2] > 1 and visibility.key_real is not None):
        return "a bias with an order or padded keys needs a mask over all pairs"
    if bias.shape[2] == query.shape[2] and visibility.query_real is not None:
        return "a bias may be NaN for padded queries, which would spread to the gradients of keys"
    return "the bias is trained" if bias.requires_grad else None


def biased_softmax(inputs: Inputs) -> str | None:
    """Returns why ``softmax.biased_softmax`` cannot compute a call, or None.

    That form needs a bias over all pairs, and then stores no other such matrix. On a CPU PyTorch has it only without
    dropout and gradients.
    """
    query, key, value, visibility, bias, dropout = inputs
    if bias is None or bias.shape != (*query.shape[:3], key.shape[2]):
        return "needs a bias over all pairs"
    if not inputs.one_dtype() or torch.promote_types(bias.dtype, query.dtype) != query.dtype:
        return "query, key, value and bias have different dtypes"
    if not inputs.one_width():
        return "PyTorch's fused softmax needs values as wide as keys"
    if visibility.query_real is not None or visibility.key_real is not None:
        return "padding would need a second matrix over all pairs"
    if query.is_cuda:
        return "PyTorch's fused softmax has no float64 on a GPU" if query.dtype == torch.float64 else None
    learns = torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value, bias))
    return "on a CPU PyTorch's fused softmax with a bias has no dropout and no gradients" if dropout or learns else None


def masked_softmax(inputs: Inputs) -> str | None:
    """Returns why ``softmax.masked_softmax`` cannot compute a call, or None.

    That form stores a mask over all pairs of an example, for all heads. A CPU computes such calls in tiles.
    """
    query, key, _, _, bias, _ = inputs
    if not query.is_cuda or query.dtype == torch.float64:
        return "a mask over all pairs is made on a GPU only, and in no float64"
    if bias is not None or not inputs.one_dtype() or not inputs.one_width():
        return "a mask over all pairs needs a call without a bias, of one dtype and one width"
    if query.shape[0] * query.shape[2] * key.shape[2] * query.element_size() > MASK_BYTES:
        return f"a mask over all pairs would have more than {MASK_BYTES} bytes"
    return None


def fused_doubly_normalized(inputs: Inputs, rounds: int) -> str | None:
    """Returns why fused passes cannot compute dnas or hnas, or None."""
    query, key, _, visibility, bias, dropout = inputs
    if query.device.type != "cpu":
        return "PyTorch's operator runs on CPUs only"
    if dropout or rounds > 1:
        return "fused passes support no dropout and one iteration only"
    if visibility.order != "none" or visibility.segments is not None or bias is not None:
        return "fused passes support no order, no segments and no bias"
    if not inputs.one_dtype() or not inputs.one_width():
        return "query, key and value differ in dtype or width"
    if query.shape[2] * key.shape[2] < FUSED_PAIRS:
        return f"tiles are faster for fewer than {FUSED_PAIRS} pairs of query and key"
    return None


def has_small_matrix(inputs: Inputs) -> bool:
    """Returns whether a head has at most ``SMALL_MATRIX`` scores."""
    return inputs.query.shape[2] * inputs.key.shape[2] <= SMALL_MATRIX


def blockwise(inputs: Inputs, rounds: int) -> str | None:
    """Returns why the engine does not compute a call of a variant that has a rule."""
    query, key, _, visibility, _, _ = inputs
    if query.is_cuda and has_small_matrix(inputs):
        return f"on a GPU the full matrix takes fewer launches for at most {SMALL_MATRIX} scores per head"
    is_small = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2] <= FEW_SCORES
    if is_small and visibility.order == "causal" and query.device.type == "cpu" and not rounds:
        return f"for at most {FEW_SCORES} causal scores the full matrix is faster"
    return None


def chunked(inputs: Inputs, stepwise: Sequence[str], chunks: int) -> str | None:
    """Returns why the formula is not evaluated in chunks of queries, or None; ``chunks``: number of chunks."""
    visibility = inputs.visibility
    if visibility.order not in stepwise:
        return f"in order {visibility.order!r} weights depend on all queries at once"
    if visibility.segments is not None and visibility.order != "causal":
        return "segments without an order need all queries at once"
    return "all queries fit into one chunk" if chunks == 1 else None


def _within(widths: tuple[int, int], least: int, most: int) -> bool:
    return all(least <= each <= most for each in widths)

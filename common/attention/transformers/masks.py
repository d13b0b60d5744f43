"""Masks of the transformers library: creation of masks for the variants, and attention under masks over pairs.

A variant receives one of three kinds. None: no padding; in causal modules only later tokens are hidden.
``(batch, keys)``: True for real tokens, in causal attention. ``(batch, 1 or heads, queries, keys)``, or 1 on any axis:
a mask over pairs, either True for visible pairs or a number added to the scores; then nothing else is hidden.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask

from seqarena.common.attention import is_function_of_scores
from seqarena.common.attention.base import AttentionConfig, Kernel
from seqarena.common.attention.reference import scaled_scores
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import Key, Query, Value

ALWAYS_HIDES = -1e4
"""A number in a mask at or below which a pair is hidden under every variant; most models use this or less."""
HIDES = -50.0
"""A number at or below which a pair is hidden under variants where adding it would not hide it. Swin's masks have -100
plus biases of a few units."""
BIAS = -25.0
"""A number above this is a bias. Numbers between this and ``HIDES`` are ambiguous."""


def real_tokens(
    *, mask_function: Callable[..., Any], attention_mask: Tensor | None, q_length: int, kv_length: int,
    q_offset: int | Tensor = 0, allow_is_causal_skip: bool = True, allow_is_bidirectional_skip: bool = False,
    **kwargs: Any,
) -> Tensor | None:  # fmt: skip
    """Returns the mask of real tokens, (batch, keys) if causal, else (batch, 1, 1, keys); None without a mask.

    Windows, packed sequences, static caches and models that require a full mask get a mask over all pairs. The function
    never reads the values of a mask, so that a model compiles as one graph.

    Raises:
        WrongUseError: a mask that is neither over tokens nor over pairs.
    """
    if attention_mask is not None and attention_mask.dim() != 2:
        raise WrongUseError(
            "attention_mask: expected shape (batch, keys), or (batch, 1 or heads, queries, keys) for a mask over all "
            f"pairs; found {tuple(attention_mask.shape)}"
        )
    if mask_function is bidirectional_mask_function and allow_is_bidirectional_skip:
        return None if attention_mask is None else attention_mask[:, None, None, :].bool()
    at_the_end = isinstance(q_offset, int) and q_offset + q_length == kv_length
    if mask_function is causal_mask_function and allow_is_causal_skip and at_the_end:
        return attention_mask
    kwargs |= {"q_offset": q_offset, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    mask: Tensor | None = sdpa_mask(
        q_length=q_length, kv_length=kv_length, mask_function=mask_function, attention_mask=attention_mask, **kwargs
    )
    return mask


def is_key_mask(mask: Tensor, queries: int) -> bool:
    """Returns whether a mask over pairs is the same for all of several queries, so that it is not causal."""
    return mask.dim() == 4 and mask.shape[2] == 1 and queries > 1


def over_pairs(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Expands the axes of size 1 of a mask over pairs, except that of heads: (batch, 1 or heads, queries, keys).

    Raises:
        WrongUseError: a mask of another shape, or of integers.
    """
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise WrongUseError(
            "attention_mask over all pairs: expected True and False (mask.bool()), or floating-point numbers to add "
            f"to the scores; found {mask.dtype}"
        )
    full = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    if mask.dim() != 4 or any(size not in (1, whole) for size, whole in zip(mask.shape, full, strict=True)):
        raise WrongUseError(
            f"attention_mask: expected shape {full} (batch, heads, queries, keys), or 1 on any axis; "
            f"found {tuple(mask.shape)}"
        )
    return mask.expand(full[0], mask.shape[1], full[2], full[3])


# An operator, so that a compiled model remains one graph, and masks are checked when it runs.
@torch.library.custom_op("seqarena::visible_pairs", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def visible_pairs(mask: Tensor, name: str, bias_hides: bool, sums_over_queries: bool, causal: bool | None) -> Tensor:
    """Returns the pairs that a mask leaves visible.

    For variants that sum over queries, rows of queries that are hidden from themselves count as padding: no pair.
    ``causal`` says whether weights are computed in causal order; None if the variant does not depend on it.

    Raises:
        WrongUseError: the mask has ambiguous numbers, or contradicts ``causal``.
    """
    visible = mask.clone() if mask.dtype == torch.bool else mask > (ALWAYS_HIDES if bias_hides else HIDES)
    if mask.is_floating_point() and not bias_hides:
        ambiguous = ~((mask <= HIDES) | (mask > BIAS))
        if bool(ambiguous.any()):
            raise WrongUseError(
                f"attention {name!r}: the mask has {float(mask[ambiguous][0]):.4g}, which may be a bias or hide its "
                f"pair; expected numbers above {BIAS:g} (a bias) or at most {HIDES:g} (hidden), or True and False"
            )
    if sums_over_queries:
        visible = visible & visible.diagonal(dim1=-2, dim2=-1)[..., None]
    if causal is not None:
        _require_order_of_time(visible, name, causal)
    return visible.contiguous()


visible_pairs.register_fake(lambda mask, *_: torch.empty(mask.shape, dtype=torch.bool, device=mask.device))


def _require_order_of_time(visible: Tensor, name: str, causal: bool) -> None:
    """Raises a ``WrongUseError`` if a mask shows later tokens to causal attention, or is causal for another."""
    queries, keys = visible.shape[-2:]
    if causal and bool(_first_position(visible) > keys - queries):
        raise WrongUseError(
            f"attention {name!r} is causal in this module, but the mask shows later tokens; expected a mask that hides "
            "them, or a module whose is_causal is False"
        )
    if not causal and bool(visible.tril(-1).any()) and not bool(visible.triu(1).any()):
        raise WrongUseError(
            f"attention {name!r} is not causal in this module, but the mask hides all later tokens: its sums over "
            "queries would leak them; expected a module whose is_causal is True"
        )


def _first_position(visible: Tensor) -> Tensor:
    """Returns the key position of the first query: in a causal mask a query's newest visible key is its own."""
    query, key = (torch.arange(length, device=visible.device) for length in visible.shape[-2:])
    newest = torch.where(visible, key, -1).amax(dim=-1)  # B H N
    return torch.where(newest >= 0, newest - query, -len(query)).amax()


def attend_pairs(
    name: str, config: AttentionConfig, kernel: Kernel, query: Query, key: Key, value: Value, mask: Tensor, causal: bool
) -> tuple[Tensor, Tensor]:
    """Returns attention under a mask over pairs and its weights, by the formula on the full matrix.

    Keys of a cache are in temporal order, but the newest query's own key may not be the last: a static cache has free
    positions after it. The columns are rotated until it is the last, as ``Visibility`` assumes.
    """
    if not is_function_of_scores(kernel):
        raise WrongUseError(
            f"attention {name!r} does not support a mask over pairs of tokens: its weights are not a formula of the "
            "scores alone; expected a padding mask"
        )
    mask, (queries, keys) = over_pairs(mask, query, key), (query.shape[2], key.shape[2])
    visibility = Visibility(order="causal", memory=keys - queries) if causal and keys >= queries else Visibility()
    kernel.check(visibility, None, query=query, key=key, value=value)
    ordered = config.sums_over_queries or "none" not in config.orders
    visible = visible_pairs(mask, name, config.bias_hides, config.sums_over_queries, causal if ordered else None)
    bias = mask.masked_fill(~visible, 0.0) if mask.is_floating_point() else None
    scores = scaled_scores(query, key, bias)
    if visibility.memory:
        position = torch.arange(keys, device=mask.device)
        turn = keys - queries - _first_position(visible)
        turned, back = (position - turn) % keys, (position + turn) % keys
        weights = kernel.normalize(scores[..., turned], visible[..., turned], visibility, None)[0][..., back]
    else:
        weights = kernel.normalize(scores, visible, visibility, None)[0]
    return F.dropout(weights, kernel.active_dropout).to(value.dtype) @ value, weights

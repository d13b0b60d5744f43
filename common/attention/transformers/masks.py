"""Masks of the transformers library: those made for our variants, and those over all pairs as attention reads them.

Three kinds reach a variant. None: nothing is hidden but, where the module is causal, the future. ``(batch, keys)``:
which tokens are real in causal attention. ``(batch, 1 or heads, queries, keys)``, or 1 on any axis: which pairs are
visible, True and False or a number added to the scores, and nothing else is hidden.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask

from seqarena.common.attention.base import AttentionConfig, Kernel, scaled_scores
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import Key, Query, Value

ALWAYS_HIDES = -1e4
"""A number of a mask that hides its pair under every variant: most models' own masks have it, or less."""
HIDES = -50.0
"""A number that hides its pair where adding it would not: Swin's masks have -100, added to biases of a few units."""
BIAS = -25.0
"""A number above this is a bias; from here down to ``HIDES`` it may be either."""


def real_tokens(
    *, mask_function: Callable[..., Any], attention_mask: Tensor | None, q_length: int, kv_length: int,
    q_offset: int | Tensor = 0, allow_is_causal_skip: bool = True, allow_is_bidirectional_skip: bool = False,
    **further: Any,
) -> Tensor | None:  # fmt: skip
    """Returns which tokens are real, (batch, keys) if causal, else (batch, 1, 1, keys); None where nobody said.

    Windows, packed sequences, static caches and models that want a mask whatever it holds get one over all pairs.
    Never looks at what is in a mask, so that a model compiles as one graph.

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
    further |= {"q_offset": q_offset, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    mask: Tensor | None = sdpa_mask(
        q_length=q_length, kv_length=kv_length, mask_function=mask_function, attention_mask=attention_mask, **further
    )
    return mask


def hides_no_order(mask: Tensor, queries: int) -> bool:
    """Returns whether a mask over pairs is the same for all of several queries: it hides keys, and no future."""
    return mask.dim() == 4 and mask.shape[2] == 1 and queries > 1


def over_pairs(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Returns a mask over pairs with its axes of size 1 repeated: (batch, 1 or heads, queries, keys).

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


# An operator, so that a compiled model is still one graph, and refuses what it is given when it runs.
@torch.library.custom_op("seqarena::visible_pairs", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def visible_pairs(mask: Tensor, name: str, bias_hides: bool, sums_over_queries: bool, causal: bool | None) -> Tensor:
    """Returns which pairs a mask shows; of a variant that sums over queries, none of queries that hide themselves.

    ``causal`` (None: no matter to the variant): whether weights are computed in the order of time.

    Raises:
        WrongUseError: numbers that may be a bias or hide, or a mask whose order of time is another one.
    """
    visible = mask.clone() if mask.dtype == torch.bool else mask > (ALWAYS_HIDES if bias_hides else HIDES)
    if mask.is_floating_point() and not bias_hides:
        doubtful = ~((mask <= HIDES) | (mask > BIAS))
        if bool(doubtful.any()):
            raise WrongUseError(
                f"attention {name!r}: the mask has {float(mask[doubtful][0]):.4g}, which may be a bias or hide its "
                f"pair, and added to a score it would hide nothing; expected numbers above {BIAS:g} (a bias) or of "
                f"{HIDES:g} and less (hidden), or True and False"
            )
    if sums_over_queries:
        visible = visible & visible.diagonal(dim1=-2, dim2=-1)[..., None]
    if causal is not None:
        _require_order_of_time(visible, name, causal)
    return visible.contiguous()


visible_pairs.register_fake(lambda mask, *_: torch.empty(mask.shape, dtype=torch.bool, device=mask.device))


def _require_order_of_time(visible: Tensor, name: str, causal: bool) -> None:
    """Raises a ``WrongUseError`` if a mask shows the future to causal attention, or hides it all from another."""
    queries, keys = visible.shape[-2:]
    if causal and bool(_first_position(visible) > keys - queries):
        raise WrongUseError(
            f"attention {name!r} is causal in this module, and the mask shows it later tokens; expected a mask that "
            "hides them, or a module whose is_causal is False"
        )
    if not causal and bool(visible.tril(-1).any()) and not bool(visible.triu(1).any()):
        raise WrongUseError(
            f"attention {name!r} is not causal in this module, and the mask hides all later tokens: its sums over "
            "queries would let them through; expected a module whose is_causal is True"
        )


def _first_position(visible: Tensor) -> Tensor:
    """Returns which key is the first query's own; in a causal mask the newest key that a query sees is itself."""
    query, key = (torch.arange(length, device=visible.device) for length in visible.shape[-2:])
    newest = torch.where(visible, key, -1).amax(dim=-1)  # B H N
    return torch.where(newest >= 0, newest - query, -len(query)).amax()


def attend_pairs(
    name: str, config: AttentionConfig, kernel: Kernel, query: Query, key: Key, value: Value, mask: Tensor, causal: bool
) -> tuple[Tensor, Tensor]:
    """Returns attention under a mask over pairs and its weights, by the formula on the full matrix.

    Keys of a cache stand in the order of time, but the newest query's own need not be the last: a static cache has
    room behind it. The columns are turned until it is, which is how ``Visibility`` counts distances.
    """
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

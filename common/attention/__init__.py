"""Table of all attention variants: those of the three papers, and those of others from the folder ``rivals``."""

from collections.abc import Collection, Mapping
from types import MappingProxyType

import torch

from seqarena.common.attention.arguments import check_tensors
from seqarena.common.attention.base import AttentionConfig, Kernel
from seqarena.common.attention.doubly_normalized import DoublyNormalized
from seqarena.common.attention.elementwise import Elementwise
from seqarena.common.attention.hybrid import Hybrid
from seqarena.common.attention.rivals import RIVALS
from seqarena.common.attention.softmax import Recency, Softmax
from seqarena.common.attention.visibility import CallOption, Order, Visibility
from seqarena.common.errors import WrongUseError, look_up
from seqarena.common.model.bounded import Bounded
from seqarena.common.runs.external import is_reference, load_external, require_class
from seqarena.common.runs.named import name_in
from seqarena.common.shapes import Key, KeyMask, Output, Query, QueryMask, Value

__all__ = [
    "ALIASES",
    "ATTENTIONS",
    "PAPERS",
    "AttentionConfig",
    "Kernel",
    "Order",
    "Visibility",
    "attend",
    "attention_name",
    "find_attention",
    "is_function_of_scores",
    "require_options",
    "require_order",
    "require_steps",
]  # fmt: skip

# Scales 14 and 16 and the unscaled controls are from P1. They do not depend on the sequence length.
PAPERS: Mapping[str, AttentionConfig] = MappingProxyType(
    {
        "softmax": Softmax(),
        "dnas": DoublyNormalized(),
        "hnas": Hybrid(),
        "recency": Recency(),
        "x1": Elementwise(power=1),
        "x2": Elementwise(power=2),
        "x3": Elementwise(power=3),
        "x1-14": Elementwise(power=1, scale=14.0),
        "x2-14": Elementwise(power=2, scale=14.0),
        "x3-14": Elementwise(power=3, scale=14.0),
        "x1-16": Elementwise(power=1, scale=16.0),
        "x3-16": Elementwise(power=3, scale=16.0),
        "x1-raw": Elementwise(power=1, scale=1.0),
        "x3-raw": Elementwise(power=3, scale=1.0),
        "relu": Elementwise(phi="relu"),
        "elu": Elementwise(phi="elu"),
        "gelu": Elementwise(phi="gelu"),
        "tanh": Elementwise(phi="tanh"),
        "exp": Elementwise(phi="exp"),
    }
)
"""Variants of the three papers, and their controls."""
ATTENTIONS: Mapping[str, AttentionConfig] = MappingProxyType({**PAPERS, **RIVALS})
"""Every variant by its name."""

ALIASES: Mapping[str, str] = MappingProxyType({"lnas": "softmax"})


def find_attention(name: str) -> AttentionConfig:
    """Returns the variant of a name or alias, or of a class outside this project: ``my_attention.py:MyAttention``.

    Raises:
        WrongUseError: no such variant. The message suggests the nearest name.
    """
    if not isinstance(name, str):
        raise WrongUseError(f"attention {name!r}: expected a name such as hnas, or a config such as Hybrid(u=0.3)")
    if is_reference(name):
        return load_external(name, AttentionConfig, "attention")  # type: ignore[type-abstract]
    require_class(name, "attention")
    return look_up(ATTENTIONS, ALIASES.get(name, name), "attention")


def attention_name(config: AttentionConfig) -> str:
    """Returns the variant's name in the table with changed settings: ``x3``, ``x3[scale=8.0]``, ``hnas[u=0.1]``."""
    return name_in(ATTENTIONS, config)


def require_order(config: AttentionConfig, order: Order) -> None:
    """Checks that a variant is defined for an order.

    Raises:
        WrongUseError: it is not. The message lists the variants that are.
    """
    if order not in config.orders:
        able = [name for name, entry in ATTENTIONS.items() if order in entry.orders]
        raise WrongUseError(
            f"attention {attention_name(config)!r} is not defined for order {order!r} "
            f"(only for {', '.join(config.orders)}); variants defined for it: {', '.join(able)}"
        )


def require_options(config: AttentionConfig, options: Collection[CallOption], reason: str) -> None:
    """Checks that a variant takes options of a call into account. ``reason`` is what needs them.

    Raises:
        WrongUseError: it does not.
    """
    missing = [each for each in options if each not in config.supports]
    if missing:
        raise WrongUseError(
            f"attention {attention_name(config)!r} does not support {', '.join(missing)}, which {reason} needs; it "
            f"supports {', '.join(config.supports) or 'none'}"
        )


def is_function_of_scores(kernel: Kernel) -> bool:
    """Returns whether a kernel's weights are its formula of the scores of the given queries and keys."""
    return kernel.has_weights and type(kernel).transform is Kernel.transform


def require_steps(config: AttentionConfig, order: Order, reason: str) -> None:
    """Checks that a variant can be computed step by step in an order. ``reason`` is what needs this.

    Raises:
        WrongUseError: it cannot.
    """
    if order not in config.stepwise:
        raise WrongUseError(
            f"attention {attention_name(config)!r} cannot be computed step by step in order {order!r}, which {reason} "
            f"needs; orders in which it can: {', '.join(config.stepwise) or 'none'}"
        )


def attend(
    variant: str | AttentionConfig,
    query: Query,
    key: Key,
    value: Value,
    *,
    query_mask: QueryMask | None = None,
    key_mask: KeyMask | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Output:
    """Computes attention by any variant, given its name or config; ``Hybrid(u=0.3)`` fixes the mixing weight.

    Shapes: query (batch, heads, queries, head_dim), key and value (batch, heads, keys, head_dim), masks
    (batch, length) with True = real. With ``causal``, keys in excess of the queries are memory: positions before the
    first query. ``dropout`` is the probability of dropping a weight; it is applied whenever it is above 0. Nothing is
    trained: the variant's own parameters are constants, in the precision of ``query``.

    Raises:
        WrongUseError: an unknown variant, a mask of the wrong shape, a variant without a causal form, or one with a
            layer that begins at random.
    """
    config = variant if isinstance(variant, AttentionConfig) else find_attention(variant)
    check_tensors(query, key, value, None)
    visibility = Visibility(
        query_real=query_mask,
        key_real=key_mask,
        order="causal" if causal else "none",
        memory=key.shape[2] - query.shape[2] if causal else 0,
    )
    require_order(config, visibility.order)
    kernel = config.build(heads=query.shape[1], dropout=dropout)
    layers = [module for module in kernel.modules() if not isinstance(module, Kernel | Bounded)]
    if any(list(layer.parameters(recurse=False)) for layer in layers):
        raise WrongUseError(
            f"attend: {attention_name(config)} has a layer that begins at random and must be trained; use "
            "MultiHeadAttention, or a config without that layer, such as Nystromformer(convolution=None)"
        )
    _freeze(kernel, query.device, torch.promote_types(query.dtype, torch.float32))
    output: Output = kernel(query, key, value, visibility)
    return output


def _freeze(kernel: Kernel, device: torch.device, precision: torch.dtype) -> None:
    """Replaces parameters by constants in ``precision``. Transforms of ``torch.func`` do not allow ``Module.to``."""
    for module in kernel.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            delattr(module, name)
            # The initial value of a bounded parameter is in float64, the parameter itself is rounded.
            number = module.initial if isinstance(module, Bounded) else parameter.detach()
            setattr(module, name, number.to(device, precision))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device, precision if buffer.is_floating_point() else None))

"""The attention function called by models of the transformers library; models that would not call it are refused."""

import functools
import inspect
import re
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from seqarena.common.attention import ATTENTIONS, Order, attention_name, find_attention, require_order
from seqarena.common.attention.base import AttentionConfig, Kernel
from seqarena.common.attention.mixer import MixerConfig
from seqarena.common.attention.stored import KERNEL
from seqarena.common.attention.transformers.masks import attend_pairs, is_key_mask, over_pairs, real_tokens
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError

LOOKUP = frozenset({"ALL_ATTENTION_FUNCTIONS", "get_interface"})
"""Names that a module of the library uses to look up its attention function."""
UNSUPPORTED = (
    "softcap", "position_bias", "alibi", "s_aux", "sinks", "cu_seq_lens_q", "cu_seq_lens_k", "block_table",
    "block_indices",
)  # fmt: skip
"""Arguments of unsupported features: soft caps, biases, sinks, packed sequences, blocks."""
IS_CROSS = "_seqarena_is_cross_attention"
"""Attribute of the modules inside a model's cross-attention."""
CROSS_NAMES = re.compile(r"cross_?att|encoder_attn|enc_?dec_?att", re.IGNORECASE)
"""Names of cross-attention in the library's models. The class of a module may be that of self-attention."""
Kernels = dict[float, Kernel]
"""Dropout -> the kernel shared by all modules. A compiled model cannot create one."""


class AttachedKernel(nn.Module):
    """The kernel attached to one attention module of a model, with the name and config of its variant."""

    def __init__(self, name: str, config: AttentionConfig, heads: int) -> None:
        super().__init__()
        self.name, self.config = name, config
        self.kernel = config.build(heads=heads)


def register(dropouts: tuple[float, ...] = (0.0, 0.1), external: str | tuple[str, ...] = ()) -> None:
    """Registers every variant that has a kernel as an attention implementation of the library, by its name.

    ``external`` is a class or lists classes outside this project, as ``my_attention.py:MyAttention``. The library knows
    each of them by the name that tables show, here ``my_attention:MyAttention``.

    Afterwards a variant is refused for models that do not use the library's attention interface: the library would
    silently run the model's own attention. ``dropouts`` lists the dropout probabilities of models that will be compiled
    before their first call.
    """
    given = (external,) if isinstance(external, str) else external
    others = {attention_name(config): config for config in map(find_attention, given)}
    for name, config in ({**ATTENTIONS, **others}).items():
        if isinstance(config, MixerConfig):
            continue  # it would replace the library's whole attention layer
        # A kernel with parameters or other state belongs to one module of a model; only kernels without are shared.
        shared = None if config.build(heads=1).state_dict() else {each: _build(config, each) for each in dropouts}
        AttentionInterface.register(name, functools.partial(attend, name, config, shared))
        AttentionMaskInterface.register(name, real_tokens)
    if not hasattr(PreTrainedModel.post_init, "refuses"):
        _refuse_models()


def registered_config(name: str | None) -> AttentionConfig | None:
    """Returns the config of a variant that ``register`` registered by this name; None for other implementations."""
    function = AttentionInterface._global_mapping.get(name or "")
    if not (isinstance(function, functools.partial) and function.func is attend):
        return None
    config: AttentionConfig = function.args[1]
    return config


def _build(config: AttentionConfig, dropout: float) -> Kernel:
    return config.build(heads=1, dropout=dropout).train(dropout > 0)


def _refuse_models() -> None:
    """Patches the library to refuse models that would not call a variant: by class, and after construction."""
    check, complete, choose = (
        getattr(PreTrainedModel, name)
        for name in ("get_correct_attn_implementation", "post_init", "set_attn_implementation")
    )

    @functools.wraps(check)
    def check_model(self: Any, requested: str | None, *rest: Any, **named: Any) -> Any:
        _check_class(type(self), requested)
        return check(self, requested, *rest, **named)

    @functools.wraps(complete)
    def finish_init(self: Any) -> None:
        if not _is_part(self):
            _mark_cross_attention(self)
            _check_modules(self, self.config._attn_implementation)
        complete(self)

    @functools.wraps(choose)
    def set_implementation(self: Any, name: Any, *rest: Any, **named: Any) -> None:
        if isinstance(name, str):
            _check_class(type(self), name)
            _check_modules(self, name)
        choose(self, name, *rest, **named)

    finish_init.refuses = True  # type: ignore[attr-defined]
    for method in (check_model, finish_init, set_implementation):
        setattr(PreTrainedModel, method.__name__, method)


def _check_class(kind: Any, name: str | None) -> None:
    """Raises a ``WrongUseError`` for a model class that computes some or all of its attention itself."""
    if registered_config(name) is not None and (not kind._can_set_attn_implementation() or _own_softmax(kind)):
        raise WrongUseError(
            f"{kind.__name__} computes some or all of its attention itself, not by {name!r}; expected a model "
            "that uses the library's AttentionInterface, such as BERT, RoBERTa or ModernBERT"
        )


def _check_modules(model: nn.Module, name: str | None) -> None:
    """Raises a ``WrongUseError`` for a model none or not all of whose attention would be computed by a variant.

    Examples are FNet and Mamba, whose modules look up no attention, and SigLIP, whose pooling is PyTorch's attention.
    """
    if registered_config(name) is None:
        return
    own = [path for path, module in model.named_modules() if _computes_attention(type(module))]
    if own:
        raise WrongUseError(
            f"{type(model).__name__} computes the attention of {own[0]} itself, not by {name!r}; expected a model "
            "without this layer: see the fields of its config"
        )
    if not attention_modules(model):
        raise WrongUseError(
            f"{type(model).__name__}: none of its modules uses the library's AttentionInterface, {name!r} would change "
            "nothing; expected a model that does, such as BERT, RoBERTa or ModernBERT"
        )


def _own_softmax(kind: type) -> list[str]:
    """Returns the attention classes in a model's module that compute a softmax themselves."""
    siblings = vars(sys.modules[kind.__module__])
    return [
        name
        for name, each in siblings.items()
        if "Attention" in name and isinstance(each, type) and issubclass(each, nn.Module)
        for used in [_names_in(each)]
        if any("softmax" in word.lower() for word in used) and not used >= LOOKUP
    ]


def _names_in(kind: type) -> set[str]:
    """Returns the names of all globals and attributes that the functions of a class use."""
    members = [getattr(each, "__func__", getattr(each, "fget", each)) for each in vars(kind).values()]
    return {name for each in members if inspect.isfunction(each) for name in _names_of(each)}


@functools.cache
def _names_of(function: Callable[..., Any]) -> frozenset[str]:
    """Returns the names of globals and attributes that a Python function uses; empty for other callables."""
    codes = [getattr(inspect.unwrap(function), "__code__", None)]
    used: set[str] = set()
    while codes:
        code = codes.pop()
        if code is not None:
            used |= set(code.co_names)
            codes += [each for each in code.co_consts if inspect.iscode(each)]  # functions inside
    return frozenset(used)


def _mark_cross_attention(model: nn.Module) -> None:
    """Sets ``IS_CROSS`` on the modules inside cross-attention. In GPT-2 their class is that of self-attention."""
    for path, module in model.named_modules():
        if CROSS_NAMES.search(path):
            setattr(module, IS_CROSS, True)


def _computes_attention(kind: type) -> bool:
    """Returns whether a module is PyTorch's multi-head attention, or calls PyTorch's attention function itself."""
    if issubclass(kind, nn.MultiheadAttention):
        return True
    if "Attention" not in kind.__name__ or not kind.__module__.startswith("transformers."):
        return False
    used = _names_in(kind)
    return "scaled_dot_product_attention" in used and not used >= LOOKUP


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """Returns the modules of a model that look up their attention function by name."""
    return [module for module in model.modules() if _names_of(type(module).forward) >= LOOKUP]


def _is_part(model: nn.Module) -> bool:
    """Returns whether a model is being built as a part of another; the part itself may have no attention."""
    frame = inspect.currentframe()
    while frame is not None:
        owner = frame.f_locals.get("self") if frame.f_code.co_name == "__init__" else None
        if isinstance(owner, PreTrainedModel) and owner is not model:
            return True
        frame = frame.f_back
    return False


def attend(
    name: str,
    config: AttentionConfig,
    shared: Kernels | None,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Computes attention in the library's layout (batch, queries, heads, head_dim), and the weights if requested.

    The kinds of ``attention_mask`` are described in ``masks``. As in the library, a mask alone determines visibility.
    Whether the module is causal matters only without a mask, and to variants whose weights depend on the order. In a
    mask over all pairs, a query counts as real if it is visible to itself.

    Raises:
        WrongUseError: the model uses a feature that the variant does not support.
    """
    kernel, config = _kernel_of(name, config, shared, module, dropout)
    causal = _is_causal(module, query.shape[2], attention_mask, kwargs)
    _check_supported(name, config, module, query, key, attention_mask, causal, kwargs)
    groups = getattr(module, "num_key_value_groups", 1)
    if groups > 1:
        key, value = (each.repeat_interleave(groups, dim=1) for each in (key, value))
    if scaling is not None:
        query = query * (scaling * query.shape[-1] ** 0.5)
    visibility, wanted = _visibility(config, query, key, attention_mask, causal), kwargs.get("output_attentions")
    weights: Tensor | None
    if visibility is None:
        assert attention_mask is not None
        output, weights = attend_pairs(name, config, kernel, query, key, value, attention_mask, causal)
    else:
        output = kernel(query, key, value, visibility)
        weights = kernel.weights(query, key, visibility) if wanted else None
    return output.transpose(1, 2).contiguous(), weights if wanted else None


def _is_causal(module: nn.Module, queries: int, mask: Tensor | None, kwargs: dict[str, Any]) -> bool:
    """Returns whether attention is causal; by default True, as in the library."""
    if mask is not None and mask.dim() == 2:
        return True
    causal = kwargs.get("is_causal")
    causal = bool(getattr(module, "is_causal", True) if causal is None else causal)
    return causal and (mask is None or not is_key_mask(mask, queries))


def _check_supported(
    name: str, config: AttentionConfig, module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None,
    causal: bool, kwargs: dict[str, Any],
) -> None:  # fmt: skip
    """Raises a ``WrongUseError`` for features that would be ignored, or would leak later tokens."""
    unsupported = [each for each in UNSUPPORTED if kwargs.get(each) is not None]
    if unsupported:
        raise WrongUseError(f"attention {name!r} does not support {', '.join(unsupported)}, which this model passes")
    queries, keys = query.shape[2], key.shape[2]
    has_window_mask = mask is not None and mask.dim() == 4 and not is_key_mask(mask, queries)
    if kwargs.get("sliding_window") is not None and not has_window_mask:
        raise WrongUseError(f"attention {name!r}: this model has a sliding window, but passes no mask that applies it")
    require_order(config, "causal" if causal else "none")
    if not config.needs_query_mask:
        return
    crosses = "Cross" in type(module).__name__ or getattr(module, IS_CROSS, False)
    if crosses or (getattr(module, "is_decoder", False) and not causal) or (not causal and queries != keys):
        raise WrongUseError(
            f"attention {name!r} is not supported in cross-attention: it needs the padding masks of both sequences; "
            "the library passes one"
        )
    if queries != keys:
        raise WrongUseError(
            f"attention {name!r} in a causal model normalises over all queries so far, which a cache does not store; "
            "set use_cache=False"
        )


def _kernel_of(
    name: str, config: AttentionConfig, shared: Kernels | None, module: nn.Module, dropout: float
) -> tuple[Kernel, AttentionConfig]:
    """Returns the kernel and its config: the attached one, or else the shared one for this dropout."""
    own = getattr(module, KERNEL, None)
    if isinstance(own, AttachedKernel) and own.name == name:
        own.kernel.dropout = dropout
        return own.kernel, own.config
    if shared is None:
        before = f"detach(model), which has kernels of {own.name}, then " if isinstance(own, AttachedKernel) else ""
        raise WrongUseError(
            f"attention {name!r} has parameters, which this model lacks; call {before}attach(model) first"
        )
    if dropout not in shared:
        if torch.compiler.is_compiling():
            raise WrongUseError(
                f"a compiled model with dropout {dropout}: call register(dropouts=(0.0, {dropout})) first"
            )
        shared[dropout] = _build(config, dropout)
    return shared[dropout], config


def _visibility(
    config: AttentionConfig, query: Tensor, key: Tensor, mask: Tensor | None, causal: bool
) -> Visibility | None:
    """Returns the visibility, or None if the mask is a matrix over all pairs.

    For variants that need a mask of the queries, the mask of the keys also marks padded queries.
    ``_check_supported`` refuses their cross-attention, where the two masks differ.
    """
    queries, keys = query.shape[2], key.shape[2]
    memory = keys - queries if causal else 0
    order: Order = "causal" if causal else "none"
    if mask is None:
        return Visibility(order=order, memory=memory)
    if mask.dim() == 2:
        if mask.shape[1] != keys:
            raise WrongUseError(f"attention_mask: expected one number for each of {keys} keys, found {mask.shape[1]}")
        real = mask.bool()
        return Visibility(query_real=real[:, memory:], key_real=real, order=order, memory=memory)
    if causal or mask.dtype != torch.bool or mask.shape[1:3] != (1, 1):
        return None
    real = over_pairs(mask, query, key)[:, 0, 0]
    return Visibility(query_real=real if config.needs_query_mask else None, key_real=real)

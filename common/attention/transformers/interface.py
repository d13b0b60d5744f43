"""The attention function that models of the transformers library call, and the models that would not call it."""

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from seqarena.common.attention import ATTENTIONS, Order, require_order
from seqarena.common.attention.base import AttentionConfig, Kernel
from seqarena.common.attention.transformers.masks import attend_pairs, hides_no_order, over_pairs, real_tokens
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError

KERNEL = "attention_kernel"
"""Name of the module that ``attach`` adds to each attention module of a model."""
ASKS = "ALL_ATTENTION_FUNCTIONS.get_interface("
"""How a module of the library asks for its attention."""
REFUSED = (
    "softcap", "position_bias", "alibi", "s_aux", "sinks", "cu_seq_lens_q", "cu_seq_lens_k", "block_table",
    "block_indices",
)  # fmt: skip
"""Arguments of features that ours does not have: soft caps, biases, sinks, sequences end to end, blocks."""
Kernels = dict[float, Kernel]
"""Dropout -> the kernel that all modules share; models that are compiled must find it made."""


class AttachedKernel(nn.Module):
    """A variant's kernel that belongs to one attention module of a model, and what it was built from."""

    def __init__(self, name: str, config: AttentionConfig, heads: int) -> None:
        super().__init__()
        self.name, self.config = name, config
        self.kernel = config.build(heads=heads)


def register(dropouts: tuple[float, ...] = (0.0, 0.1)) -> None:
    """Makes every variant an attention implementation of the library, by its name.

    From then on a model that does not ask for its attention by name is refused when it is to have one of ours: the
    library would run the model's own and say nothing. ``dropouts``: those of models that are compiled before they ran
    once.
    """
    for name, config in ATTENTIONS.items():
        # Parameters and other state belong to a model, and to one module of it: only what has none is shared.
        shared = None if config.build(heads=1).state_dict() else {each: _built(config, each) for each in dropouts}
        AttentionInterface.register(name, functools.partial(attend, name, config, shared))
        AttentionMaskInterface.register(name, real_tokens)
    if not hasattr(PreTrainedModel.post_init, "refuses"):
        _refuse_models()


def _built(config: AttentionConfig, dropout: float) -> Kernel:
    return config.build(heads=1, dropout=dropout).train(dropout > 0)


def _refuse_models() -> None:
    """Makes the library refuse a model that would not ask for our attention: by its class, and once it is built."""
    check, complete, choose = (
        getattr(PreTrainedModel, name)
        for name in ("get_correct_attn_implementation", "post_init", "set_attn_implementation")
    )

    @functools.wraps(check)
    def checked(self: Any, requested: str | None, *rest: Any, **named: Any) -> Any:
        _require_class_asks(type(self), requested)
        return check(self, requested, *rest, **named)

    @functools.wraps(complete)
    def completed(self: Any) -> None:
        if not _is_part(self):
            _require_asks(self, self.config._attn_implementation)
        complete(self)

    @functools.wraps(choose)
    def chosen(self: Any, name: Any, *rest: Any, **named: Any) -> None:
        if isinstance(name, str):
            _require_class_asks(type(self), name)
            _require_asks(self, name)
        choose(self, name, *rest, **named)

    completed.refuses = True  # type: ignore[attr-defined]
    for method in (checked, completed, chosen):
        setattr(PreTrainedModel, method.__name__, method)


def _require_class_asks(kind: Any, name: str | None) -> None:
    """Raises a ``WrongUseError`` for a class of models that computes its attention itself, or some of it."""
    if name in ATTENTIONS and (not kind._can_set_attn_implementation() or _own_softmax(kind)):
        raise WrongUseError(
            f"{kind.__name__} computes its attention itself, or some of it, and would not ask for {name!r}; expected a "
            "model that uses the library's AttentionInterface, such as BERT, RoBERTa or ModernBERT"
        )


def _require_asks(model: nn.Module, name: str | None) -> None:
    """Raises a ``WrongUseError`` for a model none of whose modules asks for its attention, such as FNet or Mamba."""
    if name in ATTENTIONS and not asking_modules(model):
        raise WrongUseError(
            f"{type(model).__name__}: none of its modules asks for its attention by name, {name!r} would change "
            "nothing; expected a model that uses the library's AttentionInterface, such as BERT, RoBERTa or ModernBERT"
        )


def _own_softmax(kind: type) -> list[str]:
    """Returns the attention classes beside a model's that take a softmax themselves: the library looks at files."""
    beside = vars(sys.modules[kind.__module__])
    return [
        name
        for name, each in beside.items()
        if "Attention" in name and isinstance(each, type) and issubclass(each, nn.Module)
        for source in [inspect.getsource(each)]
        if "softmax" in source and ASKS not in source
    ]


def asking_modules(model: nn.Module) -> list[nn.Module]:
    """Returns the modules of a model that ask for their attention by name."""
    return [module for module in model.modules() if _asks(type(module).forward)]


@functools.cache
def _asks(forward: Callable[..., Any]) -> bool:
    try:
        return ASKS in inspect.getsource(forward)
    except (OSError, TypeError):  # made without a file, or not in Python
        return False


def _is_part(model: nn.Module) -> bool:
    """Returns whether a model is being built as a part of another, which may ask where this one has no attention."""
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
    **further: Any,
) -> tuple[Tensor, Tensor | None]:
    """Returns attention as the library wants it (batch, queries, heads, head_dim), and the weights where asked for.

    ``attention_mask``: of the kinds that ``masks`` knows. Where there is one it alone says who sees whom, as in the
    library; whether the module is causal matters without one, and to variants whose weights depend on the order. Of a
    mask over all pairs a query is real that sees itself.

    Raises:
        WrongUseError: something is asked for that the variant has not.
    """
    kernel, config = _kernel_of(name, config, shared, module, dropout)
    causal = _is_causal(module, query.shape[2], attention_mask, further)
    _require_honoured(name, config, module, query, key, attention_mask, causal, further)
    groups = getattr(module, "num_key_value_groups", 1)
    if groups > 1:
        key, value = (each.repeat_interleave(groups, dim=1) for each in (key, value))
    if scaling is not None:
        query = query * (scaling * query.shape[-1] ** 0.5)
    visibility, wanted = _visibility(config, query, key, attention_mask, causal), further.get("output_attentions")
    weights: Tensor | None
    if visibility is None:
        assert attention_mask is not None
        output, weights = attend_pairs(name, config, kernel, query, key, value, attention_mask, causal)
    else:
        output = kernel(query, key, value, visibility)
        weights = kernel.weights(query, key, visibility) if wanted else None
    return output.transpose(1, 2).contiguous(), weights if wanted else None


def _is_causal(module: nn.Module, queries: int, mask: Tensor | None, further: dict[str, Any]) -> bool:
    """Returns whether queries and keys are one sequence in the order of time: by default yes, as in the library."""
    if mask is not None and mask.dim() == 2:
        return True
    causal = further.get("is_causal")
    causal = bool(getattr(module, "is_causal", True) if causal is None else causal)
    return causal and (mask is None or not hides_no_order(mask, queries))


def _require_honoured(
    name: str, config: AttentionConfig, module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None,
    causal: bool, further: dict[str, Any],
) -> None:  # fmt: skip
    """Raises a ``WrongUseError`` for what would be silently left out, or would let the future through."""
    asked = [each for each in REFUSED if further.get(each) is not None]
    if asked:
        raise WrongUseError(f"attention {name!r} has no {', '.join(asked)}, which this model asks for")
    queries, keys = query.shape[2], key.shape[2]
    windowed = mask is not None and mask.dim() == 4 and not hides_no_order(mask, queries)
    if further.get("sliding_window") is not None and not windowed:
        raise WrongUseError(f"attention {name!r}: this model asks for a sliding window without a mask that has it")
    require_order(config, "causal" if causal else "none")
    if not config.sums_over_queries:
        return
    crosses = "Cross" in type(module).__name__ or (getattr(module, "is_decoder", False) and not causal)
    if crosses or (not causal and queries != keys):
        raise WrongUseError(f"attention {name!r} between two sequences must know both's padding, and is told one's")
    if queries != keys:
        raise WrongUseError(
            f"attention {name!r} in a causal model normalises over the queries so far, which a cache does not keep: "
            "use_cache=False goes without"
        )


def _kernel_of(
    name: str, config: AttentionConfig, shared: Kernels | None, module: nn.Module, dropout: float
) -> tuple[Kernel, AttentionConfig]:
    """Returns the kernel and its config: the module's own if attached, else the one made for that dropout."""
    own = getattr(module, KERNEL, None)
    if isinstance(own, AttachedKernel) and own.name == name:
        own.kernel.dropout = dropout
        return own.kernel, own.config
    if shared is None:
        raise WrongUseError(f"attention {name!r} has parameters of its own, which this model lacks: attach(model)")
    if dropout not in shared:
        if torch.compiler.is_compiling():
            raise WrongUseError(f"a compiled model with dropout {dropout}: register(dropouts=(0.0, {dropout})) first")
        shared[dropout] = _built(config, dropout)
    return shared[dropout], config


def _visibility(
    config: AttentionConfig, query: Tensor, key: Tensor, mask: Tensor | None, causal: bool
) -> Visibility | None:
    """Returns who sees whom, or None if only a matrix over all pairs can say.

    Where the weights depend on which queries are real, queries and keys are one sequence. In cross-attention, which
    may have as many of both, they are not.
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
    return Visibility(query_real=real if config.sums_over_queries else None, key_real=real)

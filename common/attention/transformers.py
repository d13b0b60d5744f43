"""The variants as attention implementations of the transformers library: ``register()``, then ``attn_implementation``.

A model of that library asks for its attention by the name in its config. ``register`` gives it ours, and masks to go
with them: without these the library passes none, and padding is silently read.
"""

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.attention import ATTENTIONS, require_order
from common.attention.base import AttentionConfig, Kernel, scaled_scores
from common.attention.doubly_normalized import DoublyNormalized
from common.attention.hybrid import Hybrid, HybridKernel
from common.attention.visibility import Visibility
from common.bounded import bounded_modules
from common.checkpoint import write_json
from common.errors import BadDataError, WrongUseError
from common.files import field, read_json
from common.optim import Optim, build_optimizer

try:
    from transformers import AttentionInterface, PreTrainedModel
    from transformers.masking_utils import (
        AttentionMaskInterface,
        bidirectional_mask_function,
        causal_mask_function,
        sdpa_mask,
    )
except ImportError as error:
    raise WrongUseError("this needs an extra: pip install 'seqarena[transformers]'") from error

KERNEL = "attention_kernel"
"""Name of the module that holds hnas's u, on each attention module of a model."""
SAVED = "attention.json"
"""File beside a model's weights: its attention, and u of each layer."""
ASKS = "ALL_ATTENTION_FUNCTIONS.get_interface("
"""How a module of the library asks for its attention."""
REFUSED = (
    "softcap", "position_bias", "alibi", "s_aux", "sinks", "cu_seq_lens_q", "cu_seq_lens_k", "block_table",
    "block_indices",
)  # fmt: skip
"""What a model may want of its attention that ours has not: soft caps, biases, sinks, sequences end to end, blocks."""
HIDING = -1e4
"""A number added to a score that hides its pair: many models' own masks have it, or less."""
Kernels = dict[float, Kernel]
"""Dropout -> the kernel of a variant without weights; models that are compiled must find it made."""


def register(dropouts: tuple[float, ...] = (0.0, 0.1)) -> None:
    """Makes every variant an attention implementation of the library, by its name.

    From then on a model whose class does not ask for its attention by name is refused when it is to have one of ours:
    the library would run its own softmax and say nothing. ``dropouts``: those of models that are compiled before they
    ran once.
    """
    for name, config in ATTENTIONS.items():
        kernels: Kernels = {} if isinstance(config, Hybrid) else {each: _built(config, each) for each in dropouts}
        AttentionInterface.register(name, functools.partial(attend, name, config, kernels))
        AttentionMaskInterface.register(name, real_tokens)
    theirs = PreTrainedModel.get_correct_attn_implementation
    if not hasattr(theirs, "refuses"):
        # Nowhere else does the library look at the class of a model and at the name together.
        setattr(PreTrainedModel, theirs.__name__, _refusing(theirs))


def _built(config: AttentionConfig, dropout: float) -> Kernel:
    return config.build(heads=1, dropout=dropout).train(dropout > 0)


def _refusing(theirs: Callable[..., str]) -> Callable[..., str]:
    """Returns the library's check of a name, made to look at the model's class too."""

    @functools.wraps(theirs)
    def checked(self: Any, requested: str | None, *rest: Any, **named: Any) -> str:
        if requested in ATTENTIONS and (not self._can_set_attn_implementation() or _own_softmax(type(self))):
            raise WrongUseError(
                f"{type(self).__name__} computes its attention itself, or some of it, and would not ask for "
                f"{requested!r}; expected a model that uses the library's AttentionInterface, such as BERT, RoBERTa or "
                "ModernBERT"
            )
        return theirs(self, requested, *rest, **named)

    checked.refuses = True  # type: ignore[attr-defined]
    return checked


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


def real_tokens(
    *, mask_function: Callable[..., Any], attention_mask: Tensor | None, q_length: int, kv_length: int, **further: Any
) -> Tensor | None:
    """Returns which tokens are real (batch, keys), or none where all are; of windows and the like, all pairs' mask.

    Never looks at what is in a mask, so that a model compiles as one graph.
    """
    is_plain = mask_function in (bidirectional_mask_function, causal_mask_function)
    offset = further.get("q_offset", 0)
    if is_plain and isinstance(offset, int) and (mask_function is bidirectional_mask_function
                                                 or offset + q_length == kv_length):  # fmt: skip
        return attention_mask
    further |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    mask: Tensor | None = sdpa_mask(
        q_length=q_length, kv_length=kv_length, mask_function=mask_function, attention_mask=attention_mask, **further
    )
    return mask


def attend(
    name: str,
    config: AttentionConfig,
    kernels: Kernels,
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

    ``attention_mask``: what ``real_tokens`` returned, or a mask of all pairs (batch, 1 or heads, queries, keys) of the
    user's own: True, or a number added to the scores. Of such a mask a query is real that sees itself.

    Raises:
        WrongUseError: something is asked for that the variant has not.
    """
    causal = further.get("is_causal")
    causal = bool(getattr(module, "is_causal", False) if causal is None else causal)
    _require_honoured(name, config, module, query, key, attention_mask, causal, further)
    groups = getattr(module, "num_key_value_groups", 1)
    if groups > 1:
        key, value = (each.repeat_interleave(groups, dim=1) for each in (key, value))
    if scaling is not None:
        query = query * (scaling * query.shape[-1] ** 0.5)
    kernel, wanted = _kernel_of(name, config, kernels, module, dropout), bool(further.get("output_attentions"))
    told: Tensor | None = None
    if attention_mask is not None and attention_mask.dim() == 4:
        weights = _weights_of_pairs(kernel, query, key, attention_mask, _sums_over_queries(config))
        output = F.dropout(weights, kernel.active_dropout).to(value.dtype) @ value
        told = weights if wanted else None
    else:
        visibility = _visibility(query, key, attention_mask, causal, _sums_over_queries(config))
        output = kernel(query, key, value, visibility)
        told = kernel.weights(query, key, visibility) if wanted else None
    return output.transpose(1, 2).contiguous(), told


def _sums_over_queries(config: AttentionConfig) -> bool:
    return isinstance(config, DoublyNormalized | Hybrid)


def _require_honoured(
    name: str, config: AttentionConfig, module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None,
    causal: bool, further: dict[str, Any],
) -> None:  # fmt: skip
    """Raises a ``WrongUseError`` for what would be silently left out, or would let the future through."""
    asked = [each for each in REFUSED if further.get(each) is not None]
    if asked:
        raise WrongUseError(f"attention {name!r} has no {', '.join(asked)}, which this model asks for")
    pairs = mask is not None and mask.dim() == 4
    if further.get("sliding_window") is not None and not pairs:
        raise WrongUseError(f"attention {name!r}: this model asks for a sliding window without a mask that has it")
    require_order(config, "causal" if causal else "none")
    if not _sums_over_queries(config):
        return
    queries, keys = query.shape[2], key.shape[2]
    if causal and (queries != keys or pairs):
        raise WrongUseError(
            f"attention {name!r} in a causal model normalises over the queries so far: with a cache (use_cache=False "
            "goes without), a window or packed sequences these are not there"
        )
    crosses = "Cross" in type(module).__name__ or (getattr(module, "is_decoder", False) and not causal)
    if not causal and (crosses or queries != keys):
        raise WrongUseError(f"attention {name!r} between two sequences must know both's padding, and is told one's")


def _kernel_of(name: str, config: AttentionConfig, kernels: Kernels, module: nn.Module, dropout: float) -> Kernel:
    """Returns the kernel: of hnas the module's own, of all others the one made for that dropout."""
    if isinstance(config, Hybrid):
        own = getattr(module, KERNEL, None)
        if not isinstance(own, HybridKernel):
            raise WrongUseError(f"attention {name!r} trains u, which this model has not: attach_hybrid(model)")
        own.dropout = dropout
        return own
    if dropout not in kernels:
        if torch.compiler.is_compiling():
            raise WrongUseError(f"a compiled model with dropout {dropout}: register(dropouts=(0.0, {dropout})) first")
        kernels[dropout] = _built(config, dropout)
    return kernels[dropout]


def _visibility(query: Tensor, key: Tensor, real: Tensor | None, causal: bool, of_queries: bool) -> Visibility:
    """Returns who sees whom, given which keys are real; ``of_queries``: the weights depend on which queries are, too.

    Then queries and keys are one sequence. In cross-attention, which may have as many of both, they are not.
    """
    queries, keys = query.shape[2], key.shape[2]
    if real is not None and real.shape[-1] != keys:
        raise WrongUseError(f"attention_mask: expected one number for each of {keys} keys, found {real.shape[-1]}")
    seen = None if real is None else real.bool()
    if causal:
        asking = None if seen is None else seen[:, keys - queries :]
        return Visibility(query_real=asking, key_real=seen, order="causal", memory=keys - queries)
    return Visibility(query_real=seen if of_queries else None, key_real=seen)


def _weights_of_pairs(kernel: Kernel, query: Tensor, key: Tensor, mask: Tensor, of_queries: bool) -> Tensor:
    """Returns the weights under a mask of all pairs, by the formula on the full matrix."""
    visible = mask > HIDING if mask.is_floating_point() else mask
    bias = mask.masked_fill(~visible, 0.0) if mask.is_floating_point() else None
    if of_queries:
        visible = visible & visible.diagonal(dim1=-2, dim2=-1)[..., None]
    return kernel.normalize(scaled_scores(query, key, bias), visible, Visibility(), None)[0]


def attach_hybrid(model: nn.Module, *, u: float = 0.5, per_head: bool = False) -> nn.Module:
    """Gives each attention module of a model its u for hnas, and returns the model; call it after ``from_pretrained``.

    An optimiser other than ``optimizer_of``'s must keep u between 0 and 1 itself: ``clamp_hybrid`` after each step.

    Raises:
        WrongUseError: no module asks for its attention by name, or they have their u already.
    """
    asking = [module for module in model.modules() if ASKS in inspect.getsource(type(module).forward)]
    if not asking:
        raise WrongUseError(f"{type(model).__name__}: none of its modules asks for its attention by name")
    if any(hasattr(module, KERNEL) for module in asking):
        raise WrongUseError(f"{type(model).__name__} has its u already; attaching again would forget what it is")
    for module in asking:
        config: Any = getattr(module, "config", None) or model.config
        kernel = Hybrid(u=u, per_head=per_head).build(heads=config.num_attention_heads)
        device = next(module.parameters()).device
        module.add_module(KERNEL, kernel.to(device).train(module.training))
    return model


def clamp_hybrid(model: nn.Module) -> None:
    """Puts every u of a model back between 0 and 1."""
    for _, module in bounded_modules(model):
        module.clamp_()


def optimizer_of(model: nn.Module, optim: Optim) -> torch.optim.Optimizer:
    """Returns an optimiser for the library's Trainer: u with ``bounded_lr_multiplier`` times the rate, never decayed.

    Each of its steps leaves u between 0 and 1.
    """
    made = build_optimizer(optim, model)
    for group in made.param_groups:
        group["lr"] = optim.lr * group["multiplier"]
    made.register_step_post_hook(lambda *_: clamp_hybrid(model))
    return made


def save(model: Any, folder: Path) -> None:
    """Saves a model as ``save_pretrained`` does, and beside it its attention's name and u, which that leaves out."""
    clamp_hybrid(model)
    weights = {name: value for name, value in model.state_dict().items() if f".{KERNEL}." not in f".{name}"}
    model.save_pretrained(folder, state_dict=weights)
    shares = {name: module.raw.flatten().tolist() for name, module in bounded_modules(model)}
    write_json(folder / SAVED, {"attention": model.config._attn_implementation, "u": shares})


def load(kind: Any, folder: Path, **settings: Any) -> Any:
    """Returns what ``save`` saved: a model of the library's class ``kind`` with its attention and u.

    Raises:
        BadDataError: no model of ours, or u of other layers.
    """
    values = read_json(folder / SAVED)
    name, shares = (field(values, each, of, str(folder / SAVED)) for each, of in (("attention", str), ("u", dict)))
    register()
    model = kind.from_pretrained(folder, attn_implementation=name, **settings)
    if shares:
        attach_hybrid(model, per_head=any(len(each) > 1 for each in shares.values()))
    own = dict(bounded_modules(model))
    if own.keys() != shares.keys():
        raise BadDataError(f"{folder / SAVED}: u of {sorted(shares)}, the model has {sorted(own)}")
    with torch.no_grad():
        for path, module in own.items():
            module.raw.copy_(torch.tensor(shares[path]).view_as(module.raw))
    return model

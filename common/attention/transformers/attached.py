"""Kernels as submodules of a model's attention modules, trained, saved and loaded with the model."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from seqarena.common.attention.stored import KERNEL, PARAMETERS, SAVED, write_attention
from seqarena.common.attention.transformers.interface import (
    AttachedKernel,
    attention_modules,
    register,
    registered_config,
)
from seqarena.common.data.readers import member, read_json
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.model.bounded import bounded_modules
from seqarena.common.training.optim import Optim, Schedule, build_optimizer

HEADS = ("num_attention_heads", "num_heads", "n_heads")
"""Names of the attribute with the number of heads in models and configs of the library."""


def attach(model: nn.Module, **settings: Any) -> nn.Module:
    """Adds a separate kernel to each attention module of a model, and returns the model.

    The variant is the model's ``attn_implementation``, which must be set before. ``settings`` replace values of its
    config: ``attach(model, u=0.3, per_head=True)`` for hnas. The kernels' parameters become parameters of the model.
    With an optimiser other than that of ``optimizer_of``, call ``clamp`` after each step to keep them in their bounds.

    Raises:
        WrongUseError: the model does not use the library's attention interface, is set to another attention, has
            attached kernels already, or the variant has no such setting.
    """
    modules, kind = attention_modules(model), type(model).__name__
    if not modules:
        raise WrongUseError(f"{kind}: none of its modules uses the library's AttentionInterface")
    if any(hasattr(module, KERNEL) for module in modules):
        raise WrongUseError(
            f"{kind} has attached kernels already; attaching again would discard their parameters: call detach(model) "
            "first if you want that"
        )
    name: Any = getattr(model.config, "_attn_implementation", None)
    registered = registered_config(name)
    if registered is None:
        raise WrongUseError(
            f'{kind} has attention {name!r}; first set a variant, for example model.set_attn_implementation("hnas")'
        )
    try:
        config = replace(registered, **settings)
    except TypeError as error:
        known = ", ".join(asdict(registered)) or "none"
        raise WrongUseError(f"attention {name!r}: {error}; its settings are: {known}") from error
    for module, heads in [(module, _heads(module, model)) for module in modules]:
        device = next(module.parameters()).device
        module.add_module(KERNEL, AttachedKernel(name, config, heads).to(device).train(module.training))
    return model


def detach(model: nn.Module) -> nn.Module:
    """Removes the attached kernels with their parameters, and returns the model. Without kernels nothing changes."""
    for module in list(model.modules()):
        if hasattr(module, KERNEL):
            delattr(module, KERNEL)
    return model


def _heads(module: nn.Module, model: nn.Module) -> int:
    """Returns the number of heads of an attention module: its own attribute, or else its config's."""
    config = getattr(module, "config", None) or model.config
    for heads in (getattr(owner, name, None) for owner in (module, config) for name in HEADS):
        if isinstance(heads, int):
            return heads
    raise WrongUseError(f"{type(module).__name__}: its number of heads is unknown; set its attribute {HEADS[0]} first")


def _attached_kernels(model: nn.Module) -> dict[str, AttachedKernel]:
    return {name: module for name, module in model.named_modules() if isinstance(module, AttachedKernel)}


def clamp(model: nn.Module) -> None:
    """Clamps every bounded parameter of a model, such as u of hnas, to its bounds."""
    for _, module in bounded_modules(model):
        module.clamp_()


def optimizer_of(model: nn.Module, optim: Optim) -> torch.optim.Optimizer:
    """Returns an optimiser for the library's Trainer, which also clamps bounded parameters after each step.

    They have ``bounded_lr_multiplier`` times the learning rate and no weight decay. The schedule and the limit of the
    gradient norm are those of the Trainer's arguments.

    Raises:
        WrongUseError: ``bert_adam``, or a schedule or limit in ``optim``: they need this project's training loop.
    """
    if optim.name == "bert_adam" or optim.clip is not None or optim.schedule != Schedule():
        raise WrongUseError(
            "optimizer_of: expected no bert_adam, no clip and no schedule in Optim, which need this project's "
            "training loop; use adamw, and give the Trainer max_grad_norm and a scheduler"
        )
    optimizer = build_optimizer(optim, model)
    for group in optimizer.param_groups:
        group["lr"] = optim.lr * group["multiplier"]
    optimizer.register_step_post_hook(lambda *_: clamp(model))
    return optimizer


def save(model: Any, folder: Path | str) -> None:
    """Saves a model by ``save_pretrained``, and its attention, which that function omits.

    Raises:
        WrongUseError: the model's attention is no variant, or another one than that of its attached kernels.
    """
    folder, attached, name = Path(folder), _attached_kernels(model), model.config._attn_implementation
    if registered_config(name) is None:
        raise WrongUseError(f"attention {name!r} is no registered variant; save this model by its save_pretrained")
    others = sorted({each.name for each in attached.values()} - {name})
    if others:
        raise WrongUseError(
            f"the attached kernels are those of {', '.join(others)}, but the model computes {name!r}: call "
            f"model.set_attn_implementation({others[0]!r}), or detach(model)"
        )
    clamp(model)
    own = _parameters(attached)
    weights = {name: value for name, value in model.state_dict().items() if name not in own}
    model.save_pretrained(folder, state_dict=weights)
    settings = next((asdict(each.config) for each in attached.values()), None)
    write_attention(folder, name, settings, own)


def _parameters(attached: dict[str, AttachedKernel]) -> dict[str, Tensor]:
    """Returns the tensors of attached kernels, by their names in the model."""
    return {f"{path}.{name}": value for path, each in attached.items() for name, value in each.state_dict().items()}


def load(kind: Any, folder: Path | str, **named: Any) -> Any:
    """Loads a model of the library's class ``kind`` that ``save`` saved, with its attention and attached kernels.

    Raises:
        BadDataError: the folder was not written by ``save``, or the parameters do not fit the model.
        WrongUseError: its attention is an external variant that is not registered.
    """
    folder = Path(folder)
    values = read_json(folder / SAVED)
    name: str = member(values, "attention", str, str(folder / SAVED))
    if "settings" not in values:
        raise BadDataError(
            f"{folder / SAVED}: expected settings, found none; saved by an earlier version: save it again"
        )
    register()
    if registered_config(name) is None:
        raise WrongUseError(
            f"{folder}: its attention {name!r} is not part of seqarena; register its code first, for example "
            f'register(external=("{name.replace(":", ".py:")}",))'
        )
    model = kind.from_pretrained(folder, attn_implementation=name, **named)
    if values["settings"] is None:  # no kernels were attached
        return model
    try:
        attach(model, **member(values, "settings", dict, str(folder / SAVED)))
        stored = safetensors.torch.load_file(folder / PARAMETERS)
    except Exception as error:  # the error class of safetensors cannot be imported in every version
        raise BadDataError(f"{folder}: {SAVED} and {PARAMETERS} cannot be read ({error})") from error
    own = _parameters(_attached_kernels(model))
    shapes, found = ({name: tuple(each.shape) for name, each in some.items()} for some in (own, stored))
    if shapes != found:
        raise BadDataError(f"{folder / PARAMETERS}: expected the parameters {shapes}, found {found}")
    with torch.no_grad():
        for path, value in stored.items():
            own[path].copy_(value)
    return model

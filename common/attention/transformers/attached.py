"""Kernels that belong to a model: attached to its attention modules, trained, saved and loaded with it."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from seqarena.common.attention import ATTENTIONS
from seqarena.common.attention.transformers.interface import KERNEL, AttachedKernel, asking_modules, register
from seqarena.common.data.readers import member, read_json
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.files import write_atomically, write_json
from seqarena.common.model.bounded import bounded_modules
from seqarena.common.training.optim import Optim, build_optimizer

SAVED = "attention.json"
"""File beside a model's weights: the name of its attention, and the settings of what was attached."""
PARAMETERS = "attention.safetensors"
"""File beside it: the parameters of what was attached."""
HEADS = ("num_attention_heads", "num_heads", "n_heads")
"""Names of the attribute with the number of heads, in the models of the library."""


def attach(model: nn.Module, **settings: Any) -> nn.Module:
    """Gives each attention module of a model a kernel of its own, and returns the model; call it once its name is set.

    The variant is the one that the model is set to (``attn_implementation``), with ``settings`` in the place of its
    config's values: ``attach(model, u=0.3, per_head=True)`` for hnas. Its parameters are the model's from then on. An
    optimiser other than ``optimizer_of``'s must keep bounded ones in their range itself: ``clamp`` after each step.

    Raises:
        WrongUseError: no module asks for its attention by name, the model has another attention or kernels already, or
            the variant has no such setting.
    """
    asking, kind = asking_modules(model), type(model).__name__
    if not asking:
        raise WrongUseError(f"{kind}: none of its modules asks for its attention by name")
    if any(hasattr(module, KERNEL) for module in asking):
        raise WrongUseError(f"{kind} has kernels attached already; attaching again would forget their parameters")
    name: Any = getattr(model.config, "_attn_implementation", None)
    if name not in ATTENTIONS:
        raise WrongUseError(f'{kind} has attention {name!r}: model.set_attn_implementation("hnas") first, for example')
    try:
        config = replace(ATTENTIONS[name], **settings)
    except TypeError as error:
        known = ", ".join(asdict(ATTENTIONS[name])) or "none"
        raise WrongUseError(f"attention {name!r}: {error}; its settings are: {known}") from error
    for module, heads in [(module, _heads(module, model)) for module in asking]:
        device = next(module.parameters()).device
        module.add_module(KERNEL, AttachedKernel(name, config, heads).to(device).train(module.training))
    return model


def _heads(module: nn.Module, model: nn.Module) -> int:
    """Returns how many heads an attention module has: its own number, else its config's."""
    config = getattr(module, "config", None) or model.config
    for heads in (getattr(owner, name, None) for owner in (module, config) for name in HEADS):
        if isinstance(heads, int):
            return heads
    raise WrongUseError(f"{type(module).__name__} does not say how many heads it has: set its {HEADS[0]} first")


def _attached(model: nn.Module) -> dict[str, AttachedKernel]:
    return {name: module for name, module in model.named_modules() if isinstance(module, AttachedKernel)}


def clamp(model: nn.Module) -> None:
    """Puts every bounded parameter of a model, such as the u of hnas, back between its bounds."""
    for _, module in bounded_modules(model):
        module.clamp_()


def optimizer_of(model: nn.Module, optim: Optim) -> torch.optim.Optimizer:
    """Returns an optimiser for the library's Trainer: u with ``bounded_lr_multiplier`` times the rate, never decayed.

    Each of its steps leaves u between 0 and 1.
    """
    made = build_optimizer(optim, model)
    for group in made.param_groups:
        group["lr"] = optim.lr * group["multiplier"]
    made.register_step_post_hook(lambda *_: clamp(model))
    return made


def save(model: Any, folder: Path) -> None:
    """Saves a model as ``save_pretrained`` does, and beside it its attention, which that leaves out."""
    clamp(model)
    attached = _attached(model)
    own = _parameters(attached)
    weights = {name: value for name, value in model.state_dict().items() if name not in own}
    model.save_pretrained(folder, state_dict=weights)
    settings = next((asdict(each.config) for each in attached.values()), None)
    write_json(folder / SAVED, {"attention": model.config._attn_implementation, "settings": settings})
    stored = {name: value.detach().cpu().contiguous() for name, value in own.items()}
    write_atomically(folder / PARAMETERS, lambda file: file.write(safetensors.torch.save(stored)))


def _parameters(attached: dict[str, AttachedKernel]) -> dict[str, Tensor]:
    """Returns the tensors of what is attached, by their names in the model."""
    return {f"{path}.{name}": value for path, each in attached.items() for name, value in each.state_dict().items()}


def load(kind: Any, folder: Path, **named: Any) -> Any:
    """Returns what ``save`` saved: a model of the library's class ``kind``, its attention and that one's parameters.

    Raises:
        BadDataError: no model of ours, or parameters of other layers.
    """
    values = read_json(folder / SAVED)
    name: str = member(values, "attention", str, str(folder / SAVED))
    if "settings" not in values:
        raise BadDataError(f"{folder / SAVED}: expected settings, found none: an earlier version saved it")
    register()
    model = kind.from_pretrained(folder, attn_implementation=name, **named)
    if values["settings"] is None:  # nothing was attached
        return model
    try:
        attach(model, **member(values, "settings", dict, str(folder / SAVED)))
        stored = safetensors.torch.load_file(folder / PARAMETERS)
    except Exception as error:  # safetensors' own error class is not importable from every version
        raise BadDataError(f"{folder}: {SAVED} and {PARAMETERS} cannot be read ({error})") from error
    own = _parameters(_attached(model))
    shapes, found = ({name: tuple(each.shape) for name, each in some.items()} for some in (own, stored))
    if shapes != found:
        raise BadDataError(f"{folder / PARAMETERS}: expected the parameters {shapes}, found {found}")
    with torch.no_grad():
        for path, value in stored.items():
            own[path].copy_(value)
    return model

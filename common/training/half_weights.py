"""Weights of linear layers in half precision, all converted by one kernel."""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from seqarena.common.attention.base import Kernel
from seqarena.common.attention.mixer import TokenMixer
from seqarena.common.model.norms.base import Residual


@runtime_checkable
class RepeatsLayers(Protocol):
    """A stack that applies its layers ``repeats`` times, such as ALBERT's encoder."""

    repeats: int


@runtime_checkable
class HasFinalNorm(Protocol):
    """A stack with a norm after its last layer."""

    final_norm: nn.Module


@runtime_checkable
class HasJointLayers(Protocol):
    """A module that computes several layers by one product."""

    def joint_layers(self) -> tuple[nn.Linear, ...]:
        """Returns these layers; none on some devices."""
        ...


class HalfWeights(nn.Module):
    """A model whose linear layers get their weights and biases in bfloat16, all converted together.

    Autocast converts each of them, and each of their gradients, by a kernel of its own. On a GPU these were a fifth of
    the kernels of a small model's training step. Outputs and gradients have the same bits either way.

    See ``linear_weights`` for the weights that autocast still converts.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.groups = weight_groups(model)

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Returns the output of the model."""
        weights = [[self.model.get_parameter(name) for name in group] for group in self.groups]
        lengths = [[len(each) for each in group] for group in weights]
        groups: tuple[Tensor, ...] = ToHalf.apply(lengths, *itertools.chain(*weights))  # type: ignore[no-untyped-call]
        swapped = dict(zip(itertools.chain(*self.groups), _split(groups, lengths), strict=True))
        return functional_call(self.model, swapped, arguments, named, tie_weights=False)


def weight_groups(model: nn.Module) -> list[tuple[str, ...]]:
    """Returns the names of ``linear_weights``. Those of a joint product are a group, which becomes one tensor."""
    groups: dict[str, tuple[str, ...]] = {name: (name,) for name in linear_weights(model)}
    paths = {module: path for path, module in model.named_modules()}
    for module in model.modules():
        layers = module.joint_layers() if isinstance(module, HasJointLayers) else ()
        for part in ("weight", "bias"):
            joint = tuple(f"{paths[layer]}.{part}" for layer in layers)
            if joint and all(name in groups for name in joint):
                groups |= dict.fromkeys(joint, joint)
    return list(dict.fromkeys(groups.values()))


def linear_weights(model: nn.Module) -> list[str]:
    """Returns the names of the trained float32 weights and biases of plain linear layers.

    Without those inside attention kernels, token mixers and norms, whose code, perhaps the user's, may turn autocast
    off; without layers that are applied several times, because the gradients of joint products (``joint_linear``) are
    then added in float32; and without weights that another module uses too, such as a table of tokens.
    """
    norms = [module.final_norm for module in model.modules() if isinstance(module, HasFinalNorm)]
    own = {
        inside
        for module in [*model.modules(), *norms]
        if isinstance(module, (Kernel, TokenMixer, Residual))
        or module in norms
        or (isinstance(module, RepeatsLayers) and module.repeats > 1)
        for inside in module.modules()
    }
    uses = Counter(id(parameter) for module in model.modules() for parameter in module._parameters.values())
    return [
        f"{name}.{part}".lstrip(".")
        for name, module in model.named_modules()
        if type(module) is nn.Linear and module not in own
        for part, parameter in module.named_parameters()
        if parameter.requires_grad and parameter.dtype is torch.float32 and uses[id(parameter)] == 1
    ]


class ToHalf(torch.autograd.Function):
    """Converts groups of tensors to bfloat16, and their gradients back to float32, each way by one operator."""

    @staticmethod
    def forward(ctx: Any, lengths: Sequence[Sequence[int]], *tensors: Tensor) -> tuple[Tensor, ...]:
        """Returns each group's tensors in bfloat16, concatenated. ``lengths``: of the tensors of each group."""
        ctx.set_materialize_grads(False)
        ctx.lengths = lengths
        firsts = [tensors[number] for number in itertools.accumulate(map(len, lengths[:-1]), initial=0)]
        groups = [
            torch.empty_like(first, dtype=torch.bfloat16)
            if len(each) == 1
            else first.new_empty(sum(each), *first.shape[1:], dtype=torch.bfloat16)
            for each, first in zip(lengths, firsts, strict=True)
        ]
        _copy(tensors, _split(groups, lengths))
        return tuple(groups)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Returns the gradients in float32; None for the tensors of a group that was not used."""
        found = [
            torch.split(each, list(lengths)) if each is not None else [None] * len(lengths)
            for each, lengths in zip(gradients, ctx.lengths, strict=True)
        ]
        used = [each for each in itertools.chain(*found) if each is not None]
        converted = [torch.empty_like(each, dtype=torch.float32) for each in used]
        _copy(used, converted)
        remaining = iter(converted)
        return None, *(None if each is None else next(remaining) for each in itertools.chain(*found))


def _split(groups: Iterable[Tensor], lengths: Sequence[Sequence[int]]) -> list[Tensor]:
    """Returns the tensors of all groups, as views."""
    # The gradient of a single part would be copied.
    return [
        part
        for group, each in zip(groups, lengths, strict=True)
        for part in ([group] if len(each) == 1 else torch.split(group, list(each)))
    ]


def _copy(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """Copies tensors into others by one operator. PyTorch has no public one for several tensors."""
    if sources:
        torch._foreach_copy_(list(targets), list(sources))

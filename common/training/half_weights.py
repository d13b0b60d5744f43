"""Weights of linear layers in half precision, all converted by one kernel."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from seqarena.common.attention.base import Kernel
from seqarena.common.attention.mixer import TokenMixer


@runtime_checkable
class Repeating(Protocol):
    """A stack that applies its layers ``repeats`` times, such as ALBERT's encoder."""

    repeats: int


class HalfWeights(nn.Module):
    """A model whose linear layers get their weights and biases in bfloat16, all converted together.

    Autocast converts each of them, and each of their gradients, by a kernel of its own. On a GPU these were a fifth of
    the kernels of a small model's training step. Outputs and gradients have the same bits either way.

    See ``linear_weights`` for the weights that autocast still converts.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.names = linear_weights(model)

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Returns the output of the model."""
        weights = [self.model.get_parameter(name) for name in self.names]
        converted: tuple[Tensor, ...] = ToHalf.apply(*weights)  # type: ignore[no-untyped-call]
        swapped = dict(zip(self.names, converted, strict=True))
        return functional_call(self.model, swapped, arguments, named, tie_weights=False)


def linear_weights(model: nn.Module) -> list[str]:
    """Returns the names of the trained float32 weights and biases of plain linear layers.

    Without those inside attention kernels and token mixers, whose code may turn autocast off; without layers that are
    applied several times, because the gradients of joint products (``joint_linear``) are then added in float32; and
    without weights that another module uses too, such as a table of tokens.
    """
    own = {
        inside
        for module in model.modules()
        if isinstance(module, (Kernel, TokenMixer)) or (isinstance(module, Repeating) and module.repeats > 1)
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
    """Converts tensors to bfloat16, and their gradients back to float32, each way by one operator."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Returns the tensors in bfloat16."""
        ctx.set_materialize_grads(False)
        return tuple(_convert_all(tensors, torch.bfloat16))

    @staticmethod
    def backward(_: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Returns the gradients in float32; None for a tensor that was not used."""
        converted = iter(_convert_all([each for each in gradients if each is not None], torch.float32))
        return tuple(None if each is None else next(converted) for each in gradients)


def _convert_all(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Returns copies of tensors in another dtype. PyTorch has no public operator that copies several tensors."""
    copies = [torch.empty_like(each, dtype=dtype) for each in tensors]
    if copies:
        torch._foreach_copy_(copies, list(tensors))
    return copies

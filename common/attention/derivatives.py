"""Which derivatives our operators cannot give: then attention is computed by its formula, in plain operations."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch.autograd import forward_ad

Function = TypeVar("Function", bound=Callable[..., object])


def assume_constant_result(function: Function) -> Function:
    """Marks a function that the compiler calls once while it traces, as ``torch.compiler.assume_constant_result`` does.

    That one imports the whole compiler, half of what importing a task package takes.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@assume_constant_result  # guarded by the compiler itself
def needs_formula() -> bool:
    """Returns whether forward-mode differentiation or a transform of ``torch.func`` is under way.

    Operators of ``torch.library`` have a gradient for ``backward`` alone: forward-mode derivatives through them are 0
    without a word, and ``torch.func.grad`` and ``vmap`` fail or take one example at a time.
    """
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()

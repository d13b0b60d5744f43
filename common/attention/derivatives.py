"""Detection of derivatives that the custom operators do not support; the formula then computes attention."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch.autograd import forward_ad

Function = TypeVar("Function", bound=Callable[..., object])


def assume_constant_result(function: Function) -> Function:
    """Marks a function that the compiler calls once, while tracing, like ``torch.compiler.assume_constant_result``.

    PyTorch's decorator imports the whole compiler, which takes half the import time of a task package.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@assume_constant_result  # the compiler itself guards on these states
def needs_formula() -> bool:
    """Returns whether forward-mode differentiation or a transform of ``torch.func`` is active.

    Operators of ``torch.library`` support reverse mode only: forward-mode derivatives through them are silently 0, and
    ``torch.func.grad`` and ``vmap`` fail or process one example at a time.
    """
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()

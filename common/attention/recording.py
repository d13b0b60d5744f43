"""Recording of the implementations that compute the attention of a model."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from torch import nn

from seqarena.common.attention.base import Kernel


@contextlib.contextmanager
def recorded_implementations(model: nn.Module) -> Iterator[set[str]]:
    """Gives the set of implementations by which the kernels of a model compute inside the context.

    Kernels that have only one form, as some rivals do, add nothing. The model must not be compiled.
    """
    chosen: set[str] = set()
    kernels = [module for module in model.modules() if isinstance(module, Kernel)]
    for kernel in kernels:
        kernel._run = functools.partial(_run, kernel, chosen)  # type: ignore[method-assign]
        kernel._run_step = functools.partial(_run_step, kernel, chosen)  # type: ignore[method-assign]
    try:
        yield chosen
    finally:
        for kernel in kernels:
            del kernel._run, kernel._run_step


def _run(kernel: Kernel, chosen: set[str], implementation: Any, *arguments: Any, **named: Any) -> Any:
    chosen.add(implementation)
    return type(kernel)._run(kernel, implementation, *arguments, **named)


def _run_step(kernel: Kernel, chosen: set[str], implementation: Any, *arguments: Any) -> Any:
    chosen.add(implementation)
    return type(kernel)._run_step(kernel, implementation, *arguments)

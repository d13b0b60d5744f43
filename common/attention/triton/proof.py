"""A first look at a kernel on the GPU at hand: it is used where it does there what the engine does, and only there.

The kernels are proved by Triton's interpreter, and were written where no GPU was; compilers and cards differ.
"""

import functools
from typing import Any, cast

import torch
from torch import Tensor

from common.attention.operators import attend_blockwise
from common.attention.rule import Rule
from common.attention.triton.available import interprets, say_once
from common.attention.visibility import Visibility

LENGTH = 200
"""Queries and keys that are looked at: several tiles, and part of one."""
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Largest difference from the engine's numbers, as a share of their largest."""


def is_trusted(rule: Rule, query: Tensor, value: Tensor, *, causal: bool, dropout: float) -> bool:
    """Returns whether the kernels of a rule do on this GPU what the engine does; looked at once, and said if not."""
    if interprets() or torch.compiler.is_compiling():
        return True
    found = fault(rule, query.dtype, query.device, query.shape[3], value.shape[3], causal, dropout)
    if found is not None:
        say_once(found)
    return found is None


@functools.cache
def fault(
    rule: Rule, dtype: torch.dtype, device: torch.device, width: int, value_width: int, causal: bool, dropout: float
) -> str | None:
    """Returns what is wrong with the kernels of a rule, by a small example; none: nothing."""
    from common.attention.triton import operators  # noqa: PLC0415  # needs Triton

    real = torch.ones(2, LENGTH, dtype=torch.bool, device=device)
    real[1, LENGTH // 2 :] = False
    visibility = Visibility(query_real=real, key_real=real, order="causal" if causal else "none")
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.enable_grad():
            torch.manual_seed(0)
            query, key, value = (
                torch.randn(2, 2, LENGTH, each, device=device).to(dtype).requires_grad_()
                for each in (width, width, value_width)
            )
            torch.manual_seed(1)
            ours = (
                operators.attend_doubly_normalized(query, key, value, visibility) if rule.rounds
                else operators.attend_elementwise(cast("Any", rule), query, key, value, visibility, dropout)
            )  # fmt: skip
            torch.manual_seed(1)
            theirs, _ = attend_blockwise(rule, query, key, value, visibility, dropout=dropout)
            weight = torch.randn_like(theirs)
            both = [[each, *torch.autograd.grad(each, (query, key, value), weight)] for each in (ours, theirs)]
    except Exception as error:  # whatever Triton, its compiler or the driver raise
        return f"the kernel of {type(rule).__name__} fails on this GPU ({type(error).__name__}: {error})"
    for one, other in zip(*both, strict=True):
        allowed = TOLERANCE[dtype] * float(other.detach().abs().max())
        if not float((one - other).detach().abs().max()) <= allowed:
            return (
                f"the kernel of {type(rule).__name__} differs from the engine on this GPU in {dtype}; please report it"
            )
    return None

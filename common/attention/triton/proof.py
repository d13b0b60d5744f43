"""A first look at a kernel on the GPU at hand: it is used where it does there what the engine does, and only there.

The kernels are proved by Triton's interpreter, and were written where no GPU was; compilers and cards differ.
"""

from typing import Any, cast

import torch
from torch import Tensor

from common.attention.operators import attend_blockwise
from common.attention.rule import Rule
from common.attention.triton.available import LEAST_WIDTH, MOST_WIDTH, interprets, say_once
from common.attention.visibility import Visibility
from common.errors import WrongUseError

LENGTH = 200
"""Queries and keys that are looked at: several tiles, and part of one."""
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Largest difference from the engine's numbers in float64, as a share of their largest."""
LOOKED_AT: dict[str, str | None] = {}
"""What was looked at on this machine -> what is wrong with it; none: nothing."""


def is_trusted(rule: Rule, query: Tensor, value: Tensor, *, causal: bool, dropout: float) -> bool:
    """Returns whether the kernels of a rule do on this GPU what the engine does; looked at once, and said if not."""
    if interprets():
        return True
    widths = [query.shape[3], value.shape[3]]
    if torch.compiler.is_compiling():  # where a width may be a symbol, and is made a number by asking for each
        widths = [number for each in widths for number in range(LEAST_WIDTH, MOST_WIDTH + 1) if number == each]
    is_right: bool = looked_at(
        rule, query.dtype, query.device, widths[0], widths[1], bool(causal), 0.1 if dropout > 0 else 0.0
    )
    return is_right


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # computed while a model is compiled
def looked_at(
    rule: Rule, dtype: torch.dtype, device: torch.device, width: int, value_width: int, causal: bool, dropout: float
) -> bool:
    """Returns whether ``fault`` found nothing, now or before."""
    asked = f"{rule.text} {dtype} {device} {width} {value_width} {causal} {dropout > 0}"
    if asked not in LOOKED_AT:
        LOOKED_AT[asked] = fault(rule, dtype, device, width, value_width, causal, dropout)
        if LOOKED_AT[asked] is not None:
            say_once(str(LOOKED_AT[asked]))
    return LOOKED_AT[asked] is None


def fault(
    rule: Rule, dtype: torch.dtype, device: torch.device, width: int, value_width: int, causal: bool, dropout: float
) -> str | None:
    """Returns what is wrong with the kernels of a rule, by a small example; none: nothing."""
    from common.attention.triton import operators  # noqa: PLC0415  # needs Triton

    try:
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), torch.inference_mode(False), torch.enable_grad():
            real = torch.ones(2, LENGTH, dtype=torch.bool, device=device)
            real[1, LENGTH // 2 :] = False
            visibility = Visibility(query_real=real, key_real=real, order="causal" if causal else "none")
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
            wide = [each.detach().double().requires_grad_() for each in (query, key, value)]
            theirs, _ = attend_blockwise(rule, wide[0], wide[1], wide[2], visibility, dropout=dropout)
            weight = torch.randn_like(ours)
            both = (
                [ours, *torch.autograd.grad(ours, (query, key, value), weight)],
                [theirs, *torch.autograd.grad(theirs, wide, weight.double())],
            )
    except WrongUseError:
        raise
    except Exception as error:  # whatever Triton, its compiler or the driver raise
        return f"the kernel of {type(rule).__name__} fails on this GPU ({type(error).__name__}: {error})"
    for one, other in zip(*both, strict=True):
        allowed = TOLERANCE[dtype] * float(other.detach().abs().max())
        if not float((one - other).detach().abs().max()) <= allowed:
            return (
                f"the kernel of {type(rule).__name__} differs from the engine on this GPU in {dtype}; please report it"
            )
    return None

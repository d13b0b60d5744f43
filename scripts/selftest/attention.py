"""Compares every implementation of attention with the variant's formula in float64."""

import contextlib
import copy
import dataclasses
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from seqarena.common.attention.base import IMPLEMENTATIONS, AttentionConfig, Kernel
from seqarena.common.attention.conditions import Inputs
from seqarena.common.attention.fallback import slowdown
from seqarena.common.attention.mixer import MixerConfig
from seqarena.common.attention.triton.self_test import TOLERANCE
from seqarena.common.attention.visibility import Order, Visibility
from seqarena.common.tables import render

HEADS, LENGTH, WIDTH = 2, 72, 16
PRICED = 8, 4, 2048, 64
"""Batch, heads, length and width of the call whose price is measured where a GPU has no fast implementation."""
ORDERS: tuple[Order, ...] = ("none", "causal")
FAST = ("triton", "fused", "features")
"""Implementations that are fast on a GPU."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One implementation of a variant in one order and dtype."""

    attention: str
    order: Order
    dtype: str
    implementation: str
    chosen: bool
    """Whether calls like this one are computed by it."""
    status: Literal["usable", "absent", "broken"]
    """``absent``: it cannot compute such a call."""
    error: float | None
    """Largest error of output and gradients, relative to their largest value; None without finite results."""
    price: float | None
    """Time of its forward pass over that of PyTorch's softmax; None unless it is chosen on a GPU and slow there."""
    reason: str
    """Why it cannot compute the call, or what is broken; empty if it is usable."""


def check_all(configs: Mapping[str, AttentionConfig], device: torch.device) -> list[Finding]:
    """Returns the findings of all variants, given by name."""
    found: list[Finding] = []
    for name, config in configs.items():
        print(f"{name} ...", file=sys.stderr)
        found += check(name, config, device)
    return found


def check(name: str, config: AttentionConfig, device: torch.device) -> list[Finding]:
    """Returns the findings of one variant; none for a token mixer, which is no function of queries and keys."""
    if isinstance(config, MixerConfig):
        return []
    dtypes = [torch.float32, torch.bfloat16, *([torch.float16] if device.type == "cuda" else [])]
    return [
        each
        for order in ORDERS
        if order in config.orders
        for dtype in dtypes
        for each in _findings(name, config, order, dtype, device)
    ]


def _findings(
    name: str, config: AttentionConfig, order: Order, dtype: torch.dtype, device: torch.device
) -> Iterator[Finding]:
    torch.manual_seed(0)
    real = torch.ones(2, LENGTH, dtype=torch.bool, device=device)
    real[1, LENGTH // 2 :] = False
    visibility = Visibility(query_real=real, key_real=real, order=order)
    given = [torch.randn(2, HEADS, LENGTH, WIDTH, device=device).to(dtype).requires_grad_() for _ in range(3)]
    kernel = config.build(heads=HEADS).to(device)
    wide = [each.detach().double().requires_grad_() for each in given]
    exact = _computed(copy.deepcopy(kernel).double(), "reference", wide, visibility)
    assert exact is not None
    chosen = kernel.explain(given[0], given[1], given[2], visibility)
    slow = chosen.implementation if device.type == "cuda" and chosen.implementation not in FAST else None
    for implementation in IMPLEMENTATIONS:
        error, reason = math.inf, ""
        try:
            computed = _computed(kernel, implementation, given, visibility)
            if computed is not None:
                error = max(_error(one, other) for one, other in zip(computed, exact, strict=True))
        except Exception as failure:  # a compiler or driver raises errors of many classes
            computed, reason = [], f"{type(failure).__name__}: {str(failure).splitlines()[0]}"
        is_right = error <= TOLERANCE[dtype]
        yield Finding(
            attention=name, order=order, dtype=str(dtype).removeprefix("torch."), implementation=implementation,
            chosen=implementation == chosen.implementation,
            status="absent" if computed is None else "usable" if is_right else "broken",
            error=error if math.isfinite(error) else None,
            price=_price(config, order, dtype, device) if implementation == slow else None,
            reason=chosen.others[implementation] if computed is None else "" if is_right else reason or "wrong results",
        )  # fmt: skip


def _computed(
    kernel: Kernel, implementation: str, given: Sequence[Tensor], visibility: Visibility
) -> list[Tensor] | None:
    """Returns output and gradients; None if the implementation cannot compute the call."""
    query, key, value = given
    output = kernel.compute(implementation, query, key, value, visibility)  # type: ignore[arg-type]
    if output is None:
        return None
    weight = torch.linspace(-1, 1, output.numel(), device=output.device).view_as(output).to(output.dtype)
    gradients = torch.autograd.grad(output, list(given), weight, allow_unused=True, materialize_grads=True)
    return [output, *gradients]


def _price(config: AttentionConfig, order: Order, dtype: torch.dtype, device: torch.device) -> float | None:
    """Returns the price of a call by the implementation that is chosen for it; None if it cannot be measured."""
    query, key, value = (torch.randn(PRICED, device=device).to(dtype) for _ in range(3))
    kernel, visibility = config.build(heads=PRICED[1]).to(device), Visibility(order=order)
    with contextlib.suppress(RuntimeError):
        return slowdown(Inputs(query, key, value, visibility, None, 0.0), lambda: kernel(query, key, value, visibility))
    return None


def _error(found: Tensor, exact: Tensor) -> float:
    largest = float(exact.detach().abs().max()) or 1.0
    error = float((found.detach().double() - exact.detach()).abs().max()) / largest
    return error if math.isfinite(error) else math.inf


def table(found: Sequence[Finding], device: torch.device) -> str:
    """Returns the table of the findings."""
    rows = []
    for name, order in dict.fromkeys((each.attention, each.order) for each in found):
        own = [each for each in found if (each.attention, each.order) == (name, order)]
        chosen = {each.dtype: each for each in own if each.chosen}
        wrong = [f"{each.implementation} in {each.dtype}: {each.reason}" for each in own if each.status == "broken"]
        slow = device.type == "cuda" and any(each.implementation not in FAST for each in chosen.values())
        prices = [each.price for each in chosen.values() if each.price is not None]
        price = f", {max(prices):,.0f} times softmax" if prices else ""
        status = "✕ broken" if wrong else f"falls back{price}" if slow else "usable"
        computed = ", ".join(dict.fromkeys(each.implementation for each in chosen.values()))
        errors = ", ".join(f"{dtype} {each.error:.0e}" for dtype, each in chosen.items() if each.error is not None)
        rows.append([name, order, status, computed, errors, "; ".join(wrong)])
    headings = ["variant", "order", "status", "computed by", "error", "broken"]
    if not any(row[-1] for row in rows):
        headings, rows = headings[:-1], [row[:-1] for row in rows]
    notes = [
        "error: of output and gradients, relative to their largest value; allowed: "
        + ", ".join(f"{str(dtype).removeprefix('torch.')} {allowed:g}" for dtype, allowed in TOLERANCE.items())
    ]
    return render(f"attention on {device}", headings, rows, notes, "terminal")

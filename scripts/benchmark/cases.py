"""One case of the attention benchmark: its tensors, its time in rounds over all cases, its peak memory."""

import contextlib
import itertools
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from seqarena.common.attention import find_attention
from seqarena.common.attention.base import Implementation
from seqarena.common.attention.conditions import Inputs
from seqarena.common.attention.direct import DirectKernel
from seqarena.common.attention.elementwise import ElementwiseKernel
from seqarena.common.attention.visibility import Order, Visibility
from seqarena.common.training.runtime import peak_memory_bytes, reset_peak_memory
from seqarena.common.training.workers import run_in_process

PASSES = ("forward", "both")
"""forward: without gradients; both: forward and backward."""
REFERENCE_BYTES = 2**33
"""Memory limit of one reference call's matrices; larger calls are skipped."""
REFERENCE_MATRICES = 4
"""Number of float32 matrices over all pairs: scores, weights, and the gradients of both."""
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
"""Backends of PyTorch's softmax attention, each measured by name, because the default depends on the version."""
FUSED = ["cudnn", "flash", "efficient"]
FLUSH_BYTES = 2**28
"""Number of bytes written before a run is timed on a GPU. A repeated run would find its inputs in the L2 cache, which
is smaller."""
PRODUCTS, PRODUCTS_WITH_MASSES, PRODUCTS_OF_FEATURES, PRODUCTS_OF_FORMULA = 7, 11, 6, 6
"""Number of matrix products of a case, forward and backward; see ``operations``."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Settings shared by all cases."""

    batch: int
    heads: int
    head_dim: int
    dropout: float
    padding: float
    """Fraction of each example's tokens that are padding, at its end."""
    precision: str
    device: str
    repeats: int

    def tensors(self, length: int) -> list[Tensor]:
        """Returns query, key, value and the gradient of the output; B H N D."""
        torch.manual_seed(length)
        shape = self.batch, self.heads, length, self.head_dim
        dtype = getattr(torch, self.precision)
        return [torch.randn(shape, device=self.device).to(dtype).requires_grad_(index < 3) for index in range(4)]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One variant with one implementation at one length."""

    variant: str
    order: Order
    implementation: Implementation
    length: int

    @property
    def label(self) -> str:
        """Name of the case in the table."""
        return " ".join([self.variant, *([self.order] if self.order != "none" else []), self.implementation])


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Measurements of a case; seconds are medians."""

    case: Case
    seconds: dict[str, float]
    """Seconds of each of ``PASSES``."""
    spread: float
    """Interquartile range of ``both``, over its median."""
    baseline_seconds: dict[str, float]
    """Seconds of PyTorch's fused softmax in the same rounds, forward and backward, by order; its fastest backend."""
    backend_seconds: dict[str, dict[str, float]]
    """The same for each backend that supports the case, by order."""
    flops_per_second: float | None
    """Required operations of the implementation, forward and backward, per second; None: unknown."""
    peak_memory_bytes: int | None


def visibility(setting: Setting, case: Case) -> Visibility:
    """Returns the visibility of a case."""
    real = None
    if setting.padding:
        real = torch.arange(case.length, device=setting.device) < max(1, round(case.length * (1 - setting.padding)))
        real = real.expand(setting.batch, -1).contiguous()
    return Visibility(query_real=real, key_real=real, order=case.order)


def forward(setting: Setting, case: Case) -> Callable[[Sequence[Tensor]], Tensor | None]:
    """Returns the case as a function of query, key and value."""
    kernel = find_attention(case.variant).build(setting.heads, setting.dropout).to(setting.device)
    visible = visibility(setting, case)

    def run(tensors: Sequence[Tensor]) -> Tensor | None:
        return kernel.compute(case.implementation, tensors[0], tensors[1], tensors[2], visible)

    return run


def fused_softmax(order: Order, backend: SDPBackend) -> Callable[[Sequence[Tensor]], Tensor]:
    """Returns the baseline: PyTorch's function with one of its backends."""

    def run(tensors: Sequence[Tensor]) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(tensors[0], tensors[1], tensors[2], is_causal=order == "causal")

    return run


def softmax_backends(setting: Setting, length: int, order: Order) -> list[str]:
    """Returns PyTorch's fused backends that support a case, tried on one head; ["math"] if none does."""
    tensors, found = replace(setting, batch=1, heads=1).tensors(length), []
    for name in FUSED:
        with contextlib.suppress(RuntimeError), warnings.catch_warnings(action="ignore"):  # unsupported: long warnings
            run_once(fused_softmax(order, BACKENDS[name]), tensors, both=True)
            found.append(name)
    return found or ["math"]


def expressible(setting: Setting, case: Case) -> bool:
    """Returns whether the implementation supports the case and the case fits into memory."""
    matrix = setting.batch * setting.heads * case.length**2 * 4
    if case.implementation == "reference" and matrix * REFERENCE_MATRICES > REFERENCE_BYTES:
        print(f"{case.label}, length {case.length:,}: skipped, its matrices do not fit into memory", file=sys.stderr)
        return False
    if case.implementation == "reference":
        return True
    return refusal(setting, case) is None


def refusal(setting: Setting, case: Case) -> str | None:
    """Returns why an implementation does not support a case, tried on one head if possible; None if it does."""
    # Whether one chunk suffices, or the full matrix is faster, depends on batch and heads.
    small = setting if case.implementation in ("chunked", "blockwise") else replace(setting, batch=1, heads=1)
    query, key, value, _ = small.tensors(case.length)
    kernel = find_attention(case.variant).build(small.heads, small.dropout).to(small.device)
    with torch.no_grad():
        inputs = Inputs(query, key, value, visibility(small, case), None, kernel.active_dropout)
        return kernel.reason_against(case.implementation, inputs)


def run_once(call: Callable[[Sequence[Tensor]], Tensor | None], tensors: Sequence[Tensor], both: bool) -> None:
    """Runs a case, with its backward pass if ``both``."""
    if not both:
        with torch.no_grad():
            call(tensors)
        return
    output = call(tensors)
    assert output is not None
    # Some variants use neither queries nor keys.
    torch.autograd.grad(output, list(tensors[:3]), tensors[3], allow_unused=True)


def time_run(call: Callable[[Sequence[Tensor]], Tensor | None], tensors: Sequence[Tensor], both: bool) -> float:
    """Returns the seconds of one run. Its inputs are not in the cache of a GPU."""
    if tensors[0].is_cuda:
        torch.empty(FLUSH_BYTES, dtype=torch.int8, device=tensors[0].device).zero_()
        torch.cuda.synchronize()
    start = time.perf_counter()
    run_once(call, tensors, both)
    if tensors[0].is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def quartile_range(times: Sequence[float]) -> float:
    """Returns the interquartile range of times, which is at most their range; 0 for one."""
    if len(times) < 2:
        return 0.0
    first, _, third = statistics.quantiles(times, n=4, method="inclusive")
    return third - first


def measure(setting: Setting, cases: Sequence[Case], memory: bool) -> list[Measurement]:
    """Measures cases of one length in rounds over all of them, so that all are subject to the same conditions."""
    if not cases:
        return []
    length = cases[0].length
    tensors = setting.tensors(length)
    calls: dict[str, Callable[[Sequence[Tensor]], Tensor | None]] = {
        case.label: forward(setting, case) for case in cases
    }
    orders: list[Order] = ["none"]
    if any(case.order == "causal" for case in cases):
        orders.append("causal")
    backends = {order: softmax_backends(setting, length, order) for order in orders}
    bases = {
        f"softmax {order} {name}": fused_softmax(order, BACKENDS[name])
        for order, names in backends.items()
        for name in names
    }
    seconds: dict[tuple[str, str], list[float]] = {}
    for repeat in range(-1, setting.repeats):
        print(f"length {length:,}: round {repeat + 1} of {setting.repeats} ...", file=sys.stderr)
        runs = [*itertools.product(calls.items(), PASSES), *((base, "both") for base in bases.items())]
        for (label, call), name in runs:
            taken = time_run(call, tensors, name == "both")
            if repeat >= 0:
                seconds.setdefault((label, name), []).append(taken)
    del tensors
    of_backends = {
        str(order): {name: statistics.median(seconds[f"softmax {order} {name}", "both"]) for name in names}
        for order, names in backends.items()
    }
    found = []
    for case in cases:
        both = sorted(seconds[case.label, "both"])
        middle = statistics.median(both)
        required = operations(setting, case)
        found.append(
            Measurement(
                case=case,
                seconds={name: statistics.median(seconds[case.label, name]) for name in PASSES},
                spread=quartile_range(both) / middle,
                baseline_seconds={order: min(times.values()) for order, times in of_backends.items()},
                backend_seconds=of_backends,
                flops_per_second=None if required is None else required / middle,
                peak_memory_bytes=peak(setting, case) if memory else None,
            )
        )
    return found


def operations(setting: Setting, case: Case) -> float | None:
    """Returns the multiplications and additions of a case's required matrix products, forward and backward.

    On scores, with N^2 d multiplications each (half if causal): forward S and PV; backward S, dP, dV, dQ and dK.
    Masses over all queries add S before, and S, dQ and dK after. By features, with N d^(power + 1) each: the state
    and the output; backward the state, and query, key and value. The formula on the full matrix keeps S. Pairs with
    padding count. None: unknown, for features of a variant outside P1, and without a matrix of weights.
    """
    kernel = find_attention(case.variant).build(setting.heads)
    heads, length, width = setting.batch * setting.heads, case.length, setting.head_dim
    if case.implementation == "features":
        if not isinstance(kernel, ElementwiseKernel):
            return None
        return 2.0 * PRODUCTS_OF_FEATURES * heads * length * float(width ** (kernel.rule.power + 1))
    if isinstance(kernel, DirectKernel):
        return None
    masses = kernel.rule is not None and kernel.rule.rounds > 0 and case.order == "none"
    products = PRODUCTS_WITH_MASSES if masses else PRODUCTS
    if case.implementation == "reference":
        products = PRODUCTS_OF_FORMULA
    return 2.0 * products * heads * length**2 * width * (0.5 if case.order == "causal" else 1)


def peak(setting: Setting, case: Case) -> int:
    """Returns the peak memory of forward and backward beyond the inputs in bytes, in a process of its own."""
    print(f"{case.label}, length {case.length:,}: memory ...", file=sys.stderr)
    return run_in_process(_peak, setting, case)


def _peak(setting: Setting, case: Case) -> int:
    device, call = torch.device(setting.device), forward(setting, case)
    # A chunk has more queries than the short calls below. What PyTorch loads for the first one takes 160 MiB.
    checkpoint(torch.clone, torch.zeros(1, requires_grad=True), use_reentrant=False).backward()
    small = replace(setting, batch=1)
    for length in (64, 1024):  # initialises libraries; some implementations need a minimum length
        short = replace(case, length=length)
        if expressible(small, short):
            run_once(forward(small, short), small.tensors(length), both=True)
            break
    tensors = setting.tensors(case.length)
    reset_peak_memory(device)
    before = peak_memory_bytes(device)
    run_once(call, tensors, both=True)
    return peak_memory_bytes(device) - before


def matmul_ceiling(setting: Setting) -> float:
    """Returns the operations per second of a large matrix product, the best of six."""
    size = 8192
    if setting.device == "cpu":  # many CPUs have no instructions for half precision, and take minutes
        size = 2048 if setting.precision == "float32" else 512
    left, right = (
        torch.randn(size, size, device=setting.device).to(getattr(torch, setting.precision)) for _ in range(2)
    )
    best = math.inf
    for _ in range(6):
        start = time.perf_counter()
        torch.mm(left, right)
        if left.is_cuda:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best

"""The warning that a call on a GPU is computed by a slow implementation, with its price as measured there."""

import time
import warnings
from collections.abc import Callable

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from seqarena.common.attention.conditions import Inputs

BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]
"""Backends of PyTorch's softmax that store no matrix over all pairs."""
WARNED: set[str] = set()
"""Reasons of which this process has warned."""


def warn_of_fallback(reason: str, inputs: Inputs, call: Callable[[], object]) -> None:
    """Warns, once per reason, that ``call`` is slow because of ``reason``, with the price of this call."""
    if reason in WARNED:
        return
    WARNED.add(reason)
    warnings.warn(f"using a slower implementation, not a Triton kernel: {reason}{_price(inputs, call)}", stacklevel=5)


def _price(inputs: Inputs, call: Callable[[], object]) -> str:
    if inputs.query.is_cuda and torch.cuda.is_current_stream_capturing():  # a graph cannot wait for a clock
        return ""
    try:
        price = slowdown(inputs, call)
    except RuntimeError:  # no backend for this GPU, or not enough memory
        return ""
    batch, heads, queries, _ = inputs.query.shape
    return (
        f"; its forward pass takes {price:,.1f} times as long as PyTorch's softmax "
        f"({batch} x {heads} heads, {queries:,} queries, {inputs.key.shape[2]:,} keys)"
    )


def slowdown(inputs: Inputs, call: Callable[[], object]) -> float:
    """Returns the time of ``call`` over that of PyTorch's softmax of the same inputs, without mask, bias and dropout.

    Both run twice, without gradients, and the second time counts. The state of the random numbers is restored.

    Raises:
        RuntimeError: PyTorch's fused softmax does not support the inputs, or the memory does not suffice.
    """

    def softmax() -> object:
        with sdpa_kernel(BACKENDS):
            return F.scaled_dot_product_attention(inputs.query, inputs.key, inputs.value)

    device = inputs.query.device
    with torch.no_grad(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        return _seconds(call, device) / _seconds(softmax, device)


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start

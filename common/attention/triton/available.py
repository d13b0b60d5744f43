"""Conditions of the Triton kernels, each with the reason it gives."""

import functools
import importlib.util
import os
import warnings

import torch
from torch import Tensor

from seqarena.common.attention.visibility import Visibility

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LEAST_WIDTH, MOST_WIDTH = 16, 128
"""Numbers of a head."""


INSTALLED = importlib.util.find_spec("triton") is not None


def interprets() -> bool:
    """Whether Triton's interpreter takes the GPU's place, which it does on any machine, slowly: for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def reason_against(
    query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, bias: Tensor | None
) -> str | None:
    """Returns why the kernels cannot compute this; none: they can."""
    widths = (query.shape[3], value.shape[3])
    reasons = {
        "Triton is not installed (pip install triton)": not INSTALLED,
        f"tensors are on {query.device.type}, expected cuda": not (query.is_cuda or interprets()),
        f"{query.dtype} is none of float16, bfloat16 and float32": query.dtype not in DTYPES,
        f"query, key and value are {query.dtype}, {key.dtype}, {value.dtype}, expected one type": not (
            query.dtype == key.dtype == value.dtype
        ),
        f"heads are {widths[0]} and {widths[1]} wide, expected {LEAST_WIDTH} to {MOST_WIDTH}": not all(
            LEAST_WIDTH <= each <= MOST_WIDTH for each in widths
        ),
        "a head has 2^31 numbers or more": max(query.shape[2], key.shape[2]) * max(widths) >= 2**31,
        "a bias is not supported": bias is not None,
        "segments and windows are not supported": visibility.segments is not None or visibility.window is not None,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


@functools.cache
def say_once(reason: str) -> None:
    """Warns that the kernels are not used, once for each reason."""
    warnings.warn(f"using the blockwise implementation, not a Triton kernel: {reason}", stacklevel=5)


def can_run(
    query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, bias: Tensor | None, lack: str | None = None
) -> bool:
    """Returns whether the kernels can compute this; on a GPU says once why not. ``lack``: what a variant's have not."""
    reason = lack or reason_against(query, key, value, visibility, bias)
    if reason is not None and query.is_cuda and not torch.compiler.is_compiling():
        say_once(reason)
    return reason is None

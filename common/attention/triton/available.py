"""Availability of Triton, the dtypes and widths that the kernels support, and the warning if they are not used."""

import functools
import importlib.util
import os
import warnings

import torch

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LEAST_WIDTH, MOST_WIDTH = 1, 128
"""Minimum and maximum width of a head."""


INSTALLED = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether Triton's interpreter replaces the GPU: slow, on any machine, for tests. Triton reads it at import."""


@functools.cache
def warn_once(reason: str) -> None:
    """Warns that the kernels are not used, once per reason."""
    warnings.warn(f"using a slower implementation, not a Triton kernel: {reason}", stacklevel=4)

"""Whether Triton is here, what its kernels take, and the warning that they are not used."""

import functools
import importlib.util
import os
import warnings

import torch

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LEAST_WIDTH, MOST_WIDTH = 16, 128
"""Numbers of a head."""


INSTALLED = importlib.util.find_spec("triton") is not None


def interprets() -> bool:
    """Whether Triton's interpreter takes the GPU's place, which it does on any machine, slowly: for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def say_once(reason: str) -> None:
    """Warns that the kernels are not used, once for each reason."""
    warnings.warn(f"using a slower implementation, not a Triton kernel: {reason}", stacklevel=4)

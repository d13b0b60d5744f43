"""Precision of a run: of its activations, and of float32 products on a GPU."""

from typing import Any, Literal

import torch

from seqarena.common.training.processes import Accelerator

Precision = Literal["auto", "float32", "tf32", "bfloat16"]


def is_half(precision: Precision) -> bool:
    """Returns whether this machine computes ``precision`` in bfloat16; ``auto`` does on a GPU that has bfloat16.

    GPUs before Ampere, such as T4 and V100, emulate it, which is slow: there, and on a CPU, ``auto`` is float32.
    """
    if precision == "auto":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return precision == "bfloat16"


def set_products(precision: Precision) -> None:
    """Sets the precision of matrix products, convolutions and recurrent layers of float32 in this process.

    PyTorch's defaults are TF32 for convolutions and recurrent layers on a GPU, and float32 for the rest. Earlier code
    of the process may have changed them. This project's Triton kernels take three TF32 products in place of one, which
    keeps float32's precision, whatever is set here.
    """
    backends: Any = torch.backends  # its types lack these settings
    for each in (backends, backends.mkldnn.conv, backends.mkldnn.rnn, backends.cudnn.conv, backends.cudnn.rnn):
        each.fp32_precision = "ieee"
    torch.set_float32_matmul_precision("highest")
    is_tf32 = precision == "tf32" and torch.cuda.is_available()
    # By the older functions, because libraries read them: they fail if an operator differs from them.
    backends.cuda.matmul.allow_tf32 = is_tf32
    backends.cudnn.allow_tf32 = is_tf32


def precision_name(accelerator: Accelerator) -> str:
    """Returns the precision in which this process computes, as spelled on the command line."""
    if accelerator.mixed_precision == "bf16":
        return "bfloat16"
    return "tf32" if accelerator.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32 else "float32"

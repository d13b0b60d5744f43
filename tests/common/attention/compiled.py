"""Compiles the Triton kernels for cards that are not there, and prints the shared memory that each takes.

A process of its own: where Triton interprets, it does not compile. ``python -m tests.common.attention.compiled``.
"""

import itertools
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from common.attention.triton import doubly_normalized, elementwise
from common.attention.triton.tiles import tiles_for

FLOATS = ("row_scale", "mass", "row_sum", "delta", "of_mass")
BYTES, BITS = ("query_real", "key_real"), ("row_bits", "key_bits")
SIZES = ("heads", "rows", "keys", "width", "value_width", "memory", "limit")
DOUBLY = (doubly_normalized.column_logsumexp, doubly_normalized.forward, doubly_normalized.backward_keys,
          doubly_normalized.backward_queries)  # fmt: skip
ELEMENTWISE = (elementwise.elementwise_forward, elementwise.elementwise_backward_keys,
               elementwise.elementwise_backward_queries)  # fmt: skip
CUBE = {"PHI": "x", "POWER": 3, "CAUSAL": False, "DROPS": False}
OTHERS = [
    {"PHI": phi, "POWER": 1, "CAUSAL": True, "DROPS": True} for phi in ("x", "relu", "elu", "gelu", "tanh", "exp")
]


def shared_memory(kernel: Any, dtype: torch.dtype, width: int, capability: int, variant: dict[str, Any]) -> int:
    """Returns the bytes of shared memory of a kernel for heads of ``width``; raises what Triton's compiler does."""
    is_backward = "backward" in kernel.__name__
    tiles = tiles_for(torch.empty(0, dtype=dtype), width, backward=is_backward)
    constants = {"ROWS": tiles.rows, "KEYS": tiles.keys, "WIDTH": width, **variant}
    if "VALUE_WIDTH" in kernel.arg_names:
        constants["VALUE_WIDTH"] = width
    pointer = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}[dtype]
    types = dict.fromkeys(FLOATS, "*fp32") | dict.fromkeys(BYTES, "*i8") | dict.fromkeys(BITS, "*i32")
    types |= dict.fromkeys(SIZES, "i32") | {"scale": "fp32"} | dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, pointer) for name in kernel.arg_names}
    constants = {(kernel.arg_names.index(name),): value for name, value in constants.items()}  # type: ignore[misc]
    source = ASTSource(kernel, signature, constexprs=constants)
    options = {"num_warps": tiles.warps, "num_stages": tiles.stages}
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return int(made.metadata.shared)


def main() -> None:
    """Prints a line a kernel: card, type, width, name, variant, bytes."""
    cases = [(80, torch.bfloat16, 128), (80, torch.float32, 64), (90, torch.float16, 64), (90, torch.float32, 128)]
    jobs = [(kernel, case, {}) for kernel, case in itertools.product(DOUBLY, cases)]
    jobs += [(kernel, case, CUBE) for kernel, case in itertools.product(ELEMENTWISE, cases)]
    jobs += [(kernel, (90, torch.bfloat16, 16), variant) for kernel, variant in itertools.product(ELEMENTWISE, OTHERS)]
    for kernel, (capability, dtype, width), variant in jobs:
        taken = shared_memory(kernel, dtype, width, capability, variant)
        print(capability, str(dtype).removeprefix("torch."), width, kernel.__name__, variant.get("PHI", "-"), taken)


if __name__ == "__main__":
    main()

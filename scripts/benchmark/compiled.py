"""Compiles Triton kernels for a GPU, which need not be present, and reads statistics of the compiled code."""

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from seqarena.common.attention.triton.launch import Role, Tiles, tile_width, tiles_of

LARGE_SHARED_MEMORY_CAPABILITIES = (90, 100)
"""Compute capabilities, times ten, of GPUs with 227 KiB of shared memory per block."""
FLOATS = ("row_scale", "column_lse", "row_lse", "row_sum", "delta", "column_grad", "query_offset", "key_offset",
          "softmax_lse", "softmax_delta", "mixing", "states", "later")  # fmt: skip
BITS = ("row_bits", "key_bits")
MASKS = ("row_real", "query_real", "key_real")
SIZES = ("heads", "rows", "keys", "width", "value_width", "memory", "window", "limit", "batch_stride",
         "head_stride", "row_stride", "key_stride")  # fmt: skip
MULTIPLE = 16
"""Pointers and sizes divisible by it select Triton's specialised kernels."""
TENSOR_CORES, SPILLS, EXPONENTIALS = ("HGMMA", "HMMA", "WGMMA", "UTCHMMA"), ("STL", "LDL"), ("MUFU",)
INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)\S*(.*)")
LABEL, JUMP = re.compile(r"^(\.L\w+):"), re.compile(r"`\((\.L\w+)\)")


@dataclass(frozen=True, kw_only=True)
class CompiledKernel:
    """Statistics of a compiled kernel. Counts are for its loop over tiles: the longest loop with products."""

    role: Role
    tiles: Tiles
    shared_bytes: int
    registers: int
    """Registers per thread, at most 255."""
    spills: int
    """Instructions in the loop that store registers to memory or load them back."""
    instructions: float
    """Instructions per pair of query and key, products excluded; each is counted once per 32 lanes."""
    exponentials: float
    """Instructions per pair that use the unit for exponentials and quotients."""
    products: int
    """Matrix product instructions in the loop."""


def compile_kernel(
    kernel: Any, role: Role, dtype: torch.dtype, width: int, capability: int, settings: dict[str, Any],
    length: int = 4096,
) -> CompiledKernel:  # fmt: skip
    """Compiles a kernel for heads of ``width`` and a compute capability (80, 90, ...) and returns its statistics.

    ``length`` matters only by whether it is a multiple of 16.

    Raises:
        triton.CompilationError: raised by Triton.
    """
    import triton  # noqa: PLC0415  # an extra
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415

    tiles = tiles_of(role, dtype.itemsize, width, large_shared_memory=capability in LARGE_SHARED_MEMORY_CAPABILITIES)
    made = compile_for(GPUTarget("cuda", capability, 32), kernel, role, dtype, width, tiles, settings, length)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(made.asm["cubin"])
        usage = _output(triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name)
        loop = longest_loop(_output(triton.knobs.nvidia.nvdisasm.path, "-c", file.name))
    registers = re.search(r"REG:(\d+)", usage)
    assert registers is not None
    products, pairs = _count(loop, TENSOR_CORES), tiles.own * tiles.others / (32 * tiles.warps)
    return CompiledKernel(
        role=role, tiles=tiles, shared_bytes=int(made.metadata.shared),
        registers=int(registers[1]), spills=_count(loop, SPILLS), instructions=(len(loop) - products) / pairs,
        exponentials=_count(loop, EXPONENTIALS) / pairs, products=products,
    )  # fmt: skip


def compile_for(
    target: Any, kernel: Any, role: Role, dtype: torch.dtype, width: int, tiles: Tiles, settings: dict[str, Any],
    length: int,
) -> Any:  # fmt: skip
    """Returns Triton's compiled kernel for a target, a ``GPUTarget``; see ``compile_kernel``."""
    import triton  # noqa: PLC0415  # an extra
    from triton.compiler import ASTSource  # noqa: PLC0415

    constants = tiles.sizes(role) | {"WIDTH": tile_width(width), "VALUE_WIDTH": tile_width(width)} | settings
    names = kernel.arg_names
    constants |= {"key_stride": 1}  # a size of 1 is a constant in a kernel that Triton launches
    constants = {name: value for name, value in constants.items() if name in names}
    pointer = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}[dtype]
    types = dict.fromkeys(FLOATS, "*fp32") | dict.fromkeys(BITS, "*i32") | dict.fromkeys(SIZES, "i32")
    types |= (
        dict.fromkeys(MASKS, "*u8")
        | {"segments": "*i64", "scale": "fp32", "kept": "fp32"}
        | dict.fromkeys(constants, "constexpr")
    )
    signature = {name: types.get(name, pointer) for name in names}
    sizes = {"rows": length, "keys": length, "width": width, "value_width": width}
    aligned = [
        name for name, kind in signature.items()
        if kind.startswith("*") or (name in sizes and sizes[name] % MULTIPLE == 0)
    ]  # fmt: skip
    source = ASTSource(
        kernel, signature, constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )  # fmt: skip
    return triton.compile(
        source, target=target,
        options={"num_warps": tiles.warps, "num_stages": tiles.stages, "enable_fp_fusion": True},
    )  # fmt: skip


def longest_loop(listing: str) -> list[str]:
    """Returns the instruction names of the longest loop with matrix products in nvdisasm's output; [] if none."""
    names: list[str] = []
    labels: dict[str, int] = {}
    loops: list[list[str]] = [[]]
    for line in listing.splitlines():
        label, instruction = LABEL.match(line), INSTRUCTION.match(line)
        if label:
            labels[label[1]] = len(names)
        elif instruction:
            names.append(instruction[1])
            target = JUMP.search(instruction[2])
            if instruction[1] == "BRA" and target and target[1] in labels:
                loops.append(names[labels[target[1]] :])
    return max((loop for loop in loops if not loop or _count(loop, TENSOR_CORES)), key=len)


def _count(names: Sequence[str], kinds: Sequence[str]) -> int:
    return sum(name in kinds for name in names)


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout

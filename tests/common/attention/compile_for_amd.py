"""Compiles the Triton kernels for an AMD GPU and prints the bytes of shared memory of each.

Its argument is the architecture: gfx942 for an MI300, gfx90a for an MI200. A process of its own, because Triton's
kernels ask for the GPU that is active while they are compiled.
"""

import json
import sys
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from seqarena.common.attention.triton.launch import tiles_of
from seqarena.scripts.benchmark.compiled import compile_for
from seqarena.scripts.benchmark.kernels import kernels_of, settings_of

TARGET = GPUTarget("hip", sys.argv[1], 64)
WIDTH, LENGTH = 128, 4096


class Driver:
    """Stands in for the driver of a GPU."""

    def get_current_target(self) -> Any:
        """Returns the target of the compilation."""
        return TARGET


def main() -> None:
    """Compiles the kernels of x3 and hnas, plain, and with causal order, dropout and a bias."""
    driver.set_active(Driver())
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        for everything in (False, True):
            options = {"causal": everything, "drops": everything, "biased": everything}
            for variant in ("x3", "hnas"):
                for role, kernel in kernels_of(variant, **options):
                    tiles = tiles_of(role, dtype.itemsize, WIDTH, large_shared_memory=False)
                    settings = settings_of(variant, **options)
                    made = compile_for(TARGET, kernel, role, dtype, WIDTH, tiles, settings, LENGTH)
                    found.append(made.metadata.shared)
    print(json.dumps(found))


if __name__ == "__main__":
    main()

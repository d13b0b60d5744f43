"""A process keeps the memory of freed tensors. Page faults are counted, which does not depend on the load."""

import os
import platform
import subprocess
import sys

import pytest

from tests.marks import in_extras

STEPS = """
import resource, sys
import torch
from seqarena.common.memory import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()


def step():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    [torch.zeros(2**18) for _ in range(300)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


print(*(step() for _ in range(2)))
"""


def faults(mode: str, **more: str) -> int:
    """Returns the page faults of the second step. Each step allocates 300 MiB in small parts, and frees them."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "GLIBC_"))}
    told = subprocess.run(
        [sys.executable, "-c", STEPS, mode], capture_output=True, text=True, check=True, env=environment | more
    )
    return int(told.stdout.split()[1])


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
@pytest.mark.parametrize(
    ("mode", "own"), [("default", {}), *in_extras(("keep", {"MALLOC_TRIM_THRESHOLD_": "131072"}))], ids=["none", "own"]
)
def test_freed_memory_is_kept_unless_there_is_a_setting_of_the_user_s(mode: str, own: dict[str, str]) -> None:
    assert faults(mode, **own) > 4 * faults("keep")

"""Kills runs at random moments, many more times than the tests do: ``python -m tests.kills [COUNT]``."""

import sys
import tempfile
from pathlib import Path

import torch

from tests.test_reliability import kill_and_compare

SEED = 1
"""Seed of the moments at which runs are killed, another than that of the tests."""


def main() -> None:
    """Kills runs, and fails at the first that has another bit than an unkilled one."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    torch.set_num_threads(1)  # a copy of this process has no threads to wait for
    with tempfile.TemporaryDirectory() as folder:
        runs = kill_and_compare(count, Path(folder), SEED)
    print(f"{count} kills in {runs} runs: the same bits as without")


if __name__ == "__main__":
    main()

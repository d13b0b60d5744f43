"""Workers of a parent that is killed."""

import os
import subprocess
import sys
import time
from pathlib import Path

PARENT = """
import os, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from seqarena.pretraining.data import shards

if __name__ == "__main__":
    with ProcessPoolExecutor(2, get_context("spawn"), shards._start) as pool:
        print(*{each.result() for each in [pool.submit(os.getpid) for _ in range(8)]}, flush=True)
        pool.submit(time.sleep, 600)
        time.sleep(600)
"""


def alive(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_workers_of_a_killed_parent_end(tmp_path: Path) -> None:
    """Also one that is at work. Two minutes are what was seen without; the wait ends as soon as they are gone."""
    (tmp_path / "parent.py").write_text(PARENT)
    path = os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "parent.py")],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    ) as parent:
        assert parent.stdout is not None
        workers = [int(word) for word in parent.stdout.readline().split()]
        assert workers
        parent.kill()
    for _ in range(200):
        if not any(map(alive, workers)):
            break
        time.sleep(0.1)
    assert not [each for each in workers if alive(each)]

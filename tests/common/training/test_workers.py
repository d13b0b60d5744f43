"""Workers of a parent that is killed, and parents of workers that are."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from seqarena.common.errors import WrongUseError
from seqarena.common.training.workers import map_ahead, run_in_process, worker_processes

PATHS = os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")])
UNGUARDED = """
import os
from seqarena.common.training.workers import run_in_process
print(run_in_process(os.getpid))
"""
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
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "parent.py")],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": PATHS},
    ) as parent:
        assert parent.stdout is not None
        workers = [int(word) for word in parent.stdout.readline().split()]
        assert workers
        parent.kill()
    while any(map(alive, workers)):  # a worker that stays ends the test by its time limit
        time.sleep(0.1)


def end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_is_an_error() -> None:
    assert run_in_process(os.getpid) != os.getpid()
    with pytest.raises(OSError, match="was killed, for example because memory ran out"):
        run_in_process(end)


def refuse() -> None:
    raise WrongUseError("--depth: expected at least 1")


def test_an_error_in_a_worker_is_raised_as_it_is() -> None:
    with pytest.raises(WrongUseError, match="--depth: expected at least 1"):
        run_in_process(refuse)


def test_an_error_ends_workers_that_are_at_work() -> None:
    """An interrupt does not wait for the ten minutes."""
    workers: list[BaseProcess] = []

    def work() -> None:
        with worker_processes(1) as pool:
            process = pool.submit(os.getpid).result()
            workers.extend(each for each in multiprocessing.active_children() if each.pid == process)
            pool.submit(time.sleep, 600)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert [each.exitcode for each in workers] == [-signal.SIGTERM]


def test_a_script_that_every_worker_would_run_again_ends_with_an_error(tmp_path: Path) -> None:
    """A pool of ``multiprocessing`` would start workers for ever."""
    script = tmp_path / "unguarded.py"
    script.write_text(UNGUARDED)
    command = [sys.executable, str(script)]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": PATHS}, timeout=600
    )
    assert done.returncode == 1
    assert 'a script without if __name__ == "__main__"' in done.stderr


def test_results_come_in_order_and_few_items_are_read_ahead() -> None:
    read = []

    def items() -> Iterator[int]:
        for item in range(20):
            read.append(item)
            yield item

    with ThreadPoolExecutor(3) as pool:
        found = map_ahead(pool, lambda item: -item, items(), 4)
        assert next(found) == 0
        assert len(read) == 5
        assert list(found) == [-item for item in range(1, 20)]

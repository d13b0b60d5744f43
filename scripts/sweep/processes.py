"""Several runs of a sweep at once on this machine, a process each."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from seqarena.common.errors import printable
from seqarena.common.runs.results import Result
from seqarena.scripts.sweep.planned import HELD, IN_USE, PlannedRun
from seqarena.scripts.sweep.progress import FAILED, RUNNING, WAITING, Board

POLL_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class RunningProcess:
    """A run that is under way."""

    number: int
    process: subprocess.Popen[bytes]
    log: Path
    before: int | None
    """When the result was written that was there before."""
    said: int
    """Bytes of the log that are of earlier tries."""
    slot: int


def fitting() -> int:
    """Returns how many runs this machine has room for: one a GPU, or one a core."""
    return len(_devices()) or _cores()


def _cores() -> int:
    return len(os.sched_getaffinity(0))  # those this process may use


def _devices() -> list[str]:
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return named.split(",")[:count] if named else [str(number) for number in range(count)]


def run_processes(planned: Sequence[PlannedRun], parallel: int, logs: Path) -> list[Result | None]:
    """Measures all runs, so many at a time, and returns their results; none for a run that went wrong.

    What a run says goes to a file of its own in ``logs``. One that goes wrong does not stop the others; whoever stops
    the sweep stops them all, and the same command goes on.
    """
    logs.mkdir(parents=True, exist_ok=True)
    parallel = min(parallel, len(planned))  # fewer runs have more cores each
    results: list[Result | None] = [None] * len(planned)
    waiting = list(range(len(planned)))
    running: list[RunningProcess] = []
    held: set[int] = set()
    with Board(planned) as board:
        try:
            while waiting or running:
                free = sorted(set(range(parallel)) - {each.slot for each in running})
                while waiting and free:
                    number = waiting.pop(0)
                    results[number] = planned[number].finished()
                    if (found := results[number]) is not None:
                        board.ended(number, found, " (finished before)")
                        continue
                    running.append(_start(planned[number], number, free.pop(0), parallel, logs))
                    board.tell(number, RUNNING)
                for each in [each for each in running if each.process.poll() is not None]:
                    running.remove(each)
                    _wait(each.process)
                    if each.process.returncode == IN_USE and each.number not in held:
                        held.add(each.number)
                        waiting.append(each.number)
                        board.tell(each.number, WAITING, f"{HELD}, tried again at the end")
                        continue
                    results[each.number] = _collected(planned[each.number], each, board)
                time.sleep(POLL_SECONDS)
        finally:
            for each in running:
                each.process.terminate()
            for each in running:
                _wait(each.process)
    return results


def _start(each: PlannedRun, number: int, slot: int, parallel: int, logs: Path) -> RunningProcess:
    devices = _devices()
    threads = max(1, _cores() // parallel)
    environment = {"OMP_NUM_THREADS": str(threads)} | os.environ
    if devices:
        environment["CUDA_VISIBLE_DEVICES"] = devices[slot % len(devices)]
    log, before = logs / f"{each.folder.name}.log", _stamp(each)
    with log.open("ab") as file:
        said = file.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "seqarena.scripts.sweep.worker"],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            env=environment,
        )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it went at once: its log says why
        process.stdin.write(f"{json.dumps(each.described())}\n".encode())
        process.stdin.flush()  # and stays open: the process leaves when it closes
    return RunningProcess(number=number, process=process, log=log, before=before, said=said, slot=slot)


def _stamp(each: PlannedRun) -> int | None:
    path = each.folder / "result.json"
    return path.stat().st_mtime_ns if path.exists() else None


def _wait(process: subprocess.Popen[bytes]) -> None:
    process.wait()
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


def _collected(each: PlannedRun, started: RunningProcess, board: Board) -> Result | None:
    """Returns the result that a process has left, or tells why it has not."""
    code = started.process.returncode
    found = each.result()
    is_new = _stamp(each) != started.before
    if found is not None and is_new and code == {"finished": 0, "diverged": 1}[found.status]:
        board.ended(started.number, found)
        return found
    said = f"killed by signal {-code}" + (": out of memory?" if code == -signal.SIGKILL else "")
    if code >= 0:
        lines = started.log.read_bytes()[started.said :].decode(errors="replace").strip().splitlines()
        said = printable(lines[-1]) if lines else "it said nothing"
    board.tell(started.number, FAILED, f"{said} (all of it: {started.log})")
    return None

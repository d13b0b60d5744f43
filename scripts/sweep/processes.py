"""Runs a sweep in parallel on this machine, one process per run."""

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
from seqarena.scripts.sweep.planned_run import HELD, IN_USE, PlannedRun
from seqarena.scripts.sweep.progress import FAILED, RUNNING, WAITING, Board

POLL_SECONDS = 0.2
OUTSIDE_BYTES = 2**30
"""Memory of a GPU that a process takes outside its tensors, for CUDA and its libraries. It was not measured."""
FRAGMENTS = 1.25
"""Memory that PyTorch holds, over the peak of its tensors. It was not measured."""


@dataclass(frozen=True, kw_only=True)
class RunningProcess:
    """A run in progress."""

    number: int
    process: subprocess.Popen[bytes]
    log: Path
    before: int | None
    """Modification time of a result that existed before the run."""
    log_start: int
    """Bytes of the log written by earlier attempts."""
    slot: int


def default_parallel() -> int:
    """Returns the number of runs that fit on this machine: one per GPU, or one per core."""
    return len(_devices()) or _cores()


def _cores() -> int:
    return len(os.sched_getaffinity(0))  # cores available to this process


def _devices() -> list[str]:
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return named.split(",")[:count] if named else [str(number) for number in range(count)]


def memory_advice(results: Sequence[Result | None]) -> str:
    """Returns how many runs like these fit into the memory of this machine's GPUs; empty without a GPU."""
    cards = [torch.cuda.get_device_properties(number) for number in range(len(_devices()))]
    names = {card.name for card in cards}
    peaks = [each.peak_memory_bytes for each in results if each is not None and each.environment["device"] in names]
    if not peaks:
        return ""
    peak, total = max(peaks), min(card.total_memory for card in cards)
    fit = int(total // (peak * FRAGMENTS + OUTSIDE_BYTES)) * len(cards)
    used = f"memory: at most {peak / 2**30:,.1f} GiB for a run, of {total / 2**30:,.0f} GiB"
    return f"{used}; an estimate of the runs that fit: --parallel {fit}" if fit > 1 else used


def run_processes(planned: Sequence[PlannedRun], parallel: int, logs: Path) -> list[Result | None]:
    """Measures all runs, ``parallel`` at a time, and returns their results; None for a run that failed.

    The output of each run is written to its own file in ``logs``. A failed run does not stop the others. Interrupting
    the sweep stops them all.
    """
    logs.mkdir(parents=True, exist_ok=True)
    parallel = min(parallel, len(planned))  # with fewer runs, each gets more cores
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
                        board.set_result(number, found, " (finished before)")
                        continue
                    running.append(_start(planned[number], number, free.pop(0), parallel, logs))
                    board.set_state(number, RUNNING)
                for each in [each for each in running if each.process.poll() is not None]:
                    running.remove(each)
                    _wait(each.process)
                    if each.process.returncode == IN_USE and each.number not in held:
                        held.add(each.number)
                        waiting.append(each.number)
                        board.set_state(each.number, WAITING, f"{HELD}, tried again at the end")
                        continue
                    results[each.number] = _collect(planned[each.number], each, board)
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
        log_start = file.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "seqarena.scripts.sweep.worker"],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            env=environment,
        )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it exited at once; its log contains the reason
        process.stdin.write(f"{json.dumps(each.description())}\n".encode())
        process.stdin.flush()  # not closed: the worker exits at the end of file
    return RunningProcess(number=number, process=process, log=log, before=before, log_start=log_start, slot=slot)


def _stamp(each: PlannedRun) -> int | None:
    path = each.result_path
    return path.stat().st_mtime_ns if path.exists() else None


def _wait(process: subprocess.Popen[bytes]) -> None:
    process.wait()
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


def _collect(each: PlannedRun, started: RunningProcess, board: Board) -> Result | None:
    """Returns the result of an ended process, or reports why there is none."""
    code = started.process.returncode
    found = each.result()
    # Without --overwrite, a run that was finished before writes nothing, as when only the times of its files changed.
    is_old = each.session.overwrite and _stamp(each) == started.before
    if found is not None and not is_old and code == int(found.status == "diverged"):
        board.set_result(started.number, found)
        return found
    message = f"killed by signal {-code}" + (": out of memory?" if code == -signal.SIGKILL else "")
    if code >= 0:
        lines = started.log.read_bytes()[started.log_start :].decode(errors="replace").strip().splitlines()
        message = printable(lines[-1]) if lines else "no output"
    board.set_state(started.number, FAILED, f"{message} (full output: {started.log})")
    return None

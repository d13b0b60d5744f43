"""Times the training steps of several variants in turns, each in a process of its own."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from seqarena.common.attention.recording import recorded_implementations
from seqarena.common.memory import keep_freed_memory
from seqarena.common.runs.run import BaseRun, RowParts
from seqarena.common.training.runtime import environment, peak_memory_bytes
from seqarena.common.training.workers import worker_processes
from seqarena.scripts.benchmark.step import OURS, TimedStep, seconds, timed_step
from seqarena.scripts.price.record import Price

WARM_UP = 2
_steps: list[TimedStep] = []
"""In a worker: its variant's step."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """Median seconds of one variant's steps in one round."""

    forward_seconds: float
    training_seconds: float
    peak_memory_bytes: int


def measure(
    package: str, variants: Sequence[tuple[RowParts, BaseRun]], data: Path, rounds: int, steps: int
) -> tuple[list[Price], dict[str, Any], list[float]]:
    """Returns the price of each variant, the environment, and the machine's load before and after.

    In each round every variant computes ``steps`` steps on the same batches, in an order that is reversed from round to
    round. A ratio of two variants in one round is therefore hardly affected by other programs and by changes of the
    clock.
    """
    load = [os.getloadavg()[0]]
    with contextlib.ExitStack() as stack:
        pools = [stack.enter_context(_worker(package, run, data, steps)) for _, run in variants]
        started = [pool.submit(_warm_up, steps).result() for pool in pools]
        found: list[list[Round]] = [[] for _ in variants]
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
            order = range(len(pools)) if number % 2 == 0 else reversed(range(len(pools)))
            for index in order:
                found[index].append(pools[index].submit(_round, steps).result())
    prices = [
        Price(
            row=row,
            forward_seconds=[each.forward_seconds for each in own],
            training_seconds=[each.training_seconds for each in own],
            peak_memory_bytes=own[-1].peak_memory_bytes,
            implementations=implementations,
        )
        for (row, _), own, (implementations, _) in zip(variants, found, started, strict=True)
    ]
    return prices, started[0][1], [*load, os.getloadavg()[0]]


@contextlib.contextmanager
def _worker(package: str, run: BaseRun, data: Path, batches: int) -> Iterator[Executor]:
    with worker_processes(1) as pool:
        # The worker inherits that it ignores an interrupt: it ends with its parent, which reports it.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            started = pool.submit(_start, package, run, data, batches)
        finally:
            signal.signal(signal.SIGINT, before)
        started.result()
        yield pool


def _start(package: str, run: BaseRun, data: Path, batches: int) -> None:
    keep_freed_memory()
    _steps.append(timed_step(package, run, data, batches, OURS))


def _warm_up(batches: int) -> tuple[list[str], dict[str, Any]]:
    """Computes the first steps; returns the implementations that computed attention, and the environment."""
    (step,) = _steps
    with recorded_implementations(step.model) as chosen:
        seconds(step.training, range(1), step.accelerator.device)
    seconds(step.training, range(1, max(WARM_UP, batches)), step.accelerator.device)
    return sorted(chosen), environment(step.accelerator)


def _round(batches: int) -> Round:
    (step,) = _steps
    device = step.accelerator.device
    return Round(
        training_seconds=median(seconds(step.training, range(batches), device)),
        forward_seconds=median(seconds(step.forward, range(batches), device)),
        peak_memory_bytes=peak_memory_bytes(device),
    )

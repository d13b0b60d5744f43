"""Trains a few steps of a task with some variants in one precision: ``python -m seqarena.scripts.selftest.steps``.

A process of its own, because a fault of a driver may end it, and a process has one precision. It reads one line of JSON
and prints one.
"""

import contextlib
import itertools
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from seqarena.common.errors import WrongUseError, run_command
from seqarena.common.runs.cli import build_run
from seqarena.common.runs.package import Package
from seqarena.common.runs.run import BaseRun
from seqarena.common.training.log import Log
from seqarena.common.training.loop import Progress, fit
from seqarena.common.training.runtime import (
    device_name,
    make_accelerator,
    peak_memory_bytes,
    reset_peak_memory,
    seed_torch,
)
from seqarena.scripts.packages import find_package

STEPS = 6
STOP = STEPS // 2
"""Step whose evaluation is interrupted."""
FIELDS = (
    f"--train.steps {STEPS} --train.eval-every {STOP} --train.log-every 1 --train.select last "
    "--train.checkpoint-seconds 0"
).split()


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Measurements of a short training of one variant. If it failed, they are empty and ``reason`` says why."""

    device: str
    losses: list[float] = field(default_factory=list)
    validation: dict[str, float] = field(default_factory=dict)
    """Metrics on the validation set after the last step."""
    difference: float = 0.0
    """Largest difference of a weight between training without a pause and training that was interrupted and resumed,
    relative to the largest weight of its tensor."""
    implementations: list[str] = field(default_factory=list)
    """Those that computed attention."""
    peak_memory_bytes: int = 0
    reason: str = ""
    absent: bool = False
    """Whether the variant is not defined for the task."""


class _Interruption(Exception):  # noqa: N818  # no error
    """Ends a training in an evaluation, as a key press would."""


def train(package: Package, task: str, attention: str, precision: str, fields: Sequence[str], data: Path) -> Steps:
    """Trains ``STEPS`` steps without a pause, and again with an interruption; returns the measurements.

    A training that is refused is absent: the variant does not support the task, or this machine the precision.
    """
    device = device_name(make_accelerator(precision).device)  # type: ignore[arg-type]
    try:
        return _train(package, task, attention, [*FIELDS, "--train.precision", precision, *fields], data, device)
    except WrongUseError as refusal:
        return Steps(device=device, reason=str(refusal), absent=True)


def _train(package: Package, task: str, attention: str, fields: Sequence[str], data: Path, device: str) -> Steps:
    run = build_run(package, task, None, attention, None, 0, fields, "seqarena selftest")
    with tempfile.TemporaryDirectory() as folder:
        whole, resumed = Path(folder, "whole"), Path(folder, "resumed")
        weights, progress, peak = _fit(package, run, data, whole)
        with contextlib.suppress(_Interruption):
            _fit(package, run, data, resumed, interrupted=True)
        again, _, _ = _fit(package, run, data, resumed, validated=False)
        lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    return Steps(
        device=device,
        losses=[line["loss"] for line in lines if "loss" in line],
        validation=progress.chosen_metrics,
        difference=max(_difference(weights[name], again[name]) for name in weights),
        implementations=progress.segments[-1]["implementations"],
        peak_memory_bytes=peak,
    )


def _fit(
    package: Package, run: BaseRun, data: Path, out: Path, *, interrupted: bool = False, validated: bool = True
) -> tuple[Mapping[str, Tensor], Progress, int]:
    """Returns weights, progress and peak memory of a training in ``out``, which is resumed if it began."""
    accelerator = make_accelerator(run.train.precision)
    seed_torch(run.seed, 0)
    assembly = package.assembly(run, data, accelerator)
    reset_peak_memory(accelerator.device)
    task = package.task(run)
    log = Log(accelerator, out, title=f"{run.task} {run.model.attention}", steps=run.train.steps)

    number = itertools.count(1)

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        if interrupted:
            raise _Interruption
        is_last = next(number) == STEPS // STOP
        return assembly.validate(model).metrics if is_last and validated else {task.metric: 0.0}

    progress = fit(
        assembly.model, assembly.loss, assembly.batches, run.optim, run.train,
        evaluate=evaluate, metric=task.metric, higher_is_better=task.higher_is_better,
        seed=run.seed, out=out, accelerator=accelerator, log=log,
    )  # fmt: skip
    return assembly.model.state_dict(), progress, peak_memory_bytes(accelerator.device)


def _difference(one: Tensor, other: Tensor) -> float:
    if torch.equal(one, other):
        return 0.0
    largest = one.detach().abs().max().clamp(min=1e-30)
    return float(((one - other).abs().max() / largest).nan_to_num(torch.inf))


def main(_: Sequence[str]) -> int:
    """Prints the ``Steps`` of each variant of the line on standard input, as JSON."""
    asked = json.loads(sys.stdin.readline())
    package = find_package(asked["package"])
    found = {}
    for attention in asked["attention"]:
        try:
            found[attention] = train(
                package, asked["task"], attention, asked["precision"], asked["fields"], Path(asked["data"])
            )
        except Exception as failure:  # a compiler or driver raises errors of many classes
            lines = str(failure).splitlines() or [""]
            found[attention] = Steps(device="", reason=f"{type(failure).__name__}: {lines[0]}")
    print(json.dumps({name: asdict(each) for name, each in found.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))

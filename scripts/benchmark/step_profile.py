"""Measures the time of each part of a training step: batch, operators of forward and backward, update."""

import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function

from seqarena.common.errors import WrongUseError
from seqarena.common.parser import Parser
from seqarena.common.runs.package import Package
from seqarena.common.runs.run import BaseRun
from seqarena.common.training.runtime import device_name
from seqarena.scripts.benchmark.selection import add_run_options, at_least_one, build, chosen, title
from seqarena.scripts.tables import render

BATCH, COMPUTATION, UPDATE = PARTS = ("making the batch", "forward and backward", "update")
"""Parts of a step; the gradient's norm and clipping count as backward."""
SHOWN = 12
"""Number of operators listed individually."""
PREFIXES = ("autograd::engine::evaluate_function: ", "torch::autograd::", "GeneratedBackwardFor_", "aten::")
"""What PyTorch writes before an operator's name."""


def profile_step(package: Package, run: BaseRun, data: Path, steps: int) -> tuple[dict[tuple[str, str], float], float]:
    """Returns (part, operator) -> own seconds per step, and the seconds per step without the profiler."""
    assembly, stepper = build(package, run, data)
    if stepper.accelerator.device.type != "cpu":
        raise WrongUseError("profile supports CPUs only; hide the GPU: CUDA_VISIBLE_DEVICES= seqarena ...")

    def step(number: int) -> None:
        with record_function(BATCH):
            share = stepper.share(assembly.batches[number])
        with record_function(COMPUTATION):
            stepper.take(share, number)

    for number in range(2):
        step(number)
    start = time.perf_counter()
    for number in range(steps):
        step(number)
    seconds = (time.perf_counter() - start) / steps
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profiler:
        for number in range(steps):
            step(number)
    found: dict[tuple[str, str], float] = defaultdict(float)
    for event in profiler.events() or ():
        if part := _part(event):
            found[part, operator_name(event.name)] += event.self_cpu_time_total / 1e6 / steps
    return found, seconds


def operator_name(name: str) -> str:
    """Returns the name of an operator without PyTorch's prefixes: a row then fits into 80 columns."""
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return name


def _part(event: Any) -> str | None:
    """Returns the part of the step that contains an event; None if it is outside."""
    while event is not None:
        if event.name.startswith("Optimizer.step"):  # PyTorch's name of the update
            return UPDATE
        if event.name in PARTS:
            return str(event.name)
        event = event.cpu_parent
    return None


def parser() -> Parser:
    """Returns the parser of ``seqarena benchmark profile``."""
    made = Parser(prog="seqarena benchmark profile", description=f"{__doc__}\nFields are set as --path value.")
    add_run_options(made)
    made.add_argument("--attention", help="variant (default: the preset's)")
    made.add_argument("--steps", type=int, default=4, help="number of profiled steps (default: 4)")
    return made


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena benchmark profile`` and returns its exit code."""
    options, fields = parser().parse_known_args(arguments)
    at_least_one(options, "steps")
    package, run = chosen(options, options.attention, fields, "seqarena benchmark profile")
    found, seconds = profile_step(package, run, options.data_folder, options.steps)
    total = sum(found.values())
    rows = []
    for part in PARTS:
        inside = {name: spent for (where, name), spent in found.items() if where == part}
        shown = [(part, sum(inside.values()))]
        if part == COMPUTATION:
            inside["outside of operators"] = inside.pop(part)
            most = sorted(inside.items(), key=lambda each: -each[1])[:SHOWN]
            shown += [(f"  {name}", spent) for name, spent in most]
        rows += [[name, f"{100 * spent / total:.1f} %", f"{1e3 * spent:.1f}"] for name, spent in shown]
    notes = [
        f"own time of each operator; number of steps: {options.steps}, after 2 others; "
        f"{device_name(torch.device('cpu'))}",
        f"{1e3 * seconds:.0f} ms per step without the profiler",
    ]
    print(render(title(options, run.preset, fields), ["part", "share", "ms"], rows, notes, "terminal"))
    return 0

"""Measures the time of each part of a training step: batch, operators of forward and backward, update.

On a GPU it is the time of the kernels that each operator starts, and the batch is made in a thread meanwhile.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function

from seqarena.common.parser import Parser, at_least_one
from seqarena.common.runs.package import Package, build
from seqarena.common.runs.run import BaseRun
from seqarena.common.saved_table import add_output_options, print_table
from seqarena.common.training.runtime import device_name
from seqarena.scripts.benchmark.selection import add_run_options, chosen, title

BATCH, COMPUTATION, UPDATE = PARTS = ("making the batch", "forward and backward", "update")
"""Parts of a step; the gradient's norm and clipping count as backward."""
SHOWN = 12
"""Number of operators listed individually."""
INSIDE = "· "
"""Mark of a row that is inside the part above it; spaces would be lost in Markdown."""
BACKWARD = "autograd::engine::evaluate_function: "
"""Beginning of PyTorch's name of a step of the backward pass, which has a thread of its own on a GPU."""
PREFIXES = (BACKWARD, "torch::autograd::", "GeneratedBackwardFor_", "aten::")
"""What PyTorch writes before an operator's name."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Measurements of a training step."""

    own_seconds: Mapping[tuple[str, str], float]
    """(Part, operator) -> own seconds per step: of the GPU if there is one, else of the CPU."""
    step_seconds: float
    """Seconds per step without the profiler."""
    device: torch.device


def profile_step(package: Package, run: BaseRun, data: Path, steps: int) -> Profile:
    """Profiles a number of training steps after two others."""
    assembly, stepper = build(package, run, data)
    device = stepper.accelerator.device

    def train(numbers: range) -> None:
        shares = stepper.shares(assembly.batches, numbers)
        for number in numbers:
            with record_function(BATCH):
                share = next(shares)
            with record_function(COMPUTATION):
                stepper.take(share, number)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    train(range(2))
    start = time.perf_counter()
    train(range(steps))
    seconds = (time.perf_counter() - start) / steps
    on_gpu = [ProfilerActivity.CUDA] if device.type == "cuda" else []
    with torch.profiler.profile(activities=[ProfilerActivity.CPU, *on_gpu]) as profiler:
        train(range(steps))
    own = own_seconds(profiler.events() or (), on_gpu=bool(on_gpu))
    return Profile(
        own_seconds={name: spent / steps for name, spent in own.items()}, step_seconds=seconds, device=device
    )


def own_seconds(events: Iterable[Any], *, on_gpu: bool) -> dict[tuple[str, str], float]:
    """Returns (part, operator) -> own seconds of a profiler's events, of the GPU or of the CPU.

    The profiler attributes the time of kernels to the operators of the host that started them. Its events of the GPU,
    among them a copy of each part, would count it again.
    """
    found: dict[tuple[str, str], float] = defaultdict(float, {(part, part): 0.0 for part in PARTS})
    for event in events:
        part = _part(event) if event.device_type.name == "CPU" else None
        if part is not None:
            own = event.self_device_time_total if on_gpu else event.self_cpu_time_total
            found[part, operator_name(event.name)] += own / 1e6
    return found


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
        if event.cpu_parent is None and event.name.startswith(BACKWARD):
            return COMPUTATION
        event = event.cpu_parent
    return None


def parser() -> Parser:
    """Returns the parser of ``seqarena benchmark profile``."""
    made = Parser(prog="seqarena benchmark profile", description=f"{__doc__}\nFields are set as --path value.")
    add_run_options(made)
    made.add_argument("--attention", help="variant (default: the preset's)")
    made.add_argument("--steps", type=int, default=4, help="number of profiled steps (default: 4)")
    add_output_options(made)
    return made


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena benchmark profile`` and returns its exit code."""
    options, fields = parser().parse_known_args(arguments)
    at_least_one(options, "steps")
    package, run = chosen(options, options.attention, fields, "seqarena benchmark profile")
    profile = profile_step(package, run, options.data_folder, options.steps)
    total = sum(profile.own_seconds.values())
    rows = []
    for part in PARTS:
        inside = {name: spent for (where, name), spent in profile.own_seconds.items() if where == part}
        shown = [(part, sum(inside.values()))]
        if part == COMPUTATION:
            inside["outside of operators"] = inside.pop(part)
            most = sorted(inside.items(), key=lambda each: -each[1])[:SHOWN]
            shown += [(INSIDE + name, spent) for name, spent in most]
        rows += [[name, f"{100 * spent / total:.1f} %", f"{1e3 * spent:.1f}"] for name, spent in shown]
    notes = [
        f"own time of each operator{' on the GPU' if profile.device.type == 'cuda' else ''}; number of steps: "
        f"{options.steps}, after 2 others; {device_name(profile.device)}",
        f"{1e3 * profile.step_seconds:.0f} ms per step without the profiler",
    ]
    name, headings = title(options, run.preset, fields), ["part", "share", "ms"]
    print_table(options, parser().prog, arguments, name, headings, rows, notes, device_name(profile.device))
    return 0

"""Where the time of a training step goes: making the batch, each operator of forward and backward, the update."""

import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_
from torch.profiler import ProfilerActivity, record_function

from common.cli import Parser, choose, override
from common.errors import WrongUseError
from common.optim import build_optimizer
from common.run import BaseRun
from common.runtime import device_name, make_accelerator, seed_torch
from common.session import Session
from scripts.packages import find_package
from scripts.tables import render

PARTS = ("making the batch", "forward and backward", "update")
SHOWN = 12
"""Operators with a line of their own."""


def profiled(package: str, run: BaseRun, session: Session, steps: int) -> tuple[dict[tuple[str, str], float], float]:
    """Returns (part, operator) -> seconds a step in the operator itself, and the seconds of a step without profiler."""
    accelerator = make_accelerator(run.train.precision)
    if accelerator.device.type != "cpu":
        raise WrongUseError(f"profile knows CPUs; the device is {accelerator.device} (hide it: CUDA_VISIBLE_DEVICES=)")
    seed_torch(run.seed, 0)
    prepared = find_package(package).prepare(run, session, accelerator)
    model = prepared.model.to(accelerator.device).train()
    optimizer = build_optimizer(run.optim, model)

    def step(number: int) -> None:
        with record_function(PARTS[0]):
            batch = prepared.batches[number].to(accelerator.device)
        with record_function(PARTS[1]):
            with accelerator.autocast():
                loss = prepared.loss(model, batch)
            torch.autograd.backward(loss)
        with record_function(PARTS[2]):
            if run.optim.clip is not None:
                clip_grad_norm_(model.parameters(), run.optim.clip)
            optimizer.step()
            optimizer.zero_grad()

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
            found[part, event.name] += event.self_cpu_time_total / 1e6 / steps
    return found, seconds


def _part(event: Any) -> str | None:
    while event is not None:
        if event.name in PARTS:
            return str(event.name)
        event = event.cpu_parent
    return None


def profile(arguments: Sequence[str]) -> int:
    """Runs ``seqarena benchmark profile`` and returns its exit code."""
    parser = Parser(prog="seqarena benchmark profile", description=f"{__doc__}\nFields are set as --path value.")
    parser.add_argument("package", help="task package")
    parser.add_argument("task", help="task of the package")
    parser.add_argument("--preset", default="quick", help="named run to start from (default: quick)")
    parser.add_argument("--attention", help="variant (default: the preset's)")
    parser.add_argument("--steps", type=int, default=4, help="steps to look at (default: 4)")
    parser.add_argument(
        "--data-folder", type=Path, default=Path("data"), help="folder of prepared data (default: data)"
    )
    options, fields = parser.parse_known_args(arguments)
    if options.steps < 1:
        raise WrongUseError(f"--steps: expected at least 1, found {options.steps}")
    package = find_package(options.package)
    run = override(choose(package, options.task, options.preset, options.attention, None, 0), fields, parser.prog)
    run.check()
    found, seconds = profiled(package.name, run, Session(data=options.data_folder), options.steps)
    total = sum(found.values())
    rows = []
    for part in PARTS:
        inside = {name: spent for (where, name), spent in found.items() if where == part}
        shown = [(part, sum(inside.values()))]
        if part == PARTS[1]:
            inside["what no operator is"] = inside.pop(part)
            most = sorted(inside.items(), key=lambda each: -each[1])[:SHOWN]
            shown += [(f"  {name.removeprefix('aten::')}", spent) for name, spent in most]
        rows += [[name, f"{100 * spent / total:.1f} %", f"{1e3 * spent:.1f}"] for name, spent in shown]
    notes = [
        f"{options.steps} steps after 2, on {device_name(torch.device('cpu'))}; operators without what they call",
        f"without the profiler a step takes {1e3 * seconds:.0f} ms",
    ]
    print(render(f"a step of {package.name} {options.task}, preset {options.preset}{' '.join(['', *fields])}",
                 ["part", "share", "ms"], rows, notes, "terminal"))  # fmt: skip
    return 0

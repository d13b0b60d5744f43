"""Measures time and memory of a training step for each variant."""

import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from seqarena.common.attention.base import Kernel
from seqarena.common.data.batches import Batch
from seqarena.common.errors import WrongUseError
from seqarena.common.memory import keep_freed_memory
from seqarena.common.model.transformer import EncoderConfig, ModelConfig
from seqarena.common.parser import Parser, at_least_one
from seqarena.common.runs.package import Assembly, build
from seqarena.common.runs.run import BaseRun
from seqarena.common.saved_table import add_output_options, print_table
from seqarena.common.training.precision import precision_name
from seqarena.common.training.runtime import device_name, make_accelerator, peak_memory_bytes, reset_peak_memory
from seqarena.common.training.workers import run_in_process
from seqarena.scripts.benchmark.selection import add_run_options, chosen, title
from seqarena.scripts.packages import find_package

OURS, PADDED, FULL_MATRIX = "ours", "padded", "full matrix, padded"
AGAINST = ("transformers", "encoder alone", "encoder alone, transformers")
"""Names of the baselines in ``seqarena.scripts.benchmark.transformers.forwards``."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Measurements of one variant's step; seconds are means, because batches differ in length."""

    attention: str
    forward_seconds: float
    training_seconds: float
    """Forward and backward. The optimiser's update, which is the same for all, is excluded."""
    peak_memory_bytes: int
    """Peak memory, in a process of its own."""
    idle_memory_bytes: int
    """Memory before the first step, with model and libraries loaded."""
    device: str
    precision: str


@dataclass(frozen=True, kw_only=True)
class TimedStep:
    """A run's model with batches, ready to be timed; both functions take the index of a batch."""

    forward: Callable[[int], None]
    training: Callable[[int], None]
    """Forward and backward."""
    model: nn.Module
    idle_memory_bytes: int
    accelerator: Accelerator


def timed_batches(assembly: Assembly, count: int) -> list[Batch]:
    """Returns the batches whose steps are timed."""
    # The first batch of an epoch empties the memory of a Transformer-XL, so that its step is shorter than the others.
    return [assembly.batches[step] for step in range(1, count + 1)]


def timed_step(package: str, run: BaseRun, data: Path, repeats: int, kind: str) -> TimedStep:
    """Builds a run's model and ``repeats`` different batches.

    ``kind``: ``OURS``, or a baseline: ``PADDED``, all sequences padded to the model's maximum length;
    ``FULL_MATRIX``, the same with the attention formula on the full matrix; or a name of ``forwards``.
    """
    assembly, stepper = build(find_package(package), run, data)
    accelerator, model = stepper.accelerator, stepper.model.train()
    batches = [batch.to(accelerator.device) for batch in timed_batches(assembly, repeats)]
    forward: Callable[[Any], torch.Tensor] = functools.partial(stepper.forward, stepper.trained)
    if kind in (PADDED, FULL_MATRIX):
        batches = [batch.longer(run.longest) for batch in batches]
    elif kind != OURS:
        from seqarena.scripts.benchmark.transformers import forwards  # noqa: PLC0415  # an extra

        model, forward = forwards(model, run.model, run.longest, assembly.loss)[kind]
        model.to(accelerator.device)
    if kind == FULL_MATRIX:
        for module in model.modules():
            if isinstance(module, Kernel):
                module.forward = functools.partial(module.compute, "reference")  # type: ignore[assignment]
    shares = [stepper.share(batch) for batch in batches]
    reset_peak_memory(accelerator.device)
    idle = peak_memory_bytes(accelerator.device)

    def forward_only(step: int) -> None:
        number = step % repeats
        with torch.no_grad():
            for part in shares[number].parts if kind in (OURS, PADDED, FULL_MATRIX) else [batches[number]]:
                forward(part)

    def training(step: int) -> None:
        if kind in (OURS, PADDED, FULL_MATRIX):
            stepper.backward(shares[step % repeats])
        else:
            with accelerator.autocast():
                loss = forward(batches[step % repeats])
            torch.autograd.backward(loss)
        model.zero_grad()

    return TimedStep(
        forward=forward_only, training=training, model=model, idle_memory_bytes=idle, accelerator=accelerator
    )


def measure(package: str, run: BaseRun, attention: str, data: Path, repeats: int, kind: str) -> Measurement:
    """Times a run's loss over ``repeats`` different batches, after two warm-up steps; ``kind``: of ``timed_step``."""
    keep_freed_memory()
    step = timed_step(package, run, data, repeats, kind)
    device = step.accelerator.device
    return Measurement(
        attention=attention if kind == OURS else f"{attention}, {kind}",
        forward_seconds=statistics.fmean(seconds(step.forward, range(-2, repeats), device)[2:]),
        training_seconds=statistics.fmean(seconds(step.training, range(-2, repeats), device)[2:]),
        peak_memory_bytes=peak_memory_bytes(device),
        idle_memory_bytes=step.idle_memory_bytes,
        device=device_name(device),
        precision=precision_name(step.accelerator),
    )


def seconds(call: Callable[[int], None], batches: Iterable[int], device: torch.device) -> list[float]:
    """Returns the time of ``call`` for each batch."""
    found = []
    for batch in batches:
        start = time.perf_counter()
        call(batch)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - start)
    return found


def measure_twice(
    package: str, cases: Sequence[tuple[str, BaseRun, str]], data: Path, repeats: int
) -> list[Measurement]:
    """Measures (attention, run, kind) in order, then again in reverse order.

    The two passes cancel a drift of the machine's speed. Each measurement runs in a process of its own, so that its
    peak memory is the variant's, and memory that it frees is reused by its next step.
    """
    found: list[list[Measurement]] = [[] for _ in cases]
    try:
        for index in (*range(len(cases)), *reversed(range(len(cases)))):
            attention, run, kind = cases[index]
            print(f"{attention}{'' if kind == OURS else f', {kind}'} ...", file=sys.stderr)
            found[index].append(run_in_process(measure, package, run, attention, data, repeats, kind))
    except (KeyboardInterrupt, OSError) as error:
        if not found[0]:
            raise
        reason = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
        once = ", ".join(each[0].attention for each in found if len(each) == 1)
        print(f"{reason}; keeping what was measured; measured once only: {once or 'none'}", file=sys.stderr)
    return [
        replace(
            each[0],
            forward_seconds=statistics.fmean(one.forward_seconds for one in each),
            training_seconds=statistics.fmean(one.training_seconds for one in each),
            peak_memory_bytes=max(each, key=lambda one: one.peak_memory_bytes).peak_memory_bytes,
            idle_memory_bytes=max(each, key=lambda one: one.peak_memory_bytes).idle_memory_bytes,
        )
        for each in found
        if each
    ]


def dropouts(model: ModelConfig) -> str:
    """Returns the dropout probabilities as part of a note; empty for models without dropout."""
    if not isinstance(model, EncoderConfig):
        return ""
    return f"dropout {model.dropout}, attention dropout {model.attention_dropout}; "


def parser() -> Parser:
    """Returns the parser of ``seqarena benchmark step``."""
    made = Parser(prog="seqarena benchmark step", description=f"{__doc__}\nFields are set as --path value.")
    add_run_options(made)
    made.add_argument("--attention", nargs="+", default=["softmax", "dnas", "hnas", "x3"], help="variants")
    made.add_argument(
        "--full-matrix",
        action="store_true",
        help="also measure the first variant by its formula on the full matrix, padded to the maximum length",
    )
    made.add_argument("--padded", action="store_true", help="also measure the first variant padded to that length")
    made.add_argument(
        "--transformers",
        action="store_true",
        help="also measure BERT or ViT of the transformers library on the same batches, and both encoders alone",
    )
    made.add_argument("--repeats", type=int, default=8, help="timed batches per variant (default: 8)")
    add_output_options(made, json_help="print the measurements as one JSON object")
    return made


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena benchmark step`` and returns its exit code."""
    options, fields = parser().parse_known_args(arguments)
    at_least_one(options, "repeats")
    runs = []
    for attention in options.attention:
        package, run = chosen(options, attention, fields, "seqarena benchmark step")
        runs.append((attention, run))
    # Prepared here, so that preparation does not count towards the first variant's peak memory.
    assembly = package.assembly(runs[0][1], options.data_folder, make_accelerator(runs[0][1].train.precision))
    if (options.padded or options.full_matrix) and type(assembly.batches[0]).longer is Batch.longer:
        raise WrongUseError(
            f"seqarena benchmark step: the batches of {package.name} {options.task} have no sequences that could be "
            "padded; omit --padded and --full-matrix"
        )
    kinds = [kind for kind, wanted in ((PADDED, options.padded), (FULL_MATRIX, options.full_matrix)) if wanted]
    kinds += [*AGAINST] if options.transformers else []
    cases = [*((attention, run, OURS) for attention, run in runs), *((*runs[0], kind) for kind in kinds)]
    measured = measure_twice(package.name, cases, options.data_folder, options.repeats)
    if options.json:
        print(
            json.dumps({"run": options.task, "preset": runs[0][1].preset, "steps": [asdict(each) for each in measured]})
        )
        return 0
    first = measured[0]
    model = runs[0][1].model
    rows = [
        [
            each.attention,
            f"{1 / each.forward_seconds:.2f}",
            f"{each.forward_seconds / first.forward_seconds:.2f}",
            f"{1 / each.training_seconds:.2f}",
            f"{each.training_seconds / first.training_seconds:.2f}",
            f"{each.peak_memory_bytes / 2**20:,.0f}",
            f"{(each.peak_memory_bytes - each.idle_memory_bytes) / 2**20:,.0f}",
        ]
        for each in measured
    ]
    headings = ["attention", "forward steps/s", f"time / {first.attention}", "training steps/s",
                f"time / {first.attention}", "peak MiB", "peak - idle MiB"]  # fmt: skip
    notes = [
        f"batch {runs[0][1].train.batch_size}, means of {options.repeats} batches after 2, measured twice; "
        f"{dropouts(model)}"
        f"{first.device}, {first.precision}",
        "training: forward and backward; memory: of a process of its own, libraries included",
    ]
    name = title(options, runs[0][1].preset, fields)
    print_table(options, parser().prog, arguments, name, headings, rows, notes, first.device)
    return 0

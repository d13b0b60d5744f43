"""Checks a short training of each package on this machine: losses, resuming, bfloat16, and a GPU against the CPU."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from seqarena.common.errors import printable
from seqarena.common.tables import render
from seqarena.scripts.packages import find_package
from seqarena.scripts.selftest.steps import STEPS, STOP

TASKS = {
    "listops": "lra",
    "wire": "summarization",
    "wikitext2": "pretraining",
    "mnli": "qa",
    "scenes": "vqa",
}
"""Task -> its package: one task of each, whose preset quick has generated or bundled data."""
VARIANTS = ("softmax", "hnas", "x3")
GRAPHS = ["--train.compile", "--train.cuda-graphs"]
LOSS_TOLERANCE = 0.1
"""Largest difference of a loss from that of the first row of its variant, relative to the largest of these."""
GPU_TOLERANCE = 1e-3
"""Largest difference of weights after resuming on a GPU, where sums may be taken in another order."""


class Place(NamedTuple):
    """A device, a precision, and whether the model is compiled and replayed as CUDA graphs."""

    device: Literal["cpu", "cuda"]
    precision: str
    graphs: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """A short training of one task with one variant, on one device and in one precision."""

    package: str
    task: str
    attention: str
    device: Literal["cpu", "cuda"]
    precision: str
    graphs: bool
    """Whether the model is compiled and replayed as CUDA graphs."""
    status: Literal["usable", "absent", "broken"]
    """``absent``: the variant is not defined for the task."""
    reason: str
    """The fault of a broken training, or the reason for an absent one; empty if it is usable."""
    loss_difference: float | None
    """Largest difference of a loss from those in float32 on the CPU, relative to the largest; None without losses."""
    steps: dict[str, Any]
    """``Steps`` of the process."""


def check(task: str, variants: Sequence[str], data: Path, *, has_gpu: bool) -> list[Training]:
    """Trains some steps of a task's preset quick in float32 and bfloat16; with a GPU, there and on the CPU.

    On a GPU, also compiled, as CUDA graphs.
    """
    places = [Place("cpu", "float32", False)]
    if has_gpu:
        places += [Place("cuda", "float32", False), Place("cuda", "bfloat16", False), Place("cuda", "bfloat16", True)]
    else:
        places += [Place("cpu", "bfloat16", False)]
    measured = []
    for place in places:
        print(f"{task}, {place.device}, {place.precision}{', graphs' if place.graphs else ''} ...", file=sys.stderr)
        measured.append(_measured(task, variants, data, place))
    return [
        _judged(task, name, place, steps[name], measured[0][name])
        for name in variants
        for place, steps in zip(places, measured, strict=True)
    ]


def _measured(task: str, variants: Sequence[str], data: Path, place: Place) -> dict[str, dict[str, Any]]:
    """Returns the ``Steps`` of each variant, from a process of its own."""
    asked = {
        "package": TASKS[task], "task": task, "attention": list(variants), "precision": place.precision,
        "fields": GRAPHS if place.graphs else [], "data": str(data),
    }  # fmt: skip
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if place.device == "cpu" else {}
    ended = subprocess.run(
        [sys.executable, "-m", "seqarena.scripts.selftest.steps"],
        input=json.dumps(asked) + "\n", capture_output=True, text=True, env=os.environ | hidden, check=False,
    )  # fmt: skip
    if ended.returncode == 0:
        found: dict[str, dict[str, Any]] = json.loads(ended.stdout.splitlines()[-1])
        return found
    lines = printable(ended.stderr).strip().splitlines() or ["no output"]
    reason = f"ended by {signal.Signals(-ended.returncode).name}" if ended.returncode < 0 else lines[-1]
    return {name: {"reason": reason, "absent": False, "losses": []} for name in variants}


def _judged(
    task: str,
    attention: str,
    place: Place,
    steps: Mapping[str, Any],
    exact: Mapping[str, Any],
) -> Training:
    difference, reason = None, steps["reason"]
    if not reason:
        largest = max(exact["losses"], default=1.0)
        pairs = zip(steps["losses"], exact["losses"], strict=False)
        difference = max((abs(one - other) / largest for one, other in pairs), default=None)
        allowed = GPU_TOLERANCE if place.device == "cuda" else 0.0
        if steps["difference"] > allowed:
            reason = f"weights differ by {steps['difference']:.0e} after an interruption"
        elif difference is not None and difference > LOSS_TOLERANCE:
            reason = f"losses differ by {difference:.0%} from those in float32 on the CPU"
    return Training(
        package=find_package(TASKS[task]).name,
        task=task,
        attention=attention,
        device=place.device,
        precision=place.precision,
        graphs=place.graphs,
        status="absent" if steps["absent"] else "broken" if reason else "usable",
        reason=reason,
        loss_difference=difference,
        steps=dict(steps),
    )


def table(found: Sequence[Training]) -> str:
    """Returns the table of the trainings."""
    rows = []
    for each in found:
        precision = each.precision + (", graphs" if each.graphs else "")
        row = [each.task, each.attention, each.device, precision, each.status.replace("broken", "✕ broken")]
        if each.status == "usable":
            is_first = (each.device, each.precision) == ("cpu", "float32")
            difference = each.steps["difference"]
            row += [
                f"{each.steps['losses'][-1]:.3f}",
                "" if is_first else f"{each.loss_difference:.0e}",
                f"{difference:.0e}" if difference else "same bits",
                f"{each.steps['peak_memory_bytes'] / 2**20:,.0f}",
                ", ".join(each.steps["implementations"]),
            ]
        rows.append(row + [""] * (10 - len(row)))
    headings = ["task", "variant", "device", "precision", "status", "loss", "difference", "resumed", "peak MiB",
                "computed by"]  # fmt: skip
    reasons = {
        f"{each.task} {each.attention}{', graphs,' if each.graphs else ''}": each.reason.split(";")[0]
        for each in found
        if each.status == "absent"
    }
    notes = [
        f"{STEPS} steps of each task's preset quick; loss: of the last step; difference: of the losses from those in "
        f"float32 on the CPU, relative to the largest; allowed: {LOSS_TOLERANCE:g}",
        f"resumed: weights of a training that was interrupted after {STOP - 1} steps and resumed, beside those of one "
        f"without a pause; allowed: the same bits on the CPU, {GPU_TOLERANCE:g} on a GPU",
        *(f"{name} absent: {reason}" for name, reason in reasons.items()),
        *(f"{each.task} {each.attention} in {each.precision}{', graphs,' if each.graphs else ''} on {each.device}: "
          f"{each.reason}"
          for each in found if each.status == "broken"),
    ]  # fmt: skip
    return render("short trainings", headings, rows, notes, "terminal")

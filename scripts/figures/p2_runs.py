"""P2 in your own runs: the smallest key mass of attention during training, and u of HNAS.

P2's Figure 3 shows u of a VQA run, Figure 4 that of pretraining.
"""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from seqarena.common.attention import attention_name
from seqarena.common.attention.base import AttentionConfig
from seqarena.common.errors import BadDataError
from seqarena.common.files import paths_below
from seqarena.common.runs.config import from_json
from seqarena.common.runs.external import is_reference
from seqarena.common.runs.roles import CONFIG_VERSION
from seqarena.scripts.curves import Curves, read_curves
from seqarena.scripts.figures.drawing import (
    RUNS,
    Drawing,
    FigureOptions,
    FigureResult,
    Finding,
    Line,
    MissingError,
    Panel,
)
from seqarena.scripts.leaderboard.protocol import settings_json
from seqarena.scripts.packages import PACKAGES, find_package

COMMAND = "seqarena sweep vqa scenes --preset quick --attention softmax dnas hnas --seeds 0 --train.diagnostics"
Series = dict[str, list[tuple[float, float]]]
MASS, BOUND, WEIGHT = "smallest key mass", "key mass bound", "hybrid weight"


def find_runs(*folders: Path) -> tuple[str, dict[str, Curves]]:
    """Returns the task and preset, and the curves of all runs with diagnostics below folders, by variant and seed.

    Raises:
        MissingError: no such run, runs of different tasks or settings, or two runs of one variant and seed.
        BadDataError: an invalid ``run.json`` or incomplete records.
    """
    found: dict[str, Curves] = {}
    origin: dict[str, Path] = {}
    tasks: dict[tuple[str, str], Path] = {}
    for path in (each for folder in folders for each in paths_below(folder) if each.name == "metrics.jsonl"):
        curves = read_curves(path.parent)
        if MASS not in curves:
            continue
        task, label, settings = _labels(path.parent)
        tasks.setdefault((task, settings), path.parent)
        _require_whole(curves, path)
        if len(tasks) > 1 or label in found:
            other = origin.get(label, next(iter(tasks.values())))
            raise MissingError(
                f"p2-runs: {other} and {path.parent} cannot be compared; set --runs to a folder with runs of one task "
                "and the same settings"
            )
        found[label], origin[label] = curves, path.parent
    if not found:
        raise MissingError(
            f"p2-runs: no run with --train.diagnostics in {' '.join(map(str, folders))}; create some: {COMMAND}"
        )
    return next(iter(tasks))[0], found


def _labels(folder: Path) -> tuple[str, str, str]:
    """Returns the task with its preset, the variant with its seed, and the settings that change scores."""
    path = folder / "run.json"
    try:
        run = json.loads(path.read_bytes())
        name: str = run["model"]["attention"]["class"]
        if not is_reference(name):  # the code of an external class is not needed for its name
            name = attention_name(from_json(AttentionConfig, run["model"]["attention"]))  # type: ignore[type-abstract]
        package = next((each for each in PACKAGES if run["task"] in find_package(each).tasks), "")
        settings = settings_json(package, run["task"], run, CONFIG_VERSION)
        return f"{run['task']} {run['preset']}", f"{name}, seed {run['seed']}", settings
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadDataError(f"{path} is not a run's: {error}") from error


def _require_whole(curves: Curves, path: Path) -> None:
    """Raises a ``BadDataError`` for records that lack a layer, a bound or a number."""
    series = [curves[MASS], curves.get(BOUND, {}), *([curves[WEIGHT]] if WEIGHT in curves else [])]
    steps = {tuple(step for step, _ in points) for each in series for points in each.values()}
    numbers = all(isinstance(value, float | int) for each in series for points in each.values() for _, value in points)
    if len(steps) != 1 or curves[MASS].keys() != curves.get(BOUND, {}).keys() or not numbers:
        raise BadDataError(f"{path}: expected {MASS} and {BOUND} of each layer at every evaluation; found gaps")


def make(settings: FigureOptions) -> FigureResult:
    """Returns the smallest key mass over layers at each evaluation, and u of each layer."""
    lines, panels, findings = [], [], []
    task, found = find_runs(*(settings.runs or RUNS))
    for label, curves in found.items():
        masses, bounds = curves[MASS], curves[BOUND]
        least = _least(masses)
        above_zero = [(at, bound) for at, bound in _least(bounds) if bound > 0]  # that of hnas is 0 where u is
        lines.append(Line(label=label, x=[at for at, _ in least], y=[mass for _, mass in least]))
        margins = [
            mass / bound
            for layer, points in masses.items()
            for (_, mass), (_, bound) in zip(points, bounds[layer], strict=True)
            if bound > 0
        ]
        if margins:
            lines.append(
                Line(label=f"{label}: its bound", x=[at for at, _ in above_zero], y=[each for _, each in above_zero])
            )
            findings.append(Finding(claim=f"Lemma 1: {label} keeps each layer's bound", agrees=min(margins) > 0.999,
                                    found=f"smallest mass {min(margins):.2f} times its bound"))  # fmt: skip
        else:
            smallest = min(mass for _, mass in least)
            findings.append(Finding(claim=f"Figure 1: {label} explains keys away", found=f"{smallest:.1e}",
                                    agrees=smallest < 0.01))  # fmt: skip
        if WEIGHT in curves:
            weights = [
                Line(label=layer, x=[at for at, _ in points], y=[u for _, u in points])
                for layer, points in curves[WEIGHT].items()
            ]
            panels.append(Panel(title=label, x="step", y="u, 0 to 1", limits=(0.0, 1.0), lines=weights))
            findings += weight_findings(label, [line.y[-1] for line in weights], is_pretraining=task.startswith("mlm "))
    first = Panel(title="over all layers", x="step", y="smallest key mass", lines=lines, log_y=True)
    return FigureResult(panels=[first, *panels], findings=findings)


def weight_findings(label: str, ends: Sequence[float], *, is_pretraining: bool) -> list[Finding]:
    """Returns the claims on the final u of each layer, from input to output: P2's Figure 4 for pretraining, else 3."""
    found = "at the end, by layer " + ", ".join(f"{u:.3f}" for u in ends)
    if not is_pretraining:
        return [Finding(claim=f"Figure 3: u of {label} goes to 1", agrees=min(ends) > 0.9, found=found)]
    half = len(ends) // 2
    lower, upper = ends[:half], ends[-half:]
    falls = half > 0 and statistics.fmean(lower) > statistics.fmean(upper)
    return [
        Finding(claim=f"Figure 4: u of {label} is at least 0.5 in every layer", agrees=min(ends) >= 0.5, found=found),
        Finding(claim=f"Figure 4: u of {label} is lower towards the output", agrees=falls, found=found),
    ]


def _least(layers: Series) -> list[tuple[float, float]]:
    """Returns (step, minimum over the layers)."""
    return [(at[0][0], min(value for _, value in at)) for at in zip(*layers.values(), strict=True)]


DRAWING = Drawing(
    name="p2-runs", source="P2, Figures 1, 3 and 4", make=make,
    check=lambda settings: find_runs(*(settings.runs or RUNS)),
    shows="the smallest key mass and u in runs (--runs) with --train.diagnostics",
)  # fmt: skip

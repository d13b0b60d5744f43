"""P2 in runs of yours: the smallest key mass of attention while it is trained, and what HNAS's u does meanwhile."""

import json
from pathlib import Path

from common.attention import attention_name
from common.attention.base import AttentionConfig
from common.config import from_json
from common.errors import BadDataError
from scripts.curves import Curves, read_curves
from scripts.figures.drawing import Drawing, Drawn, Finding, Line, Look, MissingError, Panel

COMMAND = "seqarena sweep lra listops --preset quick --attention softmax dnas hnas --seeds 0 --train.diagnostics"
MASS, BOUND, WEIGHT = "smallest key mass", "key mass bound", "hybrid weight"


def find_runs(folder: Path) -> dict[str, Curves]:
    """Returns what the runs below a folder told, by variant and seed, where they were told to look inside.

    Raises:
        MissingError: there is none, or two of one variant and seed: they are of different tasks.
        BadDataError: a ``run.json`` that is none.
    """
    found: dict[str, Curves] = {}
    origin: dict[str, Path] = {}
    for path in sorted(folder.rglob("metrics.jsonl")):
        curves = read_curves(path.parent)
        if MASS not in curves:
            continue
        label = _label(path.parent)
        if label in found:
            raise MissingError(
                f"p2-runs: {origin[label]} and {path.parent} are both {label}; name the folder of one task by --runs"
            )
        found[label], origin[label] = curves, path.parent
    if not found:
        raise MissingError(f"p2-runs: no run with --train.diagnostics in {folder}; make some: {COMMAND}")
    return found


def _label(folder: Path) -> str:
    path = folder / "run.json"
    try:
        run = json.loads(path.read_text())
        attention = from_json(AttentionConfig, run["model"]["attention"])  # type: ignore[type-abstract]
        return f"{attention_name(attention)}, seed {run['seed']}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadDataError(f"{path} is no run's: {error}") from error


def make(look: Look) -> Drawn:
    """Returns the figure: of all layers the smallest mass of a key, after each evaluation; u of each layer."""
    runs = find_runs(look.runs)
    lines, findings, bounds, unbound = [], [], [], []
    for label, curves in runs.items():
        steps, least = _least(curves[MASS])
        lines.append(Line(label=label, x=steps, y=least))
        _, promised = _least(curves[BOUND])
        bounds.append(max(promised))
        if promised[0] > 0:
            held = all(mass >= bound * (1 - 1e-4) for mass, bound in zip(least, promised, strict=True))
            findings.append(Finding(claim=f"Lemma 1: {label} keeps its bound", agrees=held,
                                    found=f"least {min(least):.2e}, bound {min(promised):.2e}"))  # fmt: skip
        else:
            unbound.append((label, min(least)))
    floor = max(bounds) if max(bounds) > 0 else 1e-3
    findings += [
        Finding(claim=f"{label} explains keys away: a mass below {floor:.3g}", agrees=least_of_all < floor,
                found=f"least {least_of_all:.2e}")
        for label, least_of_all in unbound
    ]  # fmt: skip
    if max(bounds) > 0:
        lines.append(Line(label="1 / L", x=lines[0].x, y=[max(bounds)] * len(lines[0].x)))
    panels = [Panel(title="of all layers", x="step", y="smallest key mass", lines=lines, log_y=True)]
    for label, curves in runs.items():
        if WEIGHT in curves:
            weights = [
                Line(label=layer, x=[at for at, _ in points], y=[u for _, u in points])
                for layer, points in curves[WEIGHT].items()
            ]
            panels.append(Panel(title=label, x="step", y="u, 0 to 1", limits=(0.0, 1.0), lines=weights))
            ends = [line.y[-1] for line in weights]
            findings.append(Finding(claim=f"Figure 3: u of {label} goes to 1", agrees=min(ends) > 0.9,
                                    found="at the end, by layer " + ", ".join(f"{u:.3f}" for u in ends)))  # fmt: skip
    return Drawn(panels=panels, findings=findings)


def _least(layers: dict[str, list[tuple[float, float]]]) -> tuple[list[float], list[float]]:
    """Returns steps, and the least of all layers after each."""
    steps = [step for step, _ in next(iter(layers.values()))]
    return steps, [min(value for _, value in at) for at in zip(*layers.values(), strict=True)]


DRAWING = Drawing(
    name="p2-runs", source="P2, Figures 1 and 3", make=make, check=lambda look: find_runs(look.runs),
    shows="the smallest mass of a key and u in runs (--runs) with --train.diagnostics",
)  # fmt: skip

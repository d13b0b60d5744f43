"""P1's trained figures, from runs of pictures: norms of attention, weights of heads, and accuracy by scale."""

import itertools
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from seqarena.common.attention.elementwise import Elementwise
from seqarena.common.runs.named import changed_fields
from seqarena.common.runs.results import Result
from seqarena.common.shapes import Weights
from seqarena.scripts.curves import Curves
from seqarena.scripts.figures.drawing import FigureOptions, FigureResult, Finding, Line, Matrix, MissingError, Panel
from seqarena.scripts.figures.p3_losses import loss_panels
from seqarena.scripts.figures.picture_runs import (
    RunFolder,
    curves_of,
    find_runs,
    grid_of,
    grouped,
    head_of,
    heads_of,
    layers_of,
    load_pictures,
    mean_line,
    name_of,
    require_losses,
    require_one_task,
    require_same_settings,
    require_seeds,
    trained_weights,
)
from seqarena.scripts.figures.trainings import end_of

NORM, SLOPE = "attention norm", "attention jacobian norm"
WIDEST = 6
"""Maximum number of panels in a row."""
BOTH = (1, -1)
"""Layers whose heads are drawn by default: the first and the last."""
Finished = list[tuple[RunFolder, Result]]


def runs_with_norms(settings: FigureOptions) -> dict[str, list[tuple[RunFolder, Curves]]]:
    """Returns the runs with diagnostics, by name; interrupted and diverged ones too.

    Raises:
        MissingError: there are none, or they are of different tasks or presets.
    """
    found = find_runs(settings, "p1-norms", unfinished=True)
    curves = {run.folder: curves for run in found if NORM in (curves := curves_of(run))}
    runs = [run for run in found if run.folder in curves]
    if not runs:
        raise MissingError(
            f"p1-norms: none of the {len(found)} runs of pictures recorded norms of attention; they need "
            "--train.diagnostics, and Swin has none"
        )
    require_one_task(runs, "p1-norms")
    require_same_settings(runs, "p1-norms")
    named = grouped(runs, "p1-norms", seeds=False)
    for run in runs:
        layers_of(run, settings, ())
    return {name: [(run, curves[run.folder]) for run in some] for name, some in named.items()}


def norms(settings: FigureOptions) -> FigureResult:
    """Returns Figures 2 to 5 and 11 to 14: norms of each layer's attention and of its derivative by the scores."""
    found = runs_with_norms(settings)
    curves = {name: [each for _, each in some] for name, some in found.items()}
    depth = max(run.run.model.depth_label for some in found.values() for run, _ in some)
    layers = settings.layers or range(1, depth + 1)
    panels = [
        Panel(title=f"{quantity}, layer {layer} of {depth}", x="step", y="Frobenius norm", log_y=True, lines=lines)
        for panel, quantity in ((NORM, "attention"), (SLOPE, "derivative by the scores"))
        for layer in layers
        if (lines := _lines(curves, panel, f"layer {layer}"))
    ]
    accuracy = [line for name, seeds in curves.items() if (line := mean_line(name, seeds, "accuracy", "validation"))]
    panels += [
        *loss_panels(curves),
        Panel(title="validation pictures", x="step", y="accuracy, 0 to 1", lines=accuracy),
    ]
    return FigureResult(
        panels=panels, findings=_norm_findings(found), columns=max(min(len(layers), WIDEST), 2),
        shows="norms of attention while runs of pictures train; geometric means over seeds",
    )  # fmt: skip


def _lines(curves: Mapping[str, Sequence[Curves]], panel: str, layer: str) -> list[Line]:
    found = [mean_line(name, seeds, panel, layer, statistics.geometric_mean) for name, seeds in curves.items()]
    return [Line(label=line.label, x=line.x, y=line.y) for line in found if line]


def _norm_findings(found: Mapping[str, Sequence[tuple[RunFolder, Curves]]]) -> list[Finding]:
    """Returns whether the norms of an unscaled power are several times those of the same model with a scale."""
    findings = []
    sizes = {
        (name, panel): statistics.geometric_mean(
            max(points[-1][1] for points in curves[panel].values()) for _, curves in some
        )
        for name, some in found.items()
        for panel in (NORM, SLOPE)
        if all(panel in curves for _, curves in some)
    }
    models = {name: some[0][0].run.model for name, some in found.items()}
    for raw, name in itertools.permutations(models, 2):
        unscaled, scaled = models[raw].attention, models[name].attention
        if not (isinstance(unscaled, Elementwise) and isinstance(scaled, Elementwise)):
            continue
        alike = set(changed_fields(models[raw], models[name])) <= {"attention.scale"}
        if not alike or unscaled.scale != 1:
            continue
        for panel, quantity in ((NORM, "attention"), (SLOPE, "its derivative")):
            if panel == SLOPE and _activation(scaled) == "x":  # constant: the scale itself
                continue
            one, other = sizes[raw, panel], sizes[name, panel]
            claim = f"{raw}: {quantity} is several times as large as with {name}"
            sizes_found = f"largest norm of a layer at the end {one:.3g} and {other:.3g}"
            findings.append(Finding(claim=claim, found=sizes_found, agrees=one > 3 * other))
    return findings


def _activation(attention: Elementwise) -> str:
    return attention.phi + (f"^{attention.power}" if attention.power > 1 else "")


def runs_with_heads(settings: FigureOptions) -> dict[str, RunFolder]:
    """Returns the finished runs by name. Raises a ``WrongUseError`` for a layer that a model does not have."""
    runs = find_runs(settings, "p1-heads")
    for run in runs:
        grid_of(run)
        layers_of(run, settings, BOTH)
    return {name: run for name, (run,) in grouped(runs, "p1-heads", seeds=True).items()}


def heads(settings: FigureOptions) -> FigureResult:
    """Returns Figures 6 and 7: one head of some layers, means over test pictures."""
    found = runs_with_heads(settings)
    rows: dict[int, list[Matrix]] = {}
    for name, run in found.items():
        layers = layers_of(run, settings, BOTH)
        chosen = heads_of(settings, layers, 1)

        def reduce(layer: int, weights: Weights, chosen: Mapping[int, int | None] = chosen) -> Tensor:
            return head_of(weights, chosen[layer]).sum(dim=0)

        pixels, _ = load_pictures(run, settings, None)
        for index, (layer, chunks) in enumerate(trained_weights(run, pixels, layers, reduce).items()):
            mean = torch.stack(chunks).sum(dim=0) / len(pixels)
            title = f"{name}, layer {layer}, {name_of(chosen[layer])}: {float((mean < 0).double().mean()):.0%} negative"
            key = "key, 0 is the class token" if grid_of(run)[1] else "key, a patch"
            matrix = Matrix(title=title, x=key, y="query", values=mean.tolist())
            rows.setdefault(index, []).append(matrix)
    return FigureResult(
        panels=[matrix for row in rows.values() for matrix in row], findings=[], columns=min(len(found), WIDEST),
        shows=f"weights of heads of runs of pictures, means over {len(pixels)} test pictures: yellow positive, blue "
        "negative, grey zero",
    )  # fmt: skip


def runs_with_scales(settings: FigureOptions) -> tuple[Finished, int]:
    """Returns the finished runs of elementwise variants, and the number of runs that are not finished.

    Raises:
        MissingError: there are none, or they are of different tasks or presets.
    """
    found = find_runs(settings, "p1-scales", unfinished=True)
    runs = [run for run in found if isinstance(run.run.model.attention, Elementwise)]
    results = [(run, Result.read(run.folder)) for run in runs]
    finished = [(run, result) for run, result in results if result is not None and result.status == "finished"]
    if not finished:
        raise MissingError(
            "p1-scales: no finished run of an elementwise variant; create some with several scales: seqarena lra "
            "cifar10-patches --attention x3 --model.attention.scale 8"
        )
    require_one_task([run for run, _ in finished], "p1-scales")
    return finished, len(runs) - len(finished)


def scales(settings: FigureOptions) -> FigureResult:
    """Returns Figures 1 and 10: accuracy and loss by the divisor of the weights, for each length."""
    finished, left_out = runs_with_scales(settings)
    accuracy: dict[str, dict[float, list[float]]] = {}
    loss: dict[str, dict[float, list[float]]] = {}
    lengths: dict[str, tuple[str, int]] = {}
    together: dict[tuple[str, float], list[RunFolder]] = defaultdict(list)
    first: dict[str, RunFolder] = {}
    for run, result in finished:
        attention, tokens = run.run.model.attention, run.run.model.longest
        assert isinstance(attention, Elementwise)
        divisor = tokens**attention.length_exponent if attention.scale is None else attention.scale
        name = f"{_activation(attention)}, {tokens} tokens"
        lengths[name] = _activation(attention), tokens
        require_same_settings([first.setdefault(name, run), run], "p1-scales", ("model.attention",))
        together[name, divisor].append(run)
        require_seeds(together[name, divisor], "p1-scales", f"{name}, divisor {divisor:g}")
        accuracy.setdefault(name, {}).setdefault(divisor, []).append(result.metrics["accuracy"])
        curves = curves_of(run)
        require_losses(run, curves)
        losses = [value for _, value in curves["loss"]["training"]]
        loss.setdefault(name, {}).setdefault(divisor, []).append(end_of(losses))
    note = f"; unfinished runs left out: {left_out}" if left_out else ""
    panels = [
        Panel(title=f"test pictures{note}", x="divisor of the weights", y="accuracy, 0 to 1", log_x=True,
              lines=[_by_divisor(name, values) for name, values in accuracy.items()]),
        Panel(title=f"training{note}", x="divisor of the weights", y="loss of the last tenth, nats", log_x=True,
              lines=[_by_divisor(name, values) for name, values in loss.items()]),
    ]  # fmt: skip
    best = {
        name: max(sorted(values), key=lambda each: statistics.fmean(values[each])) for name, values in accuracy.items()
    }
    by_length: dict[str, dict[int, float]] = {}
    for name, divisor in best.items():
        activation, tokens = lengths[name]
        if len(accuracy[name]) > 1:
            by_length.setdefault(activation, {})[tokens] = divisor
    if any(len(each) > 1 for each in by_length.values()):
        tokens_found = sorted({tokens for each in by_length.values() for tokens in each})
        lines = [
            Line(label=activation, x=sorted(each), y=[each[tokens] for tokens in sorted(each)])
            for activation, each in by_length.items()
        ]
        root = Line(label="sqrt N", x=tokens_found, y=[tokens**0.5 for tokens in tokens_found])
        panels.append(
            Panel(title="divisor of the best accuracy", x="length N, tokens", y="divisor", log_x=True, log_y=True,
                  lines=[*lines, root])
        )  # fmt: skip
    return FigureResult(
        panels=panels, findings=_scale_findings(accuracy, by_length), columns=len(panels),
        shows="accuracy of runs of pictures by the divisor of the weights, means over seeds",
    )  # fmt: skip


def _by_divisor(label: str, values: Mapping[float, Sequence[float]]) -> Line:
    divisors = sorted(values)
    return Line(
        label=label, x=divisors, y=[statistics.fmean(values[each]) for each in divisors],
        spread=[statistics.stdev(values[each]) for each in divisors] if min(map(len, values.values())) > 1 else None,
    )  # fmt: skip


def _scale_findings(
    accuracy: Mapping[str, Mapping[float, Sequence[float]]], by_length: Mapping[str, Mapping[int, float]]
) -> list[Finding]:
    found = []
    for activation, each in by_length.items():
        if len(each) > 1:
            listed = ", ".join(f"N {tokens}: {each[tokens]:.3g}" for tokens in sorted(each))
            claim = f"{activation}: longer sequences need a larger divisor"
            found.append(Finding(claim=claim, found=listed, agrees=each[max(each)] > each[min(each)]))
    for name, values in accuracy.items():
        scores = {divisor: statistics.fmean(some) for divisor, some in values.items()}
        around = [score for divisor, score in scores.items() if 8 <= divisor <= 25]
        if len(around) > 1:
            best = max(scores.values())
            listed = f"{min(around):.3f} to {max(around):.3f}; best {best:.3f}"
            claim = f"{name}: divisors from 8 to 25 all do well"
            found.append(Finding(claim=claim, found=listed, agrees=best - min(around) < 0.02))
    return found

"""Runs of pictures, for the figures of P1 and P3: their names, curves, test pictures and trained weights."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqarena.common.attention import attention_name
from seqarena.common.attention.base import Kernel
from seqarena.common.attention.mixer import kernels_with_weights
from seqarena.common.errors import BadDataError, WrongUseError, short_list
from seqarena.common.files import paths_below, read_strict_json
from seqarena.common.runs.config import from_json
from seqarena.common.runs.external import import_code
from seqarena.common.runs.inputs import sources_in
from seqarena.common.runs.named import changed_fields
from seqarena.common.runs.results import RESULT
from seqarena.common.runs.roles import ASIDE, role_at
from seqarena.common.runs.sources import changed_sources
from seqarena.common.runs.trained import TrainedRun, read_trained
from seqarena.common.shapes import Pixels, Weights
from seqarena.lra.pictures.data import PictureData
from seqarena.lra.pictures.data.batches import centred
from seqarena.lra.pictures.data.store import PictureSplit
from seqarena.lra.pictures.run import PictureRun
from seqarena.lra.pictures.tasks import TASKS
from seqarena.scripts.curves import Curves, read_curves
from seqarena.scripts.figures.drawing import RUNS, FigureOptions, Line, MissingError
from seqarena.scripts.packages import find_package

COMMAND = "seqarena sweep lra cifar10-patches --attention softmax x3 x1 --seeds 0 --train.diagnostics"
DRAWN = 128
"""Number of test pictures whose head weights are averaged (P1, Figures 6 and 7)."""
POINTS = 60
"""Approximate maximum number of points of a curve; more are averaged in groups."""
NAMED = ("model.attention", "model.norm", "model.layers", "model.patch")
"""Fields that the names of ``grouped`` show."""
CHUNK = 16
"""Pictures per forward pass."""


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """A run of a task of pictures, and its directory."""

    folder: Path
    run: PictureRun

    def trained(self) -> TrainedRun[PictureRun]:
        """Returns the finished run; raises a ``WrongUseError`` if it is not finished."""
        return read_trained(self.folder, PictureRun, "lra", tuple(TASKS))


def find_runs(settings: FigureOptions, figure: str, *, unfinished: bool = False) -> list[RunFolder]:
    """Returns all runs of pictures in the folders of ``--runs``.

    ``unfinished``: also those that were interrupted or diverged.

    Raises:
        WrongUseError: an unfinished run.
        MissingError: there are none.
        BadDataError: a ``run.json`` that cannot be read.
    """
    find_package("lra")  # imports the classes of data and models that a run can have
    import_code(settings.code)
    folders = settings.runs or RUNS
    own = {folder: folder / "run.json" for folder in folders}
    below = [[own[each]] if own[each].is_file() else paths_below(each) for each in folders]
    paths = [path for paths in below for path in paths if path.name == "run.json"]
    found = []
    for path in dict.fromkeys(paths):
        try:
            values = read_strict_json(path)
            if isinstance(values, dict) and values.get("task") in TASKS:
                found.append(RunFolder(folder=path.parent, run=from_json(PictureRun, values)))
        except (OSError, ValueError, TypeError) as error:
            raise BadDataError(f"{path}: not a run that can be read here ({error})") from error
    if not found:
        raise MissingError(
            f"{figure}: no run of {', '.join(TASKS)} in {' '.join(map(str, folders))}; create some: {COMMAND}"
        )
    for each in found if not unfinished else ():
        each.trained()
    return found


def require_one_task(runs: Sequence[RunFolder], figure: str, *, presets: bool = True) -> None:
    """Raises a ``MissingError`` for runs of different tasks or, if asked, ``presets``."""
    first = runs[0]
    for each in runs:
        if each.run.task != first.run.task or (presets and each.run.preset != first.run.preset):
            raise MissingError(
                f"{figure}: {first.folder} and {each.folder} are of different tasks{' or presets' if presets else ''}; "
                "name others by --runs"
            )


def grouped(runs: Sequence[RunFolder], figure: str, *, seeds: bool) -> dict[str, list[RunFolder]]:
    """Returns the runs by name: the variant, and those of norm, depth, length and preset that are not all the same.

    ``seeds``: whether the seed is a part of the name too; otherwise the runs of a name are those of its seeds.

    Raises:
        MissingError: two runs that would be drawn as one.
    """
    parts = [_parts(each.run, seeds=seeds) for each in runs]
    varies = [len(set(column)) > 1 for column in zip(*parts, strict=True)]
    found: dict[str, list[RunFolder]] = {}
    for run, texts in zip(runs, parts, strict=True):
        name = ", ".join(text for text, is_drawn in zip(texts, (True, *varies[1:]), strict=True) if is_drawn)
        found.setdefault(name, []).append(run)
        require_seeds(found[name], figure, name)
    return found


def require_same_settings(runs: Sequence[RunFolder], figure: str, drawn: Sequence[str] = NAMED) -> None:
    """Raises a ``MissingError`` if runs differ in a field that changes scores and is neither ``drawn`` nor the seed.

    A figure would show what such a field does as an effect of what it draws. ``drawn``: beginnings of field paths.
    """
    first, *others = runs
    for each in others:
        differing = [
            path
            for path in sorted(changed_fields(first.run, each.run))
            if not path.startswith((*drawn, "seed")) and role_at(each.run, path) not in ASIDE
        ]
        if differing:
            raise MissingError(
                f"{figure}: {first.folder} and {each.folder} differ in {', '.join(differing)}, which the figure "
                "does not show; choose other runs with --runs"
            )


def require_seeds(runs: Sequence[RunFolder], figure: str, name: str) -> None:
    """Raises a ``MissingError`` unless runs averaged as ``name`` differ in their seeds, and in nothing else."""
    first, *others = runs
    for each in others:
        differing = sorted(set(changed_fields(first.run, each.run)) - {"seed"})
        if differing or each.run.seed in [other.run.seed for other in runs if other is not each]:
            reason = f" (they differ in {', '.join(differing)})" if differing else ""
            raise MissingError(
                f"{figure}: {first.folder} and {each.folder} would both be {name}{reason}; name one of them by --runs"
            )
        mine, theirs = sources_in(first.folder), sources_in(each.folder)
        if mine and theirs and (changed := changed_sources(mine, theirs)):
            raise MissingError(
                f"{figure}: {first.folder} and {each.folder} would both be {name}, but {short_list(changed)} changed "
                "between them; name one of them by --runs"
            )


def _parts(run: PictureRun, *, seeds: bool) -> tuple[str, ...]:
    model = run.model
    sizes = (model.norm_label, f"{model.depth_label} layers", f"{model.longest} tokens", run.preset)
    return (attention_name(model.attention), *sizes, *((f"seed {run.seed}",) if seeds else ()))


def layers_of(run: RunFolder, settings: FigureOptions, default: Sequence[int]) -> tuple[int, ...]:
    """Returns the layers to draw, from 1; negative numbers in ``default`` count from the last.

    Raises:
        WrongUseError: the model has no such layer, a layer is named twice, or the number of heads is not that of the
            layers.
    """
    depth = run.run.model.depth_label
    layers = settings.layers or tuple(dict.fromkeys(number % (depth + 1) for number in default))
    for layer in layers:
        if not 1 <= layer <= depth:
            raise WrongUseError(f"--layers {layer}: {run.folder} has layers 1 to {depth}")
    if len(set(layers)) < len(layers):
        raise WrongUseError(f"--layers: expected each layer once, found {' '.join(map(str, layers))}")
    if len(settings.heads) > 1 and len(settings.heads) != len(layers):
        raise WrongUseError(f"--heads: expected one head, or one for each of {len(layers)} layers")
    return layers


def heads_of(settings: FigureOptions, layers: Sequence[int], default: int | None) -> Mapping[int, int | None]:
    """Returns layer -> head from 1, or None for the mean over heads."""
    heads: tuple[int | None, ...] = settings.heads or (default,)
    return dict(zip(layers, heads * len(layers) if len(heads) == 1 else heads, strict=True))


def grid_of(run: RunFolder) -> tuple[int, bool]:
    """Returns the rows of patches of a picture, and whether a class token precedes the patches.

    Raises:
        WrongUseError: the model's tokens are not those of a vision transformer.
    """
    tokens = run.run.model.longest
    for first in (1, 0):
        side = math.isqrt(tokens - first)
        if side and side**2 == tokens - first:
            return side, first == 1
    raise WrongUseError(f"{run.folder}: expected a square of patches, with or without a class token; found {tokens}")


def load_pictures(run: RunFolder, settings: FigureOptions, numbers: Sequence[int] | None) -> tuple[Pixels, list[int]]:
    """Returns test pictures from 0 to 1, and their classes. ``numbers``: None for the first ``DRAWN``.

    Raises:
        WrongUseError: there is no picture of that number, or the data are not those of the run.
    """
    data = run.run.data
    test, checksum = _test_split(data, settings.data)
    if checksum != run.trained().data_checksum:
        raise WrongUseError(f"{run.folder}: the pictures in {settings.data} are not those that it was trained on")
    for number in numbers or ():
        if not 0 <= number < len(test):
            raise WrongUseError(f"--pictures {number}: the test pictures have numbers 0 to {len(test) - 1}")
    chosen = range(min(DRAWN, len(test))) if numbers is None else numbers
    batch = centred(test, np.array(chosen), side=data.side, tokens=0)
    return batch.pictures.float() / 255, batch.labels.tolist()


@functools.cache
def _test_split(data: PictureData, folder: Path) -> tuple[PictureSplit, str]:
    splits, checksum = data.load(folder)
    return splits["test"], checksum


@torch.no_grad()
def trained_weights(
    run: RunFolder, pixels: Pixels, layers: Sequence[int], reduce: Callable[[int, Weights], Tensor]
) -> dict[int, list[Tensor]]:
    """Returns layer -> ``reduce(layer, weights)`` of each chunk of pictures, in the finished model.

    Raises:
        WrongUseError: the run is not finished, or its model has no attention over all tokens.
    """
    model = run.run.model.build().eval()
    run.trained().load(model)
    tokens, found = run.run.model.longest, {layer: list[Tensor]() for layer in layers}
    calls: list[Kernel] = []

    def record(kernel: Kernel, inputs: tuple[Any, ...], _: Tensor) -> None:
        query, key, _, visibility = inputs[:4]
        if query.shape[2] == key.shape[2] == tokens:
            calls.append(kernel)
            if len(calls) in found:
                weights = kernel.weights(query, key, visibility, inputs[4] if len(inputs) > 4 else None)
                found[len(calls)].append(reduce(len(calls), weights))

    for kernel in kernels_with_weights(model):
        kernel.register_forward_hook(record)
    for some in torch.split(pixels, CHUNK):
        calls.clear()
        model(some)
    if not all(found.values()):
        raise WrongUseError(
            f"{run.folder}: no attention weights over its {tokens} tokens in layer "
            f"{next(layer for layer, each in found.items() if not each)}; expected a vision transformer whose "
            "attention is a function of queries and keys"
        )
    return found


def head_of(weights: Weights, head: int | None) -> Tensor:
    """Returns the weights (B N M) of a head, from 1, or the mean over heads.

    Raises:
        WrongUseError: there is no such head.
    """
    if head is None:
        return weights.mean(dim=1)
    if not 1 <= head <= weights.shape[1]:
        raise WrongUseError(f"--heads {head}: expected 1 to {weights.shape[1]}")
    return weights[:, head - 1]


def name_of(head: int | None) -> str:
    """Returns the head's name in titles."""
    return "mean over heads" if head is None else f"head {head}"


def curves_of(run: RunFolder) -> Curves:
    """Returns the recorded curves of a run; none before the first record."""
    return read_curves(run.folder) if (run.folder / "metrics.jsonl").exists() else {}


def require_losses(run: RunFolder, curves: Curves) -> None:
    """Raises a ``MissingError`` for a finished run without recorded training losses; others may have none yet."""
    if (run.folder / RESULT).exists() and not curves.get("loss", {}).get("training"):
        raise MissingError(
            f"{run.folder}: expected training losses in metrics.jsonl, found none; copy the file from the original "
            "run, or run again with --overwrite"
        )


def mean_line(
    label: str, seeds: Sequence[Curves], panel: str, line: str, mean: Callable[[Sequence[float]], float] = fmean
) -> Line | None:
    """Returns the mean of a curve over seeds, at steps that all have, as about ``POINTS`` points; None without any.

    ``spread`` is the standard deviation over seeds.
    """
    points = [dict(each.get(panel, {}).get(line, [])) for each in seeds]
    steps = sorted(set.intersection(*(set(each) for each in points)))
    width = -(-len(steps) // POINTS) if steps else 1
    groups = [steps[start : start + width] for start in range(0, len(steps), width)]
    values = [[fmean(each[step] for step in group) for each in points] for group in groups]
    return Line(
        label=label, x=[group[-1] for group in groups], y=[mean(some) for some in values],
        spread=[stdev(some) for some in values] if len(seeds) > 1 else None,
    ) if steps else None  # fmt: skip

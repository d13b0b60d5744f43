"""P1's Figures 8 and 9: the attention of the class token to the patches of a picture, for several runs."""

import torch
from torch import Tensor

from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import Pixels, Weights
from seqarena.scripts.figures.drawing import Drawing, FigureOptions, FigureResult, MissingError, PatchGrid, Photo
from seqarena.scripts.figures.picture_runs import (
    RunFolder,
    find_runs,
    grid_of,
    grouped,
    head_of,
    heads_of,
    layers_of,
    load_pictures,
    name_of,
    trained_weights,
)

NAME = "p1-picture"
MOST = 6
"""Maximum number of grids beside a picture."""


def select(settings: FigureOptions) -> dict[str, RunFolder]:
    """Returns the runs to draw, by name.

    Raises:
        MissingError: there are none, or too many for one figure.
        WrongUseError: a layer that a model does not have, or tokens that are not a square of patches.
    """
    found = {name: run for name, (run,) in grouped(find_runs(settings, NAME), NAME, seeds=True).items()}
    columns = 0
    for run in found.values():
        grid_of(run)
        columns += len(layers_of(run, settings, (-1,)))
    if columns > MOST:
        raise MissingError(
            f"{NAME}: {len(found)} runs with {columns} layers in all; at most {MOST} fit beside a picture; name fewer "
            "by --runs and --layers"
        )
    return found


def make(settings: FigureOptions) -> FigureResult:
    """Returns a row per picture: the picture, and a grid of weights per run and layer."""
    runs = select(settings)
    pixels, classes = load_pictures(first := next(iter(runs.values())), settings, settings.pictures)
    for run in runs.values():
        if not torch.equal(load_pictures(run, settings, settings.pictures)[0], pixels):
            raise WrongUseError(f"{NAME}: {first.folder} and {run.folder} read different pictures")
    columns = [column for name, run in runs.items() for column in _grids(name, run, pixels, settings)]
    panels: list[Photo | PatchGrid] = []
    for row, (number, label) in enumerate(zip(settings.pictures, classes, strict=True)):
        photo = Photo(title=f"test picture {number}, class {label}", pixels=pixels[row].permute(1, 2, 0).tolist())
        panels += [photo, *(column[row] for column in columns)]
    has_class_token = [grid_of(run)[1] for run in runs.values()]
    origin = "the class token"
    if not any(has_class_token):
        origin = "all patches (their mean; the models have no class token)"
    elif not all(has_class_token):
        origin += " (in models without one: from all patches, their mean)"
    return FigureResult(
        panels=panels, findings=[], columns=1 + len(columns),
        shows=f"attention from {origin} to each patch; red positive, blue negative, white zero",
    )  # fmt: skip


def _grids(name: str, run: RunFolder, pixels: Pixels, settings: FigureOptions) -> list[list[PatchGrid]]:
    """Returns a column for each layer of a run, with a grid for each picture."""
    layers = layers_of(run, settings, (-1,))
    heads = heads_of(settings, layers, None)
    side, has_class_token = grid_of(run)

    def reduce(layer: int, weights: Weights) -> Tensor:
        one = head_of(weights, heads[layer])
        return one[:, 0, 1:] if has_class_token else one.mean(dim=1)

    columns = []
    for layer, chunks in trained_weights(run, pixels, layers, reduce).items():
        grids = [each.view(side, side).tolist() for chunk in chunks for each in chunk]
        columns.append(
            [
                PatchGrid(
                    title=f"{name}\nlayer {layer} of {run.run.model.depth_label}, {name_of(heads[layer])}, "
                    f"picture {number}",
                    values=grid,
                )
                for number, grid in zip(settings.pictures, grids, strict=True)
            ]
        )
    return columns


DRAWING = Drawing(
    name=NAME, source="P1, Figures 8 and 9", make=make, check=select,
    shows="the attention of the class token to each patch of a picture, beside it, in runs of pictures (--runs)",
)  # fmt: skip

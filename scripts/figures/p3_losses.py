"""P3's Figure 6: loss by step, of runs of pictures; of the validation set, where P3 draws the test set's."""

from seqarena.scripts.curves import Curves
from seqarena.scripts.figures.drawing import Drawing, FigureOptions, FigureResult, Panel
from seqarena.scripts.figures.picture_runs import (
    RunFolder,
    curves_of,
    find_runs,
    grouped,
    mean_line,
    require_losses,
    require_one_task,
    require_same_settings,
)

NAME = "p3-losses"


def select(settings: FigureOptions) -> dict[str, list[RunFolder]]:
    """Returns the runs of each name, one per seed.

    Raises:
        MissingError: no runs, runs of different tasks, or runs of one preset that differ in more than their model.
    """
    runs = find_runs(settings, NAME, unfinished=True)
    require_one_task(runs, NAME, presets=False)
    for preset in dict.fromkeys(each.run.preset for each in runs):
        require_same_settings([each for each in runs if each.run.preset == preset], NAME)
    return grouped(runs, NAME, seeds=False)


def make(settings: FigureOptions) -> FigureResult:
    """Returns the losses, means over seeds, up to the last step that all seeds took."""
    runs_of_name = select(settings)
    curves = {name: [curves_of(run) for run in runs] for name, runs in runs_of_name.items()}
    for name, runs in runs_of_name.items():
        for run, found in zip(runs, curves[name], strict=True):
            require_losses(run, found)
    return FigureResult(panels=loss_panels(curves), findings=[])


def loss_panels(curves: dict[str, list[Curves]]) -> list[Panel]:
    """Returns training and validation loss by step."""
    return [
        Panel(title=f"{split} loss", x="step", y="nats",
              lines=[line for name, seeds in curves.items() if (line := mean_line(name, seeds, "loss", split))])
        for split in ("training", "validation")
    ]  # fmt: skip


DRAWING = Drawing(
    name=NAME, source="P3, Figure 6", make=make, check=select,
    shows="training and validation loss in runs of pictures (--runs), means over seeds",
)  # fmt: skip

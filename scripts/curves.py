"""Draws what runs told while they went: loss, validation, trained shares, and the diagnostics of each layer."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from common.cli import Parser
from common.errors import BadDataError, WrongUseError

Curves = dict[str, dict[str, list[tuple[float, float]]]]
"""Panel -> line -> (step, value)."""


def read_curves(folder: Path) -> Curves:
    """Returns every series of a run's ``metrics.jsonl``; a layer's number is a line of its own.

    Raises:
        WrongUseError: no such file.
        BadDataError: a line before the last that is no record.
    """
    path = folder / "metrics.jsonl"
    if not path.exists():
        raise WrongUseError(f"{path} does not exist; name the directory of a run, such as runs/lra/listops/quick-...")
    curves: Curves = {}
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            step = float(record.pop("step"))
        except (ValueError, KeyError, AttributeError) as error:
            if number == len(lines):  # cut short by a kill
                break
            raise BadDataError(f"{path}, line {number}: not a record of a step ({error})") from error
        told = [each for each in _numbers(record) if not isinstance(each, float | int)]
        if told:
            raise BadDataError(f"{path}, line {number}: expected a number, found {told[0]!r}")
        for group, values in record.items():
            for name, value in values.items() if isinstance(values, dict) else [(group, values)]:
                if group == "diagnostics":
                    for layer, number_ in enumerate(value):
                        _add(curves, name.replace("_", " "), f"layer {layer + 1}", step, number_)
                elif group == "bounded":
                    for index, number_ in enumerate(value):
                        _add(curves, "trained shares", f"{name} {index}" if len(value) > 1 else name, step, number_)
                else:
                    _add(
                        curves,
                        name.replace("_", " "),
                        "validation" if group == "validation" else "training",
                        step,
                        value,
                    )
    return curves


def _numbers(record: object) -> Iterator[object]:
    if isinstance(record, dict | list):
        for each in record.values() if isinstance(record, dict) else record:
            yield from _numbers(each)
    else:
        yield record


def _add(curves: Curves, panel: str, line: str, step: float, value: float) -> None:
    curves.setdefault(panel, {}).setdefault(line, []).append((step, value))


def draw(curves: Curves, title: str, path: Path) -> None:
    """Writes the picture: a panel a quantity, a line a layer; layers from dark to light."""
    columns = min(4, len(curves))
    rows = -(-len(curves) // columns)
    figure = Figure(figsize=(4 * columns, 2.8 * rows), layout="constrained")
    figure.suptitle(title)
    panels = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for axes, (panel, lines) in zip(panels, curves.items(), strict=False):
        for index, (name, points) in enumerate(lines.items()):
            colour = mpl.colormaps["viridis"](0.9 * index / max(1, len(lines) - 1)) if len(lines) > 2 else f"C{index}"
            steps, values = zip(*points, strict=True)
            axes.plot(steps, values, color=colour, label=name, linewidth=1.2, marker="." if len(points) < 20 else "")
        axes.set(title=panel, xlabel="step")
        axes.grid(alpha=0.3)
        if len(lines) <= 8:
            axes.legend(fontsize="x-small")
    for axes in panels[len(curves) :]:
        axes.set_visible(False)
    figure.savefig(path, dpi=110)


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena curves`` and returns its exit code."""
    parser = Parser(prog="seqarena curves", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="directories of runs; each gets a picture, curves.png")
    for folder in parser.parse_args(arguments).runs:
        curves = read_curves(folder)
        if not curves:
            raise WrongUseError(f"{folder}/metrics.jsonl is empty: the run has recorded nothing yet")
        draw(curves, folder.name, folder / "curves.png")
        print(folder / "curves.png")
    return 0

"""Draws figures of panels and findings on a paper's claims, as PNG, SVG and CSV."""

import csv
import io
import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from seqarena.common.errors import WrongUseError
from seqarena.common.files import write_atomically

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#999999")
"""Okabe and Ito's colours, which colour-blind readers can distinguish; line styles distinguish them in print."""
KINDS = ("-", "--", "-.", ":")
MARKS = "osD^vPX*"
OUTLIERS = 0.99
"""Quantile of a matrix's absolute values at which the colour scale ends; larger ones look alike."""
RUNS = (Path("runs"),)
"""Folder of runs that is read if none is named."""
FEW = 12
"""Maximum number of points that are marked individually."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One labelled series of points."""

    label: str
    x: Sequence[float | int]
    y: Sequence[float | int]
    spread: Sequence[float] | None = None
    """Standard deviation of each point over trials or seeds."""
    dots: bool = False
    """Whether to draw unconnected points."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Lines on common axes."""

    title: str
    x: str
    """Label of the horizontal axis, with its unit."""
    y: str
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False
    limits: tuple[float, float] | None = None
    """Limits of the y axis, so that small differences look small; None: fitted to the data."""


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Weights of queries (top to bottom) and keys (left to right), with signed colours."""

    title: str
    x: str
    y: str
    values: Sequence[Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class PatchGrid:
    """Weights on the patches of a picture, enlarged: red positive, blue negative, white zero."""

    title: str
    values: Sequence[Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class Photo:
    """A picture. It is drawn, but not listed in the CSV."""

    title: str
    pixels: Sequence[Sequence[Sequence[float]]]
    """(rows, columns, 3), from 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A claim of a paper, or one that begins with "ours:", the result here, and whether they agree."""

    claim: str
    found: str
    agrees: bool


@dataclass(frozen=True, kw_only=True)
class FigureResult:
    """Panels and findings of a figure."""

    panels: Sequence[Panel | Matrix | PatchGrid | Photo]
    findings: Sequence[Finding]
    shows: str = ""
    """Sentence in place of the drawing's."""
    columns: int | None = None
    """Panels in a row; None: by their number."""


@dataclass(frozen=True, kw_only=True)
class FigureOptions:
    """Options that all figures share."""

    quick: bool = False
    """Whether to use fewer trials and smaller sizes."""
    wikitext: str | None = None
    """Folder or zip of WikiText; None: the bundled text."""
    cifar: str | None = None
    """Files of CIFAR-10; None: drawn digits."""
    checkpoint: Path | None = None
    """Folder of a transformers model, for ``p3-checkpoint``."""
    runs: tuple[Path, ...] = ()
    """Folders of runs. Empty: P1's trained figures train small models, and the others read ``runs``."""
    code: tuple[str, ...] = ()
    """Files or modules of the runs' external variants."""
    layers: tuple[int, ...] = ()
    """Layers that are drawn from runs, from 1; empty: the figure's default."""
    heads: tuple[int, ...] = ()
    """One head for all of these layers, or one for each, from 1; empty: the figure's default."""
    pictures: tuple[int, ...] = (0, 1, 2, 3)
    """Test pictures of ``p1-picture``, from 0."""
    data: Path = Path("data")
    """Folder of prepared data."""
    trainings: Path = Path("figures/trainings")
    """Folder of cached trainings."""


class MissingError(WrongUseError):
    """An input of the user's is missing; the message says how to provide it."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A figure: its source in a paper, a sentence on its content, and the function that makes it."""

    name: str
    source: str
    shows: str
    make: Callable[[FigureOptions], FigureResult]
    duration: str = ""
    """Approximate time of the full size on one or two CPU cores; empty: not measured."""
    check: Callable[[FigureOptions], object] = lambda _: None
    """Raises for a wrong or missing input before any figure is made."""


def save(drawing: Drawing, drawn: FigureResult, folder: Path) -> list[Path]:
    """Writes NAME.png, NAME.svg and NAME.csv and returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    picture = draw(drawing, drawn)
    paths = [folder / f"{drawing.name}.{ending}" for ending in ("png", "svg", "csv")]
    with mpl.rc_context({"svg.hashsalt": drawing.name}):  # reproducible output
        for path in paths[:2]:
            file = io.BytesIO()
            metadata = {"Date": None} if path.suffix == ".svg" else None
            picture.savefig(file, format=path.suffix[1:], dpi=110, metadata=metadata)
            write_atomically(path, lambda target, file=file: target.write(file.getvalue()))  # type: ignore[misc]
    table = comma_separated(drawn).encode()
    write_atomically(paths[2], lambda target: target.write(table))
    return paths


def draw(drawing: Drawing, drawn: FigureResult) -> Figure:
    """Returns the matplotlib figure."""
    many = len(drawn.panels)
    columns = drawn.columns or {4: 2, 8: 4, 10: 4}.get(many, min(6 if many > 12 else 3, many))
    rows = -(-len(drawn.panels) // columns)
    figure = Figure(figsize=(4.6 * columns, 3.5 * rows + 0.5), layout="constrained")
    figure.suptitle(
        "\n".join(textwrap.wrap(f"{drawing.source}: {drawn.shows or drawing.shows}", 52 * columns)), fontsize=10
    )
    grid = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    labels = [tuple(line.label for line in panel.lines) for panel in drawn.panels if isinstance(panel, Panel)]
    is_shared = len(labels) > 2 and len(set(labels)) == 1
    for axes, panel in zip(grid, drawn.panels, strict=False):
        match panel:
            case Matrix():
                _matrix(figure, axes, panel)
            case PatchGrid():
                _patch_grid(figure, axes, panel)
            case Photo():
                axes.imshow(np.asarray(panel.pixels), interpolation="nearest")
            case Panel():
                _lines(axes, panel, legend=not is_shared)
        if isinstance(panel, Panel | Matrix):
            axes.set(xlabel=panel.x, ylabel=panel.y)
        else:
            axes.set(xticks=[], yticks=[])
        axes.set_title(panel.title, fontsize=9)
    for axes in grid[len(drawn.panels) :]:
        axes.set_visible(False)
    if is_shared:
        handles, names = grid[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=min(len(names), 2 * columns), fontsize="small")
    return figure


def _matrix(figure: Figure, axes: Axes, matrix: Matrix) -> None:
    """Draws weights from dark blue (negative) over grey (0) to yellow (positive); lightness alone shows the sign."""
    values = np.asarray(matrix.values)
    largest = float(np.quantile(np.abs(values), OUTLIERS)) or 1.0
    image = axes.imshow(values, cmap="cividis", vmin=-largest, vmax=largest, interpolation="nearest")
    figure.colorbar(image, ax=axes, shrink=0.8, extend="both")


def _patch_grid(figure: Figure, axes: Axes, grid: PatchGrid) -> None:
    """Draws weights without interpolation, from white (0); the scale ends at the largest absolute value."""
    values = np.asarray(grid.values)
    largest = float(np.abs(values).max()) or 1.0
    scale = {"cmap": "RdBu_r", "vmin": -largest} if (values < 0).any() else {"cmap": "Reds", "vmin": 0.0}
    image = axes.imshow(values, vmax=largest, interpolation="nearest", **scale)  # type: ignore[arg-type]
    figure.colorbar(image, ax=axes, shrink=0.8)


def _lines(axes: Axes, panel: Panel, *, legend: bool) -> None:
    for number, line in enumerate(panel.lines):
        style = {"color": COLOURS[number % len(COLOURS)], "label": line.label}
        mark = MARKS[number % len(MARKS)] if line.dots or len(line.x) <= FEW else ""
        kind = "none" if line.dots else KINDS[number % len(KINDS)]
        axes.plot(line.x, line.y, linestyle=kind, marker=mark, markersize=4, linewidth=1.4, **style)  # type: ignore[arg-type]
        if line.spread is not None:
            middle, spread = np.asarray(line.y), np.asarray(line.spread)
            axes.fill_between(line.x, middle - spread, middle + spread, color=style["color"], alpha=0.15, linewidth=0)
    axes.grid(alpha=0.3)
    if panel.log_x:
        axes.set_xscale("log", base=2)
    elif all(float(x).is_integer() for line in panel.lines for x in line.x):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if panel.log_y:
        axes.set_yscale("log")
    if panel.limits is not None:
        axes.set_ylim(panel.limits)
    if legend and len(panel.lines) > 1:
        axes.legend(fontsize="x-small")


def comma_separated(drawn: FigureResult) -> str:
    """Returns every drawn number as CSV: panel, line, x, y, spread."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["panel", "line", "x", "y", "spread"])
    writer.writerows(_points(drawn))
    return file.getvalue()


def _points(drawn: FigureResult) -> Iterator[list[object]]:
    for panel in drawn.panels:
        if isinstance(panel, Matrix | PatchGrid):
            name = "query" if isinstance(panel, Matrix) else "row"
            for query, row in enumerate(panel.values):
                yield from ([panel.title, f"{name} {query}", key, weight, ""] for key, weight in enumerate(row))
        if not isinstance(panel, Panel):
            continue
        for line in panel.lines:
            spread = [math.nan] * len(line.x) if line.spread is None else line.spread
            for x, y, width in zip(line.x, line.y, spread, strict=True):
                yield [panel.title, line.label, x, y, "" if math.isnan(width) else width]

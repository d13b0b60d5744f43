"""Figures: panels, and findings beside a paper's claims; written as PNG, SVG and CSV."""

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
"""Okabe and Ito's, told apart by colour-blind people; in print, kinds of line tell them apart."""
KINDS = ("-", "--", "-.", ":")
MARKS = "osD^vPX*"
OUTLIERS = 0.99
"""Share of a matrix's entries whose size the colours reach; larger ones look alike."""
FEW = 12
"""Points that each get a mark."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """Points that belong together."""

    label: str
    x: Sequence[float | int]
    y: Sequence[float | int]
    spread: Sequence[float] | None = None
    """Standard deviation of each point over trials or seeds."""
    dots: bool = False
    """Whether the points stand for themselves, without a line."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Lines over common axes."""

    title: str
    x: str
    """Label of the horizontal axis, with its unit."""
    y: str
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False
    limits: tuple[float, float] | None = None
    """Ends of the axis of y, so that small differences look small; None: as the numbers need."""


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Weights of queries (down) and keys (to the right), their signs told apart."""

    title: str
    x: str
    y: str
    values: Sequence[Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A paper's claim, the finding here, and whether they agree."""

    claim: str
    found: str
    agrees: bool


@dataclass(frozen=True, kw_only=True)
class FigureResult:
    """Content of a figure."""

    panels: Sequence[Panel | Matrix]
    findings: Sequence[Finding]


@dataclass(frozen=True, kw_only=True)
class Look:
    """How a figure is made."""

    quick: bool = False
    """Whether it is a quick look: fewer trials, smaller sizes."""
    wikitext: str | None = None
    """Folder or zip of WikiText, where a figure reads text; None: the bundled one."""
    cifar: str | None = None
    """Files of CIFAR-10, where a figure reads pictures; None: digits that are drawn."""
    checkpoint: Path | None = None
    """Folder of a model of the transformers library, for the figure that looks into one."""
    runs: Path = Path("runs")
    """Folder of runs, for the figure that reads them."""
    data: Path = Path("data")
    """Folder of prepared data."""
    trainings: Path = Path("figures/trainings")
    """Folder of trainings that were drawn before."""


class MissingError(WrongUseError):
    """A figure needs something of the user's; the message says how to give or make it."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A figure that can be made: from which paper, what it shows in a sentence, and how."""

    name: str
    source: str
    shows: str
    make: Callable[[Look], FigureResult]
    check: Callable[[Look], object] = lambda _: None
    """Raises for an input that is wrong or missing, before any figure is made; what it reads is kept for ``make``."""


def save(drawing: Drawing, drawn: FigureResult, folder: Path) -> list[Path]:
    """Writes NAME.png, NAME.svg and NAME.csv and returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    picture = draw(drawing, drawn)
    paths = [folder / f"{drawing.name}.{ending}" for ending in ("png", "svg", "csv")]
    with mpl.rc_context({"svg.hashsalt": drawing.name}):  # the same bytes every time
        for path in paths[:2]:
            file = io.BytesIO()
            metadata = {"Date": None} if path.suffix == ".svg" else None
            picture.savefig(file, format=path.suffix[1:], dpi=110, metadata=metadata)
            write_atomically(path, lambda target, file=file: target.write(file.getvalue()))  # type: ignore[misc]
    table = comma_separated(drawn).encode()
    write_atomically(paths[2], lambda target: target.write(table))
    return paths


def draw(drawing: Drawing, drawn: FigureResult) -> Figure:
    """Returns the picture."""
    many = len(drawn.panels)
    columns = {4: 2, 8: 4, 10: 4}.get(many, min(6 if many > 12 else 3, many))
    rows = -(-len(drawn.panels) // columns)
    figure = Figure(figsize=(4.6 * columns, 3.5 * rows + 0.5), layout="constrained")
    figure.suptitle("\n".join(textwrap.wrap(f"{drawing.source}: {drawing.shows}", 52 * columns)), fontsize=10)
    places = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    labels = [tuple(line.label for line in panel.lines) for panel in drawn.panels if isinstance(panel, Panel)]
    is_shared = len(labels) > 2 and len(set(labels)) == 1
    for axes, panel in zip(places, drawn.panels, strict=False):
        if isinstance(panel, Matrix):
            _matrix(figure, axes, panel)
        else:
            _lines(axes, panel, legend=not is_shared)
        axes.set(xlabel=panel.x, ylabel=panel.y)
        axes.set_title(panel.title, fontsize=9)
    for axes in places[len(drawn.panels) :]:
        axes.set_visible(False)
    if is_shared:
        handles, names = places[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=min(len(names), 2 * columns), fontsize="small")
    return figure


def _matrix(figure: Figure, axes: Axes, matrix: Matrix) -> None:
    """Draws weights from dark blue over grey, at nothing, to yellow: lightness alone tells the sign, in print too."""
    values = np.asarray(matrix.values)
    largest = float(np.quantile(np.abs(values), OUTLIERS)) or 1.0
    image = axes.imshow(values, cmap="cividis", vmin=-largest, vmax=largest, interpolation="nearest")
    figure.colorbar(image, ax=axes, shrink=0.8, extend="both")


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
    """Returns every number that is drawn: panel, line, x, y, spread."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["panel", "line", "x", "y", "spread"])
    writer.writerows(_points(drawn))
    return file.getvalue()


def _points(drawn: FigureResult) -> Iterator[list[object]]:
    for panel in drawn.panels:
        if isinstance(panel, Matrix):
            for query, row in enumerate(panel.values):
                yield from ([panel.title, f"query {query}", key, weight, ""] for key, weight in enumerate(row))
            continue
        for line in panel.lines:
            spread = [math.nan] * len(line.x) if line.spread is None else line.spread
            for x, y, width in zip(line.x, line.y, spread, strict=True):
                yield [panel.title, line.label, x, y, "" if math.isnan(width) else width]

"""Plotly figures as plain values, which the page draws when they come into view."""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from seqarena.common.runs.tasks import Unit

COLOURS = ("#0a7cc4", "#d55e00", "#009e73", "#c2629a", "#c98a00", "#7b6fd0", "#8a8a8a", "#a0522d")
"""Colours of rows, distinguishable for colour-blind readers on white and on black."""
REFERENCE = "#8a8a8a"
LONGEST = 36
"""Letters of a name beside a chart."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One figure."""

    title: str
    data: list[dict[str, Any]]
    """Plotly's traces."""
    layout: dict[str, Any]
    height: int = 300
    """Pixels."""
    is_wide: bool = False
    """Whether it takes the whole width of the page."""
    note: str = ""
    """Note below the chart."""


def colour(number: int) -> str:
    """Returns the colour of a row by its place."""
    return COLOURS[number % len(COLOURS)]


def label(name: str) -> str:
    """Returns a name as Plotly shows it letter by letter: it reads some of HTML's tags."""
    return html.escape(name, quote=False)


def scaled(value: float, unit: Unit) -> float:
    """Returns a score as people read it."""
    return 100 * value if unit == "share" else value


def short(name: str) -> str:
    """Returns a name that leaves room for the chart beside it."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def percent(unit: Unit) -> str:
    """Returns what an axis of scores says of their unit."""
    return ", %" if unit == "share" else ""


def rounded(value: float) -> float | None:
    """Returns a number with the digits that a chart can show; None for what is no number."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def thinned(line: Sequence[tuple[float, float]], points: int) -> list[tuple[float, float]]:
    """Returns at most so many of a line's points, the first and the last among them."""
    if len(line) <= points:
        return list(line)
    return [line[round(at * (len(line) - 1) / (points - 1))] for at in range(points)]


def sentence(title: str) -> str:
    """Returns a title with its first letter large; names of variants stay as they are."""
    return title[0].upper() + title[1:]

"""Plotly figures as JSON values, drawn by the page when they scroll into view."""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from seqarena.common.runs.tasks import Unit
from seqarena.scripts.leaderboard.verdict import Verdict

COLOURS = (
    "#0a7cc4", "#d55e00", "#009e73", "#c2629a", "#c98a00", "#7b6fd0", "#a0522d", "#12a5b8", "#7a9a1f", "#e0457b",
    "#56708f", "#b04fd0", "#2e7d32", "#d98c7a", "#5a5fd8", "#8d7b4a",
)  # fmt: skip
"""Colours of rows on white and on black. Colour-blind readers can distinguish the first seven."""
REFERENCE = "#8a8a8a"
SYMBOLS: dict[Verdict, str] = {
    "better": "triangle-up", "worse": "triangle-down", "no difference shown": "circle-open",
    "no test": "x-thin-open",
}  # fmt: skip
"""Plotly's symbol of a verdict, as the mark that tables print."""
LONGEST = 36
"""Maximum length of a name beside a chart."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One figure."""

    title: str
    data: list[dict[str, Any]]
    """Traces of Plotly."""
    layout: dict[str, Any]
    height: int = 300
    """Height in pixels."""
    is_wide: bool = False
    """Whether the chart takes the whole width of the page."""
    note: str = ""
    """Note below the chart."""


def colour(number: int) -> str:
    """Returns the colour of a row by its index."""
    return COLOURS[number % len(COLOURS)]


def row_group(name: str) -> str:
    """Returns the legend group of a row's traces. The page hides traces with ``meta.row`` when it hides that row."""
    return f"row {name}"


def label(name: str) -> str:
    """Returns a name escaped for Plotly, which interprets some HTML tags."""
    return html.escape(name, quote=False)


def scaled(value: float, unit: Unit) -> float:
    """Returns a score as displayed: fractions in per cent, losses unscaled."""
    return 100 * value if unit == "share" else value


def short(name: str) -> str:
    """Returns a name shortened to ``LONGEST`` characters in its middle: both ends tell variants apart."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 18]}…{name[-17:]}"


def percent(unit: Unit) -> str:
    """Returns the unit suffix of an axis title."""
    return ", %" if unit == "share" else ""


def rounded(value: float) -> float | None:
    """Returns a number rounded to 5 significant digits; None if it is not finite."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def thinned(line: Sequence[tuple[float, float]], points: int) -> list[tuple[float, float]]:
    """Returns at most ``points`` points of a line, including the first and the last."""
    if len(line) <= points:
        return list(line)
    return [line[round(at * (len(line) - 1) / (points - 1))] for at in range(points)]


def sentence(title: str) -> str:
    """Returns a title with its first letter in upper case."""
    return title[0].upper() + title[1:]

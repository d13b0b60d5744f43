"""The head of a page: verdicts of all variants in all tasks, and the list of contents."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from seqarena.scripts.leaderboard.overview import OverviewCell, overview_of, overview_text, wins_and_losses
from seqarena.scripts.leaderboard.table import Table
from seqarena.scripts.leaderboard.verdict import MARKS, Verdict, verdict_of

SHADES: dict[Verdict, str] = {
    "better": "better", "worse": "worse", "no difference shown": "even", "no test": "unsure",
}  # fmt: skip
"""Verdict -> class of its cell in page.css."""


def heat_map(tables: Sequence[Table]) -> dict[str, Any] | None:
    """Returns the overview for the page's template; None if there are too few tables with a comparison."""
    overview = overview_of(tables)
    if overview is None:
        return None
    title, headings, rows, notes = overview_text(overview, tables)
    before = len(headings) - len(overview.columns)
    baseline, *compared = rows
    low_first = ["time" in heading for heading in headings[:before]]
    low_first += [not tables[column.place].higher_is_better for column in overview.columns]
    places = [None] * before + [column.place for column in overview.columns]
    return {
        "title": title,
        "headings": list(zip(headings, places, low_first, strict=True)),
        "baseline": baseline,
        "rows": [
            _row(row, name, cells, [*overview.times[name].values()])
            for row, (name, cells) in zip(compared, overview.rows.items(), strict=False)
        ],
        "detectable": compared[len(overview.rows) :],
        "notes": notes,
    }


def _row(
    texts: Sequence[str], name: str, cells: Sequence[OverviewCell | None], times: Sequence[float]
) -> list[dict[str, Any]]:
    """Returns the cells of a row for the template: mark, number, class in page.css, and value by which it is sorted."""
    wins, losses = wins_and_losses(cells)
    before = len(texts) - len(cells)
    orders: list[Any] = [name, wins - losses, *([min(times, default=None)] if before > 2 else [])]
    made = []
    for text, kind, order in zip(texts[:before], ("", "total", "time"), orders, strict=False):
        number, bracket, count = text.partition(" (") if kind == "time" else (text, "", "")
        made.append({"mark": "", "number": number, "count": bracket.strip() + count, "class": kind, "order": order})
    for text, cell in zip(texts[before:], cells, strict=True):
        mark, _, number = text.partition(" ") if cell and text[:1] in MARKS.values() else ("", "", text)
        shade = SHADES.get(cell.verdict, "") if cell else ""
        order = None if cell is None else cell.difference
        made.append({"mark": mark, "number": number, "count": "", "class": shade, "order": order})
    return made


def contents(tables: Sequence[Table]) -> list[tuple[str, str]]:
    """Returns title and numbers of verdicts of each table."""
    return [(table.title, _verdicts(table)) for table in tables]


def _verdicts(table: Table) -> str:
    counts = Counter(verdict_of(row, higher_is_better=table.higher_is_better) for row in table.rows)
    return " ".join(f"{counts[verdict]} {MARKS[verdict]}" for verdict in SHADES if counts[verdict])

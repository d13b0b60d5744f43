"""The head of a page: verdicts of all variants in all tasks, and the list of contents."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from seqarena.scripts.leaderboard.overview import overview_of, overview_text
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
    blank = [""] * len(headings)
    shades = [
        [*blank[:before], *(SHADES.get(cell.verdict, "") if cell else "" for cell in cells)]
        for cells in overview.rows.values()
    ]
    return {
        "title": title,
        "headings": list(zip(headings, [None] * before + [column.place for column in overview.columns], strict=True)),
        "rows": [list(zip(row, own, strict=True)) for row, own in zip(rows, [blank, *shades, blank], strict=True)],
        "notes": notes,
    }


def contents(tables: Sequence[Table]) -> list[tuple[str, str]]:
    """Returns title and numbers of verdicts of each table."""
    return [(table.title, _verdicts(table)) for table in tables]


def _verdicts(table: Table) -> str:
    counts = Counter(verdict_of(row, higher_is_better=table.higher_is_better) for row in table.rows)
    return " ".join(f"{counts[verdict]} {MARKS[verdict]}" for verdict in SHADES if counts[verdict])

"""Joins all tables into one: the difference of each variant from the baseline in each task, with its verdict."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seqarena.common.runs.tasks import Unit
from seqarena.scripts.leaderboard.cells import DETECTABLE, more_seeds
from seqarena.scripts.leaderboard.remarks import is_earlier
from seqarena.scripts.leaderboard.rows import Row, number, range_text, with_unit
from seqarena.scripts.leaderboard.table import OTHER_DATA, Table, code_note
from seqarena.scripts.leaderboard.verdict import LEGEND, MARKS, Verdict, verdict_of

CHANCE = "chance alone marks some variant in up to one of twenty tasks"
"""Error rate of a task after Holm's correction, in words."""
TESTED: tuple[Verdict, ...] = ("better", "worse", "no difference shown")
"""Verdicts of a test."""
FEWEST_TABLES = 2
"""Minimum tables with a comparison for an overview."""


@dataclass(frozen=True, kw_only=True)
class OverviewCell:
    """One variant in one task."""

    verdict: Verdict
    difference: float | None
    """From the baseline; None if it is not compared."""
    diverged: int = 0
    """Number of seeds that diverged, over which nothing is compared."""


@dataclass(frozen=True, kw_only=True)
class OverviewColumn:
    """One table: a task under one protocol."""

    name: str
    """Task, preset and name of other data, with a number if several tables have all in common."""
    place: int
    """Index of the table among all tables."""
    baseline_mean: float | None
    detectable: tuple[float, float] | None
    """True difference that a comparison over the seeds shows about four times in five: smallest and largest row."""


@dataclass(frozen=True, kw_only=True)
class Overview:
    """Verdicts of all variants in all tasks that have a comparison."""

    baseline: str
    columns: list[OverviewColumn]
    rows: dict[str, list[OverviewCell | None]]
    """Variant -> a cell per column, None without results. Most wins less losses first, then most columns."""
    times: dict[str, dict[str, float]]
    """Variant -> name of the column -> time of a step divided by the baseline's, where its price was measured.

    A price that several tables of a task share counts once, under the name of the first.
    """
    left_out: list[str]
    """Names of tables without a comparison."""


def overview_of(tables: Sequence[Table]) -> Overview | None:
    """Returns the overview of tables; None if fewer than ``FEWEST_TABLES`` have a comparison."""
    names = table_names(tables)
    shown = [place for place, table in enumerate(tables) if any(row.comparison for row in _current(table))]
    if len(shown) < FEWEST_TABLES:
        return None
    cells = [_cells(tables[place]) for place in shown]
    variants = dict.fromkeys(name for column in cells for name in column)
    rows = {name: [column.get(name) for column in cells] for name in variants}
    return Overview(
        baseline=tables[0].baseline,
        columns=[_column(tables[place], names[place], place) for place in shown],
        rows=dict(sorted(rows.items(), key=lambda item: _rank(item[1]))),
        times={name: _times({names[place]: tables[place] for place in shown}, name) for name in variants},
        left_out=[name for place, name in enumerate(names) if place not in shown],
    )


def _current(table: Table) -> list[Row]:
    """Returns the rows of a table without those measured by earlier versions of the sources."""
    return [row for row in table.rows if not is_earlier(row.parts)]


def table_names(tables: Sequence[Table]) -> list[str]:
    """Returns a short name for each table, with a number if several tables have all in common."""
    plain = [
        ", ".join(
            filter(
                None,
                (
                    f"{table.task} {table.preset}" + (f" ({table.data_name})" if table.data_name else ""),
                    "modified" if table.modified else "",
                    table.precision,
                    "tuned" if table.tuned else "",
                ),
            )
        )
        for table in tables
    ]
    counts, seen = Counter(plain), Counter[str]()
    names = []
    for name in plain:
        seen[name] += 1
        names.append(f"{name} #{seen[name]}" if counts[name] > 1 else name)
    return names


def _cells(table: Table) -> dict[str, OverviewCell]:
    return {
        row.name: OverviewCell(
            verdict=verdict_of(row, higher_is_better=table.higher_is_better),
            difference=row.comparison.difference if row.comparison else None,
            diverged=len(row.diverged),
        )
        for row in _current(table)
        if row.comparison or row.not_compared or row.mean is None
    }


def _times(tables: Mapping[str, Table], variant: str) -> dict[str, float]:
    """Returns the price in each table, once if several have the same, as a task's tuned and other tables do."""
    found: dict[tuple[Any, ...], tuple[str, float]] = {}
    for name, table in tables.items():
        for row in _current(table):
            if row.name == variant and row.price:
                found.setdefault((table.package, table.task, table.preset, row.price), (name, row.price.time))
    return dict(found.values())


def _column(table: Table, name: str, place: int) -> OverviewColumn:
    rows = _current(table)
    sizes = [next(iter(row.detectable.values())) for row in rows if row.detectable]  # each with its own seeds
    return OverviewColumn(
        name=name, place=place,
        baseline_mean=next((row.mean for row in rows if row.name == table.baseline), None),
        detectable=(min(sizes), max(sizes)) if sizes else None,
    )  # fmt: skip


def wins_and_losses(cells: Sequence[OverviewCell | None]) -> tuple[int, int]:
    """Returns the numbers of tasks in which a variant is better, and worse, than the baseline."""
    verdicts = [cell.verdict for cell in cells if cell]
    return verdicts.count("better"), verdicts.count("worse")


def _rank(cells: Sequence[OverviewCell | None]) -> tuple[int, int]:
    wins, losses = wins_and_losses(cells)
    return losses - wins, sum(cell is None for cell in cells)


def overview_text(overview: Overview, tables: Sequence[Table]) -> tuple[str, list[str], list[list[str]], list[str]]:
    """Returns title, headings, rows and notes of an overview. An arrow marks the tasks whose score is a loss."""
    tables_shown = [tables[column.place] for column in overview.columns]
    units = [table.unit for table in tables_shown]
    by_name = {column.name: table for column, table in zip(overview.columns, tables_shown, strict=True)}
    both = list(zip(overview.columns, units, strict=True))
    means = ["" if each.baseline_mean is None else with_unit(each.baseline_mean, unit) for each, unit in both]
    sizes = ["" if each.detectable is None else range_text(each.detectable, unit) for each, unit in both]
    rows = [
        [f"{overview.baseline}, mean", "", "", *means],
        *([name, _total(cells), _time_range(overview.times[name], by_name), *map(_cell, cells, units)]
          for name, cells in overview.rows.items()),
        *([["detectable difference", "", "", *sizes]] if any(sizes) else []),
    ]  # fmt: skip
    headings = ["variant", "total", f"time / {overview.baseline}", *map(_heading, overview.columns, tables_shown)]
    has_tests = any(cell and cell.verdict in TESTED for cells in overview.rows.values() for cell in cells)
    notes = [LEGEND, CHANCE if has_tests else more_seeds()]
    if any(sizes):
        notes.append(f"detectable, smallest to largest over the variants of a task: {DETECTABLE}")
    if not any(overview.times.values()):
        headings, rows = [*headings[:2], *headings[3:]], [[*row[:2], *row[3:]] for row in rows]
        notes.append("what a variant costs: seqarena price measures it")
    else:
        notes.append(
            f"time / {overview.baseline}: smallest to largest over the tasks where it was measured, with their number"
        )
    if overview.left_out:
        notes.append(f"without a comparison: {', '.join(overview.left_out)}")
    counts = Counter(f"{table.task} {table.preset}" for table in tables_shown)
    repeated = [f"{name} is counted {count} times" for name, count in counts.items() if count > 1]
    if repeated:
        notes.append(f"total: {', '.join(repeated)}, once for each of its tables")
    notes += code_note(tables_shown)
    notes += [
        f"{name}: {table.title}"
        for name, table in zip(table_names(tables), tables, strict=True)
        if "#" in name or table.modified or table.data_name == OTHER_DATA
    ]
    if not all(table.higher_is_better for table in tables_shown):
        notes.append("↓ a loss: lower is better")
    return f"Overview: difference from {overview.baseline}", headings, rows, notes


def _heading(column: OverviewColumn, table: Table) -> str:
    return column.name if table.higher_is_better else f"{column.name} ↓"


def _total(cells: Sequence[OverviewCell | None]) -> str:
    counts = Counter(cell.verdict for cell in cells if cell)
    return " ".join(f"{counts[verdict]}{mark}" for verdict, mark in MARKS.items() if mark and counts[verdict])


def _time_range(times: Mapping[str, float], by_name: Mapping[str, Table]) -> str:
    if not times:
        return ""
    ends = " to ".join(dict.fromkeys(f"{time:.2f}" for time in (min(times.values()), max(times.values()))))
    count = len({(by_name[name].package, by_name[name].task, by_name[name].preset) for name in times})
    return f"{ends} ({count} task{'' if count == 1 else 's'})"


def _cell(cell: OverviewCell | None, unit: Unit) -> str:
    if cell is None:
        return ""
    if cell.difference is None:
        return cell.verdict
    diverged = f" ({cell.diverged} diverged)" if cell.diverged else ""
    return f"{MARKS[cell.verdict]} {number(cell.difference, unit, '+')}{diverged}".strip()

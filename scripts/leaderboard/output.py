"""Prints the tables of a folder of results in every format."""

import csv
import dataclasses
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seqarena.common.attention import ALIASES
from seqarena.common.errors import WrongUseError, look_up
from seqarena.common.tables import render
from seqarena.scripts.leaderboard import BASELINE
from seqarena.scripts.leaderboard import side_by_side as joined_tables
from seqarena.scripts.leaderboard.cells import cells, footnotes, headings
from seqarena.scripts.leaderboard.columns import blocks, fitting, named, only
from seqarena.scripts.leaderboard.overview import FEWEST_TABLES, Overview, overview_of, overview_text
from seqarena.scripts.leaderboard.paired import Comparison
from seqarena.scripts.leaderboard.records import measurements
from seqarena.scripts.leaderboard.rows import Row
from seqarena.scripts.leaderboard.table import Table, tables
from seqarena.scripts.leaderboard.verdict import LEGEND, verdict_of

FORMULA = tuple("=+-@")
"""First characters of a spreadsheet formula."""


def load_tables(runs: Path, baseline: str) -> list[Table]:
    """Returns the tables of a folder, each variant compared with ``baseline``.

    Skipped files and duplicates are printed to standard error.

    Raises:
        WrongUseError: no folder, or no results of the baseline.
    """
    found = measurements(runs)
    for problem in found.problems:
        print(f"skipped {problem}", file=sys.stderr)
    baseline = ALIASES.get(baseline, baseline)
    if baseline != BASELINE:
        everything = (*found.results.values(), *(result for _, result in found.noted))
        look_up({result.attention: result for result in everything}, baseline, "attention among these results")
    for message in found.duplicates:
        print(message, file=sys.stderr)
    made = tables(list(found.results.values()), found.missing, baseline, found.prices, found.tuned)
    if not made:
        raise WrongUseError(
            f"no table below {runs}: all results there belong to earlier choices of a sweep with --tune; repeat the "
            "sweep to measure the present choices"
        )
    return made


def print_tables(
    runs: Path,
    baseline: str,
    form: str,
    wanted: Sequence[str] | None = None,
    *,
    side_by_side: bool = False,
    only_overview: bool = False,
) -> None:
    """Prints ``load_tables`` in a format, one of ``FORMATS``; ``wanted``: columns, None for all that fit.

    Raises:
        WrongUseError: an unknown column; or only an overview, but too few tasks have a comparison.
    """
    made = load_tables(runs, baseline)
    overview = overview_of(made)
    if only_overview and overview is None:
        raise WrongUseError(
            f"--overview: expected comparisons with {baseline} in at least {FEWEST_TABLES} tasks; omit it to print the "
            "tables"
        )
    if form == "json":
        joined = None if overview is None else dataclasses.asdict(overview)
        plain = [dataclasses.asdict(dataclasses.replace(each, code={})) for each in made]  # results have the hashes
        print(json.dumps({"overview": joined, "tables": plain}, allow_nan=False))
        return
    if form == "csv":
        print(comma_separated(made), end="")
        return
    if side_by_side:
        for each in joined_tables.join(made):
            print(_in_blocks(*each, form))
        return
    shown = [] if overview is None else [_overview(overview, made, form)]
    if not only_overview:
        shown += [_one(table, wanted, form, with_legend=overview is None) for table in made]
    print("\n".join(shown))


def _overview(overview: Overview, made: Sequence[Table], form: str) -> str:
    return _in_blocks(*overview_text(overview, made), form)


def _in_blocks(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str], form: str
) -> str:
    """Returns a table; one that is wider than the terminal as several with the same variants, below one another."""
    if form != "terminal":
        return render(title, columns, rows, notes, form)
    parts = blocks(columns, rows, fixed=1)
    last = len(parts) - 1
    return "".join(
        render(
            title if at == 0 else f"{title} (continued)", own_columns, [row for row in own_rows if any(row[1:])],
            notes if at == last else (), form,
        )
        for at, (own_columns, own_rows) in enumerate(parts)
    )  # fmt: skip


def _one(table: Table, wanted: Sequence[str] | None, form: str, *, with_legend: bool) -> str:
    columns, rows, notes = headings(table), [cells(row, table) for row in table.rows], footnotes(table)
    if with_legend and any(row.comparison for row in table.rows):
        notes = [LEGEND, *notes]
    if wanted is not None:
        columns, rows = only(columns, rows, named(columns, wanted))
    elif form == "terminal":
        (columns, rows), dropped = fitting(columns, rows)
        if dropped:
            notes = [*notes, f"columns that do not fit this terminal: {', '.join(dropped)} (see --columns)"]
    return render(table.title, columns, rows, notes, form)


def _no_formula(value: Any) -> Any:
    """Returns a cell that no spreadsheet evaluates as a formula; numbers are unchanged."""
    is_formula = isinstance(value, str) and value.lstrip()[:1] in FORMULA
    return f"'{value}" if is_formula else value


def plain_rows(made: Sequence[Table]) -> list[dict[str, Any]]:
    """Returns the rows of all tables as numbers and words; scores are fractions, not per cent."""
    nested = ("comparison", "parts", "price", "detectable")
    plain = [each.name for each in dataclasses.fields(Row) if each.name not in nested]
    compared = [each.name for each in dataclasses.fields(Comparison) if each.name != "seeds"]
    return [
        {
            "table": table.title,
            **{name: getattr(row, name) for name in plain},
            **{name: getattr(row.comparison, name, None) for name in compared},
            "verdict": verdict_of(row, higher_is_better=table.higher_is_better),
            "detectable_difference": next(iter(row.detectable.values()), None),
            "time_ratio": row.price.time if row.price else None,
            "memory_ratio": row.price.memory if row.price else None,
        }
        for table in made
        for row in table.rows
    ]


def comma_separated(made: Sequence[Table]) -> str:
    """Returns all tables as CSV, one line per row; scores are fractions, not per cent."""
    file = io.StringIO()
    rows = plain_rows(made)
    writer = csv.writer(file, lineterminator="\n")
    if rows:
        writer.writerow(rows[0])
    for row in rows:
        words = [" ".join(map(str, value)) if isinstance(value, list) else value for value in row.values()]
        writer.writerow(map(_no_formula, words))
    return file.getvalue()

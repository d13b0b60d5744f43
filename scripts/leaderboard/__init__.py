"""Results grouped by protocol and variant: mean, spread, seeds, paired tests, floors, published figures."""

import csv
import dataclasses
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seqarena.common.attention import ALIASES
from seqarena.common.errors import look_up
from seqarena.common.runs.cli import Parser
from seqarena.common.runs.metrics import Comparison
from seqarena.scripts.leaderboard import side_by_side
from seqarena.scripts.leaderboard.cells import cells, footnotes, headings
from seqarena.scripts.leaderboard.records import measurements
from seqarena.scripts.leaderboard.rows import Row
from seqarena.scripts.leaderboard.table import Table, tables
from seqarena.scripts.tables import RENDERERS, render

FORMULA = tuple("=+-@")
"""First characters of a spreadsheet formula."""
FORMATS = (*RENDERERS, "csv", "json")
"""csv and json print plain numbers, the others formatted text."""


def parser() -> Parser:
    """Returns the parser of ``seqarena leaderboard``."""
    made = Parser(prog="seqarena leaderboard", description=__doc__)
    made.add_argument("--runs", type=Path, default=Path("runs"), help="folder of results (default: runs)")
    made.add_argument("--baseline", default="softmax", help="attention to compare the others with (default: softmax)")
    made.add_argument("--format", default="terminal", choices=[*FORMATS], help="output format (default: terminal)")
    made.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    made.add_argument("--side-by-side", action="store_true", help="one table per package, with a column per task")
    return made


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena leaderboard`` and returns its exit code."""
    options = parser().parse_args(arguments)
    found = measurements(options.runs)
    for problem in found.problems:
        print(f"skipped {problem}", file=sys.stderr)
    baseline = ALIASES.get(options.baseline, options.baseline)
    if baseline != parser().get_default("baseline"):
        look_up(
            {result.attention: result for result in found.results.values()}, baseline, "attention among these results"
        )
    for message in found.duplicates:
        print(message, file=sys.stderr)
    made = tables(list(found.results.values()), found.missing, baseline)
    if options.json or options.format == "json":
        print(json.dumps({"tables": [dataclasses.asdict(table) for table in made]}, allow_nan=False))
        return 0
    if options.format == "csv":
        print(comma_separated(made), end="")
        return 0
    if options.side_by_side:
        for title, columns, rows, notes in side_by_side.join(made):
            print(render(title, columns, rows, notes, options.format))
        return 0
    for table in made:
        rows = [cells(row, table) for row in table.rows]
        print(render(table.title, headings(table), rows, footnotes(table), options.format))
    return 0


def _no_formula(value: Any) -> Any:
    """Returns a cell that no spreadsheet evaluates as a formula; numbers are unchanged."""
    is_formula = isinstance(value, str) and value.lstrip()[:1] in FORMULA
    return f"'{value}" if is_formula else value


def comma_separated(made: Sequence[Table]) -> str:
    """Returns all tables as CSV, one line per row; scores are fractions, not per cent."""
    file = io.StringIO()
    plain = [each.name for each in dataclasses.fields(Row) if each.name not in ("comparison", "parts")]
    compared = [each.name for each in dataclasses.fields(Comparison) if each.name != "seeds"]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["table", *plain, *compared])
    for table in made:
        for row in table.rows:
            values = [getattr(row, name) for name in plain]
            words = [" ".join(map(str, value)) if isinstance(value, list) else value for value in values]
            words = [_no_formula(value) for value in (table.title, *words)]
            writer.writerow([*words, *(getattr(row.comparison, name, None) for name in compared)])
    return file.getvalue()

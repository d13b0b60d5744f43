"""Results grouped by protocol and variant: mean, spread, seeds, paired tests, floors, published figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seqarena.common.errors import WrongUseError
from seqarena.common.parser import Parser
from seqarena.common.tables import RENDERERS

PLAIN = ("csv", "json")
FORMATS = (*RENDERERS, *PLAIN)
"""The formats of ``PLAIN`` have plain numbers, the others formatted text."""
BASELINE = "softmax"


def parser() -> Parser:
    """Returns the parser of ``seqarena leaderboard``."""
    made = Parser(prog="seqarena leaderboard", description=__doc__)
    made.add_argument("--runs", type=Path, default=Path("runs"), help="folder of results (default: runs)")
    made.add_argument(
        "--baseline", default=BASELINE, help=f"attention to compare the others with (default: {BASELINE})"
    )
    made.add_argument("--format", default="terminal", choices=[*FORMATS], help="output format (default: terminal)")
    made.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    made.add_argument(
        "--columns",
        nargs="+",
        metavar="COLUMN",
        help="columns of each table (default: those that fit the terminal), such as mean vs p sd seeds",
    )
    made.add_argument("--overview", action="store_true", help="only the overview: variants and tasks, with verdicts")
    made.add_argument("--side-by-side", action="store_true", help="one table per package, with a column per task")
    return made


def _check(options: Any) -> None:
    """Raises a ``WrongUseError`` for options that would have no effect together."""
    layout = [
        f"--{name}" for name in ("columns", "overview", "side-by-side") if getattr(options, name.replace("-", "_"))
    ]
    form = "json" if options.json else options.format
    if options.json and options.format not in ("terminal", "json"):
        raise WrongUseError(f"--json prints JSON, --format {options.format} does not; omit one of them")
    if form in PLAIN and layout:
        raise WrongUseError(
            f"{', '.join(layout)}: {form} always has all tables and columns; omit {' and '.join(layout)}"
        )
    if len(layout) > 1:
        raise WrongUseError(f"{' and '.join(layout)} cannot be combined; choose one")


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena leaderboard`` and returns its exit code."""
    options = parser().parse_args(arguments)
    _check(options)
    from seqarena.scripts.leaderboard.output import print_tables  # noqa: PLC0415  # slow; --help does not need it

    print_tables(
        options.runs,
        options.baseline,
        "json" if options.json else options.format,
        options.columns,
        side_by_side=options.side_by_side,
        only_overview=options.overview,
    )
    return 0

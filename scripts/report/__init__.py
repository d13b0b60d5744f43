"""Writes the results below a folder of runs as one page that opens from disk."""

from collections.abc import Sequence
from pathlib import Path

from seqarena.common.parser import Parser
from seqarena.scripts.leaderboard import BASELINE


def parser() -> Parser:
    """Returns the parser of ``seqarena report``."""
    made = Parser(prog="seqarena report", description=__doc__)
    made.add_argument("--runs", type=Path, default=Path("runs"), help="folder of results (default: runs)")
    made.add_argument("--out", type=Path, help="file of the page (default: report.html in the folder of results)")
    made.add_argument(
        "--benchmarks",
        type=Path,
        default=Path("benchmarks"),
        help="folder of results of `seqarena benchmark attention` (default: benchmarks)",
    )
    made.add_argument(
        "--baseline", default=BASELINE, help=f"attention to compare the others with (default: {BASELINE})"
    )
    return made


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena report`` and returns its exit code."""
    options = parser().parse_args(arguments)
    from seqarena.scripts.report.create import create_report  # noqa: PLC0415  # slow; --help does not need it

    path = options.out or options.runs / "report.html"
    create_report(options.runs, path, options.benchmarks, options.baseline)
    print(path)
    return 0

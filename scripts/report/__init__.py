"""``seqarena report``: writes the results below a folder of runs as one page that opens from disk."""

import datetime
import sys
from collections.abc import Sequence
from pathlib import Path

from seqarena.common.attention import ALIASES
from seqarena.common.errors import look_up
from seqarena.common.runs.cli import Parser
from seqarena.common.training.runtime import code_version
from seqarena.scripts.report.data import gather
from seqarena.scripts.report.page import build, write
from seqarena.scripts.report.speed import speed


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
    made.add_argument("--baseline", default="softmax", help="attention to compare the others with (default: softmax)")
    return made


def make(runs: Path, out: Path, benchmarks: Path, baseline: str) -> None:
    """Writes the page of a folder of runs, and prints skipped files to standard error.

    Raises:
        WrongUseError: no results in the folder, or none of the baseline.
    """
    baseline = ALIASES.get(baseline, baseline)
    gathered = gather(runs, baseline)
    if baseline != parser().get_default("baseline"):
        look_up(
            {run.result.attention: run for run in gathered.runs if run.result},
            baseline,
            "attention among these results",
        )
    measured = speed(benchmarks, gathered.problems)
    moment = datetime.datetime.now(datetime.UTC).isoformat(sep=" ", timespec="minutes")
    code = code_version()
    commit = "" if code["commit"] is None else f"{code['commit'][:10]}{'' if code['clean'] else ', modified'}"
    write(out, build(gathered, measured, {"moment": moment.replace("+00:00", " UTC"), "commit": commit}))
    for line in (*(f"skipped {each}" for each in gathered.problems), *gathered.remarks):
        print(line, file=sys.stderr)


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena report`` and returns its exit code."""
    options = parser().parse_args(arguments)
    path = options.out or options.runs / "report.html"
    make(options.runs, path, options.benchmarks, options.baseline)
    print(path)
    return 0

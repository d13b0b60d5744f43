"""A first sweep: trains four variants on short ListOps, prints the leaderboard with floors, writes the report page."""

import sys
from collections.abc import Sequence
from pathlib import Path

from seqarena.common.errors import interrupt_advice
from seqarena.common.parser import Parser
from seqarena.common.runs.cli import add_session_options
from seqarena.scripts import leaderboard, sweep
from seqarena.scripts.report.create import create_report

VARIANTS = ("softmax", "dnas", "hnas", "x3")


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena quickstart`` and returns its exit code; finished runs are not repeated."""
    parser = Parser(prog="seqarena quickstart", description=__doc__)
    add_session_options(parser)
    options = parser.parse_args(arguments)
    folders = ["--runs", str(options.runs), "--data-folder", str(options.data_folder)]
    flags = [f"--{name.replace('_', '-')}" for name in ("overwrite", "overwrite_outdated") if getattr(options, name)]
    flags += ["--tracker", *options.tracker] if options.tracker else []
    fields = ["--train.diagnostics"]  # shown on the report page
    planned, session, _ = sweep.plan(["lra", "listops", "--attention", *VARIANTS, *folders, *flags, *fields])
    sweep.save_plan(planned, session)
    sweep.print_plan(planned)
    with interrupt_advice(lambda: sweep.advice(session)):
        results = sweep.run_all(planned)
    leaderboard.run(["--runs", str(options.runs), *(["--json"] if options.json else [])])
    path = options.runs / "report.html"
    create_report(options.runs, path, Path("benchmarks"), "softmax")
    print(f"the same tables with plots, as a page for a browser: {path}", file=sys.stderr)
    return 0 if all(result is not None and result.status == "finished" for result in results) else 1

"""Writes the page of a folder of runs."""

import datetime
import sys
from pathlib import Path

from seqarena.common.attention import ALIASES
from seqarena.common.errors import look_up
from seqarena.common.training.runtime import code_version
from seqarena.scripts.leaderboard import BASELINE
from seqarena.scripts.report.data import gather
from seqarena.scripts.report.page import build, write
from seqarena.scripts.report.speed import speed


def create_report(runs: Path, out: Path, benchmarks: Path, baseline: str) -> None:
    """Writes the page of a folder of runs, and prints skipped files to standard error.

    Raises:
        WrongUseError: no results in the folder, or none of the baseline.
    """
    baseline = ALIASES.get(baseline, baseline)
    gathered = gather(runs, baseline)
    if baseline != BASELINE:
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

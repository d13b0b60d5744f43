"""Runs a sweep with ``--tune``: all trials, the choice of each variant, then the tests of the chosen runs."""

import dataclasses
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from seqarena.common.runs.config import fingerprint, to_json
from seqarena.common.runs.results import Result
from seqarena.common.runs.roles import CONFIG_VERSION
from seqarena.common.runs.run import RowParts, row_name, row_of
from seqarena.scripts.leaderboard.protocol import settings_json
from seqarena.scripts.sweep.planned_run import PlannedRun
from seqarena.scripts.sweep.tuning import FORMAT, Choice, Grid, Tuning, Values, choose, in_one_spelling

Measure = Callable[[Sequence[PlannedRun]], Sequence[Result | None]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TunedRun:
    """One planned run of a sweep with ``--tune``, and its point of the grid."""

    point: Values
    planned: PlannedRun
    is_trial: bool
    """Whether it is trained for the choice of the point."""
    is_tested: bool
    """Whether it is tested if its point is chosen."""


def run_tuned(
    planned: Sequence[TunedRun], grid: Grid, measure: Measure, runs: Path, command: str
) -> list[Result | None]:
    """Measures the trials, writes the choices below ``runs``, and returns the results of the chosen runs.

    A None among them is a run that failed. If a trial fails, nothing is chosen, and the list is [None].
    """
    trials = [each for each in planned if each.is_trial]
    results = measure([each.planned for each in trials])
    if any(result is None for result in results):
        failed = sum(result is None for result in results)
        print(
            f"{failed} of {len(trials)} trials failed; nothing was chosen. The same command resumes the sweep",
            file=sys.stderr,
        )
        return [None]
    arms: dict[str, dict[RowParts, list[tuple[TunedRun, Result]]]] = defaultdict(lambda: defaultdict(list))
    for trial, result in zip(trials, results, strict=True):
        assert result is not None
        arms[trial.planned.run.task][_row(trial)].append((trial, result))
    chosen: list[PlannedRun] = []
    for task, rows in arms.items():
        choices = []
        for row, tried in rows.items():
            tested = [
                each for each in planned if each.is_tested and each.planned.run.task == task and _row(each) == row
            ]
            choice, some = _choice(row, tried, tested, grid)
            print(f"{task} {row_name(row)}: {_in_words(choice, grid)}", file=sys.stderr)
            choices.append(choice)
            chosen += some
        package = next(iter(rows.values()))[0][0].planned.package
        seeds = sorted({each.planned.run.seed for each in trials})
        if seeds == sorted({each.planned.run.seed for each in planned if each.is_tested}):
            seeds = []
        Tuning(
            format=FORMAT, package=package.name, task=task, metric=package.tasks[task].metric,
            fields={path: list(values) for path, values in grid.fields.items()}, choices=choices,
            settings=_settings(*next(iter(rows.values()))[0], grid, seeds), command=command, seeds=seeds,
        ).write(runs)  # fmt: skip
    return list(measure(chosen))


def _settings(trial: TunedRun, result: Result, grid: Grid, seeds: Sequence[int]) -> str:
    """Returns a hash of a trial's settings; also of its data, if they are not the preset's."""
    run, package = trial.planned.run, trial.planned.package
    name, known = json.loads(settings_json(package.name, run.task, to_json(run), CONFIG_VERSION))
    grids = {path: in_one_spelling(values) for path, values in grid.fields.items()}
    is_presets = package.task(run).checksums.get(run.preset) == result.data_checksum
    data = [] if is_presets else [result.data_checksum]
    return fingerprint([name, known | grids, *([list(seeds)] if seeds else []), *data])


def _row(run: TunedRun) -> RowParts:
    return row_of(run.planned.run, run.planned.package.preset(run.planned.run))


def _choice(
    row: RowParts, tried: Sequence[tuple[TunedRun, Result]], tested: Sequence[TunedRun], grid: Grid
) -> tuple[Choice, list[PlannedRun]]:
    """Returns the choice of a row, and the runs to test."""
    by_point: dict[Values, list[Result]] = defaultdict(list)
    for trial, result in tried:
        by_point[trial.point].append(result)
    task = tried[0][0].planned.package.task(tried[0][0].planned.run)
    point, scores = choose(grid, by_point, higher_is_better=task.higher_is_better)
    runs = [each for each in tested if each.point == point]
    folders = [str(each.planned.folder.relative_to(each.planned.session.runs)) for each in runs]
    choice = Choice(row=row, point=list(point), edge=grid.at_edge(point), scores=scores, folders=folders,
        chosen_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
    )  # fmt: skip
    return choice, [_to_test(each) for each in runs]


def _to_test(run: TunedRun) -> PlannedRun:
    """Returns the run with its test; if it goes on from a trial, it must not delete what the trial trained."""
    session = run.planned.session
    overwrite = session.overwrite and not run.is_trial
    return dataclasses.replace(
        run.planned, session=dataclasses.replace(session, validate_only=False, overwrite=overwrite)
    )


def _in_words(choice: Choice, grid: Grid) -> str:
    edge = f"; at the edge of the grid: {', '.join(choice.edge)}" if choice.edge else ""
    diverged = "; every value diverged with some seed" if not any(some for _, some in choice.scores) else ""
    return f"chosen {grid.in_words(choice.point)}{edge}{diverged}"

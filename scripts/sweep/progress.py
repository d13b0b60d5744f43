"""Progress of a sweep: one table on a terminal, otherwise one line per change."""

import datetime
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from seqarena.common.runs.results import Result
from seqarena.scripts.sweep.planned_run import PlannedRun

MOST_SHOWN = 24
"""Maximum rows of the table; longer sweeps show running, failed, and the most recently ended runs."""
LONGEST_RECORD = 2**16
"""Bytes read of the end of a record of steps. With diagnostics of 60 layers, a line has about 8,000."""
WAITING, RUNNING, FINISHED, DIVERGED, FAILED = "waiting", "running", "finished", "diverged", "failed"


def outcome(result: Result) -> str:
    """Returns the score of a result, or why it has none, in a few words."""
    if result.status == "diverged":
        return result.message
    kind, score = ("validation", result.validation[result.metric]) if result.score is None else ("test", result.score)
    return f"{kind} {result.metric} {score:.4f}"


class Board:
    """State of every run of a sweep, shown on standard error."""

    def __init__(self, planned: Sequence[PlannedRun]) -> None:
        self.planned = planned
        self.states = [WAITING] * len(planned)
        self.news = [""] * len(planned)
        self.changed = [0.0] * len(planned)
        self.first: dict[int, tuple[float | None, int]] = {}
        """Time and step at which each run was first seen to progress, from which its remaining time is estimated. None
        before: the step can be that of an interrupted run, whose record is cut when it is resumed."""
        self.console = Console(file=sys.stderr)
        self.live = Live(get_renderable=self._table, console=self.console, refresh_per_second=2)

    def __enter__(self) -> "Board":
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.console.is_terminal:
            self.live.stop()

    def set_state(self, number: int, state: str, news: str = "") -> None:
        """Sets the state of a run, and prints it if there is no terminal."""
        if (self.states[number], self.news[number]) == (state, news):
            return
        self.states[number], self.news[number], self.changed[number] = state, news, time.monotonic()
        if not self.console.is_terminal:
            index = f"[{number + 1}/{len(self.planned)}]"
            line = f"{index} {self.planned[number].title}: {state}{f', {news}' if news else ''}"
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def set_result(self, number: int, result: Result, news: str = "") -> None:
        """Sets the state of a run that has a result."""
        self.set_state(number, DIVERGED if result.status == "diverged" else FINISHED, f"{outcome(result)}{news}")

    def _table(self) -> Table:
        counts = {state: self.states.count(state) for state in dict.fromkeys(self.states)}
        title = ", ".join(f"{count} {state}" for state, count in counts.items())
        table = Table(
            "run", "state", "step", "left", "", title=f"{len(self.planned)} runs: {title}", title_justify="left"
        )
        for number in self._shown_rows():
            each = self.planned[number]
            step, news = latest(each.folder) if self.states[number] == RUNNING else (None, "")
            shown = "" if step is None else f"{step:,} / {each.run.train.steps:,}"
            left = "" if step is None else self._time_left(number, step)
            table.add_row(escape(each.title), self.states[number], shown, left, escape(self.news[number] or news))
        return table

    def _time_left(self, number: int, step: int) -> str:
        now = time.monotonic()
        since, first = self.first.setdefault(number, (None, step))
        if step < first or (since is None and step > first):
            since, first = self.first[number] = now, step
        if since is None or step == first:
            return ""
        seconds = (now - since) / (step - first) * (self.planned[number].run.train.steps - step)
        return str(datetime.timedelta(seconds=round(seconds)))

    def _shown_rows(self) -> list[int]:
        ranks = {RUNNING: 0, FAILED: 1, DIVERGED: 1}
        order = sorted(range(len(self.planned)), key=lambda at: (ranks.get(self.states[at], 2), -self.changed[at], at))
        return sorted(order[:MOST_SHOWN])


def latest(folder: Path) -> tuple[int | None, str]:
    """Returns the last recorded step of a run and one of its values; (None, "") if nothing is recorded."""
    try:
        with (folder / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - LONGEST_RECORD))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return None, ""
    for line in reversed(lines):
        try:
            record = json.loads(line)
            values = record.get("validation", record)
            name = next(name for name in values if name != "step")
            return int(
                record["step"]
            ), f"{'validation' if 'validation' in record else 'train'} {name} {values[name]:.4f}"
        except (ValueError, KeyError, TypeError, AttributeError, StopIteration, OverflowError):  # truncated line
            continue
    return None, ""

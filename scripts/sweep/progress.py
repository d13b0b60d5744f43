"""How far the runs of a sweep are: one table on a terminal, a line a change elsewhere."""

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
from seqarena.scripts.sweep.planned import PlannedRun

MOST_SHOWN = 24
"""Rows; of a longer sweep those that run, those that went wrong, and the last that ended."""
WAITING, RUNNING, FINISHED, DIVERGED, FAILED = "waiting", "running", "finished", "diverged", "failed"


class Board:
    """The state of every run of a sweep, on standard error."""

    def __init__(self, planned: Sequence[PlannedRun]) -> None:
        self.planned = planned
        self.states = [WAITING] * len(planned)
        self.news = [""] * len(planned)
        self.changed = [0.0] * len(planned)
        self.first: dict[int, tuple[float, int]] = {}
        """When a run was first seen to have taken a step, and which: by that its time left is told."""
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

    def tell(self, number: int, state: str, news: str = "") -> None:
        """Sets the state of a run, and says so where there is no table."""
        if (self.states[number], self.news[number]) == (state, news):
            return
        self.states[number], self.news[number], self.changed[number] = state, news, time.monotonic()
        if not self.console.is_terminal:
            place = f"[{number + 1}/{len(self.planned)}]"
            told = f"{place} {self.planned[number].title}: {state}{f', {news}' if news else ''}"
            self.console.print(told, highlight=False, markup=False, soft_wrap=True)

    def ended(self, number: int, result: Result, news: str = "") -> None:
        """Sets the state of a run that has a result."""
        score = result.message if result.score is None else f"{result.metric} {result.score:.4f}"
        self.tell(number, DIVERGED if result.score is None else FINISHED, f"{score}{news}")

    def _table(self) -> Table:
        counts = {state: self.states.count(state) for state in dict.fromkeys(self.states)}
        title = ", ".join(f"{count} {state}" for state, count in counts.items())
        table = Table(
            "run", "state", "step", "left", "", title=f"{len(self.planned)} runs: {title}", title_justify="left"
        )
        for number in self._shown():
            each = self.planned[number]
            step, news = latest(each.folder) if self.states[number] == RUNNING else (None, "")
            shown = "" if step is None else f"{step:,} / {each.run.train.steps:,}"
            left = "" if step is None else self._left(number, step)
            table.add_row(escape(each.title), self.states[number], shown, left, escape(self.news[number] or news))
        return table

    def _left(self, number: int, step: int) -> str:
        now = time.monotonic()
        since, first = self.first.setdefault(number, (now, step))
        if step <= first:
            return ""
        seconds = (now - since) / (step - first) * (self.planned[number].run.train.steps - step)
        return str(datetime.timedelta(seconds=round(seconds)))

    def _shown(self) -> list[int]:
        ranks = {RUNNING: 0, FAILED: 1, DIVERGED: 1}
        order = sorted(range(len(self.planned)), key=lambda at: (ranks.get(self.states[at], 2), -self.changed[at], at))
        return sorted(order[:MOST_SHOWN])


def latest(folder: Path) -> tuple[int | None, str]:
    """Returns the last step that a run has recorded and what it was like; none where it has recorded nothing."""
    try:
        with (folder / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 4096))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return None, ""
    for line in reversed(lines):
        try:
            record = json.loads(line)
            values = record.get("validation", record)
            name = next(name for name in values if name != "step")
            return int(record["step"]), f"{'validation ' if 'validation' in record else ''}{name} {values[name]:.4f}"
        except (ValueError, KeyError, TypeError, AttributeError, StopIteration, OverflowError):  # cut at either end
            continue
    return None, ""

"""Log of a run: a progress bar, ``metrics.jsonl``, and the Accelerate trackers that were requested."""

import functools
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn, track
from rich.table import Column

from seqarena.common.files import write_atomically, writing
from seqarena.common.seal import SEAL, seal
from seqarena.common.training.processes import Accelerator

Item = TypeVar("Item")
NARROW = 110
"""Width of a terminal below which the progress has no bar and no speed, so that steps and scores stay readable."""
PROGRESS_SECONDS = 30.0
"""Seconds between progress lines if there is no terminal."""


@functools.cache
def standard_error() -> Console:
    """Returns the console of standard error. Bars can be shown below one another only on the same console."""
    return Console(stderr=True)


def with_progress(
    items: Iterable[Item], what: str, total: int | None, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[Item]:
    """Yields the items, ``total`` of them if known, and prints the progress to standard error.

    On a terminal this is a bar that disappears at the end, elsewhere a line every ``PROGRESS_SECONDS`` seconds.
    """
    if standard_error().is_terminal:
        yield from track(items, what, total=total, console=standard_error(), transient=True)
        return
    printed_at = clock()
    for number, item in enumerate(items, start=1):
        yield item
        if clock() - printed_at >= PROGRESS_SECONDS:
            printed_at = clock()
            of = "" if total is None else f" of {total:,}"
            print(f"{time.strftime('%H:%M:%S')}  {what}: {number:,}{of}", file=sys.stderr)


class Log:
    """Log of one run. Progress is printed to standard error. Only the main process writes.

    Without a terminal, one line per evaluation replaces the bar.
    """

    def __init__(self, accelerator: Accelerator, out: Path, *, title: str, steps: int, trackers: bool = False) -> None:
        self.accelerator, self.path, self.title, self.steps = accelerator, out / "metrics.jsonl", title, steps
        self.trackers = trackers
        self.console = standard_error() if accelerator.is_main_process else Console(stderr=True, quiet=True)
        self.is_narrow = self.console.width < NARROW
        self.progress = Progress(
            TextColumn("{task.description}"),
            *([] if self.is_narrow else [BarColumn()]),
            MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=2 * len(str(steps)) + 1)),
            TimeRemainingColumn(table_column=Column(no_wrap=True, min_width=len("0:00:00"))),
            TextColumn("{task.fields[news]}"),
            console=self.console,
            disable=not self.console.is_terminal,
            speed_estimate_period=math.inf,  # evaluations are rare, and slow steps far apart
        )
        self.bar = self.progress.add_task(title, total=steps, news="")
        self.news: dict[str, str] = {}

    def __enter__(self) -> "Log":
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def resume(self, step: int) -> None:
        """Continues after ``step``. Records of later steps are deleted, since these steps are repeated."""
        self.progress.update(self.bar, completed=step)
        if step:
            self.message(f"{self.title}: resuming after step {step:,} of {self.steps:,}")
        if self.accelerator.is_main_process and self.path.exists():
            lines = self.path.read_text(errors="replace").split("\n")
            lines = [line for line in lines if _step(line) <= step]
            write_atomically(self.path, lambda file: file.write("".join(f"{line}\n" for line in lines).encode()))

    def message(self, text: str) -> None:
        """Prints a line to standard error, above the bar if there is one."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def train(self, step: int, values: Mapping[str, float]) -> None:
        """Records training metrics after ``step``."""
        self._write(step, {"step": step, **values})
        speed = {} if self.console.is_terminal and self.is_narrow else {
            "speed": f"{values['tokens_per_second']:,.0f} tokens/s"
        }  # fmt: skip
        self.news |= {"loss": f"train loss {values['loss']:.3f}", **speed}
        self._show(step)

    def evaluation(
        self,
        step: int,
        metrics: Mapping[str, float],
        bounded: Mapping[str, list[float]],
        diagnostics: Mapping[str, list[float | None]],
    ) -> None:
        """Records validation metrics, bounded parameters (u of hnas, learned tau) and diagnostics."""
        further = {"bounded": bounded, "diagnostics": diagnostics}
        self._write(
            step,
            {"step": step, "validation": dict(metrics)} | {name: values for name, values in further.items() if values},
        )
        name, value = next(iter(metrics.items()))
        self.news |= {"validation": f"validation {name} {value:.4f}"}
        self._show(step)
        if not self.console.is_terminal:
            self.message(f"{time.strftime('%H:%M:%S')}  {self.title}  step {step:,}/{self.steps:,}  {self._news()}")

    def _show(self, step: int) -> None:
        self.progress.update(self.bar, completed=step, news=self._news())

    def _news(self) -> str:
        return "  ".join(self.news.values())

    def _write(self, step: int, values: dict[str, Any]) -> None:
        if self.accelerator.is_main_process:
            with writing(self.path), self.path.open("a") as file:
                file.write(json.dumps(values | {SEAL: seal(values)}) + "\n")
        if self.trackers:
            self.accelerator.log(_flat(values), step=step)


def _step(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, RecursionError):  # a line truncated by a kill, or not JSON
        return float("inf")


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}/")
        elif isinstance(value, list):
            found |= {f"{prefix}{name}/{index}": item for index, item in enumerate(value)}
        elif name != "step":
            found[f"{prefix}{name}"] = value
    return found

"""A leaderboard's table in words: headings, cells, and what is said below it."""

import itertools
import re
from collections.abc import Sequence

from seqarena.common.runs.metrics import FEWEST_SEEDS, Comparison
from seqarena.common.runs.tasks import Published, Unit
from seqarena.scripts.leaderboard.rows import Row, number, told
from seqarena.scripts.leaderboard.table import Table


def _difference(comparison: Comparison | None, unit: Unit) -> str:
    if comparison is None:
        return ""
    shown = number(comparison.difference, unit, "+")
    if comparison.seeds < FEWEST_SEEDS:
        return f"{shown} *"
    if comparison.low is None or comparison.high is None:
        return f"{shown} (no spread)"
    return f"{shown} [{number(comparison.low, unit, '+')}, {number(comparison.high, unit, '+')}]"


def _metrics(table: Table) -> list[str]:
    return list(dict.fromkeys(metric for row in table.rows for metric in row.secondary))


def headings(table: Table) -> list[str]:
    """Returns the headings of a table's columns."""
    beside = (metric.replace("_", " ") for metric in _metrics(table))
    return ["variant", "mean", "sd", *beside, "seeds", f"vs {table.baseline} [95 %]", "p (Holm)", "parameters",
            "tokens/s", "memory"]  # fmt: skip


def cells(row: Row, table: Table) -> list[str]:
    """Returns a row as words, a cell a heading."""
    unit = table.unit
    seeds = str(len(row.seeds))
    lacking = [f"{len(some)} {what}" for some, what in ((row.diverged, "diverged"), (row.missing, "missing")) if some]
    if lacking:
        seeds += f" of {len(row.seeds) + len(row.diverged) + len(row.missing)} ({', '.join(lacking)})"
    return [
        row.name + (f" ({', '.join(row.notes)})" if row.notes else ""),
        "" if row.mean is None else told(row.mean, unit),
        "" if row.deviation is None else number(row.deviation, unit),
        *("" if metric not in row.secondary else told(row.secondary[metric][0], unit) for metric in _metrics(table)),
        seeds,
        _difference(row.comparison, unit),
        "" if row.p_corrected is None else "< 0.001" if row.p_corrected < 0.001 else f"{row.p_corrected:.3f}",
        "" if row.parameters is None else f"{row.parameters:,}",
        "" if row.tokens_per_second is None else f"{row.tokens_per_second:,.0f}",
        "" if row.peak_memory_bytes is None else f"{row.peak_memory_bytes / 2**20:,.0f} MiB",
    ]  # fmt: skip


def orders(row: Row, table: Table) -> list[float | int | str | None]:
    """Returns by what each column of a row is sorted; None goes last."""
    beside = (row.secondary.get(metric, (None, None))[0] for metric in _metrics(table))
    difference = None if row.comparison is None else row.comparison.difference
    return [row.name, row.mean, row.deviation, *beside, len(row.seeds), difference, row.p_corrected, row.parameters,
            row.tokens_per_second, row.peak_memory_bytes]  # fmt: skip


def published(table: Table, figures: Sequence[Published] | None = None) -> list[Published]:
    """Returns the published figures that a table shows: all where they are of its data, else its own variants'.

    ``figures`` are those of another metric; none: those of the main one.
    """
    rows = {name for row in table.rows for name in (row.name, re.split(r"[,\[]", row.name)[0])} | {table.baseline}
    return [
        figure
        for figure in (table.published if figures is None else figures)
        if table.comparable or figure.name in rows
    ]


def footnotes(table: Table) -> list[str]:
    """Returns what is said below a table."""
    notes = []
    if table.floors:
        notes.append(
            "floors: " + ", ".join(f"{name} {told(value, table.unit)}" for name, value in table.floors.items())
        )
    if table.chance is not None:
        notes.append(f"chance: {told(table.chance, table.unit)}")
    shown = published(table)
    for source, figures in itertools.groupby(shown, key=lambda figure: figure.source):
        listed = ", ".join(f"{figure.name} {told(figure.value, table.unit)}" for figure in figures)
        notes.append(f"published: {listed} ({source})")
    if shown and not table.comparable:
        notes.append("published figures: of other data or settings than these")
    if any(row.comparison and row.comparison.seeds < FEWEST_SEEDS for row in table.rows):
        notes.append(f"* fewer than {FEWEST_SEEDS} seeds in common: seed variance is unknown, so no interval and no p")
    if len(table.rows) > 1 and not any(row.comparison for row in table.rows):
        notes.append(f"no comparison: {table.baseline} has no finished seed in common with another row")
    if table.devices:
        notes.append(f"{table.metric} on the test set; device: {'; '.join(table.devices)}")
    if table.measured:
        notes.append(table.measured)
    return [*notes, *table.remarks]

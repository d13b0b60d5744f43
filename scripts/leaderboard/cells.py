"""Text of a leaderboard table: headings, cells and footnotes."""

import itertools
import re
from collections.abc import Sequence

from seqarena.common.runs.metrics import FEWEST_SEEDS, Comparison
from seqarena.common.runs.tasks import Published, Unit
from seqarena.scripts.leaderboard.rows import Row, count_seeds, number, with_unit
from seqarena.scripts.leaderboard.table import Table


def _difference(comparison: Comparison | None, unit: Unit) -> str:
    if comparison is None:
        return ""
    shown = number(comparison.difference, unit, "+")
    if comparison.seeds < FEWEST_SEEDS:
        return f"{shown} ({count_seeds(comparison.seeds)})"
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
    """Returns a row's cells as text, one per heading."""
    unit = table.unit
    seeds = str(len(row.seeds))
    counts = ((row.diverged, "diverged"), (row.missing, "missing"))
    incomplete = [f"{len(some)} {what}" for some, what in counts if some]
    if incomplete:
        seeds += f" of {len(row.seeds) + len(row.diverged) + len(row.missing)} ({', '.join(incomplete)})"
    return [
        row.name + (f" ({', '.join(row.notes)})" if row.notes else ""),
        "" if row.mean is None else with_unit(row.mean, unit),
        "" if row.deviation is None else number(row.deviation, unit),
        *("" if name not in row.secondary else with_unit(row.secondary[name][0], unit) for name in _metrics(table)),
        seeds,
        _difference(row.comparison, unit),
        "" if row.p_corrected is None else "< 0.001" if row.p_corrected < 0.001 else f"{row.p_corrected:.3f}",
        "" if row.parameters is None else f"{row.parameters:,}",
        "" if row.tokens_per_second is None else f"{row.tokens_per_second:,.0f}",
        "" if row.peak_memory_bytes is None else f"{row.peak_memory_bytes / 2**20:,.0f} MiB",
    ]  # fmt: skip


def orders(row: Row, table: Table) -> list[float | int | str | None]:
    """Returns the sort key of each of a row's cells; None sorts last."""
    beside = (row.secondary.get(metric, (None, None))[0] for metric in _metrics(table))
    difference = None if row.comparison is None else row.comparison.difference
    return [row.name, row.mean, row.deviation, *beside, len(row.seeds), difference, row.p_corrected, row.parameters,
            row.tokens_per_second, row.peak_memory_bytes]  # fmt: skip


def shown_figures(table: Table, figures: Sequence[Published] | None = None) -> list[Published]:
    """Returns the published figures to show: all if the data are comparable, else those of the table's own variants.

    ``figures``: those of another metric; None: those of the main metric.
    """
    rows = {name for row in table.rows for name in (row.name, re.split(r"[,\[]", row.name)[0])} | {table.baseline}
    return [
        figure
        for figure in (table.published if figures is None else figures)
        if table.comparable or figure.name in rows
    ]


def footnotes(table: Table) -> list[str]:
    """Returns the notes below a table."""
    notes = []
    for kind, scores in (("floors", table.floors), ("ceilings", table.ceilings)):
        if scores:
            listed = ", ".join(f"{name} {with_unit(value, table.unit)}" for name, value in scores.items())
            notes.append(f"{kind}: {listed}")
    if table.chance is not None:
        notes.append(f"chance: {with_unit(table.chance, table.unit)}")
    shown = shown_figures(table)
    for source, figures in itertools.groupby(shown, key=lambda figure: figure.source):
        listed = ", ".join(f"{figure.name} {with_unit(figure.value, table.unit)}" for figure in figures)
        notes.append(f"published: {listed} ({source})")
    if shown and not table.comparable:
        notes.append("published figures: measured on other data or with other settings")
    if any(row.comparison and row.comparison.seeds < FEWEST_SEEDS for row in table.rows):
        notes.append(
            f"differences over fewer than {FEWEST_SEEDS} seeds in common: the variance over seeds is unknown, so no "
            "interval and no p"
        )
    if table.devices:
        notes.append(f"{table.metric} on the test set; device: {'; '.join(table.devices)}")
    if table.measured:
        notes.append(table.measured)
    return [*notes, *table.remarks]

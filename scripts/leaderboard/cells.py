"""Text of a leaderboard table: headings, cells and footnotes."""

import itertools
from collections.abc import Sequence

from seqarena.common.runs.tasks import Published
from seqarena.scripts.leaderboard.paired import FEWEST_SEEDS, MORE_SEEDS, sds_shown
from seqarena.scripts.leaderboard.rows import Row, count_seeds, detectable_by_seeds, number, range_text, with_unit
from seqarena.scripts.leaderboard.table import Table
from seqarena.scripts.leaderboard.verdict import MARKS, p_text, verdict_of
from seqarena.scripts.price.record import ratio_text

DETECTABLE = "a true difference of this size would be shown about four times in five"


def _difference(row: Row, table: Table) -> str:
    comparison, unit = row.comparison, table.unit
    if comparison is None:
        return ""
    mark = MARKS[verdict_of(row, higher_is_better=table.higher_is_better)]
    shown = f"{mark} {number(comparison.difference, unit, '+')}".strip()
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
    prices = [f"time / {table.baseline}", f"memory / {table.baseline}"] if _has_prices(table) else []
    solved = [] if table.solved_from is None else ["solved"]
    compared = [f"vs {table.baseline} [95 %]", "p (Holm)"]
    return ["variant", "mean", "sd", *solved, *beside, "seeds", *compared, *prices, "parameters"]


def _has_prices(table: Table) -> bool:
    return any(row.price for row in table.rows)


def _price_cells(row: Row, table: Table) -> list[str]:
    if not _has_prices(table):
        return []
    price = row.price
    return ["", ""] if price is None else [ratio_text(price), f"{price.memory:.2f}"]


def _solved_cells(row: Row, table: Table) -> list[str]:
    if table.solved_from is None:
        return []
    return ["" if row.solved is None else f"{row.solved} of {len(row.seeds) + len(row.diverged)}"]


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
        *_solved_cells(row, table),
        *("" if name not in row.secondary else with_unit(row.secondary[name][0], unit) for name in _metrics(table)),
        seeds,
        _difference(row, table),
        "" if row.p_corrected is None else p_text(row.p_corrected),
        *_price_cells(row, table),
        "" if row.parameters is None else f"{row.parameters:,}",
    ]  # fmt: skip


def orders(row: Row, table: Table) -> list[float | int | str | None]:
    """Returns the sort key of each of a row's cells; None sorts last."""
    beside = (row.secondary.get(metric, (None, None))[0] for metric in _metrics(table))
    difference = None if row.comparison is None else row.comparison.difference
    prices = [row.price.time, row.price.memory] if row.price else [None, None] if _has_prices(table) else []
    solved = [] if table.solved_from is None else [row.solved]
    return [row.name, row.mean, row.deviation, *solved, *beside, len(row.seeds), difference, row.p_corrected, *prices,
            row.parameters]  # fmt: skip


def shown_figures(table: Table, figures: Sequence[Published] | None = None) -> list[Published]:
    """Returns the published figures to show: none beside other data than the task's, all beside comparable runs.

    Beside runs with other settings only those of the table's own variants are shown. ``figures``: those of another
    metric; None: those of the main metric.
    """
    if table.is_other_data:
        return []
    attentions = {dict(row.parts)["attention"].partition("[")[0] for row in table.rows}  # without changed fields
    rows = {row.name for row in table.rows} | attentions | {table.baseline}
    return [
        figure
        for figure in (table.published if figures is None else figures)
        if table.comparable or figure.name in rows
    ]


def _most_seeds(row: Row, table: Table) -> int:
    """Returns the number of seeds of a row or of the row that it is compared with, whichever is larger."""
    return max(len(each.seeds) for each in table.rows if each is row or each.name == row.against)


def more_seeds() -> str:
    """Returns what more seeds would show, where too few leave their variance unknown."""
    multiples = [f"{sds_shown(count):.1f} with {count}" for count in (FEWEST_SEEDS, *MORE_SEEDS)]
    return (
        "what more seeds would show about four times in five, in multiples of the unknown standard deviation of the "
        f"difference over seeds: {', '.join(multiples)}"
    )


def footnotes(table: Table) -> list[str]:
    """Returns the notes below a table."""
    ranges = detectable_by_seeds(table.rows)
    sizes = [f"{range_text(ends, table.unit)} with {count}" for count, ends in ranges.items()]
    over = ", for the variants that vary least and most" if any(least < most for least, most in ranges.values()) else ""
    notes = [f"{DETECTABLE}, by number of seeds{over}: {', '.join(sizes)}"] if sizes else []
    for kind, scores in (("floors", table.floors), ("ceilings", table.ceilings)):
        if scores:
            listed = ", ".join(f"{name} {with_unit(value, table.unit)}" for name, value in scores.items())
            notes.append(f"{kind}: {listed}")
    if table.solved_from is not None:
        notes.append(f"solved: seeds with a test score of at least {with_unit(table.solved_from, table.unit)}")
    if table.chance is not None:
        notes.append(f"chance: {with_unit(table.chance, table.unit)}")
    shown = shown_figures(table)
    for source, figures in itertools.groupby(shown, key=lambda figure: figure.source):
        listed = ", ".join(f"{figure.name} {with_unit(figure.value, table.unit)}" for figure in figures)
        notes.append(f"published: {listed} ({source})")
    if shown and not table.comparable:
        notes.append("published figures: measured with other settings")
    if any(row.comparison and row.comparison.seeds < FEWEST_SEEDS for row in table.rows):
        notes.append(
            f"differences over fewer than {FEWEST_SEEDS} seeds in common: the variance over seeds is unknown, so no "
            "interval and no p"
        )
        notes.append(more_seeds())
    partial = [row for row in table.rows if row.comparison and row.comparison.seeds < _most_seeds(row, table)]
    if partial:
        listed = ", ".join(f"{row.name} ({row.comparison.seeds} seeds)" for row in partial if row.comparison)
        notes.append(f"difference over the seeds in common only: {listed}")
    notes += table.prices
    if table.devices:
        notes.append(f"{table.metric} on the test set; device: {'; '.join(table.devices)}")
    if table.measured:
        notes.append(table.measured)
    return [*notes, *table.remarks]

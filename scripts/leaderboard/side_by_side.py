"""Joins tables of several tasks into one, with a row per variant and a column per task, as papers print them."""

import itertools
from collections.abc import Sequence

from seqarena.scripts.leaderboard.cells import shown_figures
from seqarena.scripts.leaderboard.paired import FEWEST_SEEDS, SIGNIFICANT
from seqarena.scripts.leaderboard.rows import Row, number
from seqarena.scripts.leaderboard.table import Table, code_note
from seqarena.scripts.packages import PACKAGES, find_package

JoinedTable = tuple[str, list[str], list[list[str]], list[str]]
"""Title, headings, rows, notes."""


def join(tables: Sequence[Table]) -> list[JoinedTable]:
    """Returns one table per package, preset and pretraining; a second protocol of a task goes to a further table."""
    groups: dict[tuple[str, str, str], list[list[Table]]] = {}
    for table in sorted(tables, key=_task_order):
        lists = groups.setdefault((table.package, table.preset, table.pretraining), [])
        free = next((some for some in lists if all(each.task != table.task for each in some)), None)
        if free is None:
            lists.append([table])
        else:
            free.append(table)
    return [_join_tables(*key, some) for key, lists in groups.items() for some in lists]


def _task_order(table: Table) -> tuple[int, int]:
    """Returns the positions of a table's package and task in the lists of both; unknown ones come last."""
    if table.package not in PACKAGES:
        return len(PACKAGES), 0
    tasks = list(find_package(table.package).tasks)
    return PACKAGES.index(table.package), tasks.index(table.task) if table.task in tasks else len(tasks)


def _join_tables(package: str, preset: str, pretraining: str, tables: Sequence[Table]) -> JoinedTable:
    headings = ["variant", *(_heading(table) for table in tables)]
    names = dict.fromkeys(row.name for table in tables for row in table.rows)
    found = [{row.name: row for row in table.rows} for table in tables]
    rows = [
        [name, *(_cell(table, rows.get(name)) for table, rows in zip(tables, found, strict=True))] for name in names
    ]
    floors = [(max if table.higher_is_better else min)(table.floors.values(), default=None) for table in tables]
    if any(floor is not None for floor in floors):
        rows.append(
            [
                "best floor",
                *(
                    "" if floor is None else number(floor, table.unit)
                    for floor, table in zip(floors, tables, strict=True)
                ),
            ]
        )
    figures = [_figures(table) for table in tables]
    for name, source in dict.fromkeys(key for each in figures for key in each):
        rows.append([f"published: {name} ({source})", *(each.get((name, source), "") for each in figures)])
    notes = [table.title for table in tables]
    notes += [
        "mean +- standard deviation (seeds); per cent, except losses and perplexities; after the slash: the task's "
        "other metrics",
    ]
    baselines = dict.fromkeys(f'"{row.against}"' for table in tables for row in table.rows if _is_significant(row))
    if baselines:
        notes.append(
            f"* the first metric differs from that of {' or of '.join(baselines)} with p < {SIGNIFICANT} (Holm), over "
            f"at least {FEWEST_SEEDS} seeds"
        )
    if any(figures) and not all(table.comparable for table in tables):
        notes.append("published figures: measured with other settings")
    notes += code_note(tables)
    notes += [f"{table.task}: {remark}" for table in tables for remark in table.remarks]
    start = f", from the pretraining {pretraining}" if pretraining else ""
    return f"{package}, preset {preset}{start}", headings, rows, notes


def _heading(table: Table) -> str:
    metrics = [table.metric, *(metric.removeprefix(f"{table.metric}_") for metric in _others(table))]
    return f"{table.task} {' / '.join(metric.replace('_', ' ') for metric in metrics)}"


def _others(table: Table) -> list[str]:
    """Returns the task's other metrics that some row has."""
    return [metric for metric in table.published_secondary if any(metric in row.secondary for row in table.rows)]


def _cell(table: Table, row: Row | None) -> str:
    if row is None:
        return ""
    if row.mean is None:
        return "diverged" if row.diverged else "missing"
    spread = [
        (row.mean, row.deviation),
        *(row.secondary.get(metric, (None, None)) for metric in _others(table)),
    ]
    unit = table.unit
    first, *others = [
        "-" if mean is None else f"{number(mean, unit)}{'' if sd is None else f' +- {number(sd, unit)}'}"
        for mean, sd in spread
    ]
    star = "*" if _is_significant(row) else ""
    diverged = f", {len(row.diverged)} diverged" if row.diverged else ""
    return f"{' / '.join([f'{first}{star}', *others])} ({len(row.seeds)}{diverged})"


def _is_significant(row: Row) -> bool:
    return row.p_corrected is not None and row.p_corrected < SIGNIFICANT


def _figures(table: Table) -> dict[tuple[str, str], str]:
    """Returns (name, source) -> the published figures of all metrics."""
    found: dict[tuple[str, str], list[str]] = {}
    for each in itertools.chain(*(shown_figures(table, some) for some in (None, *table.published_secondary.values()))):
        found.setdefault((each.name, each.source), []).append(
            f"{100 * each.value:.1f}" if table.unit == "share" else number(each.value, table.unit)
        )
    return {key: " / ".join(values) for key, values in found.items()}

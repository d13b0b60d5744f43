"""Adds measured prices (``seqarena price``) to the rows of a table, as ratios to the baseline."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from seqarena.common.runs.results import Result
from seqarena.common.runs.run import RowParts, row_name
from seqarena.scripts.leaderboard.comparison import counterpart
from seqarena.scripts.leaderboard.protocol import Protocol, settings_json
from seqarena.scripts.leaderboard.remarks import named_values, without_version
from seqarena.scripts.leaderboard.rows import Row
from seqarena.scripts.price.record import PriceRecord

WITHOUT_PRICE = ("optim.", "train.steps", "train.eval_every", "train.select")
"""Settings that do not change the time of forward and backward: the optimiser's update is not measured."""


def add_prices(
    rows: Sequence[Row],
    protocol: Protocol,
    records: Sequence[PriceRecord],
    baseline: str,
    results: Mapping[RowParts, Result],
) -> list[str]:
    """Sets the price of each row from the newest record that has it beside its baseline; returns the conditions.

    A price counts only for the precision, the data, the sources and the values of the row with which it was measured.
    ``results``: one result of each row.
    """
    own = [
        each
        for each in records
        if _of_a_step(_settings(each)) == _of_a_step(protocol.settings)
        and protocol.precision in (None, each.environment.get("precision"))
        and (each.data_checksum in (None, protocol.data_checksum) or protocol.data_checksum is None)
    ]
    used: dict[int, PriceRecord] = {}
    outdated: list[str] = []
    for row in rows:
        parts = without_version(row.parts)
        against = _baseline(parts, baseline)
        measured = [record for record in own if record.ratio(parts, against) is not None]
        current = [
            each
            for each in measured
            if _is_of(each, parts, results.get(row.parts)) and _is_of(each, against, results.get(against))
        ]
        if current:
            row.price = current[0].ratio(parts, against)
            used[id(current[0])] = current[0]
        elif measured:
            outdated.append(row.name)
    notes = [conditions(each) for each in used.values()]
    others = defaultdict[str, list[str]](list)
    for row in rows:
        against = _baseline(without_version(row.parts), baseline)
        if row.price is not None and against != (("attention", baseline),):
            others[row_name(against)].append(row.name)
    notes += [f"price of {', '.join(names)}: divided by that of {against}" for against, names in others.items()]
    if outdated:
        notes.append(
            f"no price of {', '.join(outdated)}: measured with other sources or settings than these results; seqarena "
            "price measures those that are here now"
        )
    return notes


def _is_of(record: PriceRecord, row: RowParts, result: Result | None) -> bool:
    return result is None or record.is_of(row, result.sources, named_values(result))


def _settings(record: PriceRecord) -> str:
    return settings_json(record.package, record.task, record.run, record.config_version)


def _of_a_step(settings: str) -> Any:
    """Returns the settings on which the time of forward and backward depends."""
    package, known = json.loads(settings)
    return package, {path: value for path, value in known.items() if not path.startswith(WITHOUT_PRICE)}


def _baseline(parts: RowParts, baseline: str) -> RowParts:
    """Returns the row with which scores are compared; for that row, the one of the preset's norm and depth."""
    same = counterpart(parts, baseline)
    return (("attention", baseline),) if parts == same else same


def _implementations(record: PriceRecord) -> str:
    """Returns the implementations, each with the rows that it computed."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for price in record.prices:
        by_name[" and ".join(price.implementations) or "not recorded"].append(row_name(price.row))
    return "; ".join(f"{name} ({', '.join(rows)})" for name, rows in by_name.items())


def conditions(record: PriceRecord) -> str:
    """Returns what a record measured and where, as a note."""
    rounds, seconds = len(record.prices[0].training_seconds), median(record.prices[0].training_seconds)
    where = f"{record.environment.get('device')}, {record.environment.get('precision')}, {record.measured_at[:10]}"
    return (
        f"price: time of forward and backward (smallest to largest of {rounds} rounds in turns; {1000 * seconds:,.1f} "
        f"ms for {row_name(record.prices[0].row)}) and peak memory of the whole process, libraries included; {where}, "
        f"load {' to '.join(f'{each:.1f}' for each in record.load)}; implementations: {_implementations(record)}"
        f"{'' if all(each.sources for each in record.prices) else '; its sources were not recorded'}"
    )

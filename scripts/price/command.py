"""Builds the runs of ``seqarena price``, measures them, writes the record and prints it."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from statistics import fmean, median

from seqarena.common.errors import WrongUseError
from seqarena.common.parser import at_least_one
from seqarena.common.runs.config import to_json
from seqarena.common.runs.roles import CONFIG_VERSION
from seqarena.common.runs.run import row_name, row_of, row_values
from seqarena.common.tables import render
from seqarena.common.training.runtime import make_accelerator
from seqarena.scripts.benchmark.selection import chosen
from seqarena.scripts.benchmark.step import timed_batches
from seqarena.scripts.price.measure import measure
from seqarena.scripts.price.record import FORMAT, PriceRecord, ratio_text


def measure_and_record(
    options: argparse.Namespace, variants: Sequence[tuple[str | None, str | None]], fields: Sequence[str], command: str
) -> int:
    """Measures variants, given as attention and norm, the baseline first; prints the record and returns the exit code.

    Raises:
        WrongUseError: an unknown name or field, or a variant that is given twice.
    """
    record = measure_record(options, variants, fields, command)
    path = record.write(options.runs)
    print(json.dumps(asdict(record)) if options.json else f"{_table(record)}written to {path}")
    return 0


def measure_record(
    options: argparse.Namespace, variants: Sequence[tuple[str | None, str | None]], fields: Sequence[str], command: str
) -> PriceRecord:
    """Measures variants and returns their record; they are given as attention and norm, the baseline first.

    Raises:
        WrongUseError: an unknown name or field, or a variant that is given twice.
    """
    at_least_one(options, "rounds")
    at_least_one(options, "steps")
    runs = []
    for attention, norm in variants:
        options.norm = norm
        package, run = chosen(options, attention, fields, "seqarena price")
        runs.append((row_of(run, package.preset(run)), run))
    rows = [row for row, _ in runs]
    twice = next((row for row in rows if rows.count(row) > 1), None)
    if twice is not None:
        raise WrongUseError(f"{row_name(twice)} is given twice; name each variant once")
    if len(rows) < 2:
        other = "softmax" if ("attention", "softmax") not in rows[0] else "dnas"
        raise WrongUseError(
            f"expected at least two variants to compare, found {row_name(rows[0])}; add another, such as {other}"
        )
    # Prepared here, so that preparation does not count towards the first variant's peak memory.
    prepared = package.assembly(runs[0][1], options.data_folder, make_accelerator(runs[0][1].train.precision))
    sources = [dict(package.sources(run)) for _, run in runs]  # before the workers import them
    prices, environment, load = measure(package.name, runs, options.data_folder, options.rounds, options.steps)
    named = [row_values(type(run), to_json(run)) for _, run in runs]
    prices = [
        replace(price, sources=own, row_values=values)
        for price, own, values in zip(prices, sources, named, strict=True)
    ]
    tokens = fmean(batch.token_count() for batch in timed_batches(prepared, options.steps))
    return PriceRecord(
        format=FORMAT, package=package.name, task=options.task, preset=runs[0][1].preset, run=to_json(runs[0][1]),
        config_version=CONFIG_VERSION, prices=prices, environment=environment, load=load, command=command,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"), data_checksum=prepared.data_checksum,
        tokens_per_step=tokens,
    )  # fmt: skip


def _table(record: PriceRecord) -> str:
    first = record.prices[0]
    rows = []
    for price in record.prices:
        ratio = record.ratio(price.row, first.row)
        assert ratio is not None
        rows.append([
            row_name(price.row), ratio_text(ratio), f"{ratio.memory:.2f}",
            f"{1000 * median(price.training_seconds):,.1f}", f"{1000 * median(price.forward_seconds):,.1f}",
            f"{price.peak_memory_bytes / 2**20:,.0f}", ", ".join(price.implementations),
        ])  # fmt: skip
    name = row_name(first.row)
    headings = ["variant", f"time / {name}", f"memory / {name}", "step ms", "forward ms", "peak MiB", "implementation"]
    return render(
        f"price of {record.package} {record.task}, preset {record.preset}", headings, rows, price_notes(record),
        "terminal",
    )  # fmt: skip


def price_notes(record: PriceRecord) -> list[str]:
    """Returns the conditions of a record."""
    rounds = len(record.prices[0].training_seconds)
    return [
        f"time: forward and backward, without the optimiser's update; median of {rounds} rounds in turns (smallest to "
        "largest)",
        f"{record.environment['device']}, {record.environment['precision']}; load of the machine before and after: "
        f"{record.load[0]:.1f}, {record.load[1]:.1f}",
    ]

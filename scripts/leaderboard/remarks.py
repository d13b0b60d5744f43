"""Differences between the results of one table: sources, libraries, threads, uncommitted changes."""

import dataclasses
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seqarena.common.errors import short_list
from seqarena.common.runs.results import Result
from seqarena.common.runs.run import VERSION, RowParts, row_name, row_values, seed_values
from seqarena.common.runs.sources import changed_sources, digest
from seqarena.scripts.leaderboard.protocol import protocol_of, run_class
from seqarena.scripts.leaderboard.rows import Row

COMPARED = ("python", "instructions", "threads", "processes", "variables")
"""Fields of the environment that are compared, as are libraries; the device is shown below every table."""


def without_version(row: RowParts) -> RowParts:
    """Returns a row without the hash that marks an earlier version."""
    return tuple(part for part in row if part[0] != VERSION)


def is_earlier(row: RowParts) -> bool:
    """Returns whether a row is an earlier version of another row."""
    return without_version(row) != row


def version(result: Result) -> str:
    """Returns a hash of a result's sources, of its checkpoint's pretraining, and of the values that its row names.

    The values are hashed because a name can change its meaning when the table of variants or a preset changes. Of the
    pretraining, the seed is not part of it.
    """
    return digest({**result.sources, "row": json.dumps(named_values(result), sort_keys=True)})


def seeds_in(result: Result) -> tuple[Any, ...]:
    """Returns the seed of a result's run and that of the pretraining that it starts from, if it has one."""
    kind = run_class(result.package, result.task)
    return (result.seed,) if kind is None else tuple(seed_values(kind, result.run).values())


def named_values(result: Result) -> dict[str, Any]:
    """Returns field path -> value of the fields that a result's row names; empty for an unknown task."""
    kind = run_class(result.package, result.task)
    return {} if kind is None else row_values(kind, result.run)


def separate_versions(results: Mapping[Path, Result]) -> dict[Path, Result]:
    """Returns the results, with those of other sources than their row's newest moved to a row of their own.

    So are those that have a seed in common, and start from pretrainings of different seeds.
    """
    rows = {path: (protocol_of(result), result.row) for path, result in results.items()}
    versions = {path: version(result) for path, result in results.items()}
    runs = Counter((*rows[path], versions[path], result.seed) for path, result in results.items())
    several = {run[:-1] for run, count in runs.items() if count > 1}
    for path, result in results.items():
        if (*rows[path], versions[path]) in several:
            versions[path] = digest({"sources": versions[path], "pretraining": str(seeds_in(result)[1:])})
    newest = {rows[path]: versions[path] for path in sorted(results, key=lambda each: results[each].finished_at)}
    return {
        path: result
        if versions[path] == newest[rows[path]]
        else dataclasses.replace(result, row=(*result.row, (VERSION, versions[path])))
        for path, result in results.items()
    }


def remarks(by_row: Mapping[RowParts, Sequence[Result]], rows: Sequence[Row]) -> list[str]:
    """Returns the remarks below a table."""
    results = [result for some in by_row.values() for result in some]
    return [
        *_versions(by_row),
        *_not_compared(rows),
        *_compared_with_earlier(rows),
        *_incomplete_metrics(rows),
        *_other_floors(results),
        *_unrecorded_sources(results),
        *_dirty(results),
        *_environments(results),
        *_segments(results),
    ]


def _versions(by_row: Mapping[RowParts, Sequence[Result]]) -> list[str]:
    found = []
    for row, results in by_row.items():
        plain, name = by_row.get(without_version(row)), row_name(without_version(row))
        if is_earlier(row) and plain and results:
            old, new = results[0].sources, plain[0].sources
            if version(results[0]) == version(plain[0]):
                seeds = [", ".join(sorted({str(seeds_in(each)[-1]) for each in some})) for some in (results, plain)]
                found.append(f"{row_name(row)}: from pretraining seed {seeds[0]}; {name}: {seeds[1]}")
                continue
            changed = short_list(changed_sources(old, new)) or "the meaning of the name, or the pretraining,"
            remark = f"measured before {changed} changed; {name}: after" if old else "sources were not recorded"
            found.append(f"{row_name(row)}: {remark}")
    return found


def _not_compared(rows: Sequence[Row]) -> list[str]:
    """Returns remarks on rows that no baseline is compared with, because sources of both have changed."""
    names: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row.not_compared:
            names[row.not_compared].append(row.name)
    return [f"{', '.join(some)}: not compared: {reason}" for reason, some in names.items()]


def _compared_with_earlier(rows: Sequence[Row]) -> list[str]:
    """Returns remarks on rows that are compared with an earlier version of the baseline."""
    earlier = {row.name for row in rows if is_earlier(row.parts)}
    return [
        f"{row.name}: compared with {row.against}, which the same sources measured"
        for row in rows
        if row.against in earlier and row.name not in earlier
    ]


def _incomplete_metrics(rows: Sequence[Row]) -> list[str]:
    """Returns remarks on the task's other metrics that not every finished run of a row has."""
    found: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        for metric, count in row.incomplete_metrics.items():
            found[metric.replace("_", " ")].append(f"{row.name} {count} of {len(row.seeds)} seeds")
    return [f"{metric} of some seeds only: {', '.join(some)}" for metric, some in found.items()]


def _other_floors(results: Sequence[Result]) -> list[str]:
    """Returns a remark if results have other floors than the newest, whose floors the table shows."""
    newest = max(results, key=lambda each: each.finished_at, default=None)
    others = [each for each in results if newest is not None and each.floors != newest.floors]
    where = _names(others, results)
    return [f"other floors than those shown, which are of the newest result: {where}"] if others else []


def _unrecorded_sources(results: Sequence[Result]) -> list[str]:
    commits = sorted({str(each.environment.get("commit"))[:8] for each in results if not each.sources})
    return [f"sources were not recorded; commit: {', '.join(commits)}"] if commits else []


def _dirty(results: Sequence[Result]) -> list[str]:
    dirty = [each for each in results if each.environment.get("clean") is False]
    return [f"measured with uncommitted changes: {_names(dirty, results)}"] if dirty else []


def _environments(results: Sequence[Result]) -> list[str]:
    found = []
    plain = {id(each): _plain(each.environment) for each in results}
    for name in dict.fromkeys(name for values in plain.values() for name in values):
        by_value: dict[str, list[Result]] = defaultdict(list)
        for each in results:
            by_value[plain[id(each)].get(name, "not recorded")].append(each)
        if len(by_value) > 1:
            by_result = "; ".join(f"{value}: {_names(some, results)}" for value, some in by_value.items())
            found.append(f"different {name}: {by_result}")
    return found


def _plain(environment: Mapping[str, Any]) -> dict[str, str]:
    libraries = environment.get("libraries")
    values = {name: environment[name] for name in COMPARED if name in environment}
    values |= libraries if isinstance(libraries, dict) else {}
    return {name: str(value) for name, value in values.items() if name != "seqarena"}


def _segments(results: Sequence[Result]) -> list[str]:
    resumed = [each for each in results if len(each.segments) > 1]
    return [f"started in one environment and resumed in another: {_names(resumed, results)}"] if resumed else []


def _names(some: Sequence[Result], everyone: Sequence[Result]) -> str:
    """Returns the names of results, as row and seed, or as row alone if all of its results are included."""
    if len(some) == len(everyone):
        return "all"
    seeds: dict[str, list[int]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    for each in some:
        seeds[row_name(each.row)].append(each.seed)
    for each in everyone:
        counts[row_name(each.row)] += 1
    return ", ".join(
        row if len(found) == counts[row] else f"{row} seed {', '.join(map(str, sorted(found)))}"
        for row, found in seeds.items()
    )

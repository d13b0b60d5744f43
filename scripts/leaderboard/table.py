"""A table of a leaderboard: all variants measured under one protocol, with floors and published figures."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seqarena.common.runs.config import from_json, to_json
from seqarena.common.runs.results import Result
from seqarena.common.runs.roles import Role, json_fields, role_at
from seqarena.common.runs.run import BaseRun, row_name, task_title
from seqarena.common.runs.tasks import Published, Task, Unit
from seqarena.scripts.leaderboard.comparison import rows_of
from seqarena.scripts.leaderboard.prices import add_prices
from seqarena.scripts.leaderboard.protocol import Group, Protocol, groups
from seqarena.scripts.leaderboard.remarks import remarks
from seqarena.scripts.leaderboard.rows import Row
from seqarena.scripts.leaderboard.tunings import grid_notes
from seqarena.scripts.leaderboard.verdict import verdict_of
from seqarena.scripts.packages import PACKAGES
from seqarena.scripts.price.record import PriceRecord

OWN = (Role.WEIGHTS, Role.OWN_FILE)
"""Roles of the fields that name the user's own checkpoints and files."""
USUAL_PRECISION = "float32"
"""Precision that titles leave out."""
OTHER_DATA = "other data"
"""Name of data that are files of the user's."""


@dataclass(kw_only=True)
class Table:
    """All variants measured under one protocol."""

    title: str
    package: str
    task: str
    preset: str
    precision: str
    """Precision of the computation; empty if it is ``USUAL_PRECISION``."""
    tuned: str
    """Tuned fields and their grid; empty if no field was tuned."""
    data_name: str
    """Name of data that are not the task's own; empty if they are."""
    modified: bool
    """Whether fields differ from the preset, apart from tuned ones. The title lists them."""
    pretraining: str
    """Pretraining of the checkpoints that the runs start from; empty: random initialisation."""
    metric: str
    unit: Unit
    higher_is_better: bool
    measured: str
    """Scoring protocol, if it is a setting of the run; empty if the task determines it."""
    baseline: str
    rows: list[Row]
    floors: dict[str, float]
    """Scores of trivial rules."""
    ceilings: dict[str, float]
    """Scores of exact computation of a part of the problem."""
    chance: float | None
    solved_from: float | None
    """Score from which a run has solved the problem; None where tables do not count such runs."""
    published: list[Published]
    published_secondary: dict[str, list[Published]]
    """Published figures of the task's other metrics."""
    comparable: bool
    """Whether the published figures were measured on the same data and settings."""
    is_other_data: bool
    """Whether the data are not the task's own, so that no published figure belongs beside them."""
    prices: list[str]
    """Conditions under which prices were measured."""
    devices: list[str]
    remarks: list[str]
    """Differences between the results of the table, and the plans of missing runs."""
    code: dict[str, dict[str, set[str]]]
    """Row -> source file of its attention -> hashes."""


def tables(
    results: Sequence[Result],
    missing: Sequence[dict[str, Any]],
    baseline: str,
    prices: Sequence[PriceRecord] = (),
    tuned: Sequence[Group] = (),
) -> list[Table]:
    """Returns one table per protocol, in the order of ``evidence``; ``tuned``: groups of tuned results.

    Titles that would be the same name the data, if that is where the tables differ.
    """
    found = [*groups(results, missing), *tuned]
    made = [(table_of(group, baseline, prices), group.protocol.data_checksum) for group in found]
    name_data(made)
    return sorted((table for table, _ in made), key=evidence)


def name_data(made: Sequence[tuple[Table, str | None]]) -> None:
    """Adds the checksum of their data to titles that would be the same for tables of different data."""
    checksums: dict[str, set[str | None]] = {}
    for table, checksum in made:
        checksums.setdefault(table.title, set()).add(checksum)
    for table, checksum in made:
        if len(checksums[table.title]) > 1 and checksum is not None:
            table.title += f" [data: sha256 {checksum[:12]}]"


def _code(results: Sequence[Result]) -> dict[str, dict[str, set[str]]]:
    """Returns the source files of each row's attention, with their hashes."""
    found: dict[str, dict[str, set[str]]] = {}
    for result in results:
        hashes = found.setdefault(row_name(result.row), {})
        for path, digest in result.sources.items():
            if path.startswith("common/attention/") or path.split("/")[0] not in ("common", *PACKAGES):
                hashes.setdefault(path, set()).add(digest)
    return found


def code_note(tables: Sequence[Table]) -> list[str]:
    """Returns a note on rows of joined tables whose attention was not computed by the same code; empty if none."""
    found: dict[str, dict[str, set[str]]] = {}
    for table in tables:
        for row in table.rows:
            for path, hashes in table.code.get(row.name, {}).items():
                found.setdefault(row.name, {}).setdefault(path, set()).update(hashes)
    names = [name for name, hashes in found.items() if any(len(each) > 1 for each in hashes.values())]
    return [f"attention not computed by the same code in all tasks: {', '.join(names)}"] if names else []


def evidence(table: Table) -> tuple[int, int, int]:
    """Returns the sort key of a table: first those that show most differences, then those with most tests and seeds."""
    verdicts = [verdict_of(row, higher_is_better=table.higher_is_better) for row in table.rows]
    shown = verdicts.count("better") + verdicts.count("worse")
    return -shown, -(shown + verdicts.count("no difference shown")), -sum(len(row.seeds) for row in table.rows)


def table_of(group: Group, baseline: str, prices: Sequence[PriceRecord] = ()) -> Table:
    """Returns the table of a group, with a row per variant, each compared with the baseline, and its price."""
    protocol, newest, run = group.protocol, group.newest, group.run
    task = group.task
    rows, by_row = rows_of(group, baseline, task.secondary)
    floors, ceilings = task.floors_and_ceilings({} if newest is None else newest.floors)
    is_other_data = _has_other_data(protocol)
    plans = sorted({str(entry["plan"]) for entry in group.missing if "plan" in entry})
    plan_remarks = [f"missing runs were planned in {', '.join(plans)}; delete a plan to drop its runs"] if plans else []
    return Table(
        title=_title(protocol, task, run),
        package=protocol.package,
        task=protocol.task,
        preset=protocol.preset,
        precision=_unusual(protocol.precision),
        tuned=protocol.tuned,
        data_name=_data_name(protocol, task, run),
        modified=bool(protocol.changed),
        pretraining=protocol.pretraining,
        metric=task.metric if newest is None else newest.metric,
        unit=task.unit,
        higher_is_better=task.higher_is_better,
        measured=_scoring(group.results, protocol),
        baseline=baseline,
        rows=rows,
        floors=floors,
        ceilings=ceilings,
        chance=_chance(protocol, task),
        solved_from=task.solved_from,
        published=[] if is_other_data else _beside(task.published, protocol.preset),
        published_secondary={
            name: [] if is_other_data else _beside(task.published_secondary.get(name, ()), protocol.preset)
            for name in task.secondary
        },
        comparable=_is_comparable(protocol, newest),
        is_other_data=is_other_data,
        prices=add_prices(rows, protocol, prices, baseline, {parts: each[0] for parts, each in by_row.items() if each}),
        devices=sorted({result.device for result in group.results}),
        remarks=[
            *remarks(by_row, rows),
            *plan_remarks,
            *group.remarks,
            *grid_notes(group.tuned, [row.name for row in rows]),
        ],
        code=_code(group.results),
    )


def _chance(protocol: Protocol, task: Task) -> float | None:
    """Returns the score of guessing; None if it is not known, as on data that the user changed."""
    preset = protocol.preset_record
    if any(path.startswith("data.") for path in protocol.changed):
        return None
    return task.chance if preset is None or preset.chance is None else preset.chance


def _beside(figures: Sequence[Published], preset: str) -> list[Published]:
    """Returns the published figures that are shown beside a preset."""
    return [figure for figure in figures if not figure.presets or preset in figure.presets]


def _title(protocol: Protocol, task: Task, run: Mapping[str, Any] | None) -> str:
    """Returns the title, which tells tables of the user's own data files apart by their checksum."""
    preset = protocol.preset_record
    has_own = _has_own_data(protocol, task, run)
    name = "" if has_own or preset is None else preset.data_name
    title = task_title(task, protocol.preset, name, protocol.changed)
    if protocol.task_version not in (None, task.version):
        title += f" [these results: version {protocol.task_version}]"
    if protocol.tuned:
        title += f"; {protocol.tuned}"
    if _unusual(protocol.precision):
        title += f"; {protocol.precision}"
    if has_own:
        checksum = f": sha256 {protocol.data_checksum[:12]}" if protocol.data_checksum else ""  # none before a result
        title += f" [other data than the preset's{checksum}]"
    return title


def _has_own_data(protocol: Protocol, task: Task, run: Mapping[str, Any] | None) -> bool:
    """Returns whether the data are files of the user's, with other content than the preset's data."""
    meant, found, preset = task.checksums.get(protocol.preset), protocol.data_checksum, protocol.preset_record
    if preset is None or run is None:
        return _is_other_data(protocol)
    if found is not None and found == meant:
        return False
    # A changed field alone may explain another checksum; the user's files at another place may have any content. Before
    # a result, they may be the preset's own data, unless these stand in for others.
    roles = (*OWN, Role.LOCATION) if meant is not None and (found is not None or preset.data_name) else OWN
    return _differ(type(preset.run), run, preset.run, *roles) or _is_other_data(protocol)


def _data_name(protocol: Protocol, task: Task, run: Mapping[str, Any] | None) -> str:
    if _has_own_data(protocol, task, run):
        return OTHER_DATA
    return protocol.preset_record.data_name if protocol.preset_record else ""


def _unusual(precision: str | None) -> str:
    return "" if precision in (None, USUAL_PRECISION) else precision


def _scoring(results: Sequence[Result], protocol: Protocol) -> str:
    """Returns the scoring protocol of results; empty if their runs are of another version, or of code not at hand."""
    preset = protocol.preset_record
    if preset is not None:
        for result in results:
            with contextlib.suppress(ValueError):
                return from_json(type(preset.run), result.run).measured
    return ""


def _has_other_data(protocol: Protocol) -> bool:
    preset = protocol.preset_record
    stands_in = preset is not None and preset.data_name != ""
    return stands_in or _is_other_data(protocol) or any(path.startswith("data.") for path in protocol.changed)


def _is_comparable(protocol: Protocol, result: Result | None) -> bool:
    """Returns whether published figures were measured on the same data and settings."""
    preset = protocol.preset_record
    if preset is None or not preset.comparable or _is_other_data(protocol) or protocol.tuned:
        return False
    if any(role_at(preset.run, path) is not Role.PRETRAINING for path in protocol.changed):
        return False
    return result is None or not _differ(type(preset.run), result.run, preset.run, *OWN)


def _differ(kind: type, run: Any, preset: BaseRun, *roles: Role) -> bool:
    """Returns whether a run has other values than its preset in the fields of these roles."""
    own, meant = (
        {each.path: each.value for each in json_fields(kind, values) if each.role in roles}
        for values in (run, to_json(preset))
    )
    return own != meant


def _is_other_data(protocol: Protocol) -> bool:
    """Returns whether the data differ from the preset's although no data field was changed."""
    meant = None if protocol.known_task is None else protocol.known_task.checksums.get(protocol.preset)
    named = any(path.startswith("data.") for path in protocol.changed)
    return None not in (meant, protocol.data_checksum) and meant != protocol.data_checksum and not named

"""Loads the report's data: the table and the runs of every protocol below a folder. Skipped files are listed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqarena.common.errors import BadDataError
from seqarena.common.files import read_strict_json
from seqarena.common.model.attention_maps import FILE as MAPS
from seqarena.common.model.attention_maps import SIDE
from seqarena.common.runs.config import to_json
from seqarena.common.runs.package import OUTPUTS
from seqarena.common.runs.results import Result
from seqarena.scripts.curves import Curves, read_curves
from seqarena.scripts.leaderboard.protocol import Group, groups
from seqarena.scripts.leaderboard.records import measurements
from seqarena.scripts.leaderboard.table import Table, evidence, name_data, table_of
from seqarena.scripts.packages import PACKAGES, find_package
from seqarena.scripts.report.chart import colour

KEY_MASSES = Path(OUTPUTS) / "key_masses.json"
"""File of key masses in the outputs of vqa's runs."""


@dataclass(frozen=True, kw_only=True)
class ReportRun:
    """One run of a row: its result or sweep plan entry, and its recorded curves and maps."""

    folder: str
    """Path relative to the folder of all runs."""
    result: Result | None
    planned: dict[str, Any] | None
    """Entry of a sweep's plan, if there is no result."""
    curves: Curves
    """Curves drawn by ``seqarena curves``; empty if there are none."""
    maps: list[dict[str, Any]]
    """Heat map and histogram of key masses of each attention."""
    masses: dict[str, list[int]]
    """Kind of keys -> histogram of their masses."""
    edges: list[float]
    """Bin edges of the histograms."""


@dataclass(frozen=True, kw_only=True)
class View:
    """One protocol: its table, and the runs of each row."""

    table: Table
    runs: dict[str, list[ReportRun]]
    colours: Mapping[str, str]
    """Name of a row -> its colour, the same in all protocols of a page."""


@dataclass(frozen=True, kw_only=True)
class ReportData:
    """Everything shown on a page."""

    folder: Path
    views: list[View]
    problems: list[str]
    """Skipped files, each with the reason."""
    remarks: list[str]
    """Further messages, on results that are of the same run."""

    @property
    def runs(self) -> list[ReportRun]:
        """All runs of all protocols."""
        return [run for view in self.views for runs in view.runs.values() for run in runs]


def gather(folder: Path, baseline: str) -> ReportData:
    """Loads everything below a folder of runs.

    Raises:
        WrongUseError: the folder does not exist or has no results.
    """
    found = measurements(folder)
    problems = list(found.problems)
    folders = {id(result): path for path, result in (*found.results.items(), *found.noted)}
    colours: dict[str, str] = {}
    everything = (*groups(list(found.results.values()), found.missing), *found.tuned)
    made = [(table_of(group, baseline, found.prices), group) for group in everything]
    name_data([(table, group.protocol.data_checksum) for table, group in made])
    views = [_view(table, group, folder, folders, problems, colours) for table, group in made]
    views.sort(key=lambda view: evidence(view.table))
    for name in dict.fromkeys(row.name for view in views for row in view.table.rows):
        colours[name] = colour(len(colours))
    return ReportData(folder=folder, views=views, problems=problems, remarks=found.duplicates)


def _view(
    table: Table, group: Group, root: Path, folders: Mapping[int, Path], problems: list[str], colours: dict[str, str]
) -> View:
    names = {row.parts: row.name for row in table.rows}
    runs: dict[str, list[ReportRun]] = {name: [] for name in names.values()}
    for result in sorted(group.results, key=lambda each: each.seed):
        runs[names[result.row]].append(_load_run(folders[id(result)], root, result, problems))
    for entry in sorted(group.missing, key=lambda each: each["seed"]):
        nothing = ReportRun(folder=entry["folder"], result=None, planned=entry, curves={}, maps=[], masses={}, edges=[])
        runs[names[entry["row"]]].append(nothing)
    return View(table=table, runs=runs, colours=colours)


def _load_run(path: Path, root: Path, result: Result, problems: list[str]) -> ReportRun:
    curves: Curves = {}
    if (path / "metrics.jsonl").exists():
        try:
            curves = read_curves(path)
        except (BadDataError, OSError) as error:
            problems.append(f"no learning curve: {error}")
    maps, edges = _maps(path / MAPS, problems)
    masses, other = _masses(path / KEY_MASSES, problems)
    if maps:
        sums = [sum(counts) for counts in zip(*(each["histogram"] for each in maps), strict=True)]
        masses = {"all attentions": sums} | (masses if other == edges else {})
    return ReportRun(
        folder=str(path.relative_to(root)), result=result, planned=None, curves=curves, maps=maps, masses=masses,
        edges=edges or other,
    )  # fmt: skip


def _read(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        values = read_strict_json(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        problems.append(f"{path}: not readable as JSON ({error})")
        return {}
    if not isinstance(values, dict) or not _are_numbers(values.get("edges")) or not values["edges"]:
        problems.append(f"{path}: unexpected content; expected an object with a list of numbers in edges")
        return {}
    return values | {"edges": [float(each) for each in values["edges"]]}


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(each, int | float) for each in values)


def _are_counts(values: Any, length: int) -> bool:
    return (
        isinstance(values, list) and len(values) == length and all(type(each) is int and each >= 0 for each in values)
    )


def _maps(path: Path, problems: list[str]) -> tuple[list[dict[str, Any]], list[float]]:
    values = _read(path, problems)
    edges, maps = values.get("edges", []), values.get("attentions", [])
    whole = isinstance(maps, list) and all(
        isinstance(each, dict)
        and isinstance(each.get("name"), str)
        and isinstance(each.get("queries"), int)
        and isinstance(each.get("keys"), int)
        and _are_counts(each.get("histogram"), len(edges) + 1)
        and isinstance(each.get("map"), list)
        and len(each["map"]) == min(SIDE, each["queries"])
        and all(_are_numbers(row) and len(row) == min(SIDE, each["keys"]) for row in each["map"])
        for each in maps
    )
    if not whole:
        problems.append(f"{path}: unexpected content; expected attentions with name, queries, keys, histogram and map")
    return (maps, edges) if whole else ([], [])


def _masses(path: Path, problems: list[str]) -> tuple[dict[str, list[int]], list[float]]:
    values = _read(path, problems)
    edges = values.get("edges", [])
    histograms = {
        kind: each["histogram"] for kind, each in values.items() if isinstance(each, dict) and "histogram" in each
    }
    if not all(_are_counts(each, len(edges) + 1) for each in histograms.values()):
        problems.append(f"{path}: unexpected content; expected histograms of one count per bin")
        return {}, []
    return histograms, edges


def differences(shown: ReportRun) -> list[tuple[str, Any, Any]]:
    """Returns (path, preset's value, own value) of every field in which a run differs from its preset, row included.

    Empty if this version does not know the preset.
    """
    package, task, preset, own = (
        (shown.result.package, shown.result.task, shown.result.preset, shown.result.run)
        if shown.result is not None
        else tuple((shown.planned or {})[name] for name in ("package", "task", "preset", "run"))
    )
    known = find_package(package).presets.get(task, {}).get(preset) if package in PACKAGES else None
    if known is None:
        return []
    before, after = _flat(to_json(known.run)), _flat(own)
    return [
        (path, before.get(path), after.get(path))
        for path in dict.fromkeys([*before, *after])
        if path != "seed" and before.get(path) != after.get(path)
    ]


def _flat(values: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(values, dict):
        return {path: values}
    return {
        key: each
        for name, value in values.items()
        for key, each in _flat(value, f"{path}.{name}" if path else name).items()
    }


def of_status(runs: Sequence[ReportRun], status: str) -> int:
    """Returns the number of finished, diverged or missing runs."""
    return sum((run.result.status if run.result else "missing") == status for run in runs)

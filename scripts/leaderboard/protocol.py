"""Groups results by protocol: results of one protocol, and planned runs without a result, form one table."""

import contextlib
import functools
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from seqarena.common.errors import WrongUseError
from seqarena.common.runs.config import from_json, to_json
from seqarena.common.runs.results import Result
from seqarena.common.runs.run import BaseRun, Preset, changed_from, settings
from seqarena.common.runs.tasks import Task
from seqarena.scripts.packages import PACKAGES, find_package


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """Fields that must be equal for two results to be compared; a planned run has only those known before it."""

    package: str
    task: str
    preset: str
    settings: str
    """JSON of every field that changes scores and is not part of a row."""
    task_version: int | None = None
    data_checksum: str | None = None
    precision: str | None = None
    tuned: str = field(default="", compare=False)
    """Tuned fields and their grid, as words; empty without tuned fields. ``settings`` has them too, in one spelling."""
    changed: Mapping[str, Sequence[Any]] = field(compare=False)
    """Fields that differ from the preset: field -> [preset's value, this run's]."""
    pretraining: str = field(compare=False)
    """Pretraining of the checkpoints that the runs start from; empty: random initialisation."""

    @property
    def known_task(self) -> Task | None:
        """The task's record; None if this version does not know the task."""
        return find_package(self.package).tasks.get(self.task) if self.package in PACKAGES else None

    @property
    def preset_record(self) -> Preset[BaseRun] | None:
        """The preset; None if this version does not know it."""
        return _presets(self.package, self.task).get(self.preset)


def protocol_of(result: Result) -> Protocol:
    """Returns the protocol of a result."""
    known = _settings(result.package, result.task, result.run, result.config_version)
    return Protocol(
        package=result.package, task=result.task, preset=result.preset, settings=_as_json(result.package, known),
        task_version=result.task_version, data_checksum=result.data_checksum,
        precision=result.environment.get("precision"), changed=_changed(result, known),
        pretraining=_pretraining(result.run),
    )  # fmt: skip


def _changed(result: Result, known: Mapping[str, Any]) -> Mapping[str, Sequence[Any]]:
    """Returns the fields that differ from the preset as it is now, which may have changed since the run."""
    preset = _presets(result.package, result.task).get(result.preset)
    if preset is None:
        return result.changed
    meant = _preset_settings(result.package, result.task, result.preset)
    differing = {path for path in known.keys() | meant.keys() if known.get(path) != meant.get(path)}
    if differing == set(result.changed):
        return result.changed  # as is usual; building the run takes longer
    with contextlib.suppress(ValueError, WrongUseError):
        changes = changed_from(preset, from_json(type(preset.run), result.run))
        return {path: [to_json(old), to_json(new)] for path, (old, new) in changes.items()}
    # The run has a variant of the user's, which is not imported here, or fields of another version.
    return {path: [meant.get(path), known.get(path)] for path in sorted(differing)} | {
        path: values for path, values in result.changed.items() if path not in known
    }


@functools.cache
def _preset_settings(package: str, task: str, preset: str) -> Mapping[str, Any]:
    """Returns the settings of a preset as it is now."""
    run = _presets(package, task)[preset].run
    return settings(type(run), to_json(run))


def planned_protocol(entry: Mapping[str, Any]) -> Protocol:
    """Returns the protocol of a sweep plan's entry, as far as it is known before the data are read."""
    return Protocol(
        package=entry["package"], task=entry["task"], preset=entry["preset"],
        settings=settings_json(entry["package"], entry["task"], entry["run"], entry["config_version"]),
        changed=entry["changed"], pretraining=_pretraining(entry["run"]),
    )  # fmt: skip


class GridScores(NamedTuple):
    """Validation scores of a row, in words."""

    points: str
    """Metric, tuned fields, and their values at each point of the grid."""
    scores: str
    """Score at each point."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """The results of one protocol, and the entries of planned runs without a result."""

    protocol: Protocol
    results: list[Result] = field(default_factory=list)
    missing: list[dict[str, Any]] = field(default_factory=list)
    """Entries of sweep plans."""
    tuned: dict[str, GridScores] = field(default_factory=dict)
    """Name of a row -> the scores of its grid, if fields were tuned."""
    remarks: list[str] = field(default_factory=list)
    """Tests of chosen values that have no result yet, in words."""

    @property
    def task(self) -> Task:
        """The task's record.

        That of a task which this version does not know has no published figures. Its metric is the result's, with the
        unit and the direction of the first known task that has this metric.
        """
        if self.protocol.known_task is not None:
            return self.protocol.known_task
        metric = "score" if self.newest is None else self.newest.metric
        everything = (task for name in PACKAGES for task in find_package(name).tasks.values())
        like = next((task for task in everything if task.metric == metric), None)
        return Task(
            package=self.protocol.package, name=self.protocol.task, version=self.protocol.task_version or 1,
            metric=metric, higher_is_better=like is None or like.higher_is_better,
            unit="share" if like is None else like.unit, title="", splits="", source="", revision="", licence="",
        )  # fmt: skip

    @property
    def newest(self) -> Result | None:
        """The newest result, whose floors and metric are those of the newest code; None before any."""
        return max(self.results, key=lambda each: each.finished_at, default=None)

    @property
    def run(self) -> Mapping[str, Any] | None:
        """Fields of the newest result's run, or of a planned one."""
        found = self.newest
        return next((entry["run"] for entry in self.missing), None) if found is None else found.run


def groups(results: Sequence[Result], missing: Sequence[dict[str, Any]]) -> list[Group]:
    """Returns one group per protocol."""
    found: dict[Protocol, Group] = {}
    for result in results:
        protocol = protocol_of(result)
        found.setdefault(protocol, Group(protocol=protocol)).results.append(result)
    planned: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for entry in missing:
        planned[planned_protocol(entry).settings].append(entry)
    for group in found.values():
        there = {(result.row, result.seed) for result in group.results}
        entries = _deduplicate(planned.get(group.protocol.settings, []))
        group.missing.extend(entry for entry in entries if (entry["row"], entry["seed"]) not in there)
    known = {protocol.settings for protocol in found}  # a plan does not know its data: it counts for all of them
    alone = (_deduplicate(entries) for settings, entries in planned.items() if settings not in known)
    return [*found.values(), *(Group(protocol=planned_protocol(some[0]), missing=some) for some in alone)]


def run_class(package: str, task: str) -> type[BaseRun] | None:
    """Returns the class of a task's runs; None if this version does not know the task."""
    return next((type(preset.run) for preset in _presets(package, task).values()), None)


def _presets(package: str, task: str) -> Mapping[str, Preset[BaseRun]]:
    return find_package(package).presets.get(task, {}) if package in PACKAGES else {}


def settings_json(package: str, task: str, run: Mapping[str, Any], config_version: int) -> str:
    """Returns the settings of a run as JSON, equal for all runs of a protocol."""
    return _as_json(package, _settings(package, task, run, config_version))


def _settings(package: str, task: str, run: Mapping[str, Any], config_version: int) -> dict[str, Any]:
    kind = run_class(package, task)
    return _universal(run) if kind is None else settings(kind, run, config_version)


def _as_json(package: str, known: Mapping[str, Any]) -> str:
    return json.dumps([package, known], sort_keys=True)


def _universal(run: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a task unknown to this version: all fields except attention and seed."""
    model = {name: value for name, value in run["model"].items() if name != "attention"}
    return {name: value for name, value in run.items() if name != "seed"} | {"model": model}


def _pretraining(run: Mapping[str, Any]) -> str:
    return str(run["model"].get("pretraining", ""))


def _deduplicate(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns one entry per row and seed; entries can differ in fields outside the protocol, such as diagnostics."""
    return list({(entry["row"], entry["seed"]): entry for entry in entries}.values())

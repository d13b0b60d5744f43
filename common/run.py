"""What every run is made of, its presets, and how its place in a table is named."""

import copy
import functools
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from common.attention import attention_name
from common.config import field_paths
from common.errors import WrongUseError, printable
from common.named import changed_fields
from common.optim import Optim
from common.tasks import Task
from common.training import Train
from common.transformer import ModelConfig

ROW_FIELDS = (
    "model.attention", "model.decoder_attention", "model.cross_attention", "model.norm", "model.layers",
    "model.pretrained_with", "model.pretraining_seed", "model.pretraining_sources",
    "model.fusion.kind", "model.fusion.keys", "seed",
)  # fmt: skip
"""What a leaderboard compares, so that a difference in these is a row and not another protocol."""

STARTS = ("model.init", "model.encoder_init", "model.decoder_init")
"""Fields that name the weights that a run starts from."""
OWN_FILES = (
    *STARTS,
    "data.train", "data.dev", "data.matched", "data.mismatched",
)  # fmt: skip
"""Files of the user's own that no task's record knows by a checksum; where a task has a number there, it is a count of
examples and part of the protocol."""
GIVEN = ("data.answer_list", "data.glove", "data.fc7", "data.visual_genome")
"""Files of the user's own without which a run is another one: part of a protocol is whether they are given."""
ASIDE = (
    "train.diagnostics", "train.checkpoint_seconds", "train.log_every", "data.path", "data.extra", "data.regions",
    *OWN_FILES,
)  # fmt: skip
"""Fields that do not change the protocol: logging and file locations. The data checksum identifies the content."""
ORIGINS = ("data.hub", "data.tokenizer")
"""Where text and vocabulary come from: not part of the protocol either, but told as a change. The data checksum
identifies the content of both."""
LATER: Mapping[str, Any] = MappingProxyType({"data.test_limit": None})
"""Fields that results of earlier versions lack, with the value that they stand for."""
LOCATIONS = (*ORIGINS, *(path for path in ASIDE if path.startswith("data.") and path != "data.extra"))
"""Fields in which two runs may differ and be the same run, if their data have the same checksum."""


@dataclass(frozen=True, kw_only=True)
class BaseRun:
    """One training and its measurement, complete before anything is loaded. A package's Run adds its own fields."""

    task: str
    """Name of what is measured, in its package."""
    preset: str
    """Name of the run that it started from."""
    seed: int = 0
    """Seed of initial values, data order and dropout; runs of one seed are paired."""
    model: ModelConfig
    """What is trained."""
    optim: Optim
    """The optimiser and its rate."""
    train: Train
    """How long, in which batches."""

    @property
    def longest(self) -> int:
        """The most tokens of a sequence there may be."""
        return self.model.longest

    @property
    def row_parts(self) -> tuple[str, ...]:
        """What else names this run's row in a table, behind the attention."""
        return ()

    @property
    def notes(self) -> list[str]:
        """What every table must say of its result."""
        return self.model.notes

    @property
    def measured(self) -> str:
        """How the scores came about, where the task cannot say it; empty: it can."""
        return ""

    def completed(self, typed: Collection[str]) -> "BaseRun":
        """Returns the run with what follows from its other fields; those whose paths were ``typed`` stay.

        Raises:
            WrongUseError: a field was typed that contradicts.
        """
        return self

    def check(self) -> None:
        """Raises a ``WrongUseError`` for a run that could not work, before anything is loaded."""
        for path in field_paths(self):
            value: Any = functools.reduce(getattr, path.split("."), self)
            if isinstance(value, str) and printable(value) != value:
                raise WrongUseError(f"{path}: expected text without control characters, found {value!r}")
            if isinstance(value, float) and not math.isfinite(value):
                raise WrongUseError(f"{path}: expected a finite number, found {value}")
        if not 0 <= self.seed < 2**63:
            raise WrongUseError(f"seed: expected a number from 0 up to below 2^63, found {self.seed}")
        self.optim.check()
        self.train.check()
        self.optim.schedule.check(self.train.steps)


AnyRun_co = TypeVar("AnyRun_co", bound=BaseRun, covariant=True)


@dataclass(frozen=True, kw_only=True)
class Preset(Generic[AnyRun_co]):
    """A named run with where its numbers come from, what it should score and what it costs."""

    run: AnyRun_co
    """The run itself."""
    source: str
    """Where its numbers come from."""
    departures: str = ""
    """In what it departs from that source; empty: in nothing known."""
    expected: str
    """Score."""
    cost: str
    """Time or operations, and on what."""
    comparable: bool
    """Whether the task's published figures were measured on data like these."""
    chosen_by: str | None = None
    """The field that chooses this preset when it is set and no preset is named."""
    data: str | None = None
    """Where its data come from and how they are split, if not as the task says."""


def changed_from(preset: Preset[BaseRun], run: BaseRun) -> dict[str, tuple[Any, Any]]:
    """Returns field path -> (preset's value, run's value), but for what a table's rows are about."""
    changes = {
        path: tuple("given" if value else None for value in values) if path in GIVEN else values
        for path, values in changed_fields(preset.run, run).items()
    }
    return {
        path: (values[0], values[1])
        for path, values in changes.items()
        if not any(path == row or path.startswith(f"{row}.") for row in (*ROW_FIELDS, *ASIDE))
        or (path in OWN_FILES and isinstance(values[0], int))
    }


def settings(package: str, run: dict[str, Any]) -> str:
    """Returns everything in a run's JSON but its place in a table: equal for runs of one protocol."""
    rest = copy.deepcopy(run)
    for path in (*ROW_FIELDS, *ASIDE, *ORIGINS):
        holder, last = _holder(rest, path)
        if not (path in OWN_FILES and isinstance(holder.get(last), int)):
            holder.pop(last, None)
    for path in GIVEN:
        holder, last = _holder(rest, path)
        if last in holder:
            holder[last] = bool(holder[last])
    for path, value in LATER.items():
        holder, last = _holder(rest, path)
        if last in holder and holder[last] == value:
            del holder[last]
    return json.dumps([package, rest], sort_keys=True)


def row_values(run: dict[str, Any]) -> str:
    """Returns what a run's JSON has in the fields that a table's rows are about, seeds left out."""
    holders = [(_holder(run, path), path) for path in ROW_FIELDS if not path.endswith("seed")]
    return json.dumps({path: holder[last] for (holder, last), path in holders if last in holder}, sort_keys=True)


def is_same_run(one: Any, other: Any, *, anywhere: bool) -> bool:
    """Returns whether two runs' JSON differ in nothing, or in the spelling of file names alone.

    ``anywhere``: their data are known to be the same, wherever the files are.
    """
    try:
        runs = [_without_locations(each) if anywhere else each for each in (one, other)]
        return bool(_resolved(runs[0]) == _resolved(runs[1]))
    except (AttributeError, TypeError):  # a file with plain values where there should be fields
        return False


def _without_locations(run: Any) -> Any:
    rest = copy.deepcopy(run)
    for path in LOCATIONS:
        holder, last = _holder(rest, path)
        if not isinstance(holder.get(last), int):
            holder.pop(last, None)
    return rest


def _resolved(value: Any) -> Any:
    """Returns JSON values with the names of files that exist spelled in one way."""
    if isinstance(value, dict):
        return {name: _resolved(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_resolved(each) for each in value]
    is_path = isinstance(value, str) and "/" in value and Path(value).exists()
    return str(Path(value).resolve()) if is_path else value


def _holder(values: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    """Returns the part of a run's JSON that holds a field, and the field's own name."""
    *outer, last = path.split(".")
    return functools.reduce(lambda holder, name: holder.get(name, {}), outer, values), last


def row_name(run: BaseRun, preset: Preset[BaseRun]) -> str:
    """Returns how a leaderboard names this run: the attention, and norm and depth where they are not the preset's."""
    parts = [attention_name(run.model.attention)]
    if run.model.norm_label != preset.run.model.norm_label:
        parts.append(run.model.norm_label)
    if run.model.depth_label != preset.run.model.depth_label:
        parts.append(f"{run.model.depth_label} layers")
    parts += run.row_parts
    return ", ".join(parts)


def task_title(task: Task, preset: str, changed: dict[str, Any]) -> str:
    """Returns the heading of a protocol: task, version, preset, and the fields that differ from it."""
    modified = f", modified: {', '.join(f'{path}={new}' for path, (_, new) in changed.items())}" if changed else ""
    return f"{task.package} {task.name} (version {task.version}), preset {preset}{modified}"

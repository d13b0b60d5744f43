"""Fields of every run, its presets, and its row and protocol in tables."""

import functools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from seqarena.common.attention import attention_name
from seqarena.common.errors import WrongUseError, printable
from seqarena.common.model.transformer import ModelConfig
from seqarena.common.runs.config import field_paths
from seqarena.common.runs.named import changed_fields
from seqarena.common.runs.roles import ASIDE, CONFIG_VERSION, LOCATIONS, Role, json_fields, role, role_at
from seqarena.common.runs.tasks import Task
from seqarena.common.training.loop import Train
from seqarena.common.training.optim import Optim

RowParts = tuple[tuple[str, str], ...]
"""Row of a run in a table: (part, value), first the attention, then only parts that distinguish it from other rows."""
OTHER_ATTENTIONS = ("decoder", "cross", "pretrained with")
"""Parts of a row that are attentions too: of other parts of the model, or of its pretraining."""
LAYERS = "layers"
"""Part of a row with the number of layers."""
MODEL = "model"
"""The part of a row that is another word about the model."""
LARGEST = 2**31 - 1
"""No whole number of a run is larger, but for seeds."""
LARGEST_SEED = 2**63 - 1
VERSION = "version"
"""Part of a row with a hash of the sources, in rows of earlier versions."""


@dataclass(frozen=True, kw_only=True)
class BaseRun:
    """One training with its evaluation, fully specified before anything is loaded. Each package's Run adds fields."""

    task: str
    """Name of the task in its package."""
    preset: str
    """Name of the preset that the run started from."""
    seed: int = field(default=0, metadata=role(Role.SEED))
    """Seed of initial values, data order and dropout. Runs of one seed are paired."""
    model: ModelConfig
    """Config of the model."""
    optim: Optim
    """Optimiser, learning rate and schedule."""
    train: Train
    """Length of training and its batches."""

    @property
    def longest(self) -> int:
        """Maximum tokens per sequence."""
        return self.model.longest

    @property
    def row_parts(self) -> RowParts:
        """Further parts of this run's row in a table, after attention, norm and depth."""
        return ()

    @property
    def notes(self) -> list[str]:
        """Notes that every table prints beside its result."""
        return self.model.notes

    @property
    def without_effect(self) -> Mapping[str, str]:
        """Path of a field -> the setting with which it has no effect. Such a field is refused if it is typed."""
        return {}

    @property
    def measured(self) -> str:
        """Note on the evaluation that is not the same for all runs of the task; empty without one."""
        return ""

    def completed(self, typed: Collection[str]) -> "BaseRun":
        """Returns the run with the fields that follow from others, except those whose paths were ``typed``.

        Raises:
            WrongUseError: a typed field contradicts another.
        """
        return self

    def check_values(self) -> None:
        """Raises a ``WrongUseError`` for a value that its field cannot have, before any file that it names is read."""
        if type(self.seed) is not int or not 0 <= self.seed <= LARGEST_SEED:
            raise WrongUseError(f"seed: expected a whole number from 0 up to below 2^63, found {self.seed!r}")
        for path in field_paths(self):
            held: Any = functools.reduce(getattr, path.split("."), self)
            for value in held if isinstance(held, tuple) else [held]:
                if isinstance(value, str) and printable(value) != value:
                    raise WrongUseError(f"{path}: expected text without control characters, found {value!r}")
                if isinstance(value, str) and role_at(self, path) in {*LOCATIONS, Role.WEIGHTS, Role.OPTIONAL_FILE}:
                    _require_local(path, value)
                if isinstance(value, float) and not math.isfinite(value):
                    raise WrongUseError(f"{path}: expected a finite number, found {value}")
                largest = LARGEST_SEED if path.endswith("seed") else LARGEST
                if isinstance(value, int) and abs(value) > largest:
                    raise WrongUseError(f"{path}: expected a whole number up to {largest:,}, found {value}")

    def check(self) -> None:
        """Raises a ``WrongUseError`` for a run that could not work, before anything is loaded."""
        self.check_values()
        self.optim.check()
        self.train.check()
        self.optim.schedule.check(self.train.steps)


AnyRun_co = TypeVar("AnyRun_co", bound=BaseRun, covariant=True)


@dataclass(frozen=True, kw_only=True)
class Preset(Generic[AnyRun_co]):
    """A named run, with the sources of its numbers, its expected score and its cost."""

    run: AnyRun_co
    """The run itself."""
    source: str
    """Source of its numbers."""
    departures: str = ""
    """Departures from that source; empty: none known."""
    expected: str
    """Expected score."""
    cost: str
    """Time or operations, and the machine."""
    comparable: bool
    """Whether the task's published figures were measured on comparable data."""
    chosen_by: str | None = None
    """The field that selects this preset when it is set and no preset is named."""
    data: str | None = None
    """Source and splits of its data, if they differ from the task's."""
    data_name: str = ""
    """Name of its data in titles, if they are not the task's own. No published figure is shown beside them."""
    chance: float | None = None
    """Score of guessing on its data, if it is not the task's."""


def changed_from(preset: Preset[BaseRun], run: BaseRun) -> dict[str, tuple[Any, Any]]:
    """Returns field path -> (preset's value, run's value), without fields of rows and fields that are no settings."""
    changes = {}
    for path, values in changed_fields(preset.run, run).items():
        role = role_at(run, path)
        if role not in {Role.ROW, Role.SEED, *(ASIDE - {Role.ORIGIN})}:
            changes[path] = _is_set(values) if role is Role.OPTIONAL_FILE else values
    return changes


def _is_set(values: tuple[Any, Any]) -> tuple[Any, Any]:
    before, now = ("given" if value else None for value in values)
    return before, now


def settings(kind: type[BaseRun], run: Any, config_version: int = CONFIG_VERSION) -> dict[str, Any]:
    """Returns field path -> value for the settings in a run's JSON, which are equal for runs of one protocol."""
    return {
        path: bool(value) if role is Role.OPTIONAL_FILE else value
        for path, role, value in json_fields(kind, run, config_version)
        if role in (None, Role.OPTIONAL_FILE, Role.PRETRAINING)
    }


def row_values(kind: type[BaseRun], run: Any) -> dict[str, Any]:
    """Returns field path -> value for the fields of a run's JSON that determine its row."""
    return {path: value for path, role, value in json_fields(kind, run) if role is Role.ROW}


def seed_values(kind: type[BaseRun], run: Any) -> dict[str, Any]:
    """Returns field path -> value for the seeds in a run's JSON: its own, and that of its checkpoint's pretraining."""
    return {path: value for path, role, value in json_fields(kind, run) if role is Role.SEED}


def is_same_run(kind: type[BaseRun], one: Any, other: Any, *, anywhere: bool) -> bool:
    """Returns whether the JSON of two runs is equal, apart from the spelling of file names.

    ``anywhere``: file locations may differ too, since the data are known to be the same.
    """
    left_out = LOCATIONS if anywhere else frozenset()
    both = [
        {path: _resolved(value) for path, role, value in json_fields(kind, run) if role not in left_out}
        for run in (one, other)
    ]
    return both[0] == both[1]


def _require_local(path: str, name: str) -> None:
    """Raises a ``WrongUseError`` for an empty name of a file and for an address, which would be read as a folder."""
    if name == "":
        raise WrongUseError(f"{path}: expected a name, found none; leave it out, or name a file")
    if "://" in name:
        raise WrongUseError(
            f"{path}: expected the name of a local file or folder, found the address {name}; download it, and name "
            "the local copy"
        )


def _resolved(value: Any) -> Any:
    """Returns JSON values with one spelling of the names of existing files."""
    if isinstance(value, dict):
        return {name: _resolved(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_resolved(each) for each in value]
    is_path = isinstance(value, str) and "/" in value and Path(value).exists()
    return str(Path(value).resolve()) if is_path else value


def row_of(run: BaseRun, preset: Preset[BaseRun]) -> RowParts:
    """Returns the row of a run in a table: the attention, with norm and depth where they are not the preset's."""
    own, meant = run.model, preset.run.model
    norm = (("norm", own.norm_label),) if own.norm_label != meant.norm_label else ()
    layers = ((LAYERS, str(own.depth_label)),) if own.depth_label != meant.depth_label else ()
    labels = tuple(("attention setting", each) for each in own.attention_labels)
    return (("attention", attention_name(own.attention)), *labels, *norm, *layers, *run.row_parts)


def row_name(row: RowParts) -> str:
    """Returns a row as text."""
    words = ", ".join(_in_words(part, value) for part, value in row if part != VERSION)
    return " @".join([words, *(value for part, value in row if part == VERSION)])


def _in_words(part: str, value: str) -> str:
    if part in OTHER_ATTENTIONS:
        return f"{part} {value}"
    if part == LAYERS:
        return f"{value} layer" if value == "1" else f"{value} layers"
    return value


def task_title(task: Task, preset: str, data_name: str, changed: Mapping[str, Any]) -> str:
    """Returns the heading of a protocol: task, version, preset, name of other data, and changed fields."""
    data = f" ({data_name})" if data_name else ""
    modified = f", modified: {', '.join(f'{path}={new}' for path, (_, new) in changed.items())}" if changed else ""
    return f"{task.package} {task.name} (version {task.version}), preset {preset}{data}{modified}"

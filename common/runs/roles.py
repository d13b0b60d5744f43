"""Roles of a run's fields in tables and comparisons. Each is declared as metadata where its field is declared.

A field without a role is a setting: runs that differ in it belong to different protocols.
"""

import functools
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, NamedTuple

from seqarena.common.runs.config import class_named, config_class, hints_of, to_json

CONFIG_VERSION = 5
"""Version of the fields of all configs. Raise it when adding a field, and declare the field as ``added`` in it."""


class Role(Enum):
    """Meaning of a field for comparisons between runs."""

    ROW = "row"
    """Compared by a leaderboard: runs that differ in it are rows of one table."""
    SEED = "seed"
    """Distinguishes the runs of one row."""
    ASIDE = "aside"
    """Changes no score that is compared: logging, diagnostics, additional test examples."""
    LOCATION = "location"
    """A location of files. The data checksum identifies their content."""
    OWN_FILE = "own file"
    """A location of files that replace a task's own data, whose checksum is in no task's record."""
    ORIGIN = "origin"
    """A location of text or vocabulary that is reported where it differs from the preset's."""
    WEIGHTS = "weights"
    """The checkpoint that a run starts from. Its hash is kept with the run."""
    OPTIONAL_FILE = "optional file"
    """An optional file of the user. Whether one is set is a setting, its location is not."""
    PRETRAINING = "pretraining"
    """A setting that is read from the checkpoint, and therefore no departure from a preset."""


LOCATIONS = frozenset({Role.LOCATION, Role.OWN_FILE, Role.ORIGIN})
"""Roles of fields that may differ between runs that count as the same, if their data have the same checksum."""
ASIDE = LOCATIONS | {Role.ASIDE, Role.WEIGHTS}
"""Roles of fields that are neither part of a protocol nor of a row."""


class JsonField(NamedTuple):
    """A field in the JSON of a config."""

    path: str
    """Dotted path of the field."""
    role: Role | None
    value: Any


def role(of: Role) -> dict[str, Any]:
    """Returns the metadata of a dataclass field with this role. A subclass that redeclares the field keeps it."""
    return {"role": of}


def added(config_version: int) -> dict[str, Any]:
    """Returns the metadata of a field that configs before this version lack. The default describes their behaviour."""
    return {"added": config_version}


def role_of(kind: type, name: str) -> Role | None:
    """Returns the role of a field of a dataclass; None for a setting."""
    return _metadata(kind, name).get("role")


def role_at(config: Any, path: str) -> Role | None:
    """Returns the first role along a dotted path; None if the path leads to a setting."""
    for name in path.split("."):
        if not is_dataclass(config):
            return None
        if (found := role_of(type(config), name)) is not None:
            return found
        config = getattr(config, name, None)
    return None


def json_fields(kind: type, values: Any, config_version: int = CONFIG_VERSION, path: str = "") -> Iterator[JsonField]:
    """Yields the fields in the JSON of a config, also of a version with fewer, more or other fields.

    The fields of a nested config are yielded instead of it, unless it has a role as a whole or its class is unknown.
    Fields that were added after ``config_version`` have their defaults. ``path`` is the prefix of the paths, with a
    dot at the end.
    """
    chosen = class_named(kind, values) if isinstance(values, dict) else None
    if chosen is None:
        yield JsonField(path.removesuffix("."), None, values)
        return
    declared = {field.name: field for field in fields(chosen)}
    for name in dict.fromkeys([*declared, *values]):
        if name in values:
            value = values[name]
        elif _metadata(chosen, name).get("added", 0) > config_version:
            value = to_json(declared[name].default)
        else:
            continue
        own = role_of(chosen, name)
        inner = _config_class(chosen, name)
        if own is None and inner is not None and isinstance(value, dict):
            yield from json_fields(inner, value, config_version, f"{path}{name}.")
        else:
            yield JsonField(f"{path}{name}", own, value)


@functools.cache
def _metadata(kind: type, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in reversed(kind.__mro__):
        field = each.__dict__.get("__dataclass_fields__", {}).get(name)
        found |= field.metadata if field is not None else {}
    return found


@functools.cache
def _config_class(kind: type, name: str) -> type | None:
    """Returns the dataclass in a field's annotation, alone or in a union; None for plain values."""
    return config_class(hints_of(kind).get(name))

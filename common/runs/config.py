"""Frozen dataclasses to JSON and back; fingerprints of runs.

The JSON of each config contains its class name, under the key ``class``, since a field may hold one of several
classes. The name of a class that is not this project's contains its module, as in ``my_attention:MyAttention``.
"""

import functools
import hashlib
import json
import types
import typing
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

Config = TypeVar("Config")
PROJECT = __name__.partition(".")[0]
"""Name of this project's package."""


def to_json(config: Any, *, later: bool = True) -> Any:
    """Returns a config as plain JSON values. Each dataclass becomes a dict with its class name.

    ``later`` False: without the fields that were added later (``roles.added``) and have their defaults, as in the JSON
    from before they were added.
    """
    if is_dataclass(config) and not isinstance(config, type):
        return {"class": class_label(type(config))} | {
            field.name: to_json(getattr(config, field.name), later=later)
            for field in fields(config)
            if later or "added" not in field.metadata or getattr(config, field.name) != field.default
        }
    if isinstance(config, tuple | list):
        return [to_json(item, later=later) for item in config]
    return config


def from_json(kind: type[Config], values: Any) -> Config:
    """Returns the config that ``to_json`` wrote. ``kind`` is its class or a base class of it.

    A field that was added later (``roles.added``) and is missing has its default, which describes earlier configs.

    Raises:
        ValueError: a class that is not of ``kind``, unknown or missing fields, or a value of another type.
    """
    if not isinstance(values, dict):
        raise ValueError(f"expected a {kind.__name__}, found {type(values).__name__}")
    chosen: Any = class_named(kind, values)
    if chosen is None:
        raise ValueError(f"expected a {kind.__name__}, found class {values.get('class')!r}{_advice(values)}")
    found = set(values) - {"class"}
    known = {field.name for field in fields(chosen) if field.name in found or "added" not in field.metadata}
    if found != known:
        raise ValueError(f"{chosen.__name__}: unknown or missing fields {sorted(found ^ known)}")
    hints = hints_of(chosen)
    config: Config = chosen(**{name: _value(hints[name], values[name]) for name in known})
    return config


def is_external(kind: type) -> bool:
    """Returns whether a class is defined outside this project."""
    return kind.__module__.partition(".")[0] != PROJECT


def class_label(kind: type) -> str:
    """Returns the name of a config's class in JSON, which contains the module of an external class."""
    return f"{kind.__module__}:{kind.__name__}" if is_external(kind) else kind.__name__


def fingerprint(config: Any) -> str:
    """Returns 12 hex digits that change whenever any field of a config changes."""
    return hashlib.sha256(json.dumps(to_json(config), sort_keys=True).encode()).hexdigest()[:12]


def field_paths(config: Any, path: str = "") -> list[str]:
    """Returns the dotted path of every plain field."""
    found: list[str] = []
    for field in fields(config):
        value, inner = getattr(config, field.name), f"{path}{field.name}"
        found += field_paths(value, f"{inner}.") if is_dataclass(value) else [inner]
    return found


def class_named(kind: type, values: dict[str, Any]) -> type | None:
    """Returns the class that the JSON of a config names, ``kind`` or a subclass of it; None if it is unknown."""
    return next((each for each in _family(kind) if class_label(each) == values.get("class")), None)


def config_class(hint: Any) -> type | None:
    """Returns the dataclass in an annotation, alone or in a union; None if there is none."""
    options = [hint, *typing.get_args(hint)]
    return next((each for each in options if isinstance(each, type) and is_dataclass(each)), None)


def _advice(values: dict[str, Any]) -> str:
    module, is_external_class, _ = str(values.get("class")).partition(":")
    return f", whose code is not loaded; name it: --code {module.replace('.', '/')}.py" if is_external_class else ""


def _family(kind: type) -> list[type]:
    children: list[type] = kind.__subclasses__()
    return [kind, *(each for child in children for each in _family(child))]


@functools.cache
def hints_of(kind: type) -> dict[str, Any]:
    """Returns the type of each field of a dataclass. A table of hundreds of results needs them thousands of times."""
    return typing.get_type_hints(kind)


def _value(hint: Any, value: Any) -> Any:
    if isinstance(value, dict):
        chosen = config_class(hint)
        if chosen is None:
            raise ValueError(f"expected {hint}, found a dict")
        return from_json(chosen, value)
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        inner = [each for each in typing.get_args(hint) if each is not type(None)]
        return value if value is None else _value(inner[0], value)
    if isinstance(value, list) and origin in (tuple, Sequence):
        return tuple(value)
    if hint is float and type(value) in (int, float):
        return float(value)
    allowed = typing.get_args(hint) if origin is typing.Literal else None
    if value not in allowed if allowed is not None else type(value) is not (origin or hint):
        raise ValueError(f"expected {getattr(hint, '__name__', hint)}, found {value!r}")
    return value

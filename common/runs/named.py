"""Configs that have names in a table: the name of a config, and the differences between two."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from seqarena.common.runs.config import class_label, is_external


def changed_fields(base: Any, value: Any, path: str = "") -> dict[str, tuple[Any, Any]]:
    """Returns field path -> (value in ``base``, value in ``value``) for the differences between two configs.

    If their classes differ, the whole value counts as one difference.
    """
    if not is_dataclass(base) or type(base) is not type(value):
        return {} if type(base) is type(value) and base == value else {path: (base, value)}
    found: dict[str, tuple[Any, Any]] = {}
    for field in fields(base):
        inner = f"{path}.{field.name}" if path else field.name
        found |= changed_fields(getattr(base, field.name), getattr(value, field.name), inner)
    return found


def name_in(table: Mapping[str, Any], value: Any) -> str:
    """Returns the name of the entry nearest to ``value``, with the fields that differ in brackets.

    An external class has no entry. Its name contains its module, and its defaults count as the entry.

    Raises:
        KeyError: no entry of the table has the class of ``value``, which is one of this project.
    """
    kind = type(value)
    entries = {class_label(kind): kind()} if is_external(kind) else table
    alike = {name: changed_fields(entry, value) for name, entry in entries.items() if type(entry) is kind}
    if not alike:
        raise KeyError(f"{kind.__name__} has no entry in the table")
    name, changes = min(alike.items(), key=lambda item: len(item[1]))
    return name + (f"[{','.join(f'{path}={new}' for path, (_, new) in changes.items())}]" if changes else "")

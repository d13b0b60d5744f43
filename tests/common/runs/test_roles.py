"""Every field of every preset has a role that fits it, declared where the field is."""

import types
import typing
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from seqarena.common.runs.config import field_paths, to_json
from seqarena.common.runs.roles import Role, json_fields, role_at, role_of
from seqarena.common.runs.run import BaseRun
from seqarena.scripts.packages import PACKAGES, find_package

RUNS = {
    f"{name}-{task}-{preset}": value.run
    for name in PACKAGES
    for task, presets in find_package(name).presets.items()
    for preset, value in presets.items()
}
TEXT = {"task", "preset"}
"""Fields of free text that are settings."""


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_every_field_is_walked_once_with_its_role(run: BaseRun) -> None:
    walked = {each.path: each for each in json_fields(type(run), to_json(run))}
    configs = tuple(f"{path}." for path, each in walked.items() if isinstance(each.value, dict))
    assert {path for path in walked if not f"{path}.".startswith(configs) and not path.endswith("class")} == {
        path for path in field_paths(run) if not path.startswith(configs)
    }
    assert all(each.role is role_at(run, path) for path, each in walked.items() if each.role is not None)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_free_text_is_a_file_an_origin_or_a_row(run: BaseRun) -> None:
    """Two spellings of one file's name would make two protocols of the same bytes: declare the field's role."""
    assert {path for path in _free_text(run) if role_at(run, path) is None} <= TEXT


def _free_text(config: Any, path: str = "") -> list[str]:
    found = []
    hints = typing.get_type_hints(type(config))
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            found += _free_text(value, f"{path}{field.name}.")
        elif str in _plain_types(hints[field.name]):
            found.append(f"{path}{field.name}")
    return found


def _plain_types(hint: Any) -> set[Any]:
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return set()
    if origin in (types.UnionType, typing.Union, tuple):
        return {kind for inner in typing.get_args(hint) for kind in _plain_types(inner)}
    return {hint}


def test_a_subclass_that_declares_a_field_again_keeps_its_role() -> None:
    run: Any = RUNS["pretraining-wikitext103-base"]  # its model has a default of its own for the layers
    assert role_of(type(run.model), "layers") is Role.ROW


def test_what_a_config_of_another_version_has_is_walked_too() -> None:
    run = RUNS["lra-listops-quick"]
    values = to_json(run)
    values["model"]["later"] = {"class": "Later", "x": 1}
    values["data"] = {"class": "Gone", "path": "a"}
    walked = {each.path: (each.role, each.value) for each in json_fields(type(run), values)}
    assert walked["model.later"] == (None, {"class": "Later", "x": 1})
    assert walked["data"] == (None, {"class": "Gone", "path": "a"})
    assert [each.path for each in json_fields(type(run), [1])] == [""]

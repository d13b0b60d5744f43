"""Remarks below a table on results that differ in more than their variant and seed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seqarena.common.runs.results import Result
from seqarena.common.runs.run import settings
from seqarena.lra.presets import PRESETS
from seqarena.scripts.leaderboard.records import newest
from seqarena.scripts.leaderboard.table import tables
from tests.scripts.test_leaderboard import only, result, run

SOURCES = {"common/training/step.py": "1", "common/attention/softmax.py": "2"}
ENVIRONMENT = {"device": "a CPU", "precision": "float32", "clean": True, "commit": "c" * 40, "threads": 2,
               "python": "3.11", "processes": 1, "libraries": {"torch": "2.13"}}  # fmt: skip


def made(row: str, seed: int, correct: int = 50, **changes: Any) -> Result:
    return result(row, seed, correct, **{"sources": SOURCES, "environment": ENVIRONMENT} | changes)


def remarks(*results: Result) -> list[str]:
    kept, _ = newest({Path(str(number)): each for number, each in enumerate(results)})
    return only(tables(list(kept.values()), [], "softmax")).remarks


def test_results_of_one_kind_need_no_remark() -> None:
    assert remarks(*(made(row, seed) for row in ("softmax", "x3") for seed in range(3))) == []


def test_a_row_is_split_where_its_sources_change() -> None:
    edited = {**SOURCES, "common/attention/softmax.py": "3"}
    results = [made("softmax", 0), made("softmax", 1, sources=edited), made("softmax", 0, 60, sources=edited)]
    results[2] = replace(results[2], finished_at="2026-01-02")
    kept, messages = newest({Path(str(number)): each for number, each in enumerate(results)})
    table = only(tables(list(kept.values()), [], "softmax"))
    assert messages == []
    assert [(row.name.split(" @")[0], row.seeds) for row in table.rows] == [("softmax", [0, 1]), ("softmax", [0])]
    older = table.rows[1]
    assert older.name.startswith("softmax @")
    assert older.against == "softmax"
    assert table.remarks == [f"{older.name}: measured before common/attention/softmax.py changed; softmax: after"]


def test_rows_that_are_compared_across_a_change_of_what_they_share_say_so() -> None:
    edited = {**SOURCES, "common/training/step.py": "9"}
    table = remarks(*(made("softmax", seed) for seed in range(2)), *(made("x3", s, sources=edited) for s in range(2)))
    assert table == ["x3 and softmax: measured by different versions of common/training/step.py"]


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        ({"clean": False}, "measured with uncommitted changes: x3 seed 1"),
        ({"threads": 1}, "different threads: 2: softmax, x3 seed 0; 1: x3 seed 1"),
        ({"libraries": {"torch": "2.14"}}, "different torch: 2.13: softmax, x3 seed 0; 2.14: x3 seed 1"),
        ({"python": "3.12"}, "different python: 3.11: softmax, x3 seed 0; 3.12: x3 seed 1"),
    ],
)
def test_another_environment_is_named(change: dict[str, Any], remark: str) -> None:
    odd = made("x3", 1, environment=ENVIRONMENT | change)
    assert remarks(made("softmax", 0), made("softmax", 1), made("x3", 0), odd) == [remark]


def test_results_from_before_sources_were_recorded_say_which_commit() -> None:
    assert remarks(*(made("softmax", seed, sources={}) for seed in range(2))) == [
        "sources were not recorded; commit: cccccccc"
    ]
    mixed = remarks(made("softmax", 0, sources={}), made("softmax", 1))
    assert mixed[0].startswith("softmax @")
    assert mixed[0].endswith(": sources were not recorded")


def test_a_name_that_stands_for_other_values_is_split() -> None:
    """The table of variants was edited: no source of the formula, but another formula under the name."""
    plain = run("x3", "quick", 1000, 1)
    other = replace(made("x3", 1), run=plain | {"model": plain["model"] | {"attention": {"scale": 2.0}}})
    told = remarks(made("softmax", 0), made("x3", 0), other)
    assert any("the meaning of the name" in each for each in told)


def test_segments_are_named() -> None:
    again = made("softmax", 0, segments=[{"after_step": 0}, {"after_step": 9}])
    assert remarks(again, made("softmax", 1)) == ["started in one environment and resumed in another: softmax seed 0"]


def test_what_changes_no_number_makes_no_protocol() -> None:
    kind = type(PRESETS["listops"]["quick"].run)
    whole = run("softmax", "quick", 5)
    plain = settings(kind, whole)

    def varied(part: str, name: str, value: object) -> dict[str, Any]:
        return settings(kind, whole | {part: whole[part] | {name: value}})

    for part, name, value in (("train", "log_every", 1), ("train", "checkpoint_seconds", 0.0),
                              ("train", "diagnostics", True), ("data", "path", "x")):  # fmt: skip
        assert varied(part, name, value) == plain
    assert settings(kind, whole | {"seed": 7}) == plain
    for part, name, value in (("data", "train", 8), ("data", "test_limit", 5), ("train", "steps", 6)):
        assert varied(part, name, value) != plain


def test_a_field_that_was_added_later_leaves_earlier_results_in_their_protocol() -> None:
    kind = type(PRESETS["listops"]["quick"].run)
    whole = run("softmax", "quick", 5)
    before = whole | {"data": {name: value for name, value in whole["data"].items() if name != "test_limit"}}
    assert settings(kind, before, config_version=1) == settings(kind, whole)
    assert settings(kind, before, config_version=2) != settings(kind, whole)  # it should be there: not one of ours
    one, other = (made("softmax", seed, run=values | {"seed": seed}, config_version=version)
                  for seed, values, version in ((0, before, 1), (1, whole, 2)))  # fmt: skip
    assert only(tables([one, other], [], "softmax")).rows[0].seeds == [0, 1]

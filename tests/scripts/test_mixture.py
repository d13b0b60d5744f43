"""Remarks below a table on results that differ in more than their variant and seed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.results import Result
from common.run import settings
from scripts.leaderboard import tables
from scripts.measurements import newest
from tests.scripts.test_leaderboard import only, result, run

SOURCES = {"common/step.py": "1", "common/attention/softmax.py": "2"}
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
    edited = {**SOURCES, "common/step.py": "9"}
    table = remarks(*(made("softmax", seed) for seed in range(2)), *(made("x3", s, sources=edited) for s in range(2)))
    assert table == ["x3 and softmax: measured by different versions of common/step.py"]


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
    assert any("what the name stands for" in each for each in told)


def test_segments_are_named() -> None:
    again = made("softmax", 0, segments=[{"after_step": 0}, {"after_step": 9}])
    assert remarks(again, made("softmax", 1)) == ["begun in one environment and resumed in another: softmax seed 0"]


def test_what_changes_no_number_makes_no_protocol() -> None:
    run = {"class": "Run", "seed": 0, "model": {"attention": {}}, "train": {"steps": 5, "log_every": 10},
           "data": {"length": 9, "test_limit": None}}  # fmt: skip
    plain = settings("lra", run)
    for path, value in (("train.log_every", 1), ("train.checkpoint_seconds", 0.0), ("train.diagnostics", True),
                        ("data.path", "x"), ("data.hub", "a/b"), ("data.tokenizer", "c")):  # fmt: skip
        part, name = path.split(".")
        assert settings("lra", {**run, part: {**run[part], name: value}}) == plain  # type: ignore[dict-item]
    assert settings("lra", {**run, "data": {"length": 9}}) == plain  # as a result had it before there was a limit
    for changed in ({"data": {"length": 8}}, {"data": {"length": 9, "test_limit": 5}}, {"train": {"steps": 6}}):
        assert settings("lra", {**run, **changed}) != plain

"""Remarks below a table on results that differ in more than their variant and seed."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seqarena.common.runs.config import to_json
from seqarena.common.runs.results import Result
from seqarena.common.runs.run import settings
from seqarena.lra.presets import PRESETS
from seqarena.scripts.leaderboard.cells import footnotes
from seqarena.scripts.leaderboard.comparison import rows_of
from seqarena.scripts.leaderboard.protocol import Group, protocol_of
from seqarena.scripts.leaderboard.records import newest
from seqarena.scripts.leaderboard.remarks import remarks as remarks_of
from seqarena.scripts.leaderboard.remarks import separate_versions
from seqarena.scripts.leaderboard.table import Table, tables
from seqarena.scripts.report.words import sentences
from tests.scripts.results import only, result, run

SOURCES = {"common/training/step.py": "1", "common/attention/softmax.py": "2"}
EDITED = SOURCES | {"common/training/step.py": "9"}
ENVIRONMENT = {"device": "a CPU", "precision": "float32", "clean": True, "commit": "c" * 40, "threads": 2,
               "python": "3.11", "processes": 1, "libraries": {"torch": "2.13"}}  # fmt: skip


def made(row: str, seed: int, correct: int = 50, **changes: Any) -> Result:
    return result(row, seed, correct, **{"sources": SOURCES, "environment": ENVIRONMENT} | changes)


def remarks(*results: Result) -> list[str]:
    return compared(results).remarks


def compared(results: Sequence[Result]) -> Table:
    kept, _, _ = newest({Path(str(number)): each for number, each in enumerate(results)})
    return only(tables(list(separate_versions(kept).values()), [], "softmax"))


def test_results_of_one_kind_need_no_remark() -> None:
    assert remarks(*(made(row, seed) for row in ("softmax", "x3") for seed in range(3))) == []


def test_a_row_is_split_where_its_sources_change() -> None:
    formula = {**SOURCES, "common/attention/softmax.py": "3"}
    results = [made("softmax", 0), made("softmax", 1, sources=formula), made("softmax", 0, 60, sources=formula)]
    results[2] = replace(results[2], finished_at="2026-01-02")
    kept, _, messages = newest({Path(str(number)): each for number, each in enumerate(results)})
    table = only(tables(list(separate_versions(kept).values()), [], "softmax"))
    assert messages == []
    assert [(row.name.split(" @")[0], row.seeds) for row in table.rows] == [("softmax", [0, 1]), ("softmax", [0])]
    older = table.rows[1]
    assert older.name.startswith("softmax @")
    assert (older.against, older.not_compared) == ("", "")
    assert table.remarks == [f"{older.name}: measured before common/attention/softmax.py changed; softmax: after"]


def generation(shift: int, day: int, sources: dict[str, str], *rows: str) -> list[Result]:
    """Three seeds of each row: softmax has about 50 + shift of 200 examples right, the others 10 more."""
    return [
        made(row, seed, 50 + seed * (row != "x3") + shift + 10 * (row != "softmax"), sources=sources,
             finished_at=f"2026-01-0{day}")
        for row in rows for seed in range(3)
    ]  # fmt: skip


def test_an_earlier_version_is_compared_with_the_baseline_of_its_own_sources() -> None:
    """Both older rows have 40 examples fewer right than the newer ones; between those of one time nothing changed."""
    now = generation(40, 2, EDITED, "softmax", "x3", "dnas")
    alone = {row.name: row for row in compared(now).rows}
    table = compared([*generation(0, 1, SOURCES, "softmax", "x3", "dnas"), *now])
    rows = {row.name: row for row in table.rows}
    old = {name.split(" @")[0]: row for name, row in rows.items() if " @" in name}
    for name in ("x3", "dnas"):
        assert (rows[name].against, old[name].against) == ("softmax", old["softmax"].name)
        assert rows[name].comparison == alone[name].comparison
        assert rows[name].p_corrected == alone[name].p_corrected  # two comparisons, not four
        assert old[name].p_corrected == pytest.approx(alone[name].p_corrected)
    assert not [each for each in table.remarks if "compared" in each]
    told = dict(sentences(table))
    assert old["softmax"].name not in told
    assert f"than {old['softmax'].name} on 3 seeds" in told[old["x3"].name]


def test_an_edit_of_a_file_that_the_other_does_not_read_splits_no_comparison() -> None:
    cubic = {"common/attention/elementwise.py": "1"}
    old = generation(0, 1, SOURCES | cubic, "x3")
    new = generation(5, 2, SOURCES | {"common/attention/elementwise.py": "2"}, "x3")
    table = compared([*generation(0, 1, SOURCES, "softmax"), *old, *new])
    assert [row.against for row in table.rows] == ["", "softmax", "softmax"]


def test_a_row_measured_before_the_baseline_was_measured_again_is_compared_with_the_baseline_before() -> None:
    again = generation(40, 2, EDITED, "softmax")
    table = compared([*generation(0, 1, SOURCES, "softmax", "x3"), *again])
    softmax, before, cubic = table.rows
    assert cubic.against == before.name != softmax.name
    assert cubic.comparison is not None
    assert cubic.comparison.difference == pytest.approx(9 / 200)
    assert f"x3: compared with {before.name}, which the same sources measured" in table.remarks


def test_rows_of_other_sources_than_every_baseline_are_not_compared() -> None:
    others = generation(40, 2, EDITED, "x3", "dnas")
    table = compared([*generation(0, 1, SOURCES, "softmax"), *others])
    reason = "no softmax was measured by the same version of common/training/step.py"
    assert [(row.against, row.comparison, row.p_corrected) for row in table.rows] == [("", None, None)] * 3
    assert table.remarks == [f"x3, dnas: not compared: {reason}"]
    assert dict(sentences(table))["x3"] == f"is not compared: {reason}."
    assert not [note for note in footnotes(table) if "no finished seed" in note]


def test_rows_that_were_tested_on_other_numbers_of_examples_are_not_compared() -> None:
    """As of a tuned batch size that cuts the test set, measured before such grids were refused."""
    fewer = [replace(each, example_scores=each.example_scores[:-1]) for each in generation(0, 2, SOURCES, "x3")]
    table = compared([*generation(0, 1, SOURCES, "softmax"), *fewer])
    count = len(fewer[0].example_scores)
    reason = f"it was tested on {count:,} examples, softmax on {count + 1:,}"
    assert table.remarks == [f"x3: not compared: {reason}"]


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
    assert "x3: not compared: sources were recorded for softmax but not here" in remarks(
        made("softmax", 0), made("x3", 0, sources={})
    )


def test_a_name_that_stands_for_other_values_is_split() -> None:
    """The table of variants was edited: no source of the formula, but another formula under the name."""
    plain = run("x3", "quick", 1000, 1)
    other = replace(made("x3", 1), run=plain | {"model": plain["model"] | {"attention": {"scale": 2.0}}})
    told = remarks(made("softmax", 0), made("x3", 0), other)
    assert any("the meaning of the name" in each for each in told)


def test_a_metric_of_some_seeds_only_is_named() -> None:
    some = [made("softmax", seed) for seed in range(3)]
    some[1] = replace(some[1], metrics={"accuracy": 0.5, "rouge2": 0.25})
    rows, by_row = rows_of(Group(protocol=protocol_of(some[0]), results=some), "softmax", ["rouge2"])
    assert rows[0].secondary == {"rouge2": (0.25, None)}
    assert remarks_of(by_row, rows) == ["rouge2 of some seeds only: softmax 1 of 3 seeds"]


def test_other_floors_than_those_shown_are_named() -> None:
    some = [made("softmax", seed, floors={"majority class": 0.5 if seed == 0 else 0.1}) for seed in range(3)]
    assert remarks(*some) == ["other floors than those shown, which are of the newest result: softmax seed 0"]


def test_fields_that_differ_from_the_preset_as_it_is_now_are_named() -> None:
    """The stored differences are those from the preset at the time of the run."""
    one = PRESETS["listops"]["quick"].run
    usual = made("softmax", 0, run=to_json(one))
    assert protocol_of(usual).changed == {}
    other = replace(usual, run=to_json(replace(one, train=replace(one.train, steps=500))))
    assert protocol_of(other).changed == {"train.steps": [1000, 500]}
    assert protocol_of(replace(usual, changed={"train.steps": [500, 1000]})).changed == {}
    mine = other.run | {"model": other.run["model"] | {"attention": {"class": "my:My"}}}  # not imported here
    assert protocol_of(replace(usual, run=mine)).changed == {"train.steps": [1000, 500]}


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

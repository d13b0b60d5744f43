"""Tables of results: rows, comparisons, formats."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqarena.common.errors import WrongUseError
from seqarena.common.runs.config import to_json
from seqarena.common.runs.results import Result
from seqarena.common.runs.roles import CONFIG_VERSION
from seqarena.common.runs.run import row_name, row_of
from seqarena.common.runs.tasks import Published
from seqarena.common.tables import latex
from seqarena.lra.pictures.presets import PRESETS as PICTURES
from seqarena.lra.recall.presets import PRESETS as RECALL_PRESETS
from seqarena.scripts import leaderboard
from seqarena.scripts.leaderboard.cells import cells, footnotes, headings, orders, shown_figures
from seqarena.scripts.leaderboard.side_by_side import join
from seqarena.scripts.leaderboard.table import OTHER_DATA, tables
from seqarena.scripts.packages import find_package
from tests.scripts.results import CORRECT, DATA, only, result, row_of_name, run


def test_chance_is_that_of_the_data() -> None:
    """The preset quick of imagenet has digits of ten classes; of data that the user changed nothing is known."""
    preset = PICTURES["imagenet"]["quick"].run
    made = result("softmax", 0, 50, task="imagenet", run=to_json(preset))
    assert only(tables([made], [], "softmax")).chance == 0.1
    values = run("softmax", "quick", 1000)
    listops = result("softmax", 0, 50, run=values | {"data": values["data"] | {"max_depth": 3}})
    assert only(tables([listops], [], "softmax")).chance is None
    assert only(tables([result("softmax", 0, 50)], [], "softmax")).chance == 0.1


def test_means_spreads_seeds_and_tests(results: list[Result]) -> None:
    table = only(tables(results, [], "softmax"))
    softmax, dnas, x3 = table.rows
    assert [row.name for row in table.rows] == ["softmax", "dnas", "x3"]
    assert softmax.mean == pytest.approx(np.mean(CORRECT["softmax"]) / 200)
    assert softmax.deviation == pytest.approx(np.std(CORRECT["softmax"], ddof=1) / 200)
    assert softmax.seeds == [0, 1, 2]
    assert softmax.comparison is None
    assert (softmax.tokens_per_second, softmax.peak_memory_bytes) == (101.0, 3 * 2**20)
    assert dnas.comparison is not None
    assert dnas.comparison.difference == pytest.approx(22 / 200)
    assert dnas.comparison.low is not None
    assert dnas.comparison.low > 0
    assert x3.comparison is not None
    assert x3.comparison.low is not None
    assert x3.comparison.high is not None
    assert x3.comparison.low < 0 < x3.comparison.high
    assert dnas.p_corrected == pytest.approx(2 * dnas.comparison.p_value)
    assert x3.p_corrected == pytest.approx(max(2 * dnas.comparison.p_value, x3.comparison.p_value))


def test_protocols_are_never_averaged_together(results: list[Result]) -> None:
    others = [
        replace(results[0], task_version=2),
        replace(results[0], preset="xiong2021", run=run("softmax", "xiong2021", 1000)),
        replace(results[0], changed={"train.steps": [1000, 5]}, run=run("softmax", "quick", 5)),
        replace(results[0], data_checksum="other"),
        replace(results[0], environment={"device": "a GPU", "precision": "bfloat16"}),
    ]
    made = tables([*results, *others], [], "softmax")
    assert [len(table.rows) for table in made] == [3, 1, 1, 1, 1, 1]
    assert "modified: train.steps=5" in made[3].title
    assert "[these results: version 2]" in made[1].title
    assert [table.title for table in made if "other data than the preset's: sha256 other" in table.title] == [
        made[4].title
    ]


def test_tables_of_different_data_have_different_titles(results: list[Result]) -> None:
    """The preset has no recorded checksum, so it is unknown which of the two data are the preset's."""
    one, two = (replace(results[0], preset="later", data_checksum=each) for each in ("ab" * 32, "cd" * 32))
    titles = sorted(table.title.partition(" [")[2] for table in tables([one, two], [], "softmax"))
    assert titles == ["data: sha256 abababababab]", "data: sha256 cdcdcdcdcdcd]"]
    assert "[" not in only(tables([one], [], "softmax")).title


def test_files_at_another_place_with_other_content_are_in_the_title(results: list[Result]) -> None:
    """Also beside a changed data field, which alone would explain another checksum."""
    changed = {"data.train": [96_000, 50]}
    own = run("softmax", "quick", 1000)
    titles = [
        only(
            tables(
                [replace(results[0], run=own | {"data": DATA | more}, changed=changed, data_checksum="cd" * 32)],
                [],
                "softmax",
            )
        ).title
        for more in ({"train": 50}, {"train": 50, "path": "mine"})
    ]
    assert ["other data than the preset's: sha256 cdcdcdcdcdcd" in title for title in titles] == [False, True]


@pytest.mark.parametrize("is_planned", [False, True])
@pytest.mark.parametrize(
    ("package", "task", "changes", "is_other"),
    [
        ("summarization", "gigaword", {}, False),
        ("summarization", "gigaword", {"path": "mine"}, True),
        ("pretraining", "wikitext2", {"path": "mine"}, True),
        ("qa", "mnli", {"train": "a", "matched": "b", "mismatched": "c"}, True),
        ("lra", "listops", {"path": "mine"}, True),
        ("lra", "listops", {}, False),
    ],
)
def test_files_in_place_of_generated_data_are_in_the_title(
    package: str, task: str, changes: dict[str, Any], is_other: bool, is_planned: bool, results: list[Result]
) -> None:
    """Also before there is a result."""
    found = find_package(package)
    preset = found.presets[task]["quick"]
    own = to_json(replace(preset.run, data=replace(preset.run.data, **changes)))
    entry = {
        "package": package, "task": task, "preset": "quick", "run": own, "changed": {}, "seed": 0, "folder": "there",
        "config_version": CONFIG_VERSION, "row": row_of(preset.run, preset), "command": "",
    }  # fmt: skip
    checksum = "cd" * 32 if is_other else found.tasks[task].checksums["quick"]
    result = replace(
        results[0], package=package, task=task, run=own, row=entry["row"], config_version=CONFIG_VERSION,
        task_version=found.tasks[task].version, changed={}, data_checksum=checksum,
    )  # fmt: skip
    table = only(tables([], [entry], "softmax") if is_planned else tables([result], [], "softmax"))
    where = "" if is_planned else ": sha256 cdcdcdcdcdcd"
    assert table.title.endswith(f" [other data than the preset's{where}]") == is_other
    assert (table.data_name == OTHER_DATA) == is_other
    assert (preset.data_name != "" and preset.data_name in table.title) == (preset.data_name != "" and not is_other)


def test_differences_over_fewer_seeds_than_the_means_are_named() -> None:
    some = [result("softmax", seed, 100 + seed) for seed in range(3)] + [
        result("x3", seed, 90 + seed) for seed in range(5)
    ]
    (table,) = tables(some, [], "softmax")
    assert "difference over the seeds in common only: x3 (3 seeds)" in footnotes(table)
    (table,) = tables(some[:-2], [], "softmax")
    assert not any("in common only" in each for each in footnotes(table))


def test_where_the_files_are_is_no_protocol() -> None:
    here, there = (
        result(row, 0, 50, run={**run(row, "quick", 1000), "data": DATA | {"path": path}})
        for row, path in (("softmax", "here"), ("x3", "there"))
    )
    assert [row.name for row in only(tables([here, there], [], "softmax")).rows] == ["softmax", "x3"]


def test_few_seeds_are_said_to_be_few(
    results: list[Result], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for each in results:
        if each.seed < 2:
            (tmp_path / f"{row_name(each.row)}{each.seed}").mkdir()
            each.write(tmp_path / f"{row_name(each.row)}{each.seed}")
    leaderboard.run(["--runs", str(tmp_path)])
    shown = " ".join(capsys.readouterr().out.split())
    assert "the variance over seeds is unknown" in shown
    assert "? +10.00 (2 seeds)" in shown
    assert "published" not in shown  # the data are not the task's own
    assert "majority class 12.00 %" in shown


@pytest.mark.parametrize("form", ["terminal", "markdown", "latex", "csv", "json", "side by side"])
def test_below_three_seeds_no_format_has_an_interval_or_a_p(
    form: str, results: list[Result], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for each in results:
        if each.seed < 2:
            (tmp_path / f"{row_name(each.row)}{each.seed}").mkdir()
            each.write(tmp_path / f"{row_name(each.row)}{each.seed}")
    arguments = ["--side-by-side"] if form == "side by side" else ["--format", form]
    assert leaderboard.run(["--runs", str(tmp_path), *arguments]) == 0
    shown = capsys.readouterr().out
    if form == "json":
        for row in json.loads(shown)["tables"][0]["rows"]:
            assert row["p_corrected"] is None
            assert row["comparison"] is None or not any(row["comparison"][name] for name in ("low", "high", "p_value"))
    elif form == "csv":
        for row in csv.DictReader(io.StringIO(shown)):
            assert not any(row[name] for name in ("p_corrected", "low", "high", "p_value"))
    else:
        assert not re.search(r"\[[+-]|<|0\.0\d\d|\d\* \(", shown.replace("[95 %]", "").replace("p < 0.05", ""))


@pytest.mark.parametrize(
    ("row", "lost"), [(row, lost) for row in ("softmax", "dnas", "x3") for lost in ([0], [1], [0, 2], [0, 1, 2])]
)
def test_a_run_that_diverges_makes_no_p_smaller(results: list[Result], row: str, lost: list[int]) -> None:
    """Two of three seeds are left: no p; the other rows are corrected for as many comparisons as before."""
    before = {each.name: each.p_corrected for each in only(tables(results, [], "softmax")).rows}
    made = [
        result(row, each.seed, None) if (row_name(each.row) == row and each.seed in lost) else each for each in results
    ]
    for each in only(tables(made, [], "softmax")).rows:
        if each.name in ("softmax", row) or row == "softmax":
            assert each.p_corrected is None
        else:
            assert each.p_corrected is not None
            assert each.p_corrected >= (before[each.name] or 0)


def test_rows_of_fewer_than_three_seeds_stay_out_of_holm(results: list[Result]) -> None:
    few = [result("x1", seed, 50 + 10 * seed) for seed in range(2)]
    alone = {row.name: row.p_corrected for row in only(tables(results, [], "softmax")).rows}
    assert {row.name: row.p_corrected for row in only(tables([*results, *few], [], "softmax")).rows} == {
        **alone, "x1": None,
    }  # fmt: skip


def test_every_row_that_is_not_compared_has_a_remark(results: list[Result]) -> None:
    others = [replace(result("x3", seed, 50), row=row_of_name("x3, post"), norm="post") for seed in range(3)]
    table = only(tables([*results, *others, result("hnas", 7, 60)], [], "dnas"))
    found = {row.name: row.not_compared for row in table.rows if row.not_compared}
    assert found == {
        "x3, post": "there is no result of dnas, post in this table",
        "hnas": "no finished seed in common with dnas",
    }
    assert {f"{name}: not compared: {reason}" for name, reason in found.items()} <= set(footnotes(table))
    assert all(row.comparison or row.name == "dnas" or row.name in found for row in table.rows)


def test_exact_evaluation_is_a_ceiling_and_no_floor(results: list[Result]) -> None:
    scores = {"majority class": 0.12, "depth 1": 0.5, "depth 3": 1.0}
    table = only(tables([replace(each, floors=scores) for each in results], [], "softmax"))
    assert footnotes(table)[1:3] == ["floors: majority class 12.00 %", "ceilings: depth 1 50.00 %, depth 3 100.00 %"]
    assert ["best floor", "12.00"] in join([table])[0][2]


def test_a_task_that_is_solved_or_not_counts_the_seeds_that_solved_it() -> None:
    run = to_json(RECALL_PRESETS["associative-recall"]["quick"].run)
    changes = {"task": "associative-recall", "run": run, "data_checksum": "1"}
    correct = {"softmax": (200, 190, 189), "dnas": (40, None, 200), "x3": (None, None, None)}
    measured = [result(row, seed, right, **changes) for row, each in correct.items() for seed, right in enumerate(each)]
    planned = {"package": "lra", "task": "associative-recall", "preset": "quick", "changed": {}, "run": run,
               "row": row_of_name("relu"), "seed": 0, "plan": "sweeps/a.json", "config_version": 4}  # fmt: skip
    table = only(tables(measured, [planned], "softmax"))
    at = headings(table).index("solved")
    shown = {row.name: (cells(row, table)[at], orders(row, table)[at]) for row in table.rows}
    assert shown == {"softmax": ("2 of 3", 2), "dnas": ("1 of 3", 1), "x3": ("0 of 3", 0), "relu": ("", None)}
    assert "solved: seeds with a test score of at least 95.00 %" in footnotes(table)


def test_other_tasks_count_no_solved_seeds(results: list[Result]) -> None:
    table = only(tables(results, [], "softmax"))
    assert "solved" not in headings(table)
    assert all(len(cells(row, table)) == len(orders(row, table)) == len(headings(table)) for row in table.rows)


def test_only_common_seeds_are_paired(results: list[Result]) -> None:
    apart = [result("softmax", 0, 50), result("dnas", 1, 60)]
    table = only(tables(apart, [], "softmax"))
    assert table.rows[1].comparison is None
    table = only(tables([*results, result("dnas", 7, 200)], [], "softmax"))
    comparison = table.rows[1].comparison
    assert comparison is not None
    assert comparison.seeds == 3


def test_rows_are_compared_under_the_same_norm_and_depth() -> None:
    made = [
        replace(result(row, seed, 50 + seed + shift), row=row_of_name(f"{row}{suffix}"))
        for row, suffix, shift in (("softmax", "", 0), ("softmax", ", post", 20), ("dnas", ", post", 25), ("x3", "", 5))
        for seed in range(3)
    ]
    table = only(tables(made, [], "softmax"))
    found = {row.name: row.comparison.difference * 200 for row in table.rows if row.comparison}
    assert found == pytest.approx({"softmax, post": 20, "dnas, post": 5, "x3": 5})
    both = [replace(result("softmax", seed, 60), row=row_of_name("softmax, post, 80 layers"), layers=80)
            for seed in range(3)]  # fmt: skip
    (row,) = (row for row in only(tables([*made, *both], [], "softmax")).rows if row.name == "softmax, post, 80 layers")
    assert (row.against, row.comparison) == ("", None)  # softmax has another norm and another depth


def test_the_row_of_the_presets_norm_is_not_compared_with_another_norm() -> None:
    """It is their baseline: the same difference would be shown twice and corrected for twice."""
    found = [
        replace(result("softmax", seed, right), row=row_of_name(f"softmax{norm}"), norm=norm or "pre")
        for norm, right in ((", deescalated", 70), ("", 50), (", post", 60)) for seed in range(3)
    ]  # fmt: skip
    rows = {row.name: row for row in only(tables(found, [], "softmax")).rows}
    assert rows["softmax"].comparison is None
    assert rows["softmax"].p_corrected is None
    assert {rows[name].against for name in ("softmax, post", "softmax, deescalated")} == {"softmax"}


def test_norms_are_compared_at_their_own_depth() -> None:
    """Where no row is of the preset's depth; and a figure published of a whole row's name is shown beside it."""
    made = [
        replace(result("softmax", seed, right), row=row_of_name(f"softmax{norm}, 80 layers"), norm=label)
        for norm, label, right in (("", "pre", 50), (", post", "post", 60)) for seed in range(3)
    ]  # fmt: skip
    table = only(tables(made, [], "softmax"))
    assert {row.name: row.against for row in table.rows} == {
        "softmax, 80 layers": "", "softmax, post, 80 layers": "softmax, 80 layers",
    }  # fmt: skip
    others = [
        replace(each, row=row_of_name(row_name(each.row).replace("softmax, 80", "softmax, deescalated, 80")))
        for each in made
    ]
    few = replace(result("softmax", 0, 40), row=row_of_name("softmax, pre, 80 layers"), norm="pre")
    table = only(tables([few, *others], [], "softmax"))  # none of the preset's norm: the first with most seeds
    assert {row.name: row.against for row in table.rows} == {
        "softmax, pre, 80 layers": "softmax, deescalated, 80 layers", "softmax, deescalated, 80 layers": "",
        "softmax, post, 80 layers": "softmax, deescalated, 80 layers",
    }  # fmt: skip
    table = only(tables(made, [], "softmax"))
    figures = [Published(name=name, value=0.5, source="s") for name in ("softmax, post, 80 layers", "softmax", "x3")]
    assert shown_figures(replace(table, published=figures, comparable=False, is_other_data=False)) == figures[:2]
    assert shown_figures(replace(table, published=figures, comparable=False, is_other_data=True)) == []


def test_the_baseline_is_not_compared_with_another_model_of_it() -> None:
    """Such as one whose views are joined in another way: that one is compared with the baseline."""
    made = [
        replace(result("softmax", seed, 50 + seed), row=row_of_name(name))
        for name in ("softmax, primary", "softmax") for seed in range(3)
    ]  # fmt: skip
    table = only(tables(made, [], "softmax"))
    assert {row.name: row.against for row in table.rows} == {"softmax": "", "softmax, primary": "softmax"}


def test_rows_that_differ_in_a_decoder_too_are_compared_with_the_baseline_everywhere() -> None:
    rows = ("softmax", "softmax, 4 layers", "hnas", "hnas, decoder hnas[u=0.1,per_head=True], cross dnas",
            "softmax, decoder x3", "x3, 4 layers, decoder x3, pretrained with dnas")  # fmt: skip
    every = [
        result(name, seed, 50 + seed + len(name), attention=name.split(",")[0]) for name in rows for seed in range(3)
    ]
    table = only(tables(every, [], "softmax"))
    differences = {row.name: row.comparison.difference for row in table.rows if row.comparison is not None}
    against = {name: "softmax, 4 layers" if "4 layers" in name else "softmax" for name in rows}
    assert differences == {
        name: pytest.approx((len(name) - len(against[name] if name != against[name] else "softmax")) / 200)
        for name in rows
        if name != "softmax"
    }


def test_a_baseline_is_one_of_the_rows(
    results: list[Result], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, each in enumerate(results):
        (tmp_path / str(number)).mkdir()
        each.write(tmp_path / str(number))
    with pytest.raises(WrongUseError, match="nearest: dnas"):
        leaderboard.run(["--runs", str(tmp_path), "--baseline", "dnass"])
    assert leaderboard.run(["--runs", str(tmp_path), "--baseline", "lnas", "--format", "markdown"]) == 0
    assert "vs softmax" in capsys.readouterr().out


@pytest.mark.parametrize("changed", [3, 4])
def test_rows_with_scores_of_other_examples_are_not_compared(changed: int, results: list[Result]) -> None:
    edited = replace(results[changed], example_scores=[1.0] * 199)
    (table,) = tables([*results[:changed], edited], [], "softmax")
    (row,) = (row for row in table.rows if row.parts == edited.row)
    assert row.comparison is None
    assert row.not_compared == f"it was tested on {'199' if changed == 3 else '199 and 200'} examples, softmax on 200"


def test_a_row_in_brackets_is_no_argument_of_latex() -> None:
    assert "\n{}[2cm] & 1 \\\\\n" in latex("t", ["[h]", "b"], [["[2cm]", "1"]], [])


@pytest.mark.parametrize("form", ["terminal", "markdown", "csv", "latex", "json"])
def test_every_format(form: str, results: list[Result], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = "a_b & 50%[scale=8.0]"
    special = [
        replace(each, row=row_of_name(odd), attention=odd) if each.attention == "x3" else each for each in results
    ]
    for number, each in enumerate([*special, result("leaky", 0, 10, notes=["non-causal"])]):
        (tmp_path / str(number)).mkdir()
        replace(each, sources={"common/attention/base.py": "1"}).write(tmp_path / str(number))
    assert leaderboard.run(["--runs", str(tmp_path), "--format", form]) == 0
    shown = capsys.readouterr().out
    if form == "json":
        table = json.loads(shown.splitlines()[-1])["tables"][0]
        assert table["rows"][0]["mean"] == pytest.approx(0.25)
        return
    if form == "csv":
        rows = {row["name"]: row for row in csv.DictReader(io.StringIO(shown))}
        assert float(rows["dnas"]["mean"]) == pytest.approx(0.36)
        assert float(rows["dnas"]["low"]) > 0
        assert rows["dnas"]["seeds"] == "0 1 2"
        assert rows["leaky"]["notes"] == "non-causal"
        return
    assert "36.00 %" in shown.replace("\\", "")
    assert "leaky (non-causal)" in shown
    assert "[scale=8.0]" in shown
    if form == "latex":
        assert r"a\_b \& 50\%" in shown
        assert shown.count(r"\\") == 5

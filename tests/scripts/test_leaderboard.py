import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.runs.config import to_json
from seqarena.common.runs.results import Result, read_results, row_parts
from seqarena.common.runs.run import RowParts, row_name
from seqarena.common.runs.tasks import Published
from seqarena.lra.presets import PRESETS
from seqarena.lra.tasks import LISTOPS
from seqarena.scripts import leaderboard
from seqarena.scripts.leaderboard.cells import shown_figures
from seqarena.scripts.leaderboard.records import measurements, missing_runs, newest
from seqarena.scripts.leaderboard.table import Table, tables
from seqarena.scripts.tables import latex
from tests.earlier import LATER

DATA = to_json(PRESETS["listops"]["quick"].run)["data"]
CORRECT = {
    "softmax": (50, 52, 48),
    "dnas": (70, 72, 74),
    "x3": (50, 49, 51),
}


def row_of_name(name: str) -> RowParts:
    norm = next((norm for norm in ("post", "pre", "deescalated") if f", {norm}" in name), "")
    parts: RowParts = row_parts(name, norm)
    return parts


def run(row: str, preset: str, steps: int, seed: int = 0) -> dict[str, Any]:
    values = to_json(PRESETS["listops"]["quick"].run)
    model, train = values["model"] | {"attention": {"class": row}}, values["train"] | {"steps": steps}
    return values | {"preset": preset, "seed": seed, "model": model, "train": train}


def result(row: str, seed: int, correct: int | None, **changes: object) -> Result:
    """Returns a result of 200 test examples, the first ``correct`` of them right; None: diverged."""
    made = Result(
        package="lra", task="listops", task_version=1, preset="quick", changed={}, row=row_of_name(row), attention=row,
        norm="pre", layers=2, seed=seed, status="diverged" if correct is None else "finished", metric="accuracy",
        score=None if correct is None else correct / 200,
        example_scores=[] if correct is None else [float(n < correct) for n in range(200)],
        steps=10, floors={"majority class": 0.12}, data_checksum=LISTOPS.checksums["quick"],
        parameters=1000, training_seconds=1.0, tokens_per_second=100.0 + seed, peak_memory_bytes=2**20 * (seed + 1),
        environment={"device": "a CPU", "precision": "float32"}, run=run(row, "quick", 1000, seed),
        command="c", finished_at=f"2026-01-01T00:00:0{seed}",
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture
def results() -> list[Result]:
    return [result(row, seed, correct[seed]) for row, correct in CORRECT.items() for seed in range(3)]


def only(made: Sequence[Table]) -> Table:
    assert len(made) == 1
    return made[0]


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


def test_where_the_files_are_is_no_protocol() -> None:
    here, there = (
        result(row, 0, 50, run={**run(row, "quick", 1000), "data": DATA | {"path": path}})
        for row, path in (("softmax", "here"), ("x3", "there"))
    )
    assert [row.name for row in only(tables([here, there], [], "softmax")).rows] == ["softmax", "x3"]


def test_diverged_and_missing_runs_are_shown(
    results: list[Result], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [*results[:4], result("dnas", 1, None)]
    for each in runs:
        folder = tmp_path / f"{row_name(each.row)}-{each.seed}"
        folder.mkdir()
        each.write(folder)
    entries = [
        {"folder": f"{row}-{seed}", "package": "lra", "task": "listops", "preset": "quick", "changed": {}, "seed": seed,
         "row": row_of_name(row), "run": run(row, "quick", 1000), "config_version": 2, "command": "c"}
        for row in ("softmax", "dnas", "x1") for seed in range(3)
    ]  # fmt: skip
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "plan.json").write_text(json.dumps({"runs": entries}))
    (tmp_path / "sweeps" / "cut.json").write_text('{"runs": [')
    (tmp_path / "sweeps" / "foreign.json").write_text('{"runs": [{"folder": "x3-0", "run": {}}]}')
    missing, problems = missing_runs(tmp_path)
    assert len(missing) == 9 - 5
    assert [problem.split(":")[0].rsplit("/", 1)[1] for problem in problems] == ["cut.json", "foreign.json"]
    assert leaderboard.run(["--runs", str(tmp_path), "--format", "markdown"]) == 0
    told = capsys.readouterr()
    lines = {line.split("|")[1].strip(): line for line in told.out.splitlines() if line.startswith("|")}
    assert "| 3 |" in lines["softmax"]
    assert "1 of 3 (1 diverged, 1 missing)" in lines["dnas"]
    assert "0 of 3 (3 missing)" in lines["x1"]
    assert "cut.json: not a sweep's plan" in told.err


def save(root: Path, planned: int, measured: int) -> None:
    """Writes below a folder the plan of a sweep over seeds, and the results of the first of them."""
    entries = [
        {"folder": f"lra/{seed}", "package": "lra", "task": "listops", "preset": "quick", "changed": {}, "seed": seed,
         "row": row_of_name("softmax"), "run": run("softmax", "quick", 1000), "config_version": 2, "command": "c"}
        for seed in range(planned)
    ]  # fmt: skip
    (root / "sweeps").mkdir(parents=True)
    (root / "sweeps" / "plan.json").write_text(json.dumps({"runs": entries}))
    for seed in range(measured):
        (root / "lra" / str(seed)).mkdir(parents=True)
        result("softmax", seed, 50).write(root / "lra" / str(seed))


def test_plans_are_found_at_any_depth(tmp_path: Path) -> None:
    save(tmp_path / "exp1", 2, 1)
    save(tmp_path / "more" / "exp2", 5, 1)
    for folder in (tmp_path, tmp_path / "exp1"):
        found = measurements(folder)
        assert [found.missing[0][name] for name in ("seed", "folder")] == [
            1,
            str((tmp_path / "exp1/lra/1").relative_to(folder)),
        ]
    found = measurements(tmp_path)
    assert [(each["folder"], each["plan"]) for each in found.missing] == [
        ("exp1/lra/1", "exp1/sweeps/plan.json"),
        *((f"more/exp2/lra/{seed}", "more/exp2/sweeps/plan.json") for seed in range(1, 5)),
    ]
    (row,) = only(tables(list(found.results.values()), found.missing, "softmax")).rows
    assert (row.seeds, row.missing) == ([0], [1, 2, 3, 4])


def test_results_are_found_below_links_and_count_once(tmp_path: Path) -> None:
    """Moved to another disk and linked back; a run linked to its twin; links that lead up, to nothing, in a circle."""
    runs, disk = tmp_path / "runs", tmp_path / "disk"
    save(disk, 2, 1)
    (disk / "lra" / "1").symlink_to("0")  # as a run links itself to its twin
    (disk / "lra" / "a").mkdir()
    (disk / "lra" / "a" / "0").symlink_to("..")
    runs.mkdir()
    (runs / "lra").symlink_to(disk / "lra")
    (runs / "more").symlink_to(disk / "lra" / "0")
    (runs / "up").symlink_to("..")
    (runs / "nothing").symlink_to("nowhere")
    for folder in (runs, disk):
        results, problems = read_results(folder)
        assert (list(results), problems) == ([folder / "lra" / "0"], [])


def test_a_seed_that_is_there_is_not_missing(results: list[Result]) -> None:
    """Two plans that differ in what only looks on, such as diagnostics, have two directories of one run."""
    entries = [
        {"folder": folder, "package": "lra", "task": "listops", "preset": "quick", "changed": {}, "seed": seed,
         "row": row_of_name("softmax"), "run": run("softmax", "quick", 1000), "config_version": 2, "command": "c"}
        for folder in ("plain", "diagnosed") for seed in (0, 7)
    ]  # fmt: skip
    (row, *_) = only(tables(results, entries, "softmax")).rows
    assert (row.seeds, row.missing) == ([0, 1, 2], [7])
    (row,) = only(tables([], entries, "softmax")).rows
    assert row.missing == [0, 7]


def test_a_plan_without_any_result_is_a_table_of_missing_runs() -> None:
    entry = {
        "folder": "f",
        "package": "lra",
        "task": "listops",
        "preset": "quick",
        "changed": {},
        "row": row_of_name("x1"),
        "run": run("x1", "quick", 1000),
        "config_version": 2,
        "seed": 4,
    }
    table = only(tables([], [entry], "softmax"))
    assert (table.rows[0].missing, table.rows[0].mean) == ([4], None)


def test_few_seeds_are_said_to_be_few(
    results: list[Result], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for each in results:
        if each.seed < 2:
            (tmp_path / f"{row_name(each.row)}{each.seed}").mkdir()
            each.write(tmp_path / f"{row_name(each.row)}{each.seed}")
    leaderboard.run(["--runs", str(tmp_path)])
    shown = capsys.readouterr().out
    assert "the variance over seeds is unknown" in shown
    assert "+10.00 *" in shown
    assert "published: softmax 36.37 % (Tay" in shown
    assert "published figures: measured on other data or with other settings" in shown
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
    assert shown_figures(replace(table, published=figures, comparable=False)) == figures[:2]


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


@given(
    attention=st.sampled_from(["softmax", "x3[degree=5,scale=8.0]", "mine.py:Cube"]),
    norm=st.sampled_from([None, "pre", "deescalated[p=0.5,q=2]"]),
    layers=st.sampled_from([None, "80"]),
    others=st.sets(st.sampled_from([("decoder", "dnas"), ("cross", "x3[a=1,b=2]"), ("pretrained with", "hnas"),
                                    ("model", "boxes")])),
)  # fmt: skip
def test_a_row_of_an_earlier_format_is_read_from_its_name(
    attention: str, norm: str | None, layers: str | None, others: set[tuple[str, str]]
) -> None:
    named = (("attention", attention), ("norm", norm), ("layers", layers), *sorted(others))
    row = tuple((part, value) for part, value in named if value is not None)
    assert row_parts(row_name(row), norm or "post") == row
    assert row_parts(json.loads(json.dumps(row)), "") == row


def test_a_baseline_is_one_of_the_rows(
    results: list[Result], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, each in enumerate(results):
        (tmp_path / str(number)).mkdir()
        each.write(tmp_path / str(number))
    with pytest.raises(WrongUseError, match="did you mean 'dnas'"):
        leaderboard.run(["--runs", str(tmp_path), "--baseline", "dnass"])
    assert leaderboard.run(["--runs", str(tmp_path), "--baseline", "lnas", "--format", "markdown"]) == 0
    assert "vs softmax" in capsys.readouterr().out


def test_scores_of_other_examples_are_refused(results: list[Result]) -> None:
    with pytest.raises(BadDataError, match="scores of 199 and 200 test examples"):
        tables([*results[:3], replace(results[3], example_scores=[1.0] * 199)], [], "softmax")


TEXTS = ["\x1b[2J\x1b]0;pwned\x07", "a\n\\input{/etc/passwd}\r", "\u202egnp", "\u2028", "\x9b31m", "=HYPERLINK(\"http://a\")",
         "@SUM(1)", "|", "$x^2_{", "~%#&\\"]  # fmt: skip
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029]")


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("form", ["terminal", "markdown", "csv", "latex", "side by side"])
def test_foreign_text_stays_text(
    form: str, text: str, results: list[Result], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In every place that a table shows: each command reads results and plans as printable text."""
    environment = results[0].environment | {
        "device": text, "python": text, "commit": text, "libraries": {text: text}, "clean": False,
    }  # fmt: skip
    foreign = [
        replace(each, row=(("attention", text), ("model", text)), attention=text, notes=[text],
                environment=environment, floors={text: 0.1},
                changed={text: [text, text]}, metric=text, preset=text, package=text, task=text,
                run=each.run | {"task": text, "preset": text, "model": {"attention": text, "pretraining": text}})
        for each in results[6:]
    ]  # fmt: skip
    name = text.replace("/", "")
    for number, each in enumerate([*results[:6], *foreign, replace(foreign[0], finished_at="2099")]):
        (tmp_path / f"{name}{number}").mkdir()
        each.write(tmp_path / f"{name}{number}")
    (tmp_path / name).mkdir()
    (tmp_path / name / "result.json").write_text(json.dumps({"format": text}))
    (tmp_path / "sweeps").mkdir()
    entry = {"folder": "f", "package": "lra", "task": "listops", "preset": "quick", "changed": {}, "row": text,
             "seed": 9, "run": run(text, "quick", 1000), "command": text}  # fmt: skip
    (tmp_path / "sweeps" / f"{name}.json").write_text(json.dumps({"runs": [entry]}))
    arguments = ["--side-by-side"] if form == "side by side" else ["--format", form]
    assert leaderboard.run(["--runs", str(tmp_path), *arguments]) == 0
    told = capsys.readouterr()
    assert not CONTROL.search(told.out + told.err)
    assert "using the newest" in told.err
    assert "not a seqarena result" in told.err
    if form == "csv":
        rows = list(csv.DictReader(io.StringIO(told.out)))
        assert len(rows) == 4
        assert not [cell for row in rows for cell in row.values() if cell.lstrip()[:1] in ("=", "@", "+")]
    if form == "latex":
        assert not re.search(r"^\s*\\input|(?<!\\)[_#]", re.sub("(?m)^%.*", "", told.out), re.MULTILINE)


def test_a_row_in_brackets_is_no_argument_of_latex() -> None:
    assert "\n{}[2cm] & 1 \\\\\n" in latex("t", ["[h]", "b"], [["[2cm]", "1"]], [])


def test_two_results_that_claim_the_same_run_count_once(results: list[Result]) -> None:
    again = replace(results[0], score=0.9, finished_at="2026-01-02")
    folders = {Path(str(number)): each for number, each in enumerate([*results, again])}
    kept, messages = newest(folders)
    assert list(kept.values()) == [*results[1:], again]
    assert messages == [f"two results of listops softmax seed 0: using the newest, {len(results)}, and ignoring 0"]


def test_foreign_and_broken_files_are_named_and_skipped(tmp_path: Path, results: list[Result]) -> None:
    for name, text in (
        ("cut", '{"format": 1,'),
        ("foreign", '{"accuracy": 1}'),
        ("list", "[]"),
        ("old", '{"format": 0}'),
        (
            "scores",
            json.dumps(
                {name: value for name, value in asdict(results[0]).items() if name not in LATER}
                | {"format": 1, "example_scores": [0.5, None]}
            ),
        ),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(text)
    (tmp_path / "whole").mkdir()
    results[0].write(tmp_path / "whole")
    found, problems = read_results(tmp_path)
    assert found == {tmp_path / "whole": results[0]}
    assert [problem.split("/result.json")[0].rsplit("/", 1)[1] for problem in problems] == [
        "cut",
        "foreign",
        "list",
        "old",
        "scores",
    ]
    assert "field example_scores should be list[float], found '[0.5, None]'" in problems[-1]


@pytest.mark.parametrize("form", ["terminal", "markdown", "csv", "latex", "json"])
def test_every_format(form: str, results: list[Result], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = "a_b & 50%[scale=8.0]"
    special = [
        replace(each, row=row_of_name(odd), attention=odd) if each.attention == "x3" else each for each in results
    ]
    for number, each in enumerate([*special, result("leaky", 0, 10, notes=["non-causal"])]):
        (tmp_path / str(number)).mkdir()
        each.write(tmp_path / str(number))
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

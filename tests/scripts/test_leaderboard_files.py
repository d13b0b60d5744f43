"""Results and plans below a folder: found, missing, foreign, damaged, counted once."""

import csv
import io
import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqarena.common.runs.config import to_json
from seqarena.common.runs.results import Result, read_results, row_parts
from seqarena.common.runs.run import row_name
from seqarena.lra.presets import PRESETS
from seqarena.scripts import leaderboard
from seqarena.scripts.leaderboard.records import measurements, missing_runs, newest
from seqarena.scripts.leaderboard.table import tables
from tests.earlier import LATER
from tests.scripts.results import DATA, only, result, row_of_name, run


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


def test_tables_of_different_files_have_different_titles_and_each_its_missing_runs() -> None:
    """A plan does not know the data of its runs."""
    made = [
        result("softmax", seed, 50, data_checksum=name * 64,
               run=run("softmax", "quick", 1000, seed) | {"data": DATA | {"path": name}})
        for name, seeds in (("a", (0, 1)), ("b", (0, 1, 2))) for seed in seeds
    ]  # fmt: skip
    entry = {"folder": "f", "package": "lra", "task": "listops", "preset": "quick", "changed": {}, "seed": 2,
             "row": row_of_name("softmax"), "run": run("softmax", "quick", 1000), "config_version": 2}  # fmt: skip
    found = {table.title[-13:-1]: table.rows[0] for table in tables(made, [entry], "softmax")}
    shown = {checksum: (row.seeds, row.missing) for checksum, row in found.items()}
    assert shown == {"a" * 12: ([0, 1], [2]), "b" * 12: ([0, 1, 2], [])}


def test_floors_are_those_of_the_newest_result(results: list[Result]) -> None:
    """An edit of a floor changes the results that are measured after it."""
    last = replace(results[1], floors={"majority class": 0.5}, finished_at="2026-02-01T00:00:00")
    assert only(tables([results[0], last, *results[2:]], [], "softmax")).floors == {"majority class": 0.5}


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


def test_two_results_that_claim_the_same_run_count_once(results: list[Result]) -> None:
    again = replace(results[0], score=0.9, finished_at="2026-01-02")
    folders = {Path(str(number)): each for number, each in enumerate([*results, again])}
    kept, _, messages = newest(folders)
    assert list(kept.values()) == [*results[1:], again]
    assert messages == [f"two results of listops softmax seed 0: using the newest, {len(results)}, and ignoring 0"]


def test_a_result_whose_variant_has_another_name_now_is_no_edit(tmp_path: Path) -> None:
    result("earlier", 0, 50, run=to_json(PRESETS["listops"]["quick"].run)).write(tmp_path)
    assert Result.read(tmp_path) is not None


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

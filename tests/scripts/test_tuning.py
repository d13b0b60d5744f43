"""Sweeps that tune fields: one grid for all variants, the validation set chooses, the test set is touched once."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from seqarena.common.errors import BadDataError, WrongUseError, run_command
from seqarena.common.runs.results import TRIAL, Result, read_results
from seqarena.lra.data.listops.official import FILES
from seqarena.scripts import sweep
from seqarena.scripts.leaderboard.cells import cells, footnotes
from seqarena.scripts.leaderboard.records import measurements
from seqarena.scripts.leaderboard.table import Table, tables
from seqarena.scripts.seqarena import dispatch
from seqarena.scripts.sweep.tuning import FOLDER, Grid, choose, grid_of, read_tuning
from tests.common.runs.test_cli import TINY
from tests.lra.test_listops import SHORT, write_tsv
from tests.scripts.results import result

GRID = Grid(fields={"optim.lr": ("1e-3", "3e-3", "1e-2")})


def trial(score: float | None) -> Result:
    made = result("softmax", 0, None)
    if score is None:
        return made
    return replace(made, status="validated", validation={"accuracy": score})


def tried(*scores: tuple[float | None, ...]) -> dict[tuple[str, ...], list[Result]]:
    return {point: [trial(each) for each in some] for point, some in zip(GRID.points(), scores, strict=True)}


def test_the_best_mean_over_seeds_is_chosen() -> None:
    trials = tried((0.5, 0.1), (0.4, 0.4), (0.2, 0.3))
    best = choose(GRID, trials, higher_is_better=True)
    assert best[0] == ("3e-3",)
    assert best[1][0] == [["1e-3"], [0.5, 0.1]]
    lowest = choose(GRID, trials, higher_is_better=False)
    assert lowest[0] == ("1e-2",)


def test_a_value_with_a_diverged_seed_is_not_chosen() -> None:
    best = choose(GRID, tried((0.9, None), (0.2, 0.2), (0.2, 0.2)), higher_is_better=True)
    assert best[0] == ("3e-3",)  # the first of equal ones
    assert best[1][0] == [["1e-3"], []]
    none = choose(GRID, tried((None,), (None,), (None,)), higher_is_better=True)
    assert none == (("1e-3",), [[["1e-3"], []], [["3e-3"], []], [["1e-2"], []]])


def test_a_choice_at_the_edge_of_a_grid_of_numbers_is_marked() -> None:
    assert [GRID.at_edge(point) for point in GRID.points()] == [["optim.lr"], [], ["optim.lr"]]
    both = Grid(fields={"optim.lr": ("1e-3", "1e-2", "1e-4"), "optim.name": ("adam", "adamw")})
    assert both.at_edge(("1e-3", "adam")) == []  # between the others; names have no edge
    assert both.arguments(("1e-2", "adam")) == ["--optim.lr", "1e-2", "--optim.name", "adam"]
    assert len(both.points()) == 6


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([["optim.lr", "1e-3"]], "--tune optim.lr: expected at least two values, found 1"),
        ([["optim.lr", "1", "1"]], "given twice"),
        ([["train.precision", "float32", "bfloat16"]], "results of two precisions are never in one table"),
        ([["data.max-depth", "2", "4"]], "--tune data.max-depth: its values have different data"),
        ([["final.memory", "2", "4"]], "--tune final.memory: its values are scored in different ways"),
        ([["--validation.memory", "2", "4"]], "its values are scored in different ways"),
        ([["legacy.drop-tail", "true", "false"]], "its values are scored in different ways"),
        ([["optim.lr", "1e-3", "0.001", "3e-3"]], "given twice"),
        ([["optim.lr", "1", "2"], ["--optim.lr", "3", "4"]], "given twice"),
        ([["optim.clip", "1.0", "none", "None"]], "given twice"),
    ],
)
def test_a_grid_needs_two_values(given: list[list[str]], message: str) -> None:
    with pytest.raises(WrongUseError, match=message):
        grid_of(given)


def test_batch_sizes_that_cut_the_test_set_are_not_tuned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", *"lra listops --attention softmax --seeds 0 --legacy.drop-tail true".split()]
    words += ["--runs", str(tmp_path / "runs"), "--tune", "train.batch-size", "8", "16"]
    assert run_command(dispatch, words) == 2
    assert "with legacy.drop_tail its values are scored on different numbers of examples" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def arguments(folder: Path, *more: str) -> list[str]:
    folders = ["--runs", str(folder / "runs"), "--data-folder", str(folder)]
    names = "lra listops --attention softmax x3 --seeds 0 1 --tune optim.lr 1e-3 1e-2".split()
    return [*names, *folders, *TINY, *more]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned")
    assert run_command(dispatch, ["sweep", *arguments(folder)]) == 0
    return folder


def test_only_the_chosen_runs_are_tested(tuned: Path) -> None:
    trials = list((tuned / "runs").rglob(TRIAL))
    assert len(trials) == 2 * 2 * 2
    for path in trials:
        found = Result.read(path.parent, TRIAL)
        assert found is not None
        assert (found.status, found.score, found.metrics, found.example_scores) == ("validated", None, {}, [])
    results, problems = read_results(tuned / "runs")
    assert not problems
    assert len(results) == 2 * 2
    (record,) = (tuned / "runs" / FOLDER).glob("*.json")
    tuning = read_tuning(record)
    assert [choice.row[0] for choice in tuning.choices] == [("attention", "softmax"), ("attention", "x3")]
    for choice in tuning.choices:
        by_point = {tuple(point): sum(seeds) for point, seeds in choice.scores}
        assert by_point[tuple(choice.point)] == max(by_point.values())
        assert choice.edge == ["optim.lr"]  # both values of a grid of two are at its edge
        assert all(tuned / "runs" / each in results for each in choice.folders)


def test_a_chosen_run_is_the_run_of_its_command(tuned: Path, tmp_path: Path) -> None:
    """Bit for bit, although it went on from a trial."""
    chosen = next(iter(read_results(tuned / "runs")[0].values()))
    words = chosen.command.split()[1:]
    folders = ["--runs", str(tmp_path), "--data-folder", str(tuned)]
    assert run_command(dispatch, [*words, *folders]) == 0
    (alone,) = read_results(tmp_path)[0].values()
    assert alone.run == chosen.run
    assert (alone.score, alone.metrics, alone.example_scores) == (chosen.score, chosen.metrics, chosen.example_scores)
    assert (alone.validation, alone.chosen_step, alone.floors) == (chosen.validation, chosen.chosen_step, chosen.floors)


def test_the_same_sweep_again_measures_nothing(tuned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in (tuned / "runs").rglob("*.json")}
    assert run_command(dispatch, ["sweep", *arguments(tuned)]) == 0
    shown = capsys.readouterr()
    assert shown.out.count("test accuracy") == 4
    assert "step" not in shown.err
    assert {path: path.read_bytes() for path in (tuned / "runs").rglob("*.json")} == before


def test_variants_can_be_added_later(tuned: Path, tmp_path: Path) -> None:
    shutil.copytree(tuned / "runs", tmp_path / "runs")
    words = [*arguments(tuned), "--runs", str(tmp_path / "runs")]
    words[words.index("x3")] = "x1"
    assert run_command(dispatch, ["sweep", *words]) == 0
    (record,) = (tmp_path / "runs" / FOLDER).glob("*.json")
    assert [choice.row[0][1] for choice in read_tuning(record).choices] == ["x3", "softmax", "x1"]
    assert {row.name: len(row.seeds) for row in table_of(tmp_path / "runs").rows} == {
        "softmax, 1 layer": 2, "x1, 1 layer": 2, "x3, 1 layer": 2,
    }  # fmt: skip


def table_of(runs: Path) -> Table:
    found = measurements(runs)
    (table,) = tables(list(found.results.values()), found.missing, "softmax", found.prices, found.tuned)
    return table


def test_a_table_has_each_variant_at_its_choice(tuned: Path) -> None:
    table = table_of(tuned / "runs")
    assert "optim.lr tuned over 1e-3 1e-2 on the validation set" in table.title
    assert "optim.lr=" not in table.title
    assert [row.name for row in table.rows] == ["softmax, 1 layer", "x3, 1 layer"]
    assert all("(optim.lr 1e-" in cells(row, table)[0] for row in table.rows)
    assert ", at the edge)" in cells(table.rows[0], table)[0]
    assert table.rows[1].comparison is not None
    assert any(
        re.match(r"validation accuracy at optim.lr 1e-3, 1e-2: softmax, 1 layer 0\.\d+, 0\.\d+; x3, 1 layer 0\.", note)
        for note in footnotes(table)
    )
    assert not table.comparable


def test_chosen_runs_are_in_an_ordinary_table_only_if_an_ordinary_sweep_planned_them(tmp_path: Path) -> None:
    """Else the table at the preset's rate would hold the rows that happened to choose it."""
    preset = ["--tune", "optim.lr", "2e-3", "1e-9"]
    words = arguments(tmp_path)
    words[words.index("--tune") : words.index("--runs")] = preset
    assert run_command(dispatch, ["sweep", *words]) == 0
    found = measurements(tmp_path / "runs")
    assert not found.results
    assert [len(group.results) for group in found.tuned] == [4]
    shutil.copytree(tmp_path / "runs" / "lra", tmp_path / "runs" / "copy")  # known by the names of its directories
    assert not measurements(tmp_path / "runs").results
    shutil.rmtree(tmp_path / "runs" / "copy")
    (record,) = (tmp_path / "runs" / FOLDER).glob("*.json")
    whole = read_tuning(record)
    tested = {folder for choice in whole.choices for folder in choice.folders}
    none = replace(whole, choices=[replace(choice, folders=[]) for choice in whole.choices]).write(tmp_path / "runs")
    assert not record.exists()
    assert set(read_tuning(none).earlier) == tested
    assert not measurements(tmp_path / "runs").results  # such as results before an edit of the code
    assert whole.write(tmp_path / "runs") == record
    assert not read_tuning(record).earlier
    ordinary = arguments(tmp_path)
    ordinary[ordinary.index("--tune") : ordinary.index("--runs")] = []
    assert run_command(dispatch, ["sweep", *ordinary]) == 0
    again = measurements(tmp_path / "runs")
    at_preset = [each for each in again.results.values() if "optim.lr" not in each.changed]
    assert len(at_preset) == len(again.results) == 4
    assert [len(group.results) for group in again.tuned] == [4]
    ordinary = arguments(tmp_path)
    ordinary[ordinary.index("--tune") : ordinary.index("--runs")] = ["--optim.lr", "1e-9"]
    assert run_command(dispatch, ["sweep", *ordinary]) == 0
    assert sum("optim.lr" in each.changed for each in measurements(tmp_path / "runs").results.values()) == 4


def test_of_two_choices_of_a_row_the_newest_counts(tmp_path: Path) -> None:
    """Two folders that are read together; on another machine, another value was chosen."""
    words = arguments(tmp_path)
    for name in ("a", "b"):
        words[words.index("--runs") + 1] = str(tmp_path / "runs" / name)
        assert run_command(dispatch, ["sweep", *words]) == 0
    runs = tmp_path / "runs" / "b"
    (record,) = (runs / FOLDER).glob("*.json")
    choice = next(each for each in read_tuning(record).choices if each.row[0] == ("attention", "softmax"))
    (other,) = {"1e-3", "1e-2"} - set(choice.point)
    words[words.index("--tune") : words.index("--tune") + 4] = ["--optim.lr", other]
    words[words.index("x3") : words.index("x3") + 1] = []
    assert run_command(dispatch, ["sweep", *words]) == 0
    folders = sorted(
        path for path, each in read_results(runs)[0].items()
        if each.row == choice.row and each.run["optim"]["lr"] == float(other)
    )  # fmt: skip
    chosen = replace(choice, point=[other], folders=[str(each.relative_to(runs)) for each in folders])
    replace(read_tuning(record), choices=[chosen]).write(runs)
    for each in choice.folders:
        shutil.rmtree(runs / each)
    found = measurements(tmp_path / "runs")
    (group,) = found.tuned
    rates = sorted((each.seed, each.run["optim"]["lr"]) for each in group.results if each.row == choice.row)
    assert rates == [(0, float(other)), (1, float(other))]
    assert any("two choices of softmax, 1 layer on one grid" in message for message in found.duplicates)


def test_a_trial_of_another_run_is_refused_and_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A trial is compared with its run, as a result is. --overwrite also deletes results of seeds without a trial."""
    words = arguments(tmp_path, "--tune-seeds", "0")
    assert run_command(dispatch, ["sweep", *words]) == 0
    one, two = (path for path in (tmp_path / "runs").rglob(TRIAL) if not path.with_name("result.json").exists())
    other = two.read_bytes()
    before = one.read_bytes()
    one.write_bytes(other)
    capsys.readouterr()
    assert run_command(dispatch, ["sweep", *words]) != 0
    assert f"{one} is of another run or other sources" in capsys.readouterr().err
    one.write_bytes(before)
    finished = {path: path.read_text() for path in (tmp_path / "runs").rglob("result.json")}
    assert run_command(dispatch, ["sweep", *words, "--overwrite"]) == 0
    assert one.read_bytes() != before  # finished_at
    assert all(path.read_text() != text for path, text in finished.items())


def test_a_trial_of_other_data_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    splits, _ = SHORT.load(tmp_path)
    data = tmp_path / "official"
    data.mkdir()
    for name, file in FILES.items():
        write_tsv(data / file, splits[name])
    names = "lra listops --attention softmax --seeds 0 --tune-seeds 1 --tune optim.lr 1e-3 1e-2".split()
    model = "--model.layers 1 --model.dim 8 --model.ffn-dim 8 --train.steps 2 --optim.schedule.warmup 1".split()
    folders = ["--runs", str(tmp_path / "runs"), "--data-folder", str(tmp_path), "--data.path", str(data)]
    assert run_command(dispatch, ["sweep", *names, *model, *folders]) == 0
    write_tsv(data / FILES["validation"], splits["test"])
    capsys.readouterr()
    assert run_command(dispatch, ["sweep", *names, *model, *folders]) != 0
    assert "this run began on data of sha256" in capsys.readouterr().err
    assert run_command(dispatch, ["sweep", *names, *model, *folders, "--overwrite"]) == 0


def test_choices_of_a_record_with_another_order_of_fields_are_kept(tuned: Path, tmp_path: Path) -> None:
    (record,) = (tuned / "runs" / FOLDER).glob("*.json")
    tuning = read_tuning(record)
    first, second = tuning.choices
    earlier = replace(
        tuning, fields={"b": ["1", "2"], "a": ["x", "y"]},
        choices=[replace(first, point=["2", "x"], scores=[[["2", "x"], [0.5]]])],
    )  # fmt: skip
    earlier.write(tmp_path)
    now = replace(
        tuning, fields={"a": ["x", "y"], "b": ["1", "2"]}, choices=[replace(second, point=["y", "1"], scores=[])]
    )
    kept, added = read_tuning(now.write(tmp_path)).choices
    assert (kept.point, kept.scores) == (["x", "2"], [[["x", "2"], [0.5]]])
    assert added.point == ["y", "1"]


def test_a_variant_whose_every_value_diverges_has_a_row(tmp_path: Path) -> None:
    words = arguments(tmp_path, "--tune-seeds", "0")
    words[words.index("--tune") + 2 : words.index("--tune") + 4] = ["1e30", "1e31"]
    assert run_command(dispatch, ["sweep", *words]) == 1
    rows = table_of(tmp_path / "runs").rows
    assert {row.name: len(row.diverged) for row in rows} == {"softmax, 1 layer": 2, "x3, 1 layer": 2}


@pytest.mark.parametrize("change", [("1e-2", "5e-2"), ('"format": 1', '"format": 9'), ("{", "")])
def test_an_edited_record_is_skipped_and_named(tuned: Path, tmp_path: Path, change: tuple[str, str]) -> None:
    shutil.copytree(tuned / "runs", tmp_path / "runs")
    (record,) = (tmp_path / "runs" / FOLDER).glob("*.json")
    record.write_text(record.read_text().replace(*change, 1))
    with pytest.raises(BadDataError, match="run the sweep again"):
        read_tuning(record)
    found = measurements(tmp_path / "runs")
    assert any(f"{record}: " in problem and "in ordinary tables" in problem for problem in found.problems)
    assert not found.tuned
    assert len(found.results) == 4


def test_a_test_that_is_missing_is_named(tuned: Path, tmp_path: Path) -> None:
    shutil.copytree(tuned / "runs", tmp_path / "runs")
    next((tmp_path / "runs").rglob("result.json")).unlink()
    found = measurements(tmp_path / "runs")
    (group,) = found.tuned
    assert len(group.results) == 3
    (remark,) = [each for each in table_of(tmp_path / "runs").remarks if "without a result" in each]
    assert re.fullmatch(
        r"runs without a result: (softmax|x3), 1 layer 1 of 2; the same command resumes the sweep", remark
    )


def test_trials_alone_are_named(tuned: Path, tmp_path: Path) -> None:
    shutil.copytree(tuned / "runs", tmp_path / "runs")
    for path in (tmp_path / "runs").rglob("result.json"):
        path.unlink()
    with pytest.raises(WrongUseError, match=r"no results below .* yet, only trials of a sweep with --tune \(\d+\)"):
        measurements(tmp_path / "runs")


def test_a_test_with_a_newer_duplicate_is_not_missing(tuned: Path, tmp_path: Path) -> None:
    shutil.copytree(tuned / "runs", tmp_path / "runs")
    older = next((tmp_path / "runs").rglob("result.json")).parent
    measured = Result.read(older)
    assert measured is not None
    (older.parent / "copy").mkdir()
    replace(measured, finished_at="2999-01-01T00:00:00.000+00:00").write(older.parent / "copy")
    found = measurements(tmp_path / "runs")
    assert any("using the newest" in message for message in found.duplicates)
    assert not any("without a result" in each for group in found.tuned for each in group.remarks)


def test_a_trial_is_no_result(tuned: Path, tmp_path: Path) -> None:
    trial_path = next((tuned / "runs").rglob(TRIAL))
    shutil.copy(trial_path, tmp_path / "result.json")
    with pytest.raises(BadDataError, match="status is 'validated' in a file of this name"):
        Result.read(tmp_path)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--launcher", "ray"], "--tune: not available with --launcher ray"),
        (["--tune", "optim.rate", "1", "2"], "unknown field"),
        (["--optim.lr", "2e-3"], "--tune optim.lr: the field has another value too; leave out --optim.lr"),
        (["--tune", "model.projection-bias", "yes", "true"], "projection_bias true, .*yes, .* are the same run"),
    ],
)
def test_what_cannot_be_tuned_is_refused(tmp_path: Path, more: list[str], message: str) -> None:
    with pytest.raises((WrongUseError, SystemExit), match=message):
        sweep.plan(arguments(tmp_path, *more))


def test_values_that_change_another_field_are_refused(tmp_path: Path) -> None:
    words = "lra listops --seeds 0 --tune train.steps 20 40 --data-folder".split()
    with pytest.raises(WrongUseError, match=r"change optim.schedule.warmup too; .* add --optim.schedule.warmup VALUE$"):
        sweep.plan([*words, str(tmp_path)])
    with pytest.raises(WrongUseError, match="the values name different rows of a table"):
        sweep.plan(["lra", "listops", "--tune", "model.layers", "1", "2", "--data-folder", str(tmp_path)])
    planned, _, _ = sweep.plan([*words, str(tmp_path), "--optim.schedule.warmup", "4"])
    assert [each.run.train.steps for each in planned] == [20, 40]


def test_only_some_seeds_may_be_tuned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Seed 0 is not tested, seed 1 is both, and seed 2 is trained with the chosen value only."""
    words = arguments(tmp_path, "--tune-seeds", "0", "1")
    words[words.index("--seeds") + 1 : words.index("--tune")] = ["1", "2"]
    assert run_command(dispatch, ["sweep", *words]) == 0
    assert "to run (no result yet): listops softmax, 1 layer seed 0 (optim.lr 1e-3); " in capsys.readouterr().err
    assert len(list((tmp_path / "runs").rglob(TRIAL))) == 2 * 2 * 2
    results, _ = read_results(tmp_path / "runs")
    assert sorted((each.row[0][1], each.seed) for each in results.values()) == [
        ("softmax", 1), ("softmax", 2), ("x3", 1), ("x3", 2),
    ]  # fmt: skip
    (record,) = (tmp_path / "runs" / FOLDER).glob("*.json")
    assert read_tuning(record).seeds == [0, 1]
    for choice in read_tuning(record).choices:
        assert [len(scores) for _, scores in choice.scores] == [2, 2]
        assert {results[tmp_path / "runs" / each].seed for each in choice.folders} == {1, 2}
    table = table_of(tmp_path / "runs")
    assert "optim.lr tuned over 1e-3 1e-2 with seeds 0 1 on the validation set" in table.title
    before = {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*.json")}
    assert run_command(dispatch, ["sweep", *words]) == 0
    assert {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*.json")} == before
    capsys.readouterr()
    assert run_command(dispatch, ["sweep", "lra", "listops", "--tune-seeds", "0"]) == 2
    assert "--tune-seeds: there is nothing to tune" in capsys.readouterr().err

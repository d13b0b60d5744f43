"""Tables of tuned results beside ordinary ones, and records that are written again."""

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from seqarena.common.errors import WrongUseError, run_command
from seqarena.common.runs.results import Result
from seqarena.common.runs.run import row_name
from seqarena.scripts.leaderboard.output import load_tables
from seqarena.scripts.leaderboard.records import measurements
from seqarena.scripts.leaderboard.table import tables
from seqarena.scripts.seqarena import dispatch
from seqarena.scripts.sweep.tuning import FOLDER, Choice, Tuning, grid_of, in_one_spelling, read_tuning
from tests.scripts.test_tuning import arguments, table_of


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned")
    assert run_command(dispatch, ["sweep", *arguments(folder)]) == 0
    return folder


def test_an_ordinary_run_by_newer_sources_does_not_change_a_tuned_table(tuned: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(tuned / "runs", runs)
    before = table_of(runs)
    chosen = next(each for _, each in measurements(runs).noted if each.attention == "softmax")
    newer = replace(
        chosen, seed=7, run=chosen.run | {"seed": 7}, sources=chosen.sources | {"common/files.py": "0"}, notes=[],
        finished_at="2999-01-01T00:00:00",
    )  # fmt: skip
    (runs / "other").mkdir()
    newer.write(runs / "other")
    found = measurements(runs)
    assert len(found.results) == 1
    assert [table for table in tables(list(found.results.values()), [], "softmax", [], found.tuned) if table.tuned] == [
        before
    ]


def test_one_grid_in_another_spelling_is_one_table(tuned: Path, tmp_path: Path) -> None:
    """Another variant was tuned over 0.01 0.001; the record on disk stays the same."""
    runs = tmp_path / "runs"
    shutil.copytree(tuned / "runs", runs)
    words = arguments(tmp_path)
    words = [each.replace("1e-3", "0.01") for each in words]
    words[words.index("1e-2")] = "0.001"
    words[words.index("softmax") : words.index("--seeds")] = ["dnas"]
    words[words.index("--data-folder") + 1] = str(tuned)
    assert run_command(dispatch, ["sweep", *words]) == 0
    assert len(list((runs / FOLDER).glob("*.json"))) == 1
    table = table_of(runs)
    assert [row.name.split(",")[0] for row in table.rows] == ["softmax", "x3", "dnas"]


def copied(runs: Path, run: Path) -> None:
    """A copy of one run below the same folder."""
    shutil.copytree(run, runs / "zz-backup" / run.name)


def measured_again(runs: Path, run: Path) -> None:
    """The same run measured later in a directory of the user's."""
    result = Result.read(run)
    assert result is not None
    (runs / "mine").mkdir()
    replace(result, finished_at="2999-01-01T00:00:00").write(runs / "mine")


def moved(runs: Path, run: Path) -> None:
    """One directory moved and linked."""
    (runs / "store").mkdir()
    run.rename(runs / "store" / "one")
    run.symlink_to(runs / "store" / "one")


def all_moved(runs: Path, run: Path) -> None:
    """The folder of the package moved and linked."""
    del run
    (runs / "store").mkdir()
    (runs / "lra").rename(runs / "store" / "lra")
    (runs / "lra").symlink_to(runs / "store" / "lra")


@pytest.mark.parametrize("change", [copied, measured_again, moved, all_moved], ids=lambda each: each.__name__)
def test_a_tuned_row_keeps_its_runs_wherever_they_are(
    change: Callable[[Path, Path], None], tuned: Path, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(tuned / "runs", runs, symlinks=True)
    before, run = table_of(runs), next(path for path, each in measurements(runs).noted if each.attention == "softmax")
    change(runs, run)
    after, found = table_of(runs), measurements(runs)
    assert [(row.name, row.mean, row.seeds, row.comparison) for row in after.rows] == [
        (row.name, row.mean, row.seeds, row.comparison) for row in before.rows
    ]
    assert after.remarks == before.remarks
    assert not found.results  # no seed of it is in an ordinary table


def test_different_numbers_of_validation_seeds_are_named(tuned: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(tuned / "runs", runs)
    (record,) = (runs / FOLDER).glob("*.json")
    tuning = read_tuning(record)
    first, second = tuning.choices
    fewer = replace(second, scores=[[values, scores[:1]] for values, scores in second.scores])
    replace(tuning, choices=[first, fewer]).write(runs)
    name = row_name(first.row), row_name(second.row)
    remark = f"chosen by different numbers of validation seeds: {name[0]} 2, {name[1]} 1"
    assert remark in table_of(runs).remarks
    assert not any("validation seeds" in each for each in table_of(tuned / "runs").remarks)


def test_a_folder_without_a_table_is_an_error(tuned: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(tuned / "runs", runs)
    (record,) = (runs / FOLDER).glob("*.json")
    tuning = read_tuning(record)
    gone = [replace(choice, folders=[f"gone/{number}"]) for number, choice in enumerate(tuning.choices)]
    replace(tuning, choices=gone).write(runs)
    with pytest.raises(WrongUseError, match="all results there belong to earlier choices of a sweep with --tune"):
        load_tables(runs, "softmax")


def test_a_second_tuning_with_the_same_choice_has_a_page(tuned: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(tuned / "runs", runs)
    (record,) = (runs / FOLDER).glob("*.json")
    replace(read_tuning(record), settings="wider", fields={"optim.lr": ["1e-3", "1e-2", "1e-1"]}).write(runs)
    assert len(measurements(runs).tuned) == 2
    command = ["report", "--runs", str(runs), "--out", str(tmp_path / "page.html"), "--benchmarks", str(tmp_path)]
    assert run_command(dispatch, command) == 0


def test_rows_that_two_sweeps_add_at_the_same_time_are_all_kept(tuned: Path, tmp_path: Path) -> None:
    (record,) = (tuned / "runs" / FOLDER).glob("*.json")
    whole = read_tuning(record)
    for number in range(20):
        folder, start = tmp_path / str(number), threading.Barrier(len(whole.choices))

        def add(choice: Choice, folder: Path = folder, start: threading.Barrier = start) -> None:
            start.wait()
            replace(whole, choices=[choice]).write(folder)

        with ThreadPoolExecutor() as pool:
            list(pool.map(add, whole.choices))
        (both,) = (folder / FOLDER).glob("*.json")
        assert len(read_tuning(both).choices) == len(whole.choices)


def test_rows_tuned_on_two_machines_are_kept_when_their_folders_are_merged(tuned: Path, tmp_path: Path) -> None:
    """Also if one began with a copy of the other's folder; a later sweep in the merged folder makes one record."""
    (record,) = (tuned / "runs" / FOLDER).glob("*.json")
    whole = read_tuning(record)
    runs = tmp_path / "runs"
    shutil.copytree(tuned / "runs", runs)
    (runs / FOLDER / record.name).unlink()
    for number, choices in enumerate([whole.choices[:1], whole.choices[1:], whole.choices]):
        replace(whole, choices=choices).write(tmp_path / str(number))
        shutil.copytree(tmp_path / str(number) / FOLDER, runs / FOLDER, dirs_exist_ok=True)
        found = measurements(runs)
        assert sum(len(group.results) for group in found.tuned) == 2 * min(number + 1, 2)
        assert not found.duplicates
    assert len(list((runs / FOLDER).glob("*.json"))) == 3
    assert table_of(runs) == table_of(tuned / "runs")
    after = replace(whole, choices=whole.choices[:1]).write(runs)
    assert list((runs / FOLDER).glob("*.json")) == [after]
    assert table_of(runs) == table_of(tuned / "runs")


def test_the_page_shows_tuned_tables(tuned: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    command = ["report", "--runs", str(tuned / "runs"), "--out", str(out), "--benchmarks", str(tmp_path)]
    assert run_command(dispatch, command) == 0
    assert "optim.lr tuned over 1e-3 1e-2" in out.read_text()


def test_planned_runs_that_a_tuning_repeats_stay_in_their_ordinary_table(tuned: Path, tmp_path: Path) -> None:
    """The planned runs differ from the tuned ones in what changes no score, so that they are other directories."""
    runs = tmp_path / "runs"
    words = [*arguments(tmp_path), "--train.diagnostics"]
    (record,) = (tuned / "runs" / FOLDER).glob("*.json")
    choice = read_tuning(record).choices[0]
    words[words.index("--tune") : words.index("--runs")] = ["--optim.lr", *choice.point]
    words[words.index("--data-folder") + 1] = str(tuned)
    assert run_command(dispatch, ["sweep", *words]) == 0
    before = measurements(runs)
    shutil.copytree(tuned / "runs", runs, dirs_exist_ok=True)
    for path, each in measurements(tuned / "runs").noted:  # the tuning was later
        later = replace(each, finished_at="2999-01-01T00:00:00", notes=[])
        later.write(runs / path.relative_to(tuned / "runs"))
    after = measurements(runs)
    assert {(each.row, each.seed) for each in after.results.values()} == {
        (each.row, each.seed) for each in before.results.values()
    }
    assert len(before.results) == 4


def conflicting(tuned: Path, runs: Path) -> tuple[Tuning, Path, Path]:
    """Two records of one grid that lie in one folder: the later one, of one seed, chose again the first's value."""
    shutil.copytree(tuned / "runs", runs)
    (record,) = (runs / FOLDER).glob("*.json")
    whole = read_tuning(record)
    record.unlink()
    choice = whole.choices[0]
    early = replace(choice, chosen_at="2000-01-01T00:00:00", folders=choice.folders[:1])
    late = replace(choice, chosen_at="2000-01-02T00:00:00")
    paths = [replace(whole, choices=[each]).write(runs.parent / name) for name, each in (("a", early), ("b", late))]
    for path in paths:
        shutil.copy(path, runs / FOLDER)
    return whole, *(runs / FOLDER / path.name for path in paths)


def test_of_two_choices_the_one_that_was_made_last_counts(tuned: Path, tmp_path: Path) -> None:
    """Its runs were tested before, so that the time of the tests says nothing."""
    runs = tmp_path / "runs"
    _, early, late = conflicting(tuned, runs)
    found = measurements(runs)
    assert any(f"using the newest, {late}, and ignoring {early}" in each for each in found.duplicates)
    assert [len(group.results) for group in found.tuned] == [2]


def test_a_choice_that_is_made_again_keeps_its_time(tuned: Path, tmp_path: Path) -> None:
    (record,) = (tuned / "runs" / FOLDER).glob("*.json")
    whole = read_tuning(record)
    assert all(choice.chosen_at for choice in whole.choices)
    path = whole.write(tmp_path)
    again = replace(whole, choices=[replace(each, chosen_at="2999-01-01T00:00:00") for each in whole.choices])
    assert again.write(tmp_path) == path
    assert read_tuning(path) == whole


def test_a_damaged_record_of_other_rows_is_kept_and_named(tuned: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    whole, early, late = conflicting(tuned, runs)
    early.write_text(early.read_text()[:-9])
    replace(whole, choices=whole.choices[1:]).write(runs)
    assert early.exists()
    assert not late.exists()
    assert any(
        str(early) in each and "run the sweep again, then delete it" in each for each in measurements(runs).problems
    )


def test_a_record_without_its_runs_is_named(tuned: Path, tmp_path: Path) -> None:
    """The records of another machine were copied, and its runs were not."""
    runs = tmp_path / "runs"
    shutil.copytree(tuned / "runs", runs)
    (record,) = (runs / FOLDER).glob("*.json")
    choice = read_tuning(record).choices[0]
    gone = replace(choice, row=(("attention", "relu"),), folders=["lra/listops/gone"])
    path = replace(read_tuning(record), choices=[gone]).write(tmp_path / "other")
    shutil.copy(path, runs / FOLDER)
    found = measurements(runs)
    assert any(f"{path.name}: without results: relu 1 of 1" in each for each in found.duplicates)


def test_a_tuning_in_another_order_of_fields_is_the_same_grid() -> None:
    given = [["optim.schedule.warmup", "1", "2"], ["optim.lr", "1e-3", "3e-3"]]
    assert grid_of(given).points() == grid_of(given[::-1]).points()
    assert list(grid_of(given).fields) == ["optim.lr", "optim.schedule.warmup"]
    assert grid_of([["optim.lr", "1e-1", "1e-3"]]) == grid_of(
        [["optim.lr", "1e-3", "1e-1"]]
    )  # of equal scores, the first
    assert in_one_spelling(["none", "1.0"]) == in_one_spelling(["1", "None"]) == ["1", "none"]


def test_a_grid_is_the_same_in_any_order_and_spelling_of_its_numbers() -> None:
    for grid in (["0.003", "1e-3", "2"], ["2.0", "1.0e-3", "3E-3"]):
        assert in_one_spelling(grid) == ["1e-3", "3e-3", "2"]
    assert in_one_spelling(["7.5e-4", "5e-4"]) == ["5e-4", "7.5e-4"]  # as records on disk have them
    assert in_one_spelling(["adamw", "Adam"]) == ["adam", "adamw"]

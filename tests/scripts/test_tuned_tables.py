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
from seqarena.scripts.sweep.tuning import FOLDER, Choice, read_tuning
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

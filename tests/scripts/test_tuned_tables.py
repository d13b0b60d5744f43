"""Tables of tuned results beside ordinary ones, and records that are written again."""

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from seqarena.common.errors import run_command
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
        assert len(read_tuning(folder / FOLDER / record.name).choices) == len(whole.choices)


def test_the_page_shows_tuned_tables(tuned: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    command = ["report", "--runs", str(tuned / "runs"), "--out", str(out), "--benchmarks", str(tmp_path)]
    assert run_command(dispatch, command) == 0
    assert "optim.lr tuned over 1e-3 1e-2" in out.read_text()

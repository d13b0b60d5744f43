from pathlib import Path

import pytest

from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.saved_table import read_table
from seqarena.scripts.packages import PACKAGES, find_package
from seqarena.scripts.prepare import run, select_run


def test_data_are_prepared_before_and_found_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["lra", "pathfinder", "--data.examples", "50", "--data.size", "14", "--data.contour-length", "3"]
    assert run([*command, "--data-folder", str(tmp_path)]) == 0
    first = capsys.readouterr()
    assert "drawing 50 images of 14 x 14" in first.err
    assert "sha256" in first.out
    assert "floors: majority class 0." in first.out
    assert run([*command, "--data-folder", str(tmp_path)]) == 0
    second = capsys.readouterr()
    assert second.out == first.out
    assert "drawing" not in second.err


def test_floors_are_saved_as_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "floors.json"
    command = ["lra", "listops", "--preset", "quick", "--data.train", "200", "--data.test", "50"]
    assert run([*command, "--data-folder", str(tmp_path), "--save", str(path)]) == 0
    shown, table = capsys.readouterr().out, read_table(path)
    assert table.title == "floors and ceilings of lra listops, preset quick"
    assert table.headings == ("rule", "test accuracy")
    assert all(f"{rule} {score}" in shown for rule, score in table.rows)
    assert len(table.rows) == 6
    assert table.notes[0].removeprefix("data: ") in shown
    assert table.command == f"seqarena prepare {' '.join(command)}"


def test_what_cannot_be_prepared_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadDataError, match="your own copy"):
        run(["lra", "retrieval", "--data-folder", str(tmp_path)])
    with pytest.raises(WrongUseError, match=r"data.size: expected one of"):
        run(["lra", "pathfinder", "--data.size", "31", "--data-folder", str(tmp_path)])
    with pytest.raises(WrongUseError, match=r"nearest: pathfinder"):
        run(["lra", "pathfnder", "--data-folder", str(tmp_path)])


def test_every_task_has_a_preset_to_prepare_even_where_there_is_but_one() -> None:
    assert select_run(["summarization", "wire"])[1].preset == "quick"
    for package in map(find_package, PACKAGES):
        for task in package.tasks:
            assert select_run([package.name, task, "--preset", "quick"])[1].task == task

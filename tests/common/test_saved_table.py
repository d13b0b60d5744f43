"""Tables of measurements in files: the same table comes back, and nothing else is read."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from seqarena.common.errors import BadDataError, WrongUseError, run_command
from seqarena.common.parser import Parser
from seqarena.common.saved_table import add_output_options, print_table, read_table
from seqarena.scripts.seqarena import dispatch
from tests.tables import DOCUMENTS, ROOT

HEADINGS, ROWS, NOTES = ["variant", "ms"], [["x | 3", "1.5"], ["", "2"]], ["medians of 3 rounds"]


def saved(path: Path, *arguments: str) -> Path:
    parser = Parser(prog="seqarena benchmark one")
    parser.add_argument("--lengths", nargs="+")
    parser.add_argument("--data-folder")
    add_output_options(parser, json_help="print JSON")
    print_table(parser.parse_args(arguments), parser.prog, arguments, "one", HEADINGS, ROWS, NOTES, "a processor")
    return path


@pytest.mark.parametrize("is_joined", [False, True])
def test_a_table_comes_back_with_its_command(
    is_joined: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a b.json"
    option = ["--save", str(tmp_path / "other.json"), f"--save={path}"] if is_joined else ["--save", str(path)]
    table = read_table(saved(path, "--data-folder", "mine", *option, "--lengths", "16", "32 k"))
    shown = capsys.readouterr().out
    assert "│ x | 3" in shown
    assert shown.endswith(f"{path}\n")
    assert (table.headings, table.rows, table.notes) == (tuple(HEADINGS), tuple(map(tuple, ROWS)), tuple(NOTES))
    assert table.command == "seqarena benchmark one --lengths 16 '32 k'"
    lines = table.text("markdown").splitlines()
    assert lines[:5] == ["**one**", "", "| variant | ms |", "| --- | ---: |", r"| x \| 3 | 1.5 |"]
    assert lines[-2] == "- medians of 3 rounds"
    assert lines[-1].startswith(f"- a processor; PyTorch {table.torch}; {table.date}; ")
    assert lines[-1].endswith(f"; by `{table.command}`")


def test_without_the_option_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path, "--lengths", "16")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["here.txt", "none/here.json", "folder.json"])
def test_a_file_that_cannot_be_written_is_refused_before_the_measurement(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(WrongUseError, match=f"--save: expected a name that ends in .json, .*; found {text}"):
        saved(tmp_path, "--save", text)


def test_only_a_table_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "here.json"
    with pytest.raises(BadDataError, match="no such file"):
        read_table(path)
    for _ in range(2):
        assert read_table(saved(path, "--save", str(path)))
    path.write_text("{}")
    with pytest.raises(WrongUseError, match="exists, and is no such table; choose another name"):
        saved(path, "--save", str(path))
    assert path.read_text() == "{}"


def test_json_is_not_printed_where_a_table_is_saved(tmp_path: Path) -> None:
    with pytest.raises(WrongUseError, match="--save: not allowed with argument --json"):
        saved(tmp_path, "--json", "--save", str(tmp_path / "here.json"))


@pytest.mark.parametrize(
    "changes",
    [{"rows": [["x"]]}, {"rows": [["x", 1]]}, {"rows": "xy"}, {"rows": ["xy"]}, {"rows": [1]}, {"headings": [1, 2]},
     {"headings": [], "rows": []}, {"title": 1}, {"class": "Price"}, {"more": 1}, {"clean": "yes"}],
)  # fmt: skip
def test_a_changed_file_is_refused(changes: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path / "here.json", "--save", str(tmp_path / "here.json"))
    path.write_text(json.dumps(json.loads(path.read_bytes()) | changes))
    with pytest.raises(BadDataError, match=f"{path}: not a table that seqarena wrote with --save"):
        read_table(path)
    assert run_command(dispatch, ["benchmark", "show", str(path)]) != 0
    assert "not a table" in capsys.readouterr().err


def test_every_measurement_is_in_a_document() -> None:
    shown = {each for path in DOCUMENTS for each in re.findall(r"docs/measurements/\S+\.json", path.read_text())}
    files = sorted((ROOT / "docs" / "measurements").glob("*"))
    assert shown == {str(path.relative_to(ROOT)) for path in files} != set()

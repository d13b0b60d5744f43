"""The file of a GPU: attention and steps in one, read by its table and by the report."""

import json
from pathlib import Path

import pytest

from seqarena.common.errors import WrongUseError
from seqarena.scripts.benchmark import run
from seqarena.scripts.report.speed import speed

TINY = "--device cpu --attention softmax x3 --lengths 16 --batch 1 --rounds 2 --steps 1".split()


@pytest.mark.extras
def test_a_device_is_measured_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = ["--data-folder", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    assert run(["gpu", *TINY, *folders, "--task", "lra", "listops", "quick"]) == 0
    measured = capsys.readouterr().out
    (path,) = (tmp_path / "out").iterdir()
    assert measured.endswith(f"{path}\n")
    record = json.loads(path.read_text())
    assert [each["setting"]["precision"] for each in record["attention"]] == ["bfloat16", "float32"]
    (step,) = record["steps"]
    assert [each["row"] for each in step["prices"]] == [[["attention", "softmax"]], [["attention", "x3"]]]
    assert step["tokens_per_step"] > 0
    assert run(["gpu", "--show", "--out", str(tmp_path / "out"), "--format", "markdown"]) == 0
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
    steps = [line for line in lines if "step of lra listops quick, float32" in line[1:2]]
    assert [line[2] for line in steps] == ["softmax", "x3"]
    assert steps[0][5] == "1.00"
    kinds = {line[1] for line in lines if len(line) > 5 and "attention" in line[1]}
    assert kinds == {f"attention, 16 keys{order}, {precision}" for order in ("", ", causal")
                     for precision in ("bfloat16", "float32")}  # fmt: skip
    problems: list[str] = []
    assert [chart.title.split(":")[0] for chart in speed(tmp_path / "out", problems)] == [
        "Time, forward and backward"
    ] * 2
    assert not problems


def test_without_a_file_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["gpu", "--show", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "No GPU has been measured yet.\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--attention", "sofmax"], "sofmax"),
        (["--task", "lra", "listop", "quick"], "listop"),
        (["--task", "lra", "listops", "quik"], "quik"),
        (["--lengths", "0"], "--lengths: expected at least 1, found 0"),
        (["--rounds", "0"], "--rounds: expected at least 1, found 0"),
        (["--format", "marcdown"], "marcdown"),
    ],
)
def test_wrong_words_end_it_before_anything_is_measured(words: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(WrongUseError, match=message):
        run(["gpu", *TINY, "--out", str(tmp_path), *words])
    assert not any(tmp_path.iterdir())

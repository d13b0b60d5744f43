"""The file of a GPU: attention and steps in one, read by its table and by the report."""

import json
from pathlib import Path
from typing import Any

import pytest

from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.scripts.benchmark import gpu, run
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


@pytest.mark.parametrize("content", ["{", "[]", '{"attention": [], "steps": [{}], "device": "a GPU"}', '{"a": 1}'])
def test_a_file_of_something_else_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "some.json").write_text(content)
    with pytest.raises(BadDataError, match=r"some.json: not a file of seqarena benchmark gpu"):
        run(["gpu", "--show", "--out", str(tmp_path)])


def test_an_interrupt_ends_it_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu, "measure", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(["gpu", *TINY, "--out", str(tmp_path)])
    assert not any(tmp_path.iterdir())


def test_a_result_among_measurements_of_speed_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"attention": "softmax", "steps": 10}')
    problems: list[str] = []
    assert (speed(tmp_path, problems), problems) == ([], [])


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

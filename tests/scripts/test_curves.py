import json
from io import BufferedRandom
from pathlib import Path

import pytest
from accelerate import Accelerator
from matplotlib.figure import Figure

from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.training.log import Log
from seqarena.scripts.curves import read_curves, run

LINES = [
    {"step": 1, "loss": 2.0, "lr": 0.1},
    {
        "step": 2,
        "validation": {"accuracy": 0.5, "loss": 1.5},
        "bounded": {"u": [0.4]},
        "diagnostics": {"norm": [1.0, 2.0]},
    },
    {"step": 3, "loss": 1.0, "lr": 0.05},
]


def test_curves_are_read_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, LINES)) + '\n{"step": 4, "lo')
    curves = read_curves(tmp_path)
    assert curves["loss"] == {"training": [(1, 2.0), (3, 1.0)], "validation": [(2, 1.5)]}
    assert curves["norm"] == {"layer 1": [(2, 1.0)], "layer 2": [(2, 2.0)]}
    assert curves["bounded parameters"] == {"u": [(2, 0.4)]}
    assert run([str(tmp_path)]) == 0
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.strip() == str(tmp_path / "curves.png")


def test_losses_of_one_unit_share_a_panel(tmp_path: Path) -> None:
    validation = {"loss": 9.5, "perplexity": 13_360.0, "loss_per_token": 2.75}
    lines = [{"step": 1, "loss": 2.6}, {"step": 1, "validation": validation}]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    curves = read_curves(tmp_path)
    assert curves["loss"] == {"training": [(1, 2.6)], "validation": [(1, 2.75)]}
    assert curves["loss per word"] == {"validation": [(1, 9.5)]}


def test_every_run_below_a_folder_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (("lra/listops/a", json.dumps(LINES[0])), ("qa/mnli/b", json.dumps(LINES[0])), ("qa/new", "")):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "metrics.jsonl").write_text(text)
    assert run([str(tmp_path)]) == 0
    drawn = [tmp_path / "lra/listops/a/curves.png", tmp_path / "qa/mnli/b/curves.png"]
    assert capsys.readouterr().out.split() == [str(path) for path in drawn]
    assert all(path.exists() for path in drawn)


def test_a_picture_half_drawn_does_not_take_the_place_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(_: Figure, file: Path | BufferedRandom, **settings: object) -> None:
        (file.write_bytes if isinstance(file, Path) else file.write)(b"\x89PNG")
        raise OSError("disk full")

    (tmp_path / "metrics.jsonl").write_text(f"{json.dumps(LINES[0])}\n")
    (tmp_path / "curves.png").write_text("before")
    monkeypatch.setattr(Figure, "savefig", half)
    with pytest.raises(OSError, match="disk full"):
        run([str(tmp_path)])
    assert (tmp_path / "curves.png").read_text() == "before"


def test_no_changed_bit_of_a_log_changes_its_curves(tmp_path: Path) -> None:
    log = Log(Accelerator(cpu=True), tmp_path, title="a run", steps=3)
    log.train(1, {"loss": 2.5, "tokens_per_second": 9.0})
    log.evaluation(2, {"accuracy": 0.5}, {"u": [0.4]}, {})
    log.train(3, {"loss": 1.5, "tokens_per_second": 9.0})
    path, curves = tmp_path / "metrics.jsonl", read_curves(tmp_path)
    assert curves["loss"] == {"training": [(1, 2.5), (3, 1.5)]}
    assert "seal" not in curves
    whole, refused = path.read_bytes(), 0
    for at in range(len(whole)):
        for bit in range(8):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            try:
                assert read_curves(tmp_path) == curves
            except BadDataError:
                refused += 1
    assert refused > 0.99 * 8 * len(whole)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongUseError, match=r"no metrics\.jsonl in or below .* expected the directory of a run"):
        run([str(tmp_path)])
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(WrongUseError, match="no step has been recorded yet"):
        run([str(tmp_path)])
    (tmp_path / "metrics.jsonl").write_text("nonsense\n{}\n")
    with pytest.raises(BadDataError, match="line 1: not a record"):
        run([str(tmp_path)])

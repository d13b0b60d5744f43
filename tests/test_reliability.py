"""What may befall a run besides wrong arguments: kills, missing pieces, folders that take nothing, clocks.

The whole list, with the test that keeps each so, is docs/reliability.md.
"""

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

from seqarena.common import files
from seqarena.common.errors import WrongUseError, run_command
from seqarena.common.runs.results import Result
from seqarena.lra.run import Run
from seqarena.lra.trainer import loss
from seqarena.scripts.seqarena import dispatch
from tests.interruption import start, stops_after
from tests.lra.test_training import TINY, TINY_FIELDS, measure

pytestmark = pytest.mark.usefixtures("unchecked_shapes")  # tests/lra/test_training.py checks them on the same runs
LONGER = replace(
    TINY,
    train=replace(TINY.train, steps=40, eval_every=10, checkpoint_seconds=0.0),
    model=replace(TINY.model, dropout=0.1, attention_dropout=0.1),
)


def outcome(folder: Path, result: Result) -> tuple[object, ...]:
    """Returns what must be the same bits: scores, curve and weights; not times."""
    (run,) = (folder / "runs" / "lra" / "listops").iterdir()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    differing = ("tokens_per_second", "seal")  # the seal is of the speed too
    curve = [{name: value for name, value in line.items() if name not in differing} for line in lines]
    (best,) = (run / "checkpoint").glob("chosen-*.safetensors")
    weights = {name: tensor.numpy().tobytes() for name, tensor in load_file(best).items()}
    return result.score, result.example_scores, result.validation, result.chosen_step, curve, weights


def interrupted(run: Run, folder: Path, seconds: float) -> bool:
    """Runs in a process of its own that is killed after so many seconds; returns whether it was still at work."""
    child = start(lambda: measure(run, folder))
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


@pytest.mark.parametrize("count", [5, pytest.param(20, marks=pytest.mark.extras)])
def test_kills_at_random_moments_change_no_bit(count: int, tmp_path: Path) -> None:
    kill_and_compare(count, tmp_path, seed=0)


def kill_and_compare(count: int, folder: Path, seed: int) -> int:
    """Kills runs ``count`` times in all, finishes each and compares it with an unkilled one; returns their number."""
    expected = outcome(folder / "whole", measure(LONGER, folder / "whole"))
    moments = random.Random(seed)
    kills, runs = 0, 0
    while kills < count:
        runs += 1
        own = folder / f"killed{runs}"
        shutil.copytree(folder / "whole" / "data", own / "data")
        while interrupted(LONGER, own, moments.uniform(0.0, 0.5)):
            kills += 1
            if kills % 5 == 0:
                break
        assert outcome(own, measure(LONGER, own)) == expected
    return runs


def lose(*names: str) -> Callable[[Path], None]:
    def take(run: Path) -> None:
        for name in names:
            path = run / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return take


@pytest.mark.parametrize("lost", [("result.json",), ("result.json", "checkpoint"), ("result.json", "metrics.jsonl"),
                                  ("result.json", "checkpoint", "metrics.jsonl", "run.json"), (".lock",)])  # fmt: skip
def test_a_directory_that_lost_a_part_gives_the_same_result_again(tmp_path: Path, lost: tuple[str, ...]) -> None:
    first = measure(TINY, tmp_path)
    (run,) = (tmp_path / "runs" / "lra" / "listops").iterdir()
    lose(*lost)(run)
    again = measure(TINY, tmp_path)
    assert (again.score, again.example_scores, again.validation) == (
        first.score, first.example_scores, first.validation
    )  # fmt: skip


def test_a_directory_without_its_name_is_not_touched(tmp_path: Path) -> None:
    """Without run.json nobody knows whose checkpoint it is."""
    measure(TINY, tmp_path)
    (run,) = (tmp_path / "runs" / "lra" / "listops").iterdir()
    lose("run.json")(run)
    with pytest.raises(WrongUseError, match=r"holds other files \(checkpoint, metrics.jsonl, result.json\) and no run"):
        measure(TINY, tmp_path)
    assert (run / "result.json").exists()


def test_a_result_that_cannot_be_written_costs_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = files.write_json

    def full(path: Path, values: object) -> None:
        if path.name == "result.json":
            raise OSError(28, "No space left on device", str(path))
        real(path, values)

    monkeypatch.setattr("seqarena.common.runs.results.write_json", full)
    with pytest.raises(OSError, match=r"No space left on device"):
        measure(TINY, tmp_path)
    monkeypatch.undo()
    trained = []
    monkeypatch.setattr("seqarena.lra.trainer.loss", lambda *_: trained.append(1))
    assert measure(TINY, tmp_path).status == "finished"
    assert not trained


def test_a_clock_that_goes_back_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = outcome(tmp_path / "right", measure(LONGER, tmp_path / "right"))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 1e6 * random.random())
    result = measure(LONGER, tmp_path / "wrong")
    assert outcome(tmp_path / "wrong", result) == expected
    assert 0 < result.training_seconds < 1e3
    assert result.tokens_per_second > 0


def test_a_place_that_takes_no_files_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for option in ("--runs", "--data-folder", "--out"):
        given = {"--runs": str(tmp_path / "runs"), "--data-folder": str(tmp_path / "data")}
        given[option] = str(tmp_path / "file" / "below")
        words = [word for pair in given.items() for word in pair]
        assert run_command(dispatch, ["lra", "listops", *TINY_FIELDS, *words]) == 1
        told = capsys.readouterr().err.splitlines()
        assert told[-1].startswith(f"seqarena: could not write {tmp_path / 'file' / 'below'}")


def test_data_that_vanish_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqarena.lra.trainer.loss", stops_after(15, loss))
    with pytest.raises(KeyboardInterrupt):
        measure(LONGER, tmp_path)
    monkeypatch.undo()
    shutil.rmtree(tmp_path / "data")
    result = measure(LONGER, tmp_path)
    assert outcome(tmp_path, result) == outcome(tmp_path / "whole", measure(LONGER, tmp_path / "whole"))

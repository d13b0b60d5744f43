"""ListOps end to end: it learns, it goes on after a kill, it says what it did."""

import json
import math
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from seqarena.common.attention import ATTENTIONS
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.runs.cli import main
from seqarena.common.runs.package import Evaluation
from seqarena.common.runs.results import Result
from seqarena.common.runs.run import row_name
from seqarena.common.runs.session import Session, execute
from seqarena.lra.__main__ import PACKAGE
from seqarena.lra.data.listops import ListOps
from seqarena.lra.presets import PRESETS
from seqarena.lra.run import Legacy, Run
from seqarena.lra.tasks import LISTOPS
from seqarena.lra.trainer import loss
from seqarena.scripts.leaderboard.protocol import protocol_of
from tests.interruption import start, stops_after

BASE = PRESETS["listops"]["quick"].run

DATA = ListOps(train=600, validation=50, test=70, longer_than=3, shorter_than=12, max_depth=2, max_arguments=5)
TINY = replace(
    BASE,
    data=DATA,
    model=replace(BASE.model, dim=16, ffn_dim=32, layers=1),
    train=replace(BASE.train, steps=6, batch_size=16, eval_every=3),
    optim=replace(BASE.optim, schedule=replace(BASE.optim.schedule, warmup=2)),
)
SAVED = replace(TINY, train=replace(TINY.train, checkpoint_seconds=0.0))
"""The same with a checkpoint after each step."""
TINY_FIELDS = (
    "--data.train 600 --data.validation 50 --data.test 70 --data.longer-than 3 --data.shorter-than 12 "
    "--data.max-depth 2 --model.dim 16 --model.ffn-dim 32 --model.layers 1 --train.batch-size 16"
).split()


def measure(run: Run, folder: Path, **session: object) -> Result:
    return execute(PACKAGE, run, Session(runs=folder / "runs", data=folder / "data", **session))  # type: ignore[arg-type]


def interrupt(run: Run, folder: Path, **session: object) -> None:
    """Measures a run up to an interrupt in its fifth step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("seqarena.lra.trainer.loss", stops_after(4, loss))
        with pytest.raises(KeyboardInterrupt):
            measure(run, folder, **session)


def test_a_test_set_that_is_cut_is_marked_and_of_another_protocol(tmp_path: Path) -> None:
    """The data that are kept are the same; what is evaluated is some of them."""
    whole = measure(TINY, tmp_path)
    cut = measure(replace(TINY, data=replace(DATA, test_limit=9)), tmp_path)
    assert (len(whole.example_scores), len(cut.example_scores)) == (70, 9)
    assert cut.changed["data.test_limit"] == [None, 9]
    assert cut.data_checksum != whole.data_checksum
    assert protocol_of(cut) != protocol_of(whole)
    assert (cut.validation, set(cut.floors)) == (whole.validation, set(whole.floors))
    assert len(list((tmp_path / "data" / "lra").iterdir())) == 1
    with pytest.raises(WrongUseError, match=r"data.test_limit: expected at least 1, or none for all, found 0"):
        measure(replace(TINY, data=replace(DATA, test_limit=0)), tmp_path)


def test_a_result_has_everything(tmp_path: Path) -> None:
    result = measure(TINY, tmp_path)
    (folder,) = (tmp_path / "runs" / "lra" / "listops").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == [
        ".lock",
        "checkpoint",
        "metrics.jsonl",
        "result.json",
        "run.json",
        "sources.json",
    ]
    assert Result.read(folder) == result
    assert result.status == "finished"
    assert len(result.example_scores) == 70
    assert result.score == pytest.approx(sum(result.example_scores) / 70)
    assert result.chosen_step in (3, 6)
    assert set(result.floors) == {
        "majority class", "root operator", "depth 1", "depth 2", "depth 3", "nearest training example"
    }  # fmt: skip
    assert set(result.changed) == {
        "data.train", "data.validation", "data.test", "data.longer_than", "data.shorter_than", "data.max_depth",
        "model.dim", "model.ffn_dim", "train.steps", "train.batch_size", "train.eval_every",
        "optim.schedule.warmup",
    }  # fmt: skip
    assert result.row == (("attention", "softmax"), ("layers", "1"))
    assert (row_name(result.row), result.attention, result.norm) == ("softmax, 1 layer", "softmax", "pre")
    assert result.environment["libraries"]["torch"]
    assert result.training_seconds > 0
    assert result.peak_memory_bytes > 2**20


def test_a_finished_run_is_not_run_again_unless_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = measure(TINY, tmp_path)
    capsys.readouterr()
    assert measure(TINY, tmp_path) == first
    assert "this run was finished on" in (told := capsys.readouterr().err)
    assert "; --overwrite runs it again" in told
    again = measure(TINY, tmp_path, overwrite=True)
    assert (again.score, again.example_scores) == (first.score, first.example_scores)
    assert again.finished_at >= first.finished_at
    assert again.training_seconds != first.training_seconds


def test_a_directory_with_another_run_is_refused(tmp_path: Path) -> None:
    measure(TINY, tmp_path, out=tmp_path / "mine")
    with pytest.raises(WrongUseError, match=r"holds another run: seed is 0 there, 1 here; name another directory"):
        measure(replace(TINY, seed=1), tmp_path, out=tmp_path / "mine")
    measure(replace(TINY, seed=1), tmp_path, out=tmp_path / "mine", overwrite=True)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").touch()
    with pytest.raises(WrongUseError, match=r"holds other files \(cat.png\) and no run"):
        measure(TINY, tmp_path, out=tmp_path / "photos")
    assert (tmp_path / "photos" / "cat.png").exists()


def test_overwriting_deletes_nothing_but_a_run(tmp_path: Path) -> None:
    measure(TINY, tmp_path, out=tmp_path / "mine")
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    (tmp_path / "mine" / ".run.json.unfinished").touch()
    (tmp_path / "mine" / "curves.png").touch()  # of the run that is deleted
    measure(TINY, tmp_path, out=tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "notes.txt").read_text() == "mine"
    assert not (tmp_path / "mine" / "curves.png").exists()
    theirs = tmp_path / "theirs"
    (theirs / "checkpoint").mkdir(parents=True)
    (theirs / "checkpoint" / "weights").touch()
    for text in (None, "[]", '{"class": "Other"}'):
        if text is not None:
            (theirs / "run.json").write_text(text)
        with pytest.raises(WrongUseError, match="name another directory"):
            measure(TINY, tmp_path, out=theirs, overwrite=True)
        assert (theirs / "checkpoint" / "weights").exists()


def test_a_kill_before_anything_is_written_blocks_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / ".run.json.unfinished").write_text("{")
    assert measure(TINY, tmp_path, out=tmp_path / "mine").status == "finished"


def test_weights_that_explode_at_the_last_step_are_a_divergence(tmp_path: Path) -> None:
    wild = replace(TINY, train=replace(TINY.train, steps=1), optim=replace(TINY.optim, lr=1e30, clip=None))
    wild = replace(wild, optim=replace(wild.optim, schedule=replace(wild.optim.schedule, warmup=0)))
    result = measure(wild, tmp_path)
    assert result.status == "diverged"
    assert "evaluation at step 1 is not finite" in result.message


def test_a_test_that_is_not_finite_names_the_step_of_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accuracies = iter([0.5, 0.4])

    def evaluate(_: Any, split: Any, __: Any) -> Evaluation:
        is_test = len(split) == 70
        metrics = {"accuracy": 0.1, "loss": math.inf} if is_test else {"accuracy": next(accuracies), "loss": 1.0}
        return Evaluation(metrics=metrics, examples=[])

    monkeypatch.setattr("seqarena.lra.trainer.evaluate", evaluate)
    result = measure(TINY, tmp_path)
    assert result.status == "diverged"
    assert "loss of the test at step 3 is not finite" in result.message


def test_divergence_is_recorded(tmp_path: Path) -> None:
    wild = replace(TINY, optim=replace(TINY.optim, lr=1e30, clip=None))
    result = measure(wild, tmp_path)
    assert result.status == "diverged"
    assert result.score is None
    assert "softmax, 1 layer diverged: " in result.message
    assert measure(wild, tmp_path) == result  # and not tried again


def test_other_data_than_the_preset_means_are_refused(tmp_path: Path) -> None:
    task = replace(LISTOPS, checksums={"quick": "0" * 64})
    preset = replace(PRESETS["listops"]["quick"], run=TINY)
    package = replace(PACKAGE, tasks={"listops": task}, presets={"listops": {"quick": preset}})
    session = Session(runs=tmp_path / "runs", data=tmp_path / "data")
    with pytest.raises(BadDataError, match=r"sha256 is [0-9a-f]+, but preset quick expects 0000"):
        execute(package, TINY, session)
    wider = replace(TINY, model=replace(TINY.model, dim=32))
    with pytest.raises(BadDataError, match="preset quick expects 0000"):
        execute(package, wider, session)
    assert execute(package, replace(TINY, data=replace(TINY.data, seed=1)), session).status == "finished"


def test_a_tail_that_is_everything_is_refused(tmp_path: Path) -> None:
    wrong = replace(TINY, legacy=Legacy(drop_tail=True), train=replace(TINY.train, batch_size=51))
    with pytest.raises(
        WrongUseError, match=r"drop_tail: expected at least train.batch_size 51 examples in every split"
    ):
        measure(wrong, tmp_path)


def test_legacy_drops_the_tail(tmp_path: Path) -> None:
    run = replace(TINY, legacy=replace(TINY.legacy, drop_tail=True, padded_pooling=True))
    result = measure(run, tmp_path)
    assert len(result.example_scores) == 64
    assert "legacy.drop_tail" in result.changed
    labels = run.data.load(tmp_path / "again")[0]["test"].labels
    majority = np.bincount(run.data.load(tmp_path / "again")[0]["train"].labels).argmax()
    assert len(labels) > 64
    assert result.floors["majority class"] == (labels[:64] == majority).mean()  # of the same examples


@pytest.mark.parametrize("attention", ["softmax", "dnas", "hnas", "x3"])
@pytest.mark.usefixtures("unchecked_shapes")
def test_it_learns(tmp_path: Path, attention: str) -> None:
    """One operator over a few digits: far above the majority class and the root operator in a few seconds."""
    data = ListOps(train=2_000, validation=100, test=400, longer_than=3, shorter_than=7, max_depth=2, max_arguments=4)
    run = replace(
        BASE,
        data=data,
        model=replace(BASE.model, dim=32, ffn_dim=64, layers=1, attention=ATTENTIONS[attention]),
        train=replace(BASE.train, steps=150, batch_size=64, eval_every=75),
        optim=replace(BASE.optim, lr=5e-3, schedule=replace(BASE.optim.schedule, warmup=20)),
    )
    result = measure(run, tmp_path)
    assert result.score is not None
    assert result.score > result.floors["root operator"] + 0.1


def test_a_killed_process_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """SIGKILL in the middle of training, with dropout, then the same command again."""
    fields = (
        "--train.steps 60 --train.eval-every 20 --train.checkpoint-seconds 0 --model.dropout 0.1 "
        "--model.attention-dropout 0.1 --train.log-every 1 --optim.schedule.warmup 5"
    ).split()
    outcomes = []
    for name, kill in (("killed", True), ("whole", False)):
        folder, told = tmp_path / name, tmp_path / f"{name}.txt"
        folders = ["--out", str(folder), "--data-folder", str(tmp_path / "data")]
        command = ["listops", "--attention", "hnas", *TINY_FIELDS, *fields, *folders]
        if kill:
            process, metrics = start(lambda command=command: main(PACKAGE, command)), folder / "metrics.jsonl"
            while not (metrics.exists() and len(metrics.read_text().splitlines()) > 25):
                time.sleep(0.005)
                assert os.waitpid(process, os.WNOHANG) == (0, 0)
            os.kill(process, signal.SIGKILL)
            assert os.waitpid(process, 0)[1] == signal.SIGKILL
            assert not (folder / "result.json").exists()
        assert os.waitpid(start(lambda command=command: main(PACKAGE, command), told), 0)[1] == 0
        assert ("resuming after step" in told.read_text()) == kill
        (weights,) = (folder / "checkpoint").glob("chosen-*.safetensors")
        result = json.loads((folder / "result.json").read_text())
        outcomes.append((load_file(weights), result["example_scores"], result["bounded"], result["validation"]))
    (whole, *one), (killed, *other) = outcomes
    assert one == other
    assert all((whole[key] == killed[key]).all() for key in whole)

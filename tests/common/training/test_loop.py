import contextlib
import errno
import functools
import hashlib
import io
import json
import random
import resource
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.files import lock_folder, write_atomically
from seqarena.common.training import checkpoint, loop
from seqarena.common.training.checkpoint import load_state, load_weights, save_state
from seqarena.common.training.restart import chosen_weights
from seqarena.common.training.runtime import make_accelerator
from seqarena.common.training.step import Stepper
from tests.common.runs.toy import TRAIN, ToyBatch, ToyBatches, ToyModel, toy_evaluate, toy_fit


def weights(model: ToyModel) -> list[torch.Tensor]:
    return list(model.state_dict().values())


def same(one: ToyModel, other: ToyModel) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))


def curve(out: Path) -> list[dict]:
    """The metrics file without speeds and seals, which differ between runs."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in ("tokens_per_second", "seal")} for line in lines]


class InterruptionError(Exception):
    pass


class Interrupted(ToyBatches):
    """Batches that stop the run when a step is asked for, as a kill would."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def __getitem__(self, step: int):
        if step == self.at:
            raise InterruptionError
        return super().__getitem__(step)


@pytest.mark.parametrize("at", [1, 4, 5, 7, 11])
@pytest.mark.parametrize("checkpoint_seconds", [0.0, 1e9])
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path: Path, at: int, checkpoint_seconds: float) -> None:
    """With a checkpoint at every step, and with those of the evaluations only; dropout and u included."""
    train = replace(TRAIN, checkpoint_seconds=checkpoint_seconds)
    whole, progress = toy_fit(tmp_path / "whole", train=train)
    with pytest.raises(InterruptionError):
        toy_fit(tmp_path / "killed", train=train, batches=Interrupted(at))
    resumed, again = toy_fit(tmp_path / "killed", train=train)
    assert same(whole, resumed)
    assert curve(tmp_path / "whole") == curve(tmp_path / "killed")
    assert (again.chosen_step, again.chosen_metrics, again.tokens) == (
        progress.chosen_step, progress.chosen_metrics, progress.tokens,
    )  # fmt: skip


def test_the_implementations_of_attention_are_recorded(tmp_path: Path) -> None:
    model, progress = toy_fit(tmp_path / "plain", train=replace(TRAIN, micro_batch_size=4))
    assert [each["implementations"] for each in progress.segments] == [["blockwise"]]
    assert not {"_run", "step"} & vars(model.attention.kernel).keys()
    with pytest.raises(InterruptionError):
        toy_fit(tmp_path / "killed", batches=Interrupted(5))
    _, progress = toy_fit(tmp_path / "killed")
    assert [each["implementations"] for each in progress.segments] == [["blockwise"]]


def test_a_finished_fit_is_not_trained_again(tmp_path: Path) -> None:
    one, _ = toy_fit(tmp_path)
    other, progress = toy_fit(tmp_path, batches=Interrupted(0))
    assert same(one, other)
    assert progress.step == TRAIN.steps


class Misleading(ToyBatches):
    """Batches with targets that lead away from those of the evaluation: the longer the training, the worse."""

    def __getitem__(self, step: int) -> ToyBatch:
        batch = super().__getitem__(step)
        return replace(batch, targets=torch.full_like(batch.targets, 1e3))


def test_the_chosen_step_is_what_is_left_in_the_model(tmp_path: Path) -> None:
    best, progress = toy_fit(tmp_path / "best", batches=Misleading(), dropout=False)
    _, last = toy_fit(tmp_path / "last", train=replace(TRAIN, select="last"), batches=Misleading(), dropout=False)
    evaluations = {
        line["step"]: line["validation"]["loss"] for line in curve(tmp_path / "best") if "validation" in line
    }
    assert list(evaluations) == [5, 10, 12]
    assert progress.chosen_step == min(evaluations, key=evaluations.__getitem__) == 5
    assert last.chosen_step == 12
    assert toy_evaluate(best.eval())["loss"] == pytest.approx(evaluations[progress.chosen_step], rel=1e-6)
    assert len(list((tmp_path / "best" / "checkpoint").glob("chosen-*"))) == 1


@pytest.mark.parametrize("at", [7, TRAIN.steps])
def test_weights_that_a_kill_left_behind_go(tmp_path: Path, at: int) -> None:
    """Killed between a checkpoint and the deletion of weights that are no longer the chosen ones; the last one too."""
    toy_fit(tmp_path / "whole")
    with contextlib.suppress(InterruptionError):
        toy_fit(tmp_path / "killed", batches=Interrupted(at))
    (tmp_path / "killed" / "checkpoint" / "chosen-00000001.safetensors").write_bytes(b"left behind")
    toy_fit(tmp_path / "killed")
    names = [{each.name for each in (tmp_path / run / "checkpoint").iterdir()} for run in ("whole", "killed")]
    assert names[0] == names[1]


@pytest.mark.parametrize("micro_batch_size", [None, 2])
def test_processes_share_any_batch(micro_batch_size: int | None) -> None:
    """The shares, weighted by their terms, are the batch; none is empty, and they differ by one example at most."""
    inputs = torch.arange(11.0)[:, None, None].expand(-1, 4, 8)
    batch = ToyBatch(inputs=inputs, targets=inputs)
    for processes in (1, 2, 3, 11):
        shares = []
        for rank in range(processes):
            accelerator = SimpleNamespace(num_processes=processes, process_index=rank, device=torch.device("cpu"))
            stepper = SimpleNamespace(accelerator=accelerator, micro_batch_size=micro_batch_size)
            shares.append(Stepper.share(stepper, batch).parts)  # type: ignore[arg-type]
        sizes = [sum(map(len, share)) for share in shares]
        assert max(sizes) - min(sizes) <= 1 <= min(sizes)
        assert torch.equal(torch.cat([part.inputs for share in shares for part in share]), inputs)  # type: ignore[attr-defined]
        assert max(len(part) for share in shares for part in share) <= (micro_batch_size or 11)
    stepper = SimpleNamespace(accelerator=SimpleNamespace(num_processes=12, process_index=5), micro_batch_size=None)
    with pytest.raises(WrongUseError, match="11 examples cannot be shared out to 12 processes"):
        Stepper.share(stepper, batch)  # type: ignore[arg-type]


def test_micro_batches_change_nothing_but_memory(tmp_path: Path) -> None:
    """Shares of 4 and 2 examples weigh as many: the gradient is that of the whole batch."""
    one, _ = toy_fit(tmp_path / "one", dropout=False)
    other, _ = toy_fit(tmp_path / "other", train=replace(TRAIN, micro_batch_size=4), dropout=False)
    for a, b in zip(weights(one), weights(other), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


def test_what_is_logged(tmp_path: Path) -> None:
    toy_fit(tmp_path)
    lines = curve(tmp_path)
    trained = [line for line in lines if "loss" in line]
    assert [line["step"] for line in trained] == [3, 6, 9, 12]
    assert set(trained[0]) == {"step", "loss", "gradient_norm", "lr"}
    evaluated = [line for line in lines if "validation" in line]
    assert all(0 <= line["bounded"]["attention.kernel.u"][0] <= 1 for line in evaluated)
    assert evaluated[0]["bounded"] != evaluated[-1]["bounded"]


def test_a_full_disk_is_a_clear_error_and_loses_nothing(tmp_path: Path) -> None:
    """A limit on file sizes fails writes as a full disk does."""
    whole, _ = toy_fit(tmp_path / "whole")
    with pytest.raises(InterruptionError):
        toy_fit(tmp_path / "full", batches=Interrupted(6))
    before = (tmp_path / "full" / "checkpoint" / "last.pt").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, hard))
        with pytest.raises(OSError, match=r"could not write .*; the previous content is unchanged"):
            toy_fit(tmp_path / "full")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "full" / "checkpoint" / "last.pt").read_bytes() == before
    assert not list((tmp_path / "full" / "checkpoint").glob(".*unfinished"))
    assert same(toy_fit(tmp_path / "full")[0], whole)


def test_a_half_written_file_is_never_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def half(file) -> None:
        file.write(b"ne")
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space left"):
        write_atomically(path, half)
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8 % len(content)] ^= 1 << bit % 8
    path.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "lost": lambda path: path.unlink(),
    **{f"bit {bit}": functools.partial(flip, bit=bit) for bit in random.Random(0).sample(range(10**6), 12)},
}


@pytest.fixture(scope="module")
def before_damage(tmp_path_factory: pytest.TempPathFactory) -> tuple[ToyModel, Path]:
    """Gives a trained model and the folder with its directory, ``whole``, and those of runs stopped at 7 and at 10."""
    folder = tmp_path_factory.mktemp("runs")
    whole, _ = toy_fit(folder / "whole")
    for at in (7, 10):
        with pytest.raises(InterruptionError):
            toy_fit(folder / str(at), batches=Interrupted(at))
    return whole, folder


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("name", ["last.pt", "chosen-00000010-*"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    tmp_path: Path, kind: str, name: str, before_damage: tuple[ToyModel, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Step 10 is chosen by the newest checkpoint alone, so that the one before has weights of its own."""
    whole, runs = before_damage
    shutil.copytree(runs / "10", tmp_path / "run")
    folder = tmp_path / "run" / "checkpoint"
    assert {each.name.split("-")[1] for each in folder.glob("chosen-*")} == {"00000005", "00000010"}
    (path,) = folder.glob(name)
    DAMAGE[kind](path)
    resumed, _ = toy_fit(tmp_path / "run")
    told = "resuming from the checkpoint before, at step 9" in capsys.readouterr().err
    assert told == ((kind, name) != ("lost", "last.pt"))  # a kill between two renames leaves none either
    assert same(whole, resumed)
    assert curve(runs / "whole") == curve(tmp_path / "run")


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_of_all_checkpoints_is_one_message(
    tmp_path: Path, kind: str, before_damage: tuple[ToyModel, Path]
) -> None:
    shutil.copytree(before_damage[1] / "7", tmp_path, dirs_exist_ok=True)
    (path,) = (tmp_path / "checkpoint").glob("chosen-*")  # both name these
    DAMAGE[kind](path)
    with pytest.raises(BadDataError, match=r"no other checkpoint is whole: --overwrite starts this run again"):
        toy_fit(tmp_path)
    assert (tmp_path / "checkpoint" / "last.pt").exists()


def test_damaged_weights_are_never_loaded(tmp_path: Path) -> None:
    _, progress = toy_fit(tmp_path)
    path = chosen_weights(tmp_path / "checkpoint", progress.chosen_step)
    content = path.read_bytes()
    for bit in random.Random(1).sample(range(8 * len(content)), 30):
        flip(path, bit)
        with pytest.raises(BadDataError, match="is damaged: its bytes do not have the checksum in its name"):
            load_weights(path, ToyModel())
        path.write_bytes(content)
    load_weights(path, ToyModel())


def test_weights_that_the_disk_changed_are_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing_disk(model: torch.nn.Module, path: str) -> None:
        save_file({name: value + 1 for name, value in model.state_dict().items()}, path)

    monkeypatch.setattr(checkpoint.safetensors.torch, "save_model", failing_disk)
    with pytest.raises(OSError, match=r"differs from the data written; check the disk"):
        toy_fit(tmp_path)
    assert not list((tmp_path / "checkpoint").glob("chosen-*"))


def test_one_process_a_directory(tmp_path: Path) -> None:
    with lock_folder(tmp_path), pytest.raises(WrongUseError, match="another process is running"), lock_folder(tmp_path):
        pass
    with lock_folder(tmp_path):
        pass


def test_a_file_system_without_locks_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", unsupported)
    with pytest.raises(OSError, match=r"cannot be locked \(No locks available\)"), lock_folder(tmp_path):
        pass


def test_a_batch_that_cannot_be_shared_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_accelerator("float32")  # what follows shall not be its first
    monkeypatch.setattr("accelerate.Accelerator.num_processes", 4)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(WrongUseError, match="batch_size 6 cannot be shared out evenly to 4"):
        toy_fit(tmp_path)


def test_a_launcher_that_ran_fewer_processes_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accelerate.Accelerator.num_processes", 1)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(WrongUseError, match=r"started 2 processes, but this run has 1.*torchrun"):
        toy_fit(tmp_path)


@pytest.mark.unhooked
def test_compiled_training_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.compile
    monkeypatch.setattr(loop.torch, "compile", lambda model: compiled(model, backend="aot_eager"))
    one, _ = toy_fit(tmp_path / "one", dropout=False)
    other, _ = toy_fit(tmp_path / "other", train=replace(TRAIN, compile=True), dropout=False)
    for a, b in zip(weights(one), weights(other), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


@pytest.mark.unhooked
def test_a_compiler_that_fails_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails without a C++ compiler, or if a kill left a compiled file of 0 bytes in torch's cache."""

    def failing(*_: object) -> None:
        raise ImportError("main.so: file too short")

    compiled = torch.compile
    monkeypatch.setattr(loop.torch, "compile", lambda model: compiled(model, backend=failing))
    with pytest.raises(OSError, match=r"train.compile: torch could not compile .*file too short.*omit train.compile"):
        toy_fit(tmp_path, train=replace(TRAIN, compile=True), dropout=False)


def test_impossible_settings_are_refused() -> None:
    for changes in ({"steps": 0}, {"batch_size": 0}, {"eval_every": 0}, {"micro_batch_size": 0}, {"length_pool": 0}):
        with pytest.raises(WrongUseError, match=rf"train\.{next(iter(changes))}"):
            replace(TRAIN, **changes).check()  # type: ignore[arg-type]


def test_a_checkpoint_of_another_version_or_model_is_refused(tmp_path: Path) -> None:
    toy_fit(tmp_path)
    path = tmp_path / "checkpoint" / "last.pt"
    state = load_state(path)
    assert state is not None

    def reason(**changes: object) -> str:
        save_state(path, {**state, **changes})
        with pytest.raises(BadDataError, match=r"last.pt: .*--overwrite starts") as error:
            toy_fit(tmp_path)
        return str(error.value)

    assert "of another version" in reason(format=1)
    assert "not of this model" in reason(progress={"best_step": 3})
    assert "not of this model" in reason(model={})
    assert "not of this model" in reason(optimizer={"state": {}, "param_groups": []})
    (tmp_path / "checkpoint" / "before.pt").unlink()
    file = io.BytesIO()
    torch.save([1], file)
    path.write_bytes(file.getvalue() + hashlib.sha256(file.getvalue()).digest())
    with pytest.raises(BadDataError, match="expected a checkpoint, found a list"):
        toy_fit(tmp_path)

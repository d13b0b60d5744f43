"""Files that are written whole, by whom they are interrupted, and how often."""

import os
import stat
import threading
from collections.abc import Callable
from io import BufferedRandom
from pathlib import Path

import pytest
import torch
from torch import nn

from seqarena.common.files import write_atomically, write_json
from seqarena.common.training import checkpoint
from seqarena.common.training import loop as training
from seqarena.common.training.checkpoint import save_state, save_weights
from tests.common.runs.toy import TRAIN, toy_fit


class Interrupting:
    """A tensor's stand-in that is interrupted when it is written."""

    def __reduce__(self) -> tuple[object, ...]:
        raise KeyboardInterrupt


@pytest.mark.parametrize("wrap", [True, False])
def test_an_interrupt_while_a_file_is_written_is_an_interrupt(tmp_path: Path, wrap: bool) -> None:
    """torch's writer raises a RuntimeError of its own when its file is interrupted."""

    def write(_: object) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            if wrap:
                raise RuntimeError("unexpected pos 64 vs 0") from None
            raise

    (tmp_path / "file").write_text("before")
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", write)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "before"
    with pytest.raises(KeyboardInterrupt):
        save_state(tmp_path / "state", {"tensor": torch.zeros(9), "interrupts": Interrupting()})


def test_of_two_that_write_one_file_the_second_waits(tmp_path: Path) -> None:
    """Otherwise what the second writes is in the file that the first has just given its name to."""
    path, second = tmp_path / "file", threading.Thread(target=lambda: write_json(tmp_path / "file", "second"))

    def write(file: BufferedRandom) -> None:
        second.start()
        second.join(0.05)
        assert not path.exists()
        file.write(b'"the first, which is longer"\n')

    write_atomically(path, write)
    second.join()
    assert path.read_text() == '"second"\n'
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_only_files_are_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(OSError, match=f"{name} is a folder, a pipe or a device; name a file"):
            write_json(tmp_path / name, 1)
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_json(tmp_path / "link", 1)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "1\n"


def test_content_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power failure leaves the old file or the new one: file, name and folder are flushed in this order."""
    calls: list[str] = []
    replace, sync = os.replace, os.fsync

    def replaced(source: object, target: object) -> None:
        calls.append("replace")
        replace(source, target)  # type: ignore[arg-type]

    def synced(descriptor: int) -> None:
        opened = os.fstat(descriptor)
        calls.append("folder" if stat.S_ISDIR(opened.st_mode) else f"file of {opened.st_size} bytes")
        sync(descriptor)

    monkeypatch.setattr(os, "replace", replaced)
    monkeypatch.setattr(os, "fsync", synced)
    write_json(tmp_path / "file", 1)
    assert calls == ["file of 2 bytes", "replace", "folder"]
    calls.clear()
    size = save_weights(tmp_path / "weights", nn.Linear(1, 1)).stat().st_size
    assert calls == [f"file of {size} bytes", "replace", "folder"]


def test_interrupted_weights_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: nn.Module, path: str) -> None:
        Path(path).touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint.safetensors.torch, "save_model", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_weights(tmp_path / "weights", nn.Linear(1, 1))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("cost", "least", "expected"),
    [(0.0, 30.0, 30.0), (0.5, 30.0, 30.0), (4.0, 30.0, 200.0), (4.0, 0.0, 0.0)],
)
def test_checkpoints_take_a_share_of_the_time(
    cost: float, least: float, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(training.time, "monotonic", lambda: now)
    pace = training._Checkpoints(least)

    def spend() -> None:
        nonlocal now
        now += cost

    pace.write(spend)
    now += max(0.0, expected - 0.1)
    assert pace.due() == (expected == 0.0)
    now += 0.2
    assert pace.due()


def test_an_evaluation_does_not_force_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saves: list[Callable[[], None]] = []
    real = training.save_state
    monkeypatch.setattr(training, "save_state", lambda *given, **more: saves.append(real(*given, **more)))
    toy_fit(tmp_path, train=training.dataclasses.replace(TRAIN, checkpoint_seconds=1e9))
    assert len(saves) == 1  # the end

"""How far something is: told where nobody looks at a terminal, now and then, by the main process alone."""

import io
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from rich.console import Console

from seqarena.common.data.batches import Indices
from seqarena.common.training import log
from seqarena.common.training.evaluation import per_example, process_batches
from seqarena.common.training.log import with_progress


def test_without_a_terminal_a_line_is_printed_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter(range(0, 1_000, 8))
    items = list(with_progress(range(10), "evaluation, batch", 10, clock=lambda: float(next(times))))
    lines = capsys.readouterr().err.splitlines()
    assert items == list(range(10))
    assert [line.split("  ")[1] for line in lines] == ["evaluation, batch: 4 of 10", "evaluation, batch: 8 of 10"]
    assert list(with_progress(range(3), "shards", None, clock=lambda: 0.0)) == [0, 1, 2]
    assert not capsys.readouterr().err


@pytest.mark.parametrize("width", [60, 80, 140])
def test_steps_and_time_left_are_shown_at_any_width(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = Console(file=io.StringIO(), width=width, force_terminal=True)
    monkeypatch.setattr(log, "standard_error", lambda: console)
    with log.Log(Mock(is_main_process=True), tmp_path, title="listops softmax, post seed 12", steps=2_500) as shown:
        shown.train(1_250, {"loss": 1.2345, "tokens_per_second": 52_000.0})
        shown.evaluation(1_250, {"accuracy": 0.5}, {}, {})
        shown.progress.refresh()
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "1250/2500" in text
    assert "train loss 1.2" in text
    assert ("52,000 tokens/s" in text) == (width == 140)


@pytest.mark.parametrize(("process", "told"), [(0, ["1 of 2", "2 of 2"]), (1, [])])
def test_the_main_process_tells_how_much_of_its_share_is_evaluated(
    process: int, told: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(log, "PROGRESS_SECONDS", 0.0)
    accelerator = Mock(process_index=process, num_processes=2, is_main_process=process == 0)
    batches = list(process_batches(np.array([5, 3, 4, 1, 2]), 2, accelerator))
    assert [batch.tolist() for batch in batches] == ([[3, 4], [0]] if process == 0 else [[1, 2]])
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("evaluation, batch: ")[2] for line in lines] == told


def test_an_evaluation_is_in_the_order_of_the_data() -> None:
    """Whatever the batches; the model is in evaluation, and no gradient is recorded."""
    model = torch.nn.Dropout(0.5)
    seen: list[list[int]] = []

    def compute(examples: Indices) -> list[tuple[int, bool]]:
        seen.append(examples.tolist())
        return [(10 * example, model.training or torch.is_grad_enabled()) for example in examples.tolist()]

    found = per_example(model, np.array([5, 3, 4, 1, 2]), 2, compute, Accelerator(cpu=True))
    assert found == [(10 * example, False) for example in range(5)]
    assert seen == [[3, 4], [1, 2], [0]]
    with pytest.raises(ValueError, match="zip"):
        per_example(model, np.array([5, 3]), 2, lambda examples: [0], Accelerator(cpu=True))


def test_a_curve_that_ends_in_other_bytes_is_resumed(tmp_path: Path) -> None:
    """A power failure leaves at the end of a file half a line, zeros, bytes that are no text."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n{"step": 3}\n' + b"[" * 100_000 + b'\n\xff\x00\xfe {"step"')
    log.Log(Accelerator(cpu=True), tmp_path, title="a run", steps=5).resume(2)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is always full")
def test_a_full_disk_is_told_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.symlink_to("/dev/full")
    made = log.Log(Accelerator(cpu=True), tmp_path, title="a run", steps=5)
    with pytest.raises(OSError, match=r"could not write .*metrics\.jsonl: .*No space left.*; the previous content is"):
        made.train(1, {"loss": 1.0, "tokens_per_second": 1.0})

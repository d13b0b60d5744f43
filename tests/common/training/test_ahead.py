"""Batches that are made while a GPU computes: the same steps, the same bits, one batch ahead."""

import contextlib
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from seqarena.common.errors import BadDataError
from seqarena.common.training import step as step_module
from seqarena.common.training.ahead import Share, make_ahead
from seqarena.common.training.step import Stepper
from tests.common.runs.toy import ToyBatches, toy_fit


def share(step: int) -> Share:
    return Share(parts=[], weight=step, tokens=0)


def test_shares_come_in_order_from_one_other_thread_one_ahead() -> None:
    threads, made = set(), []

    def make(step: int) -> Share:
        threads.add(threading.get_ident())
        made.append(step)
        return share(step)

    found = []
    for each in make_ahead(make, range(3, 8)):
        found.append(each.weight)
        assert max(made) <= each.weight + 1
    assert found == made == [3, 4, 5, 6, 7]
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    assert not list(make_ahead(make, range(8, 8)))


def test_an_error_is_raised_at_its_step_and_no_thread_is_left() -> None:
    def make(step: int) -> Share:
        if step == 2:
            raise BadDataError("truncated")
        return share(step)

    shares = make_ahead(make, range(5))
    assert [next(shares).weight, next(shares).weight] == [0, 1]
    with pytest.raises(BadDataError, match="truncated"):
        next(shares)
    stopped = make_ahead(share, range(5))
    next(stopped)
    stopped.close()  # type: ignore[attr-defined]
    assert not [each for each in threading.enumerate() if each.name.startswith("batches")]


class Interrupted(ToyBatches):
    def __getitem__(self, step: int):  # type: ignore[no-untyped-def]
        if step == 8:
            raise KeyboardInterrupt
        return super().__getitem__(step)


def test_a_run_with_batches_of_a_thread_has_the_same_bits_also_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = toy_fit(tmp_path / "inline")
    monkeypatch.setattr(step_module, "is_asynchronous", lambda _: True)
    for batches in (ToyBatches(), Interrupted()):
        with contextlib.suppress(KeyboardInterrupt):
            toy_fit(tmp_path / type(batches).__name__, batches=batches)
        found, _ = toy_fit(tmp_path / type(batches).__name__)
        for name, value in expected.state_dict().items():
            assert torch.equal(found.state_dict()[name], value), name


def test_a_gpu_receives_its_share_from_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[tuple[int, ...]] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tuple(tensor.shape))
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    for kind, expected in (("cpu", []), ("cuda", [(2, 4, 8), (2, 4, 8), (1, 4, 8), (1, 4, 8)])):
        accelerator = SimpleNamespace(num_processes=2, process_index=1, device=torch.device(kind))
        stepper = SimpleNamespace(accelerator=accelerator, micro_batch_size=2)
        found = Stepper.share(stepper, ToyBatches()[0])  # type: ignore[arg-type]
        assert (pinned, found.weight, found.tokens) == (expected, 6, 24)


@pytest.mark.parametrize("ahead", [False, True])
def test_data_that_end_early_end_no_training_silently(
    ahead: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Short(ToyBatches):
        def __getitem__(self, step: int):  # type: ignore[no-untyped-def]
            return super().__getitem__(step) if step < 6 else next(iter(()))

    monkeypatch.setattr(step_module, "is_asynchronous", lambda _: ahead)
    with pytest.raises(RuntimeError, match="StopIteration"):
        toy_fit(tmp_path, batches=Short())

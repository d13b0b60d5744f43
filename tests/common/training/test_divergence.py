"""Trainings that diverge, and the time that a training takes."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from seqarena.common.data.batches import Batch
from seqarena.common.training import loop
from seqarena.common.training.checkpoint import load_state
from seqarena.common.training.loop import DivergedError
from seqarena.common.training.step import Stepper
from tests.common.runs.toy import OPTIM, TRAIN, ToyBatches, toy_evaluate, toy_fit


def test_a_norm_that_overflows_is_named() -> None:
    """All gradients are finite, but the sum of their squares is not."""
    model = nn.Linear(2, 2, bias=False)
    model.weight.grad = torch.full((2, 2), 3e19)
    message = r"loss 2 at step 4; 0 of 1 gradients are not finite; their norm overflows; largest finite gradient 3e\+19"
    with pytest.raises(DivergedError, match=message):
        loop._require_finite(model, [[2.0, math.inf]], loop.Progress(step=4))


def test_divergence_names_step_and_gradient(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"loss nan at step 8; \d+ of \d+ gradients are not finite") as caught:
        toy_fit(tmp_path, batches=ToyBatches(poison=7))
    assert caught.value.step == 8
    state = load_state(tmp_path / "checkpoint" / "last.pt")
    assert state is not None
    assert state["progress"]["step"] == 7  # the last good state is there
    assert all(torch.isfinite(value).all() for value in state["model"].values())


def test_clipping_hides_no_finite_gradient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One parameter's gradient is NaN: a message counts it alone, with clipping and without."""
    real = Stepper.backward

    def poisoned(stepper: Stepper, batch: Batch) -> torch.Tensor:
        loss = real(stepper, batch)
        first = next(p for p in stepper.model.parameters() if p.grad is not None)
        assert first.grad is not None
        first.grad.fill_(math.nan)
        return loss

    monkeypatch.setattr(Stepper, "backward", poisoned)
    messages = []
    for clip in (None, 1.0):
        with pytest.raises(DivergedError, match=r"; 1 of \d+ gradients are not finite; largest finite") as caught:
            toy_fit(tmp_path / str(clip), optim=replace(OPTIM, clip=clip))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_the_time_of_a_step_that_diverges_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokens count, so the speed would be too large without it."""
    clock = [0.0]

    class Slow(ToyBatches):
        """Batches that take a second each."""

        def __getitem__(self, step: int) -> Any:
            clock[0] += 1
            return super().__getitem__(step)

    monkeypatch.setattr(loop.time, "monotonic", lambda: clock[0])
    with pytest.raises(DivergedError) as caught:
        toy_fit(tmp_path, batches=Slow(poison=7))
    assert caught.value.progress.training_seconds == caught.value.progress.step == 8


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(("log_every", "eval_every"), [(3, 4), (5, 2), (50, 4)])
def test_training_time_is_that_of_all_steps_and_of_no_evaluation(
    log_every: int, eval_every: int, asynchronous: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on a device on which losses are read only if something is due."""
    clock = [0.0]

    class Slow(ToyBatches):
        """Batches that take a second each."""

        def __getitem__(self, step: int) -> Any:
            clock[0] += 1
            return super().__getitem__(step)

    def evaluate(model: Any) -> Any:
        clock[0] += 100
        return toy_evaluate(model)

    monkeypatch.setattr("tests.common.runs.toy.toy_evaluate", evaluate)
    monkeypatch.setattr(loop, "is_asynchronous", lambda _: asynchronous)
    monkeypatch.setattr(loop.time, "monotonic", lambda: clock[0])
    train = replace(TRAIN, log_every=log_every, eval_every=eval_every, checkpoint_seconds=1e9)
    _, progress = toy_fit(tmp_path, batches=Slow(), train=train)
    assert progress.training_seconds == progress.step == TRAIN.steps

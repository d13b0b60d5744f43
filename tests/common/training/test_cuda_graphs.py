"""CUDA graphs of a compiled model, as far as they can be tested without a GPU."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seqarena.common.errors import WrongUseError
from seqarena.common.training.runtime import make_accelerator
from seqarena.common.training.step import Stepper
from tests.common.runs.toy import OPTIM, TRAIN, ToyModel, toy_fit, toy_loss
from tests.common.training.test_loop import weights


class MemoryLoss:
    """A loss with a state, such as the memory of Transformer-XL."""

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        raise AssertionError

    def state_dict(self) -> dict[int, Any]:
        return {}

    def load_state_dict(self, state: dict[int, Any]) -> None:
        raise AssertionError


@pytest.mark.unhooked
def test_a_model_of_cuda_graphs_is_compiled_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step begins by telling that the outputs of the one before are not needed any more."""
    compiled, modes, began = torch.compile, [], []

    def recorded(model: nn.Module, mode: str) -> object:
        modes.append(mode)
        return compiled(model, backend="aot_eager")

    monkeypatch.setattr(torch, "compile", recorded)
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: began.append(True))
    monkeypatch.setattr("seqarena.common.training.step.check_graphs", lambda *_, **__: None)
    one, _ = toy_fit(tmp_path / "one", dropout=False)
    other, _ = toy_fit(tmp_path / "two", train=replace(TRAIN, compile=True, cuda_graphs=True), dropout=False)
    assert (modes, len(began)) == (["reduce-overhead"], TRAIN.steps)
    for a, b in zip(weights(one), weights(other), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"compiled": False}, "expected train.compile"),
        ({"device": "cpu"}, "expected a GPU"),
        ({"num_processes": 2}, "expected one process"),
        ({"micro_batch_size": 2}, "expected no train.micro_batch_size"),
        ({"loss": MemoryLoss()}, "expected a model without a memory"),
    ],
)
def test_cuda_graphs_are_refused_where_outputs_are_needed_later(
    change: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {
        "device": "cuda",
        "num_processes": 1,
        "loss": toy_loss,
        "compiled": True,
        "micro_batch_size": None,
    } | change
    accelerator = make_accelerator("float32")
    monkeypatch.setattr(type(accelerator), "device", torch.device(given.pop("device")))
    monkeypatch.setattr(type(accelerator), "num_processes", given.pop("num_processes"))
    with pytest.raises(WrongUseError, match=f"train.cuda_graphs: {message}"):
        Stepper(ToyModel(), optim=OPTIM, accelerator=accelerator, steps=1, seed=0, cuda_graphs=True, **given)

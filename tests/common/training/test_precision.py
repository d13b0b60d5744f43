"""The precision of a run is the one that it names, whatever the process was set to before."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from seqarena.common.training.precision import Precision, is_half, precision_name, set_products
from seqarena.common.training.runtime import make_accelerator, torch_settings
from tests.lra.test_training import TINY, measure


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    yield
    set_products("float32")


def a_gpu(monkeypatch: pytest.MonkeyPatch, *, has_bfloat16: bool = True) -> Any:
    """Returns an accelerator of a simulated GPU. PyTorch then says that there is one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or has_bfloat16
    )
    return MagicMock(device=torch.device("cuda"), mixed_precision="no")


@pytest.mark.parametrize(("precision", "is_tf32"), [("tf32", True), ("float32", False), ("bfloat16", False)])
def test_products_of_float32_have_the_precision_that_the_run_names(
    precision: Precision, is_tf32: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's own default is TF32 for convolutions and LSTMs on a GPU."""
    gpu = a_gpu(monkeypatch)
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = not is_tf32, not is_tf32
    set_products(precision)
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (is_tf32, is_tf32)
    assert precision_name(gpu) == ("tf32" if is_tf32 else "float32")


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_settings_of_single_operators_are_reset(precision: Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    """The older functions, which libraries call, would fail on a mixture."""
    a_gpu(monkeypatch)
    backends: Any = torch.backends
    backends.fp32_precision = backends.cuda.matmul.fp32_precision = "tf32"
    backends.mkldnn.conv.fp32_precision = backends.mkldnn.rnn.fp32_precision = "bf16"
    backends.cudnn.rnn.fp32_precision = "ieee"
    set_products(precision)
    found: dict[str, set[str]] = {"CUDA": set(), "CPU": set()}
    for name, value in torch_settings().items():
        if "precision" in name:
            found[name.split()[-1]].add(value)
    assert found == {"CUDA": {"tf32" if precision == "tf32" else "ieee"}, "CPU": {"ieee"}}
    assert torch.backends.cudnn.allow_tf32 == (precision == "tf32")


def test_tf32_on_a_cpu_is_float32_and_says_so() -> None:
    torch.set_float32_matmul_precision("high")
    assert precision_name(make_accelerator("tf32")) == "float32"
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_auto_is_bfloat16_on_a_gpu_that_does_not_emulate_it(
    has_bfloat16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (is_half("auto"), is_half("bfloat16")) == (False, True)
    a_gpu(monkeypatch, has_bfloat16=has_bfloat16)
    assert (is_half("auto"), is_half("bfloat16"), is_half("float32")) == (has_bfloat16, True, False)


def test_a_run_in_a_process_that_was_set_to_less_has_the_same_numbers(tmp_path: Path) -> None:
    """Such as a notebook. On a processor with products in bfloat16, ``medium`` would change them."""
    first = measure(TINY, tmp_path / "first")
    torch.set_float32_matmul_precision("medium")
    again = measure(TINY, tmp_path / "again")
    assert (again.metrics, again.validation) == (first.metrics, first.validation)

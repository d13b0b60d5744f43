"""The self-test tells usable, missing and broken implementations apart."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from seqarena.common.attention import find_attention
from seqarena.common.attention.elementwise import ElementwiseKernel
from seqarena.scripts import selftest
from seqarena.scripts.selftest import attention

COMMAND = ["--train", "--attention", "x3", "softmax"]


def findings(path: Path) -> dict[tuple[str, str, str, str], dict[str, Any]]:
    found = json.loads(path.read_text())["findings"]
    return {(each["attention"], each["order"], each["dtype"], each["implementation"]): each for each in found}


def test_what_works_is_usable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "selftest.json"
    assert selftest.run([*COMMAND, "linformer", "--out", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "0 of " in shown
    assert "not compared with float64, since they are whole layers: linformer" in shown
    found = findings(path)
    assert found["x3", "none", "float32", "blockwise"]["error"] < 1e-5
    assert 1e-5 < found["x3", "none", "bfloat16", "blockwise"]["error"] < 5e-2
    missing = found["x3", "none", "float32", "triton"]
    assert (missing["status"], missing["error"]) == ("absent", None)
    assert missing["reason"]
    for order in ("none", "causal"):
        assert sum(each["chosen"] for key, each in found.items() if key[:3] == ("softmax", order, "float32")) == 1
    assert json.loads(path.read_text())["environment"]["device"]


@pytest.mark.parametrize("fault", ["wrong", "nan", "fails"])
def test_what_is_broken_is_named(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = ElementwiseKernel.blockwise

    def broken(self: ElementwiseKernel, query: Any, *rest: Any) -> Any:
        if fault == "fails":
            raise RuntimeError("no such instruction\nmore")
        return right(self, query, *rest) * (1.01 if fault == "wrong" else torch.nan)

    monkeypatch.setattr(ElementwiseKernel, "blockwise", broken)
    path = tmp_path / "selftest.json"
    assert selftest.run([*COMMAND, "--out", str(path)]) == 1
    shown = capsys.readouterr().out
    assert "✕ broken" in shown or "x broken" in shown
    assert ("RuntimeError: no such instruction" in shown) == (fault == "fails")
    found = findings(path)
    assert found["x3", "none", "float32", "blockwise"]["status"] == "broken"
    assert found["x3", "none", "float32", "reference"]["status"] == "usable"
    assert not found["softmax", "none", "float32", "fused"]["reason"]


def test_paragraphs_of_help_fill_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    paragraph = next(each for each in selftest.parser().format_help().split("\n\n") if each.startswith("Outputs"))
    assert all(60 < len(line) <= 80 for line in paragraph.split("\n")[:-1])


def test_a_fall_back_has_its_price(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "PRICED", (1, 2, 32, 8))
    price = attention._price(find_attention("x3"), "causal", torch.float32, torch.device("cpu"))
    assert price is not None
    assert price > 0
    one = attention.Finding(
        attention="x3", order="causal", dtype="float32", implementation="blockwise", chosen=True, status="usable",
        error=1e-6, price=13.7, reason="",
    )  # fmt: skip
    shown = attention.table([one], torch.device("cuda"))
    assert "falls back, 14 times softmax" in shown
    assert "falls back" not in attention.table(
        [dataclasses.replace(one, implementation="triton")], torch.device("cuda")
    )

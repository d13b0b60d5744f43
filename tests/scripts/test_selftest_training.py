"""The self-test's trainings: equal after an interruption, and what is broken is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from seqarena.common.training.step import Stepper
from seqarena.scripts import selftest
from seqarena.scripts.packages import PACKAGES, find_package
from seqarena.scripts.selftest import steps, training

SMALL = (
    "--model.layers 1 --model.dim 8 --model.ffn-dim 8 --model.heads 2 --data.train 16 --data.validation 4 --data.test 4"
)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trained model is tiny."""
    monkeypatch.setattr(steps, "FIELDS", [*steps.FIELDS, *SMALL.split(), "--train.batch-size", "4"])


@pytest.mark.usefixtures("short")
def test_a_training_that_is_interrupted_ends_with_the_same_bits(tmp_path: Path) -> None:
    found = steps.train(find_package("lra"), "listops", "hnas", "float32", [], tmp_path)
    assert len(found.losses) == steps.STEPS
    assert found.difference == 0
    assert 0 <= found.validation["accuracy"] <= 1
    assert found.implementations
    assert found.peak_memory_bytes > 0
    assert not found.reason


@pytest.mark.usefixtures("short")
def test_a_checkpoint_that_is_not_restored_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(self: Stepper, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])  # and not the optimiser's

    monkeypatch.setattr(Stepper, "load_state_dict", forgets)
    found = steps.train(find_package("lra"), "listops", "softmax", "float32", [], tmp_path)
    assert found.difference > 0


def test_a_variant_without_the_order_is_absent(tmp_path: Path) -> None:
    found = steps.train(find_package("pretraining"), "wikitext2", "linformer", "float32", [], tmp_path)
    assert found.absent
    assert "not defined for order 'causal'" in found.reason


def test_a_precision_that_this_machine_lacks_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as recurrent layers in bfloat16 on a processor with AVX2 alone."""

    def without(*_: object) -> None:
        raise RuntimeError("could not create a primitive descriptor")

    monkeypatch.setattr("torch.nn.LSTM.forward", without)
    found = steps.train(find_package("vqa"), "scenes", "softmax", "float32", [], tmp_path)
    assert found.absent
    assert "has no recurrent layers in this precision" in found.reason


@pytest.mark.usefixtures("short")
def test_graphs_without_a_gpu_are_absent(tmp_path: Path) -> None:
    found = steps.train(find_package("lra"), "listops", "softmax", "float32", training.GRAPHS, tmp_path)
    assert (found.absent, found.reason) == (True, "train.cuda_graphs: expected a GPU")


def test_every_package_is_trained() -> None:
    assert set(training.TASKS.values()) == set(PACKAGES)
    assert all(task in find_package(package).presets for task, package in training.TASKS.items())


GOOD = {
    "device": "CPU", "losses": [2.0, 1.0], "validation": {}, "difference": 0.0, "implementations": ["fused"],
    "peak_memory_bytes": 2**20, "reason": "", "absent": False,
}  # fmt: skip


@pytest.mark.parametrize(("device", "change", "reason"), [
    ("cpu", {}, ""),
    ("cpu", {"difference": 1e-7}, "weights differ by 1e-07 after an interruption"),
    ("cuda", {"difference": 1e-7}, ""),
    ("cuda", {"difference": 1.0}, "weights differ by 1e+00 after an interruption"),
    ("cuda", {"losses": [2.1, 1.1]}, ""),
    ("cuda", {"losses": [2.0, 1.3]}, "losses differ by 15% from those in float32 on the CPU"),
    ("cuda", {"reason": "RuntimeError: no kernel", "losses": []}, "RuntimeError: no kernel"),
])  # fmt: skip
def test_what_is_broken_is_named(
    device: str, change: dict[str, Any], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def measured(task: str, variants: Any, data: Path, place: training.Place) -> dict[str, Any]:
        is_changed = place == (device, "bfloat16", device == "cuda")
        return {name: GOOD | (change if is_changed else {}) for name in variants}

    monkeypatch.setattr(training, "_measured", measured)
    found = training.check("listops", ["softmax"], tmp_path, has_gpu=device == "cuda")
    assert [each.device for each in found] == (["cpu", *["cuda"] * 3] if device == "cuda" else ["cpu", "cpu"])
    assert [each.graphs for each in found] == [False] * (len(found) - 1) + [device == "cuda"]
    assert [each.status for each in found[:-1]] == ["usable"] * (len(found) - 1)
    assert (found[-1].status, found[-1].reason) == ("broken" if reason else "usable", reason)
    shown = training.table(found)
    assert ("broken" in shown) == bool(reason)
    assert reason in " ".join(shown.split())
    monkeypatch.setattr(selftest.attention, "check_all", lambda *_: [])
    path = tmp_path / "selftest.json"
    if device == "cpu":
        assert selftest.run(["--train", "listops", "--attention", "softmax", "--out", str(path)]) == int(bool(reason))
        assert len(json.loads(path.read_text())["trainings"]) == 2
    capsys.readouterr()


def test_a_process_that_a_driver_ends_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nkill -s SEGV $$\n")
    program.chmod(0o755)
    monkeypatch.setattr(training.sys, "executable", str(program))
    found = training.check("scenes", ["softmax", "x3"], tmp_path, has_gpu=False)
    assert {(each.status, each.reason) for each in found} == {("broken", "ended by SIGSEGV")}
    assert len(found) == 4
    assert "ended by SIGSEGV" in training.table(found)


@pytest.mark.extras
def test_a_task_is_trained_in_processes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "selftest.json"
    words = ["--train", "wikitext2", "--attention", "softmax", "linformer", "--data-folder", str(tmp_path)]
    assert selftest.run([*words, "--out", str(path)]) == 0
    statuses = [each["status"] for each in json.loads(path.read_text())["trainings"]]
    assert statuses == ["usable", "usable", "absent", "absent"]
    assert "wikitext2 linformer absent: attention 'linformer' is not defined" in capfd.readouterr().out

"""Training steps on a simulated GPU: no wrong device, no wait that was not there before."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from seqarena.common.attention import ATTENTIONS
from seqarena.common.model.norms import NORMS as ALL_NORMS
from tests.accelerator.__main__ import CASES, COUNTS, NORMS, OTHERS, TASKS, VARIANTS

pytestmark = pytest.mark.extras

BATCHES = ("common/data/batches.py", "pretraining/wikitext/")
"""Files that copy batches."""
KORNIA = "lra/pictures/augmentation.py: pixels = change(pixels)"
"""Calls of the library of augmentations, which copies what it draws."""


def counted(*cases: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.accelerator", *cases]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    return found


@pytest.fixture(scope="module")
def counts() -> dict[str, Any]:
    return counted(*CASES)


@pytest.mark.parametrize("case", CASES)
def test_a_training_step_waits_for_nothing(case: str, counts: dict[str, Any]) -> None:
    """An error is a mixture of devices, or an operator that the device lacks."""
    assert "error" not in counts[case], counts[case]["error"]
    assert counts[case]["waits"] == {}, "a wait for the device"
    assert not counts[case]["blockwise"], "attention by the blockwise engine, whose waits are not seen here"
    assert all(place.startswith(BATCHES) for place in counts[case]["copies"]), "a copy of something else than the batch"


def test_an_evaluation_waits_for_its_results_alone(counts: dict[str, Any]) -> None:
    """At most four times in a batch, except in a search for headlines; the table has the numbers."""
    evaluations = {case: found["evaluation"] for case, found in counts.items() if "evaluation" in found}
    assert len(evaluations) == len(TASKS) * len(VARIANTS)
    assert [case for case, found in evaluations.items() if found["blockwise"]] == []
    for case, found in evaluations.items():
        of_batches, of_step = (
            sum(count for place, count in each["copies"].items() if place.startswith(BATCHES))
            for each in (found, counts[case])
        )
        assert "wire" in case or sum(found["waits"].values()) <= 4 * (of_batches // of_step)
    places = {place.partition(": ")[0] for found in evaluations.values() for place in found["waits"]}
    assert {Path(place).name for place in places} == {"evaluator.py", "masses.py", "decoding.py"}


def test_every_variant_and_every_norm_is_counted() -> None:
    assert {*VARIANTS, *OTHERS, "recency"} == ATTENTIONS.keys()
    assert {*NORMS, "pre"} == ALL_NORMS.keys()  # that of the presets


@pytest.fixture(scope="module")
def presets() -> dict[str, Any]:
    return counted("presets")


def test_the_attention_of_every_preset_is_fast(presets: dict[str, Any]) -> None:
    """By a kernel, or by the full matrix where it is small: XCiT's channels. Swin's windows are not computed by kernels
    of this project, since their mask hides pairs.
    """
    assert {case: found["error"] for case, found in presets.items() if "error" in found} == {}
    assert [case for case, found in presets.items() if found["blockwise"]] == []
    library = {"p1-swin": [[]], "p1-xcit": [["fused"], ["reference"]]}
    kernels = [["fused"], ["triton"], ["fused", "triton"]]
    for case, found in presets.items():
        model = case.split("/")[2].rpartition("-")[0]
        assert found["implementations"] in library.get(model, kernels), case


def test_no_preset_waits_for_the_device(presets: dict[str, Any]) -> None:
    waits = {place for found in presets.values() for place in found["waits"]}
    copies = {place for found in presets.values() for place in found["copies"] if not place.startswith(BATCHES)}
    assert waits == set()
    assert copies <= {KORNIA}


def test_counts_are_those_of_the_table(counts: dict[str, Any]) -> None:
    """After a change that is meant: ``python -m tests.accelerator`` writes the table."""
    assert counts == json.loads(COUNTS.read_text())


def test_planted_faults_are_noticed() -> None:
    found = counted("faults")
    none = found.pop("none")
    assert (none["waits"], none["copies"]) == ({}, {})
    assert "cuda:0 and cpu" in found.pop("mask of the host")["error"]
    assert {name: sum(each["waits"].values()) for name, each in found.items()} == {
        "item": 1, "float": 1, "branch": 1, "boolean index": 1, "nonzero": 1, "copy to the host": 1,
    }  # fmt: skip

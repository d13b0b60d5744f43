"""The Triton kernels, compiled for GPUs that are not here: shared memory, registers, instructions."""

import importlib.metadata
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from seqarena.common.saved_table import read_table
from tests.common.attention.test_triton import INTERPRETED, NAMES
from tests.tables import ROOT

pytestmark = INTERPRETED


def compiled(*options: str) -> list[dict[str, Any]]:
    """Returns what ``seqarena benchmark kernels`` prints, in a process that compiles."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    told = subprocess.run(
        [sys.executable, "-m", "seqarena", "benchmark", "kernels", "--json", *options],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr[-2_000:]
    found: list[dict[str, Any]] = json.loads(told.stdout)
    return found


KERNELS = sorted((ROOT / "docs" / "measurements").glob("kernels*.json"))
SPILLS = ("keys_and_masses", "forward_heavy")


@pytest.mark.parametrize(
    ("options", "kernels"),
    [("x3 dnas", 7), ("hnas", 4), ("dnas --drops", 4), ("hnas --drops", 4), ("x3 --causal --biased", 3)],
)
def test_kernels_compile_for_cards_that_are_not_here(options: str, kernels: int) -> None:
    """The interpreter takes what no compiler does. All fit; those of two bytes keep their numbers in registers."""
    cards = ["--capability", "8.0", "9.0", "--precision", "bfloat16", "float32"]
    found = compiled("--attention", *options.split(), *cards)
    assert len(found) == 2 * 2 * 2 * kernels
    for each in found:
        roomy = each["capability"] == "9.0"
        assert 0 < each["shared_bytes"] <= (227 if roomy else 99) * 1024
        if each["precision"] == "bfloat16":
            allowed = 50 if each["head_dim"] == 128 and each["role"] in SPILLS else 0
            if "--biased" in options:
                allowed = 0 if roomy else 60
            assert each["spills"] <= allowed, each
            products = {"columns": 1, "forward": 2, "queries": 3, "keys": 4, "keys_and_masses": 5}.get(each["role"])
            if (
                roomy and products is not None
            ):  # beside them a kernel does less than they take; dnas' forward and columns wait for exponentials
                assert each["instructions"] < max(4 * products * each["head_dim"] / 64, 11)
        assert (each["exponentials"] == 0) == (each["attention"] == "x3")


def test_prefix_kernels_compile_for_cards_that_are_not_here() -> None:
    """With all that they may have, at the largest width, for a card with little shared memory."""
    options = ["--capability", "8.0", "--precision", "bfloat16", "float32", "--head-dim", "128"]
    options += ["--causal", "--drops", "--biased"]
    found = [each for kind in ("segments", "window") for each in compiled("--attention", "hnas", f"--{kind}", *options)]
    assert len(found) == 2 * 2 * 4
    for each in found:
        assert 0 < each["shared_bytes"] <= 99 * 1024
        assert each["spills"] <= (0 if each["precision"] == "bfloat16" else 40), each


def test_kernels_compile_for_blackwell() -> None:
    """In bfloat16. In float32, two kernels of wide heads compile to nothing: on such a GPU the self-test finds it."""
    found = compiled("--attention", "x3", "hnas", "--drops", "--capability", "10.0", "--precision", "bfloat16")
    assert len(found) == 2 * 7
    assert all(each["products"] > 0 < each["shared_bytes"] <= 227 * 1024 for each in found)


@pytest.mark.parametrize("architecture", ["gfx90a", "gfx942"])
def test_kernels_compile_for_amd(architecture: str) -> None:
    """They fit into the 64 KiB of shared memory that a block has there."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.common.attention.compile_for_amd", architecture]
    told = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert told.returncode == 0, told.stderr[-2_000:]
    found = json.loads(told.stdout)
    assert len(found) == 2 * (3 + 4 + 3 + 4)
    assert all(0 < each <= 64 * 1024 for each in found)


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_the_tables_of_the_document_are_of_these_kernels(path: Path, tmp_path: Path) -> None:
    table, new = read_table(path), tmp_path / "new.json"
    assert table.device == f"compiled by Triton {importlib.metadata.version('triton')}", "measure the tables again"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", *shlex.split(table.command), "--save", str(new)]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert read_table(new).rows == table.rows, "measure the tables again"


def test_every_variant_compiles_in_order_and_with_dropout() -> None:
    options = ["--head-dim", "16", "--causal", "--drops", "--precision", "float16"]
    assert len(compiled("--attention", *NAMES, *options)) == 3 * len(NAMES)
    assert len(compiled("--attention", "x3", "--window", *options)) == 3

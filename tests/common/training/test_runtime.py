"""Peak memory of a run after others in the same process; threads of a broadcast; the environment of a result."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import distributed

from seqarena.common.training import runtime
from seqarena.common.training.processes import broadcast_patiently
from seqarena.common.training.runtime import peak_memory_bytes, reset_peak_memory
from seqarena.lra.data.listops import ListOps
from tests.lra.test_training import TINY, measure

CPU = torch.device("cpu")
MIB = 2**20
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the peak can be reset under Linux alone")


@LINUX
def test_a_small_run_after_a_big_one_takes_what_it_took_before(tmp_path: Path) -> None:
    """Memory of the big one that the C library keeps does not count for the small one."""
    big = replace(
        TINY,
        model=replace(TINY.model, dim=128, ffn_dim=1024, layers=4),
        train=replace(TINY.train, steps=1, batch_size=600, eval_every=1),
        optim=replace(TINY.optim, schedule=replace(TINY.optim.schedule, warmup=0)),
    )
    small = [replace(TINY, seed=seed) for seed in range(1, 5)]
    peaks = [measure(run, tmp_path).peak_memory_bytes / MIB for run in (TINY, small[0], big, *small[1:])]
    assert peaks[2] > peaks[1] + 100
    assert peaks[3:] == pytest.approx([peaks[1]] * 3, abs=50)


@LINUX
def test_small_pieces_that_were_freed_are_given_back() -> None:
    def peak(pieces: int) -> float:
        reset_peak_memory(CPU)
        some = [np.ones(2_500) for _ in range(pieces)]
        kept.append(np.ones(2_500))  # above the others: the heap cannot shrink by itself
        some.clear()
        return peak_memory_bytes(CPU) / MIB

    kept: list[np.ndarray] = []
    small, big, again = peak(100), peak(20_000), peak(100)
    assert big > small + 300
    assert again == pytest.approx(small, abs=25)


@LINUX
def test_floors_are_no_part_of_what_a_run_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def floors(*_: object) -> dict[str, float]:
        return {"a rule": np.ones(40 * MIB).mean()}

    monkeypatch.setattr(ListOps, "floors", floors)
    result = measure(TINY, tmp_path)
    assert result.floors == {"a rule": 1.0}
    assert result.peak_memory_bytes < peak_memory_bytes(CPU) - 100 * MIB


@pytest.mark.parametrize(("platform", "unit"), [("linux", 1024), ("darwin", 1)])
def test_elsewhere_the_peak_is_that_of_the_whole_process(
    platform: str, unit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without /proc, as on macOS, which counts in bytes and not in KiB."""
    monkeypatch.setattr(runtime, "STATUS", tmp_path / "no such file")
    monkeypatch.setattr(runtime, "CLEAR_REFS", tmp_path / "no" / "such folder")
    monkeypatch.setattr(runtime.sys, "platform", platform)
    reset_peak_memory(CPU)
    found = peak_memory_bytes(CPU)
    assert found == runtime.resource.getrusage(runtime.resource.RUSAGE_SELF).ru_maxrss * unit


def test_the_commit_is_that_of_this_tree_whatever_repository_git_is_led_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = runtime.code_version()
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.setenv(name, str(tmp_path))
    assert runtime.code_version() == before


def test_files_of_the_users_beside_the_packages_are_no_uncommitted_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tree" / "common" / "training"
    folder.mkdir(parents=True)
    (tmp_path / "tree" / "common" / "__init__.py").touch()
    (folder / "runtime.py").touch()
    git = ["git", "-C", str(tmp_path / "tree"), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *command], check=True)
    monkeypatch.setattr(runtime, "__file__", str(folder / "runtime.py"))
    assert runtime.code_version()["clean"] is True
    (tmp_path / "tree" / "mine.py").touch()
    assert runtime.code_version()["clean"] is True
    (folder / "new.py").touch()
    assert runtime.code_version()["clean"] is False


@LINUX
def test_no_thread_of_a_patient_broadcast_is_left() -> None:
    """A process that ends while such a thread works may be aborted by gloo, after all its results are written."""

    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        before = threads()
        broadcast_patiently([None])
        assert threads() == before
    finally:
        distributed.destroy_process_group()


def test_variables_by_which_libraries_choose_kernels_are_part_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [each for each in os.environ if each.startswith(runtime.VARIABLES)]:
        monkeypatch.delenv(name)
    before = runtime.environment(runtime.make_accelerator("float32"))
    assert "variables" not in before
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    after = runtime.environment(runtime.make_accelerator("float32"))
    assert runtime.differences(before, after) == ["variables None -> MKL_CBWR=COMPATIBLE ONEDNN_MAX_CPU_ISA=SSE41"]

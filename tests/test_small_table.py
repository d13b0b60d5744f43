"""One run of the table of the tier small, repeated: the same bits on one thread of the same kind of CPU."""

import platform
import re
import shlex
from pathlib import Path

import pytest
import torch

from seqarena.common.errors import run_command
from seqarena.common.runs.results import Result, read_results
from seqarena.scripts.seqarena import dispatch

RESULTS = Path(__file__).parents[1] / "results" / "small"
KIND = {"cpu family": "25", "model": "1"}
"""The CPU that measured the table, AMD EPYC of the third generation, in the words of /proc/cpuinfo."""


def kind_of_cpu() -> dict[str, str]:
    path = Path("/proc/cpuinfo")
    lines = path.read_text() if path.exists() else ""
    return {name: found[1] for name in KIND if (found := re.search(rf"^{name}\s*: (.*)$", lines, re.M))}


@pytest.mark.extras  # two minutes
@pytest.mark.skipif(
    kind_of_cpu() != KIND or platform.machine() != "x86_64", reason="another CPU than the one of the table"
)
def test_a_run_of_the_table_can_be_repeated(tmp_path: Path) -> None:
    (folder,) = (RESULTS / "associative-recall" / "lra" / "associative-recall").glob("small-x1-14-pre-seed4-*")
    measured = Result.read(folder)
    assert measured is not None
    assert (measured.environment["threads"], torch.get_num_threads()) == (1, 1)
    words = [*shlex.split(measured.command)[1:], "--runs", str(tmp_path / "runs"), "--data-folder", str(tmp_path)]
    assert run_command(dispatch, words) == 0
    ((_, repeated),) = read_results(tmp_path / "runs")[0].items()
    for name in ("score", "metrics", "example_scores", "validation", "chosen_step", "floors", "data_checksum", "run"):
        assert getattr(repeated, name) == getattr(measured, name), name

"""One run of the table of the tier small, repeated: the same bits on one thread of the same kind of CPU."""

import platform
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from seqarena.common.errors import run_command
from seqarena.common.runs.results import Result, read_results
from seqarena.common.runs.roles import json_fields
from seqarena.scripts.leaderboard.protocol import run_class
from seqarena.scripts.seqarena import dispatch

RESULTS = Path(__file__).parents[1] / "results" / "small"
RUNS = {
    ("25", "1"): "associative-recall/lra/associative-recall/small-x1-14-pre-seed4-*",
    ("26", "2"): "mlm/pretraining/mlm/quick-x3-14-pre-seed4-*",
}
"""The CPUs that measured the table, by family and model in /proc/cpuinfo: AMD EPYC of the third and the fifth
generation. For each, a run that it measured."""


def kind_of_cpu() -> tuple[str, ...]:
    path = Path("/proc/cpuinfo")
    lines = path.read_text() if path.exists() else ""
    found = (re.search(rf"^{name}\s*: (.*)$", lines, re.M) for name in ("cpu family", "model"))
    return tuple(each[1] for each in found if each)


@pytest.mark.extras  # two minutes
@pytest.mark.skipif(
    kind_of_cpu() not in RUNS or platform.machine() != "x86_64", reason="another CPU than those of the table"
)
def test_a_run_of_the_table_can_be_repeated(tmp_path: Path) -> None:
    (folder,) = RESULTS.glob(RUNS[kind_of_cpu()])
    measured = Result.read(folder)
    assert measured is not None
    assert (measured.environment["threads"], torch.get_num_threads()) == (1, 1)
    words = [*shlex.split(measured.command)[1:], "--runs", str(tmp_path / "runs"), "--data-folder", str(tmp_path)]
    assert run_command(dispatch, words) == 0
    ((_, repeated),) = read_results(tmp_path / "runs")[0].items()
    for name in ("score", "metrics", "example_scores", "validation", "chosen_step", "floors", "data_checksum"):
        assert getattr(repeated, name) == getattr(measured, name), name
    assert fields(repeated) == fields(measured)


def fields(result: Result) -> dict[str, Any]:
    """Returns the fields of a result's run, with defaults for those that were added after it."""
    kind = run_class(result.package, result.task)
    assert kind is not None
    return {field.path: field.value for field in json_fields(kind, result.run, result.config_version)}

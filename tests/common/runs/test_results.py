"""Which file of a run directory is read."""

from dataclasses import replace
from pathlib import Path

from seqarena.common.runs.results import RESULT, TRIAL, Result
from tests.scripts.results import result


def test_a_test_that_diverged_does_not_replace_the_trial(tmp_path: Path) -> None:
    """Else the same sweep with --tune would choose another value the second time, because of the test."""
    diverged = result("softmax", 0, None)
    trial = replace(diverged, status="validated")
    diverged.write(tmp_path)
    assert Result.read_finished(tmp_path, validate_only=True) == (RESULT, diverged)
    trial.write(tmp_path, TRIAL)
    assert Result.read_finished(tmp_path, validate_only=True) == (TRIAL, trial)
    assert Result.read_finished(tmp_path, validate_only=False) == (RESULT, diverged)

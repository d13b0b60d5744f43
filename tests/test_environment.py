"""Places that lack something: letters, a cache for compiled code."""

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import pytest

from seqarena.common.data.compiled import compiled
from seqarena.common.errors import run_command
from seqarena.scripts.seqarena import dispatch

RESULTS = Path(__file__).parent.parent / "results"


def one_run(folder: Path) -> Path:
    """Returns the folder with a copy of one committed result, that of the run whose name is first."""
    shutil.copytree(min((RESULTS / "hour").rglob("result.json")).parent, folder / "whole")
    return folder


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_terminal_without_letters_shows_the_table(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr("sys.stdout", shown)
    assert run_command(dispatch, ["leaderboard", "--runs", str(RESULTS / "hour")]) == 0
    shown.seek(0)
    text = shown.read()
    assert ("+---" in text) == (encoding == "ascii")
    assert "softmax" in text
    assert "?" not in text.replace("? no test", "")  # a mark of the legend


@pytest.mark.parametrize(
    ("redirected", "code", "told"),
    [
        (">/dev/full", 1, "seqarena: standard output: No space left on device\n"),
        ("| true", 0, ""),
        (">&-", 0, ""),
        (">&- 2>&- <&-", 0, ""),
    ],
)
def test_output_that_nobody_takes_is_one_message_at_most(redirected: str, code: int, told: str, tmp_path: Path) -> None:
    """As Python itself exits it would print an error of its own, and exit with code 120."""
    command = f"set -o pipefail; {sys.executable} -m seqarena leaderboard --runs {one_run(tmp_path)} {redirected}"
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=buffered, check=False)
    assert (done.returncode, done.stderr) == (code, told)


def test_errors_are_not_printed_among_results(tmp_path: Path) -> None:
    one_run(tmp_path)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "result.json").write_text("{")
    command = f"{sys.executable} -m seqarena leaderboard --format csv --runs {tmp_path} 2>&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("table,")
    assert len(done.stdout.splitlines()) == 2


def test_code_is_compiled_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    real = numba.njit

    def without_cache(*function: Any, cache: bool = False, **options: Any) -> Any:
        if cache and not function:
            raise RuntimeError("cannot cache function 'twice': no locator available")
        return real(*function, **options)

    monkeypatch.setattr(numba, "njit", without_cache)

    @compiled(nogil=True)
    def twice(number: int) -> int:
        return 2 * number

    assert twice(21) == 42

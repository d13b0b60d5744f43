"""Places that lack something: letters, a cache for compiled code."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import pytest

from common.data.compiled import compiled
from common.errors import guarded
from scripts.seqarena import dispatch

RESULTS = Path(__file__).parent.parent / "results"


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_terminal_without_letters_shows_the_table(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr("sys.stdout", shown)
    assert guarded(dispatch, ["leaderboard", "--runs", str(RESULTS / "hour")]) == 0
    shown.seek(0)
    text = shown.read()
    assert ("+---" in text) == (encoding == "ascii")
    assert "softmax" in text
    assert "?" not in text


def test_code_is_compiled_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    real = numba.njit

    def without_cache(cache: bool = False, **options: Any) -> Any:
        if cache:
            raise RuntimeError("cannot cache function 'twice': no locator available")
        return real(**options)

    monkeypatch.setattr("common.data.compiled.numba", SimpleNamespace(njit=without_cache, config=numba.config))

    @compiled(nogil=True)
    def twice(number: int) -> int:
        return 2 * number

    assert twice(21) == 42

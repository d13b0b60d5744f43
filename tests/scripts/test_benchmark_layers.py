"""The benchmark of whole layers: what it measures, what it leaves out, what it refuses."""

import json

import pytest

from seqarena.common.errors import WrongUseError
from seqarena.scripts.benchmark import run
from seqarena.scripts.benchmark.layers import faster_from, parse

SMALL = "layers --lengths 4 8 --dim 8 --repeats 1 --attention linear s4d x3 softmax".split()


def test_each_variant_is_measured_beside_softmax(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["softmax", "linear", "s4d", "x3"]
    assert all(list(times) == ["4", "8"] and min(times.values()) > 0 for times in found.values())
    assert run(SMALL) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("softmax, ms", "linear", "s4d", "N = 8", "faster from"))


def test_a_slow_variant_is_not_measured_at_greater_lengths(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SMALL, "--json", "--longest-seconds", "1e-9"]) == 0
    assert all(list(times) == ["4"] for times in json.loads(capsys.readouterr().out).values())


def test_all_variants_of_an_order_are_the_default() -> None:
    assert {"softmax", "dnas", "s4d", "performer"} <= set(parse([])[1])
    assert "recency" not in parse([])[1]
    causal = parse(["--order", "causal"])[1]
    assert "recency" in causal
    assert "linformer" not in causal


def test_the_length_from_which_a_variant_is_faster() -> None:
    softmax = {4: 1.0, 8: 2.0, 16: 4.0}
    assert faster_from({4: 0.5, 8: 3.0, 16: 1.0}, softmax) == 16
    assert faster_from({4: 0.5, 8: 1.0, 16: 1.0}, softmax) == 4
    assert faster_from({4: 0.5, 8: 1.0}, softmax) is None
    assert faster_from({4: 2.0, 8: 3.0, 16: 4.0}, softmax) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--dim 8 --heads 3", "expected a divisor of --dim 8"),
        ("--repeats 0", "--repeats: expected at least 1"),
        ("--lengths 0", "--lengths: expected at least 1"),
        ("--longest-seconds nan", "--longest-seconds: expected a number above 0"),
        ("--order sideways", "order"),
        ("--order ordered_queries", "expected none or causal"),
        ("--order causal --attention linformer", "not defined for order 'causal'"),
        ("--attention linea", "nearest: linear"),
    ],
)
def test_bad_input_is_one_error(words: str, message: str) -> None:
    with pytest.raises(WrongUseError, match=message):
        parse(words.split())

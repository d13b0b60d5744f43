import json
from pathlib import Path

import pytest

from common.errors import WrongUseError
from scripts.benchmark import run
from scripts.benchmark.cases import Case, Setting, expressible, operations

SMALL = "attention --lengths 16 64 --batch 1 --head-dim 4 --repeats 2".split()


def setting(**changes: object) -> Setting:
    made = {"batch": 1, "heads": 2, "head_dim": 4, "dropout": 0.0, "padding": 0.0, "precision": "float32",
            "device": "cpu", "repeats": 1}  # fmt: skip
    return Setting(**{**made, **changes})


def test_every_implementation_is_measured_where_it_exists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SMALL, "--attention", "softmax", "x1", "--no-memory", "--json", "--out", str(tmp_path)]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record == json.loads((tmp_path / "attention-cpu-float32.json").read_text())
    forms = {("softmax", "fused"), ("x1", "features")}
    forms |= {(name, form) for name in ("softmax", "x1") for form in ("reference", "blockwise")}
    cases = [each["case"] for each in record["measurements"]]
    assert {(each["variant"], each["implementation"], each["length"]) for each in cases} == {
        (*form, length) for form in forms for length in (16, 64)
    }
    for each in record["measurements"]:
        assert each["seconds"]["both"] > 0
        assert set(each["baseline_seconds"]) == {"none", "causal"}
    assert record["matmul_flops_per_second"] > 0
    assert (tmp_path / "attention-cpu-float32.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_and_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = "attention --lengths 800 --batch 1 --head-dim 4 --repeats 1 --attention dnas --out"
    assert run([*command.split(), str(tmp_path)]) == 0
    assert "dnas blockwise" in capsys.readouterr().out
    record = json.loads((tmp_path / "attention-cpu-float32.json").read_text())
    peaks = {each["case"]["implementation"]: each["peak_memory_bytes"] for each in record["measurements"]}
    assert set(peaks) == {"reference", "blockwise", "fused"}
    assert 0 < max(peaks["blockwise"], peaks["fused"]) < peaks["reference"]


def test_what_cannot_be_is_left_out() -> None:
    def has(implementation: str, **changes: object) -> bool:
        fields = {"variant": "dnas", "order": "none", "length": 1024, "implementation": implementation}
        case = Case(**{**fields, **{key: value for key, value in changes.items() if key in fields}})
        return expressible(setting(**{key: value for key, value in changes.items() if key not in fields}), case)

    assert has("fused")
    assert not has("fused", length=64)
    assert not has("fused", order="causal")
    assert not has("fused", dropout=0.1)
    assert has("blockwise", order="causal", dropout=0.1, padding=0.5)
    assert not has("features")
    assert not has("reference", length=200_000)


def test_operations_are_counted_where_they_are_known() -> None:
    def needed(variant: str, implementation: str, order: str = "none") -> float | None:
        return operations(setting(), Case(variant=variant, order=order, implementation=implementation, length=64))

    scores = 2.0 * 2 * 64**2 * 4  # heads, pairs, width
    assert needed("softmax", "fused") == 7 * scores
    assert needed("dnas", "blockwise") == 11 * scores
    assert needed("dnas", "blockwise", "causal") == 7 * scores / 2
    assert needed("x2", "features") == 6 * 2.0 * 2 * 64 * 4**3
    assert needed("softmax", "features") is None  # a new variant's own form: nobody knows


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("attention --lengths 0", "--lengths: expected at least 1, found 0"),
        ("attention --batch 0", "--batch: expected at least 1"),
        ("attention --dropout 1", "--dropout: expected 0 up to below 1"),
        ("attention --attention dnass", "did you mean 'dnas'"),
        ("attention --attention recency", "recency"),
        ("attention --implementations fusde", "did you mean 'fused'"),
        ("attention --precision float31", "did you mean 'float32'"),
        ("attention --orders causl", "did you mean 'causal'"),
        ("atention", "did you mean 'attention'"),
    ],
)
def test_bad_input_is_one_error(command: str, message: str) -> None:
    with pytest.raises(WrongUseError, match=message):
        run(command.split())

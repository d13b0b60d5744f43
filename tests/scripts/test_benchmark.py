import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend

from seqarena.common.attention.visibility import Order
from seqarena.common.data.tokenization import word_tokenizer
from seqarena.common.errors import WrongUseError
from seqarena.common.model.bert.families import BERT
from seqarena.common.model.bert.model import BertConfig, BertForPretraining
from seqarena.common.model.norms import NORMS
from seqarena.lra.pictures.augmentation import Augmentation
from seqarena.lra.pictures.data import PictureBatch
from seqarena.lra.pictures.presets import SMALL as SMALL_PICTURES
from seqarena.lra.pictures.trainer import loss as picture_loss
from seqarena.lra.presets import PRESETS
from seqarena.pretraining.data.batches import MaskedBatch
from seqarena.pretraining.masking import NONE
from seqarena.pretraining.trainer import loss
from seqarena.qa.data import world
from seqarena.qa.data.windows import SpanBatch
from seqarena.qa.model import Model, Reader
from seqarena.qa.trainer import span_loss
from seqarena.scripts.benchmark import attention, cases, run, step
from seqarena.scripts.benchmark.cases import (
    Case,
    Measurement,
    Setting,
    expressible,
    fused_softmax,
    operations,
    peak,
    softmax_backends,
)
from seqarena.scripts.benchmark.transformers import forwards
from tests.lra.pictures.test_model import in_the_library
from tests.qa.questions import written

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
        assert set(each["baseline_seconds"]) == {"none"}
        for order, taken in each["backend_seconds"].items():
            assert each["baseline_seconds"][order] == min(taken.values())
    assert record["matmul_flops_per_second"] > 0
    assert (tmp_path / "attention-cpu-float32.png").read_bytes().startswith(b"\x89PNG")


def test_a_length_without_a_causal_case_has_an_empty_cell() -> None:
    """The reference may not fit there, and the case without an order may have another implementation."""
    both = [measured("none", 16, {"none": 0.5, "causal": 0.25}), measured("causal", 16, {"none": 0.5, "causal": 0.25})]
    _, headings, rows, notes = attention.table(setting(), [*both, measured("none", 32, {"none": 0.5})], 1e9, "cpu")
    column = headings.index("/ causal")
    assert [row[column] for row in rows] == ["4.00", "4.00", ""]
    assert any(note == "/ causal, ms by backend: 16: flash 250.00" for note in notes)


def measured(order: Order, length: int, baselines: dict[str, float]) -> Measurement:
    return Measurement(
        case=Case(variant="x1", implementation="reference", order=order, length=length),
        seconds=dict.fromkeys(cases.PASSES, 1.0),
        spread=0.0,
        baseline_seconds=baselines,
        backend_seconds={name: {"flash": seconds} for name, seconds in baselines.items()},
        flops_per_second=None,
        peak_memory_bytes=None,
    )


def test_backends_of_softmax_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU the fused one; where there is none, the plain form."""
    assert softmax_backends(setting(), 16, "causal") == ["flash"]
    monkeypatch.setattr(cases, "FUSED", ["cudnn"])
    assert softmax_backends(setting(), 16, "causal") == ["math"]
    tensors = setting().tensors(16)
    plain, fused = (
        fused_softmax("none", backend)(tensors) for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION)
    )
    torch.testing.assert_close(plain, fused)


@pytest.mark.extras  # several processes
def test_the_table_and_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = "attention --lengths 800 --batch 1 --head-dim 4 --repeats 1 --attention dnas --out"
    assert run([*command.split(), str(tmp_path)]) == 0
    assert "dnas blockwise" in capsys.readouterr().out
    record = json.loads((tmp_path / "attention-cpu-float32.json").read_text())
    peaks = {each["case"]["implementation"]: each["peak_memory_bytes"] for each in record["measurements"]}
    assert set(peaks) == {"reference", "blockwise", "fused"}
    assert 0 < max(peaks["blockwise"], peaks["fused"]) < peaks["reference"]


def test_a_variant_that_uses_neither_queries_nor_keys_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["attention", *"--attention average --lengths 8 --repeats 1 --no-memory".split()]) == 0
    assert "average" in capsys.readouterr().out


def test_an_interrupted_benchmark_keeps_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, lengths = attention.measure, []

    def measured(given: Setting, cases: Sequence[Case], memory: bool) -> list[Measurement]:
        lengths.append(cases[0].length)
        if len(lengths) > 1:
            raise KeyboardInterrupt
        return real(given, cases, memory)

    monkeypatch.setattr(attention, "measure", measured)
    command = "attention --lengths 8 16 --batch 1 --head-dim 4 --repeats 1 --attention x3 --no-memory --out"
    assert run([*command.split(), str(tmp_path), "--save", str(tmp_path / "table.json")]) == 0
    told = capsys.readouterr().err
    assert "interrupted; keeping the measured lengths: 8\n" in told
    assert "the table is not written to" in told
    assert not (tmp_path / "table.json").exists()
    record = json.loads((tmp_path / "attention-cpu-float32.json").read_text())
    assert {each["case"]["length"] for each in record["measurements"]} == {8}


@pytest.mark.parametrize(
    ("error", "reason"), [(KeyboardInterrupt(), "interrupted"), (OSError("a worker was killed"), "a worker was killed")]
)
def test_a_step_benchmark_that_ends_early_keeps_what_it_measured(
    error: BaseException, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the way back: the first case was measured once, the last one twice."""
    calls: list[str] = []

    def measured(_: object, _package: str, _run: object, attention: str, *_given: object) -> step.Measurement:
        calls.append(attention)
        if len(calls) > 3:
            raise error
        return step.Measurement(
            attention=attention, forward_seconds=float(len(calls)), training_seconds=1.0, peak_memory_bytes=1,
            idle_memory_bytes=1, device="cpu", precision="float32",
        )  # fmt: skip

    monkeypatch.setattr(step, "run_in_process", measured)
    own = PRESETS["listops"]["quick"].run
    found = step.measure_twice("lra", [(name, own, step.OURS) for name in ("softmax", "x3")], Path(), 1)
    assert [(each.attention, each.forward_seconds) for each in found] == [("softmax", 1), ("x3", 2.5)]
    assert f"{reason}; keeping what was measured; measured once only: softmax\n" in capsys.readouterr().err


def test_the_idle_memory_of_a_step_is_that_of_the_pass_with_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = iter([(100, 40), (120, 70)])

    def measured(*_: object) -> step.Measurement:
        peak, idle = next(passes)
        return step.Measurement(
            attention="softmax", forward_seconds=1.0, training_seconds=1.0, peak_memory_bytes=peak,
            idle_memory_bytes=idle, device="cpu", precision="float32",
        )  # fmt: skip

    monkeypatch.setattr(step, "run_in_process", measured)
    (found,) = step.measure_twice("lra", [("softmax", PRESETS["listops"]["quick"].run, step.OURS)], Path(), 1)
    assert (found.peak_memory_bytes, found.idle_memory_bytes) == (120, 70)


@pytest.mark.extras  # a process of its own, which loads torch._dynamo
def test_libraries_are_not_part_of_the_peak_of_chunks() -> None:
    """They take 160 MiB, and the chunks about 100."""
    case = Case(variant="x3", order="causal", implementation="chunked", length=2048)
    assert peak(setting(batch=2, heads=2, head_dim=32), case) < 150 * 2**20


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
    assert needed("softmax", "reference") == needed("dnas", "reference") == 6 * scores  # the scores are stored
    assert needed("linear", "reference") is needed("performer", "reference") is None  # there are no scores


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("attention --lengths 0", "--lengths: expected at least 1, found 0"),
        ("attention --batch 0", "--batch: expected at least 1"),
        ("attention --dropout 1", "--dropout: expected 0 up to below 1"),
        ("attention --attention dnass", "nearest: dnas"),
        ("attention --attention recency", "recency"),
        ("step vqa scenes --padded", "batches of vqa scenes have no sequences that could be padded"),
        ("step lra cifar10-patches --full-matrix", "omit --padded and --full-matrix"),
        ("attention --attention s4d", "token mixer, without a kernel; seqarena benchmark layers"),
        ("attention --implementations fusde", "nearest: fused"),
        ("attention --precision float31", "nearest: float32"),
        ("attention --orders causl", "nearest: causal"),
        ("atention", "nearest: attention"),
    ],
)
def test_bad_input_is_one_error(command: str, message: str) -> None:
    with pytest.raises(WrongUseError, match=message):
        run(command.split())


def test_the_text_of_squad_is_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gold = written(tmp_path / "gold.json", world.squad(5, 0, "dev", unanswerable=False))
    word_tokenizer(world.words()).save(tmp_path)
    assert run(["squad", "--gold", str(gold), "--vocabulary", str(tmp_path)]) == 0
    assert "5 questions, 5 windows: read and cut in" in capsys.readouterr().out


@pytest.mark.extras
def test_a_step_is_measured_beside_transformers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = (
        "step pretraining mlm --attention softmax --norm post --padded --transformers --repeats 2 --json "
        "--model.layers 1 --model.dim 16 --model.heads 2 --model.ffn-dim 16 --data.length 16 --model.max-length 32 "
        "--train.batch-size 4"
    ).split()
    assert run([*small, "--data-folder", str(tmp_path)]) == 0
    steps = json.loads(capsys.readouterr().out.splitlines()[-1])["steps"]
    assert [each["attention"] for each in steps] == [
        "softmax", "softmax, padded", "softmax, transformers", "softmax, encoder alone",
        "softmax, encoder alone, transformers",
    ]  # fmt: skip
    assert all(each["training_seconds"] > 0 for each in steps)
    with pytest.raises(WrongUseError, match="expected a BERT"):
        forwards(torch.nn.Linear(1, 1), PRESETS["listops"]["quick"].run.model, 8, loss)


@pytest.mark.extras
def test_the_loss_of_transformers_is_ours() -> None:
    """What is timed is the same quantity: the mean over the same targets."""
    config = BertConfig(layers=1, dim=8, heads=2, ffn_dim=8, vocabulary=30, max_length=12, dropout=0.0,
                        attention_dropout=0.0)  # fmt: skip
    model = BertForPretraining(config, sentences=False)
    theirs, masked = forwards(model, config, 12, loss)["transformers"]
    tokens = torch.randint(0, 30, (3, 10))
    targets = torch.tensor([[4, NONE], [5, 6], [7, NONE]])
    batch = MaskedBatch(
        tokens=tokens, types=torch.zeros_like(tokens), real=torch.ones_like(tokens, dtype=torch.bool),
        places=torch.tensor([[1, 0], [2, 7], [9, 0]]), targets=targets, order=torch.zeros(3, dtype=torch.long),
        targets_each=torch.ones(3),
    )  # fmt: skip
    with torch.no_grad():
        mine = {BERT.public_name(name): tensor for name, tensor in model.state_dict().items()}
        missing = theirs.load_state_dict(mine, strict=False).missing_keys
        assert {name for name in missing if "decoder" not in name} <= {
            "bert.pooler.dense.weight",
            "bert.pooler.dense.bias",
        }
        theirs.tie_weights()
        assert float(masked(batch)) == pytest.approx(float(loss(model, batch)), abs=1e-5)


@pytest.mark.extras
def test_the_loss_of_a_reader_is_ours_whatever_the_padding() -> None:
    config = Model(layers=1, dim=8, heads=2, ffn_dim=8, vocabulary=30, max_length=12, dropout=0.0,
                   attention_dropout=0.0)  # fmt: skip
    model = Reader(config)
    theirs, whole = forwards(model, config, 10, span_loss)["transformers"]
    tokens = torch.randint(0, 30, (2, 10))
    real = torch.ones_like(tokens, dtype=torch.bool)
    batch = SpanBatch(
        tokens=tokens, types=torch.zeros_like(tokens), real=real, context=real, opens=real,
        start=torch.tensor([2, 0]), end=torch.tensor([3, 0]),
    )  # fmt: skip
    with torch.no_grad():
        theirs.load_state_dict({BERT.public_name(name): tensor for name, tensor in model.state_dict().items()})
        assert float(whole(batch)) == pytest.approx(float(span_loss(model, batch)), abs=1e-5)


def test_transformer_xl_beside_the_published_formulation(capsys: pytest.CaptureFixture[str]) -> None:
    """Without dropout both have the same losses, step after step, trained and scored."""
    shape = (
        "--model.layers 2 --model.dim 16 --model.heads 2 --model.ffn-dim 16 --model.vocabulary 40 --model.cutoffs 20"
    )
    read = (
        "--train.batch-size 3 --segments.length 8 --segments.memory 8 --final.length 4 --final.memory 9 --final.clamp 6"
    )
    command = ["transformer-xl", *shape.split(), *read.split(), "--model.dropout", "0", "--repeats", "2"]
    assert run([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) == 6
    assert all(each["difference"] < 1e-5 and each["ratio"] > 0 for each in found)
    assert run([*command, "--final.memory", "0", "--final.same-length", "no", "--json"]) == 0
    assert all(each["difference"] < 1e-5 for each in json.loads(capsys.readouterr().out))
    assert run(command) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "same length, 10 streams" in told
    assert "losses differ" not in told, "the table has no difference without dropout"
    with pytest.raises(WrongUseError, match="expected a task of Transformer-XL"):
        run(["transformer-xl", "--task", "mlm", "--preset", "quick"])


@pytest.mark.extras
def test_the_loss_of_a_vision_transformer_of_transformers_is_ours() -> None:
    config = replace(SMALL_PICTURES, side=8, dim=8, heads=2, ffn_dim=12, layers=2)
    torch.manual_seed(0)
    model = config.build()
    loss_of_pictures = partial(picture_loss, Augmentation(mixup=0.3), 10)
    baselines = forwards(model, config, config.longest, loss_of_pictures)
    classifier, whole = baselines["transformers"]
    weights = in_the_library(model.state_dict(), 4)
    classifier.model.load_state_dict(weights)  # type: ignore[union-attr, operator]
    batch = PictureBatch(
        pictures=torch.randint(0, 256, (3, 3, 8, 8), dtype=torch.uint8), labels=torch.tensor([1, 2, 3]),
        seeds=torch.arange(3), tokens=torch.full((3,), config.longest),
    )  # fmt: skip
    with torch.no_grad():
        assert float(whole(batch)) == pytest.approx(float(loss_of_pictures(model, batch)), abs=1e-5)
        alone = [float(baselines[name][1](batch)) for name in ("encoder alone", "encoder alone, transformers")]
        assert alone[0] == pytest.approx(alone[1], abs=1e-5)
    changed: list[dict[str, Any]] = [{"norm": NORMS["post"]}, {"pooling": "mean"}, {"query_key_norm": True}]
    for changes in changed:
        with pytest.raises(WrongUseError, match="library's ViT has pre-norm, a class token and biases only"):
            forwards(model, replace(config, **changes), config.longest, loss_of_pictures)


@pytest.mark.parametrize("times", [[2.0], [1.0, 2.0], [1.0, 2.0, 5.0], [1.0, 1.0, 1.0, 9.0]])
def test_the_range_of_quartiles_is_at_most_that_of_the_times(times: list[float]) -> None:
    expected = np.percentile(times, 75) - np.percentile(times, 25)
    assert cases.quartile_range(times) == pytest.approx(expected)
    assert cases.quartile_range(times) <= max(times) - min(times)

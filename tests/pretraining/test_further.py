"""Pretraining that goes on from a checkpoint: its sizes and vocabulary, its heads, its history, its bits."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from seqarena.common.attention import ATTENTIONS
from seqarena.common.data.tokenization import load_tokenizer, train_tokenizer
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.model.bert.checkpoint import Pretraining, family_of, folder_of, load, pretraining_of, save
from seqarena.common.model.bert.families import FAMILIES
from seqarena.common.model.bert.model import BertConfig, BertForPretraining
from seqarena.common.runs.cli import build_run
from seqarena.common.runs.config import to_json
from seqarena.common.runs.results import Result
from seqarena.common.runs.run import row_name, row_of, settings
from seqarena.common.runs.session import Session, execute
from seqarena.common.training.runtime import make_accelerator
from seqarena.pretraining.__main__ import PACKAGE
from seqarena.pretraining.presets import PRESETS
from seqarena.pretraining.run import Run
from seqarena.pretraining.trainer import assemble, loss
from seqarena.scripts.leaderboard.protocol import protocol_of
from tests.common.model.families import CONFIGS, write_checkpoint
from tests.common.model.google.write import HERE as GOOGLE
from tests.common.model.google.write import NAMES, variables
from tests.interruption import stops_after
from tests.pretraining.executor import Now
from tests.pretraining.test_training import TEXTS

SIZES = BertConfig(layers=2, dim=8, heads=2, ffn_dim=12, vocabulary=130, max_length=24)
FIELDS = (
    "--data.length 16 --data.building order --data.held-out 0.1 --train.steps 6 --train.batch-size 8 "
    "--train.eval-every 3 --train.checkpoint-seconds 0 --optim.lr 1e-3"
).split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text, a checkpoint by softmax as a public one is, and one by hnas that seqarena trained."""
    folder = tmp_path_factory.mktemp("further")
    (folder / "text.txt").write_text("\n\n".join(TEXTS))
    for name, attention, record in (
        ("public", "softmax", None),
        ("ours", "hnas", Pretraining(settings="mlm, preset x", text="0" * 64, seed=3, sources="abcdefgh")),
    ):
        torch.manual_seed(2)
        save(folder / name, BertForPretraining(replace(SIZES, attention=ATTENTIONS[attention])), record)
        train_tokenizer(TEXTS, "wordpiece", 120).save(folder / name)
    return folder


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqarena.pretraining.data.shards.ProcessPoolExecutor", Now)


def further(folder: Path, init: str, *more: str, attention: str | None = None, seed: int = 0) -> Run:
    """The run that the command line makes."""
    fields = ["--model.init", str(folder / init), "--data.path", str(folder / "text.txt"), *FIELDS, *more]
    run = build_run(PACKAGE, "mlm", None, attention, None, seed, fields, "x")
    assert isinstance(run, Run)
    return run


def measure(run: Run, folder: Path, out: Path) -> Result:
    return execute(PACKAGE, run, Session(out=out, data=folder / "data"))


def test_a_checkpoint_brings_sizes_vocabulary_and_heads(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = further(folder, "public")
    assert (run.preset, run.model.layers, run.model.max_length, run.data.tokenizer) == ("further", 2, 24, None)
    assembly = assemble(run, folder / "data", make_accelerator("float32"))
    before, _ = load(str(folder / "public"))
    after = assembly.model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.state_dict().items())
    assert "pretrained with softmax: 46 tensors loaded\n" in capsys.readouterr().err
    result = measure(run, folder, tmp_path)
    assert result.status == "finished"
    assert load_tokenizer(folder_of(str(tmp_path))).numbers == load_tokenizer(folder / "public").numbers
    left, report = load(str(tmp_path))
    assert (left.bert.config, report.new, report.unused) == (SIZES, (), ())
    assert measure(run, folder, tmp_path) == result  # its weights and vocabulary are as they were


def test_variants_are_rows_of_one_table_apart_from_runs_of_random_weights(folder: Path) -> None:
    runs = [further(folder, "public", attention=name) for name in (None, "dnas", "hnas")]
    plain = build_run(PACKAGE, "mlm", "further", None, None, 0, ["--model.init", "none", *FIELDS], "x")
    found = [json.dumps(settings(type(run), to_json(run)), sort_keys=True) for run in (*runs, plain)]
    assert found[0] == found[1] == found[2] != found[3]
    assert runs[0].model.pretraining.startswith("sha256 ")
    names = [row_name(row_of(run, PRESETS["mlm"]["further"])) for run in runs]
    assert names == [
        "softmax, 2 layers", "dnas, 2 layers, pretrained with softmax",
        "hnas[u=0.0], 2 layers, pretrained with softmax",
    ]  # fmt: skip
    other = further(folder, "ours", seed=1)
    assert settings(type(other), to_json(other)) != settings(type(runs[0]), to_json(runs[0]))
    assert (other.notes, replace(other, seed=3).notes) == (["pretraining seed 3"], [])


def test_results_from_before_init_stay_in_their_protocol() -> None:
    """The fields of a checkpoint have their defaults there, and the class of the model has the name that it had."""
    run = PRESETS["mlm"]["quick"].run
    old = to_json(run)
    for name in ("init", "pretraining", "pretraining_seed", "pretraining_sources", "pretrained_with"):
        del old["model"][name]
    assert old["model"]["class"] == "BertConfig"
    assert settings(type(run), old, 2) == settings(type(run), to_json(run))


def test_hnas_goes_on_as_the_function_that_softmax_was(folder: Path) -> None:
    values = []
    for name in (None, "hnas"):
        run = further(folder, "public", "--model.dropout", "0", "--model.attention-dropout", "0", attention=name)
        made = assemble(run, folder / "data", make_accelerator("float32"))
        values.append(float(made.loss(made.model.eval(), made.batches[0]).detach()))
    assert values[0] == pytest.approx(values[1], abs=1e-6)


@pytest.mark.parametrize("attention", [None, "hnas"])
def test_a_stopped_run_goes_on_bit_for_bit(
    folder: Path, tmp_path: Path, attention: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = further(folder, "public", attention=attention)
    whole = measure(run, folder, tmp_path / "whole")
    monkeypatch.setattr("seqarena.pretraining.trainer.loss", stops_after(4, loss))
    with pytest.raises(KeyboardInterrupt):
        measure(run, folder, tmp_path / "stopped")
    monkeypatch.undo()
    resumed = measure(run, folder, tmp_path / "stopped")
    assert (resumed.metrics, resumed.example_scores) == (whole.metrics, whole.example_scores)
    files = [next((tmp_path / name / "checkpoint").glob("chosen-*")).read_bytes() for name in ("whole", "stopped")]
    assert files[0] == files[1]


def test_the_checkpoint_records_every_pretraining(folder: Path, tmp_path: Path) -> None:
    """One after another: what is finetuned from the last is not mixed with what is finetuned from the first."""
    first = further(folder, "ours", attention="softmax")
    result = measure(first, folder, tmp_path / "first")
    found = pretraining_of(folder_of(str(tmp_path / "first")))
    assert found.label.startswith("mlm, preset further, 6 steps, protocol ")
    assert found.label.endswith(f", text {result.data_checksum[:12]}, after mlm, preset x, text 000000000000")
    assert (found.seed, found.attentions) == (3, "hnas, then softmax")
    assert found.sources.startswith("abcdefgh ")
    second = further(folder, str(tmp_path / "first"), attention="dnas")
    assert second.model.pretrained_with == "hnas, then softmax"
    assert row_name(row_of(second, PRESETS["mlm"]["further"])) == ("dnas, 2 layers, pretrained with hnas, then softmax")
    last = measure(second, folder, tmp_path / "second")
    chain = pretraining_of(folder_of(str(tmp_path / "second")))
    assert chain.label.endswith(f"after {found.label}")
    assert chain.attentions == "hnas, then softmax, then dnas"
    assert protocol_of(last) != protocol_of(result)
    # Variants that went on alike from one checkpoint have one label.
    beside = measure(further(folder, "ours", attention="dnas"), folder, tmp_path / "beside")
    assert protocol_of(beside) == protocol_of(result)
    assert pretraining_of(folder_of(str(tmp_path / "beside"))).label == found.label


def test_a_checkpoint_without_a_head_gets_a_new_one_and_it_is_said(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("config.json", "tokenizer.json", "vocab.txt"):
        (tmp_path / name).write_bytes((folder / "public" / name).read_bytes())
    body = {
        name: each for name, each in load_file(folder / "public" / "model.safetensors").items() if "cls." not in name
    }
    save_file(body, tmp_path / "model.safetensors")
    assemble(
        further(tmp_path, "", "--data.path", str(folder / "text.txt")), folder / "data", make_accelerator("float32")
    )
    told = capsys.readouterr().err
    assert "not in the checkpoint: cls.predictions.bias, cls.predictions.transform.dense.weight" in told
    assert "cls.seq_relationship.weight" in told


def test_what_contradicts_the_checkpoint_is_one_message(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        WrongUseError, match=r"the checkpoint .* has no more positions: set --data.length to 24 or less"
    ):
        further(folder, "public", "--data.length", "32")
    with pytest.raises(WrongUseError, match=r"model.layers: expected 2 as in the checkpoint .*, found 3"):
        further(folder, "public", "--model.layers", "3")
    with pytest.raises(WrongUseError, match=r"data.vocabulary applies to a vocabulary that is trained on the text"):
        further(folder, "public", "--data.vocabulary", "500")
    train_tokenizer(TEXTS[::-1], "wordpiece", 110).save(tmp_path / "other")
    lines = (tmp_path / "other" / "vocab.txt").read_text().splitlines()
    (tmp_path / "vocab.txt").write_text("\n".join([*lines[:5], *lines[:4:-1]]) + "\n")
    run = further(folder, "public", "--data.tokenizer", str(tmp_path / "vocab.txt"))
    with pytest.raises(WrongUseError, match=r"is not the vocabulary of .* tokens have other ids"):
        measure(run, folder, tmp_path / "run")
    (tmp_path / "bare").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "bare" / name).write_bytes((folder / "public" / name).read_bytes())
    bare = further(tmp_path, "bare", "--data.path", str(folder / "text.txt"))
    with pytest.raises(BadDataError, match=r"has no vocabulary .* --data\.tokenizer names one"):
        measure(bare, folder, tmp_path / "run")


@pytest.mark.parametrize("family", list(CONFIGS))
def test_every_family_goes_on_in_its_own_layout(family: str, folder: Path, tmp_path: Path) -> None:
    init = write_checkpoint(tmp_path / "public", family, TEXTS)
    fields = ["--data.path", str(folder / "text.txt"), "--data.building", "blocks"]
    measure(further(tmp_path, "public", *fields, attention="hnas"), tmp_path, tmp_path / "run")
    written, before = (folder_of(str(each)) for each in (tmp_path / "run", init))
    assert family_of(written) == family_of(before) == FAMILIES[family]
    assert json.loads((written / "config.json").read_text())["model_type"] == f"seqarena-{family}"
    kept = set(load_file(before / "model.safetensors")) - set(load_file(written / "model.safetensors"))
    assert not {name for name in kept if "pooler" not in name}
    if CONFIGS[family].token_types < 2:
        with pytest.raises(
            WrongUseError, match=r"expected at least 2 for pairs .* --data.building blocks has no pairs"
        ):
            further(tmp_path, "public", *fields[:2])


@pytest.mark.parametrize("kind", list(NAMES))
def test_googles_files_go_on_with_all_heads(
    kind: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(GOOGLE / kind, tmp_path / "google")
    if kind == "albert":
        train_tokenizer(TEXTS, "sentencepiece", 110).save(tmp_path / "own")
        (tmp_path / "google" / "30k-clean.model").write_bytes((tmp_path / "own" / "spiece.model").read_bytes())
    run = further(tmp_path, "google", "--data.path", str(folder / "text.txt"), attention="hnas")
    measure(run, folder, tmp_path / "run")
    count = len(variables(kind))
    assert f"pretrained with softmax: {count} tensors loaded; not in the checkpoint: seq" in capsys.readouterr().err
    written = folder_of(str(tmp_path / "run"))
    assert family_of(written) == FAMILIES[kind]
    assert (written / ("spiece.model" if kind == "albert" else "vocab.txt")).exists()
    tensors = load_file(written / "model.safetensors")
    assert len([name for name in tensors if not name.startswith("seqarena.")]) == count
    before = pretraining_of(tmp_path / "google").label
    assert before.startswith("sha256 ")
    assert pretraining_of(written).label.endswith(f"after {before}")


def test_quick_goes_on_too_on_the_bundled_text(folder: Path) -> None:
    """Its text has other tokens than the task's record knows, since the checkpoint brings the vocabulary."""
    fields = ["--model.init", str(folder / "public"), "--data.length", "16"]
    run = build_run(PACKAGE, "mlm", "quick", None, None, 0, fields, "x")
    assert PACKAGE.assembly(run, folder / "data", make_accelerator("float32")).data_checksum

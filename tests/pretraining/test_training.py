"""Pretraining from end to end on a text of a few words: it learns, resumes, shares batches out exactly."""

import codecs
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from seqarena.common.attention import ATTENTIONS
from seqarena.common.data.tokenization import load_tokenizer, train_tokenizer
from seqarena.common.errors import BadDataError, WrongUseError, run_command
from seqarena.common.model.bert.checkpoint import folder_of, load, pretraining_of
from seqarena.common.model.bert.model import BertForPretraining
from seqarena.common.model.norms.pre import PreNorm
from seqarena.common.runs.results import Result
from seqarena.common.runs.session import Session, execute
from seqarena.common.training.loop import Train
from seqarena.common.training.optim import Optim
from seqarena.common.training.runtime import make_accelerator
from seqarena.common.training.step import Stepper
from seqarena.pretraining.__main__ import PACKAGE
from seqarena.pretraining.cost import estimate, memory_bytes, operations, parameters, total
from seqarena.pretraining.data import MaskedText
from seqarena.pretraining.masking import Masking
from seqarena.pretraining.model import Model, has_order
from seqarena.pretraining.presets import BERT_BASE, PRESETS
from seqarena.pretraining.run import Run
from seqarena.pretraining.trainer import assemble, loss
from seqarena.scripts.seqarena import dispatch
from tests.interruption import stops_after

LETTERS = "alpha beta gamma delta epsilon zeta eta theta iota kappa".split()
TEXTS = [" ".join(LETTERS[(start + n) % 10] for n in range(8)) + ".\nThe end." for start in range(10)] * 12
RUN = Run(
    task="mlm",
    preset="quick",
    data=MaskedText(length=16, building="order", held_out=0.1, masking=Masking(law="single")),
    model=Model(layers=1, dim=16, heads=2, ffn_dim=32, vocabulary=130, max_length=32, dropout=0.1),
    optim=Optim(lr=5e-3, clip=1.0),
    train=Train(steps=12, batch_size=8, eval_every=6, checkpoint_seconds=0.0),
)


TRAIN_ONCE = replace(RUN.train, eval_every=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the text, its vocabulary and its tokens are."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "text.txt").write_text("\n\n".join(TEXTS))
    train_tokenizer(TEXTS, "wordpiece", 120).save(folder / "vocabulary")
    here(RUN, folder).data.load(folder / "data")
    return folder


def here(run: Run, folder: Path) -> Run:
    """The run on the text of the folder."""
    data = replace(run.data, path=str(folder / "text.txt"), tokenizer=str(folder / "vocabulary"))
    return replace(run, data=data)


def measure(run: Run, folder: Path, out: Path) -> Result:
    return execute(PACKAGE, here(run, folder), Session(out=out, data=folder / "data"))


@pytest.mark.usefixtures("unchecked_shapes")
def test_it_learns_what_follows_what(folder: Path, tmp_path: Path) -> None:
    """Far below the frequencies' loss, and which segment stands in front."""
    model = replace(RUN.model, dropout=0.0, attention_dropout=0.0, dim=32)
    run = replace(RUN, model=model, train=replace(RUN.train, steps=200, eval_every=200, checkpoint_seconds=30.0))
    result = measure(run, folder, tmp_path)
    assert result.status == "finished"
    assert set(result.metrics) == {"accuracy", "loss", "perplexity", "unigram_loss", "order_accuracy"}
    assert result.metrics["loss"] < 0.7 * result.metrics["unigram_loss"]
    assert result.metrics["order_accuracy"] > 0.9
    assert result.score is not None
    assert result.score > 2 * result.floors["most frequent token"] > 0.1
    assert result.floors["most frequent after its neighbour"] > 0.6  # the letters follow each other
    assert result.score == pytest.approx(np.mean(result.example_scores))
    left, report = load(str(tmp_path))
    assert (report.new, report.unused) == ((), ())
    assert all(getattr(run.model, name) == value for name, value in vars(left.bert.config).items())
    assert len(load_tokenizer(folder_of(str(tmp_path)))) <= 120
    weights = load_file(next((tmp_path / "checkpoint").glob("chosen-*")))
    assert torch.equal(left.masked.dense.weight, weights["masked.dense.weight"])


@pytest.mark.parametrize("attention", ["softmax", "hnas"])
def test_a_stopped_run_goes_on_bit_for_bit(
    folder: Path, tmp_path: Path, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lengths, masks and dropout included; the last third is at another length."""
    data = replace(RUN.data, last_length=24, last_share=0.34)
    run = replace(RUN, data=data, model=replace(RUN.model, attention=ATTENTIONS[attention]))
    whole = measure(run, folder, tmp_path / "whole")
    monkeypatch.setattr("seqarena.pretraining.trainer.loss", stops_after(7, loss))
    with pytest.raises(KeyboardInterrupt):
        measure(run, folder, tmp_path / "stopped")
    monkeypatch.undo()
    resumed = measure(run, folder, tmp_path / "stopped")
    assert (resumed.metrics, resumed.example_scores) == (whole.metrics, whole.example_scores)
    files = [next((tmp_path / name / "checkpoint").glob("chosen-*")).read_bytes() for name in ("whole", "stopped")]
    assert files[0] == files[1]
    losses = [
        [json.loads(line).get("loss") for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "stopped")
    ]
    assert losses[0] == losses[1]


def test_lengths_follow_their_schedule(folder: Path) -> None:
    data = replace(RUN.data, building="packed", length=16, last_length=32, last_share=0.25)
    assembly = assemble(here(replace(RUN, data=data), folder), folder / "data", make_accelerator("float32"))
    lengths = [assembly.batches[step].tokens.shape[1] for step in range(12)]  # type: ignore[attr-defined]
    assert max(lengths[:9]) <= 16 < min(lengths[9:])
    metrics = assembly.validate(assembly.model).metrics  # evaluated at both
    assert metrics["loss"] != metrics["loss_32"] > 0
    assert set(metrics) == {f"{name}{end}" for name in ("accuracy", "loss", "perplexity", "unigram_loss")
                            for end in ("", "_32")}  # fmt: skip


@pytest.mark.parametrize("building", ["order", "next", "blocks", "packed"])
def test_micro_batches_add_up_to_the_batch(folder: Path, building: str) -> None:
    """Targets and orders weigh the same however the batch is cut up."""
    run = here(replace(RUN, data=replace(RUN.data, building=building)), folder)  # type: ignore[arg-type]
    gradients = []
    for size in (8, 3):
        torch.manual_seed(0)
        accelerator = make_accelerator("float32")
        assembly = assemble(run, folder / "data", accelerator)
        model = assembly.model.double().eval()
        stepper = Stepper(model, loss, run.optim, accelerator, steps=9, seed=0, micro_batch_size=size)
        value = stepper.backward(stepper.share(assembly.batches[0]))
        gradients.append([value, *(p.grad for p in model.parameters() if p.grad is not None)])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=0, atol=1e-6)


def test_variants_differ_in_nothing_but_the_mixing(folder: Path) -> None:
    """The same initial weights, the same batches."""
    made = {}
    for name in ("softmax", "hnas"):
        run = here(replace(RUN, model=replace(RUN.model, attention=ATTENTIONS[name])), folder)
        torch.manual_seed(5)
        made[name] = assemble(run, folder / "data", make_accelerator("float32"))
    softmax, hybrid = made["softmax"].model.state_dict(), made["hnas"].model.state_dict()
    assert all(torch.equal(tensor, hybrid[name]) for name, tensor in softmax.items())
    assert all(name.endswith("kernel.u.raw") for name in hybrid.keys() - softmax.keys())
    for step in (0, 5):
        one, other = (made[name].batches[step] for name in made)
        assert torch.equal(one.tokens, other.tokens)  # type: ignore[attr-defined]
        assert torch.equal(one.targets, other.targets)  # type: ignore[attr-defined]


def test_a_vocabulary_that_is_too_large_is_refused_before_text_is_tokenized(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = here(replace(RUN, model=replace(RUN.model, vocabulary=20)), folder)
    monkeypatch.setattr("seqarena.pretraining.data.write_corpus", lambda *_, **__: pytest.fail("text was tokenized"))
    for data in (folder / "data", tmp_path / "data"):  # of tokens that are there, and of none
        with pytest.raises(WrongUseError, match=r"model.vocabulary 20 is below the tokenizer's"):
            execute(PACKAGE, small, Session(out=tmp_path / "run", data=data))
    assert not (tmp_path / "data").exists()


def test_a_run_does_not_go_on_with_another_text(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.txt").write_text("\n\n".join(TEXTS))
    data = replace(RUN.data, path=str(tmp_path / "text.txt"), tokenizer=str(folder / "vocabulary"))
    session = Session(out=tmp_path / "run", data=tmp_path / "data")
    monkeypatch.setattr("seqarena.pretraining.trainer.loss", stops_after(7, loss))
    with pytest.raises(KeyboardInterrupt):
        execute(PACKAGE, replace(RUN, data=data), session)
    monkeypatch.undo()
    (tmp_path / "text.txt").write_text("\n\n".join(reversed(TEXTS[:-1])))
    with pytest.raises(
        BadDataError, match=r"this run began on data of sha256 [0-9a-f]+, now they are [0-9a-f]+; --overw"
    ):
        execute(PACKAGE, replace(RUN, data=data), session)
    assert execute(PACKAGE, replace(RUN, data=data), replace(session, overwrite=True)).status == "finished"


def test_a_checkpoint_says_on_which_text_it_was_trained(folder: Path, tmp_path: Path) -> None:
    """Another attention or seed on the same text is of the same pretraining; another text is of another."""
    rotated = "\n\n".join(codecs.encode(text, "rot13") for text in TEXTS)
    (tmp_path / "rotated.txt").write_text(rotated)
    on_text = here(replace(RUN, train=replace(TRAIN_ONCE, steps=1)), folder)
    runs = {
        "softmax": on_text,
        "dnas": replace(on_text, model=replace(RUN.model, attention=ATTENTIONS["dnas"]), seed=1),
        "rotated": replace(on_text, data=replace(on_text.data, path=str(tmp_path / "rotated.txt"))),
        "longer": replace(on_text, train=replace(TRAIN_ONCE, steps=2)),
    }
    found = {}
    for name, run in runs.items():
        result = execute(PACKAGE, run, Session(out=tmp_path / name, data=folder / "data"))
        found[name], seed, sources, _ = pretraining_of(folder_of(str(tmp_path / name)))
        assert result.data_checksum[:12] in found[name]
        assert (seed, len(sources)) == (run.seed, 8)
    assert found["softmax"] == found["dnas"]
    assert found["softmax"].startswith("mlm, preset quick, 1 steps, protocol ")
    assert len(set(found.values())) == 3


def test_the_tokenizer_of_a_preset_is_asked_of_the_hub(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(folder / "vocabulary"))
    data = replace(BERT_BASE.run.data, hub=None, path=str(folder / "text.txt"), length=16, last_length=None)
    made, _ = data.load(tmp_path)
    assert made.tokenizer.fingerprint == load_tokenizer(folder / "vocabulary").fingerprint
    assert len(list((tmp_path / "pretraining").glob("*-google-bert-bert-base-uncased"))) == 1


def test_the_cost_is_the_references() -> None:
    """pretraining_qa.md section 2: 70 G a sequence of 128, 301 G of 512; BERT-base 2.4e19, ALBERT-style 1.5e20."""
    run = replace(BERT_BASE.run, data=replace(BERT_BASE.run.data, building="blocks"))
    assert operations(run, 128) == pytest.approx(70e9, rel=0.03)
    assert operations(run, 512) == pytest.approx(301e9, rel=0.03)
    assert total(PRESETS["mlm"]["bert-base"].run) == pytest.approx(2.4e19, rel=0.06)
    assert total(PRESETS["mlm"]["albert-style"].run) == pytest.approx(1.5e20, rel=0.06)


@pytest.mark.parametrize("name", list(PRESETS["mlm"]))
def test_a_preset_holds_together(name: str) -> None:
    run = PRESETS["mlm"][name].run
    run.check()
    small = replace(run.model, layers=1, dim=8, heads=2, ffn_dim=8, vocabulary=30)
    assert sum(parameter.numel() for parameter in BertForPretraining(small).parameters()) > 0
    for norm in (run.model.norm, PreNorm(), PreNorm(final=False)):
        other = replace(run, model=replace(run.model, init=None, norm=norm))
        with torch.device("meta"):
            model = BertForPretraining(other.model, sentences=has_order(run.data))
        assert sum(parameter.numel() for parameter in model.parameters()) == parameters(other)
    assert not run.data.is_trained or run.model.vocabulary >= run.data.trained_size


def test_memory_is_that_of_a_share_of_the_batch() -> None:
    run = PRESETS["mlm"]["further"].run  # 32 sequences
    fixed = 16 * parameters(run)
    activations = memory_bytes(run) - fixed
    assert memory_bytes(run, processes=4) == pytest.approx(fixed + activations / 4)
    for size, share in ((8, 4), (64, 1)):
        split = replace(run, train=replace(run.train, micro_batch_size=size))
        assert memory_bytes(split) == pytest.approx(fixed + activations / share)


def test_the_command_says_what_it_costs(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields = (
        f"--data.path {folder / 'text.txt'} --data.tokenizer {folder / 'vocabulary'} --data.length 16 "
        "--data.held-out 0.1 --model.layers 1 --model.dim 16 --model.heads 2 --model.ffn-dim 32 "
        "--model.vocabulary 130 --train.steps 4 "
        f"--train.batch-size 8 --optim.schedule.warmup 1 --runs {tmp_path} --data-folder {folder / 'data'}"
    )
    assert run_command(dispatch, ["pretraining", "mlm", "--attention", "hnas", *fields.split()]) == 0
    told = capsys.readouterr()
    assert "floating-point operations" in told.err
    assert "H200" not in told.err  # nobody asks how long such a run takes there
    assert "hours on one H200" in estimate(BERT_BASE.run)
    assert "120 documents" in told.err
    assert "floors: most frequent token" in told.out
    assert "kernel.u" in told.out

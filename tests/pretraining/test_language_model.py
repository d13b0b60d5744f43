"""Language models end to end: what is scored and how, what is remembered, what goes on after a kill."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from seqarena.common.attention import ATTENTIONS
from seqarena.common.errors import run_command
from seqarena.common.model.norms import NORMS, norm_name
from seqarena.common.model.norms.base import NormConfig
from seqarena.common.model.norms.pre import PreNorm
from seqarena.common.saved_table import read_table
from seqarena.common.training.checkpoint import load_state, load_weights
from seqarena.common.training.runtime import make_accelerator
from seqarena.pretraining.wikitext import trainer
from seqarena.pretraining.wikitext.data import WikiText
from seqarena.pretraining.wikitext.evaluator import (
    evaluate,
    floors,
    kneser_ney,
    loss_by_cluster,
    streams_of,
    token_losses,
)
from seqarena.pretraining.wikitext.presets import BASE, PRESETS
from seqarena.pretraining.wikitext.run import Scoring
from seqarena.pretraining.wikitext.trainer import RememberingLoss
from seqarena.scripts.seqarena import dispatch
from tests.pretraining.language import QUICK, RUNNING, loaded, measure, tiny
from tests.pretraining.wiki import folder, rhymes


@pytest.mark.parametrize("streams", [1, 3])
def test_a_score_is_that_of_the_model_read_token_by_token(tmp_path: Path, streams: int) -> None:
    """Memory, window and clamp as in the final protocol; one stream scores every token, behind an end of line."""
    run = tiny(tmp_path)
    text, model = loaded(run, tmp_path)
    scoring = replace(run.final, streams=streams)
    ids = np.asarray(text.ids["test"]).astype(np.int64)
    ids = np.concatenate([[text.end], ids]) if streams == 1 else ids[: len(ids) // 3 * 3]
    rows = torch.from_numpy(ids).view(streams, -1)
    expected = []
    with torch.no_grad():
        for row in rows:
            memory = model.empty_memory(1)
            for at in range(0, len(row) - 1, 5):
                tokens, targets = row[None, at : min(at + 5, len(row) - 1)], row[at + 1 : at + 6]
                hidden, memory = model.read(tokens, memory, memory_length=9, clamp=7, window=9)
                expected.append(model.softmax.losses(hidden[0], model.word.weight, targets))
    found = token_losses(model, streams_of(text, "test", scoring), scoring, make_accelerator("float32"))
    assert found.size == (len(text.ids["test"]) if streams == 1 else len(ids) - 3)
    np.testing.assert_allclose(found.flatten(), torch.cat(expected).numpy(), rtol=0, atol=2e-5)


def test_scores_are_per_word_whatever_the_tokens_are(tmp_path: Path) -> None:
    long = "".join(f"{'wordy ' * 9}<unk> {number}\n" for number in range(25))  # other words than those to train on
    run = replace(tiny(tmp_path), data=WikiText(path=str(folder(tmp_path / "wiki", test=long))))
    run = replace(
        run,
        data=replace(run.data, kind="byte"),
        model=replace(run.model, vocabulary=256, cutoffs=()),
        final=Scoring(length=7, memory=0, streams=1),
    )
    text, model = loaded(run, tmp_path)
    accelerator = make_accelerator("float32")
    losses = token_losses(model, streams_of(text, "test", run.final), run.final, accelerator)
    found = evaluate(model, text, "test", run.final, accelerator)
    said = (tmp_path / "wiki" / "wiki.test.tokens").read_text()
    assert found.metrics["loss"] == pytest.approx(losses.sum() / (len(said.split()) + said.count("\n")), rel=1e-9)
    assert found.metrics["bits_per_byte"] == pytest.approx(losses.sum() / math.log(2) / len(said.encode()), rel=1e-9)
    assert found.metrics["perplexity"] == pytest.approx(math.exp(found.metrics["loss"]))
    assert found.metrics["loss_per_token"] == pytest.approx(losses.mean(), rel=1e-9)
    assert len(found.examples) == losses.size // 500 == 3
    assert losses.size % 3  # blocks are not of one length
    assert np.mean(found.examples) == pytest.approx(found.metrics["loss"], rel=1e-9)


def test_a_divergence_without_clusters_is_recorded(tmp_path: Path) -> None:
    """The tables of clusters are then empty, and so are their gradients."""
    run = tiny(tmp_path)
    run = replace(
        run,
        data=replace(run.data, kind="byte"),
        model=replace(run.model, vocabulary=256, cutoffs=()),
        optim=replace(run.optim, lr=1e30, clip=None),
    )
    result, _ = measure(run, tmp_path)
    assert result.status == "diverged"


def test_nats_by_cluster_are_those_of_its_words() -> None:
    losses, targets = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0, 4, 5, 3])
    assert loss_by_cluster(losses, targets, (4, 5)) == [(0.5, 2.5), (0.25, 2.0), (0.25, 3.0)]
    shares = loss_by_cluster(losses, targets, ())
    assert shares == [(1.0, 2.5)]


@given(st.lists(st.integers(0, 5), min_size=2, max_size=60))
def test_the_bigram_floor_is_a_distribution(train: list[int]) -> None:
    for before in range(6):
        found = kneser_ney(np.array(train), 6, np.full(6, before), np.arange(6))
        assert found.sum() == pytest.approx(1.0)
        assert (found > 0).all()


def test_the_bigram_floor_by_hand() -> None:
    """Pairs ab 2, ba 1, bc 1: D = 2 / 4; p(b | a) = (2 - 0.5) / 2 + 0.5 / 2 p(b); one word in front of b, of six with
    those that are added."""
    train = np.array([0, 1, 0, 1, 2])
    (found,) = kneser_ney(train, 3, np.array([0]), np.array([1]))
    assert found == pytest.approx(0.75 + 0.25 * 2 / 6)


def test_floors_are_what_frequencies_give(tmp_path: Path) -> None:
    text, _ = loaded(tiny(tmp_path), tmp_path)
    found = floors(text)
    train, test = (np.asarray(text.ids[name]) for name in ("train", "test"))
    share = (np.bincount(train, minlength=9) + 1) / (len(train) + 9)
    assert found["unigram"] == pytest.approx(float(-np.log(share[test]).mean()))
    assert found["uniform"] == pytest.approx(math.log(9))
    assert found["bigram"] < 1.0 < found["unigram"]


@pytest.mark.parametrize(
    ("attention", "norm"), [("softmax", NORMS["post"]), ("hnas", RUNNING)], ids=["softmax", "hnas-running"]
)
def test_killed_and_resumed_it_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attention: str, norm: NormConfig
) -> None:
    """Dropout on; stopped within an epoch, so that the memory must come back too."""
    run = tiny(tmp_path, attention=ATTENTIONS[attention], norm=norm, dropout=0.1)
    whole, first = measure(run, tmp_path / "whole")

    class Stopping(RememberingLoss):
        left = 4

        def __call__(self, *given: object) -> torch.Tensor:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
            return super().__call__(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(trainer, "RememberingLoss", Stopping)
    with pytest.raises(KeyboardInterrupt):
        measure(run, tmp_path / "cut")
    monkeypatch.undo()
    state = load_state(next((tmp_path / "cut").rglob("last.pt")))
    assert state is not None
    assert state["loss"][3][1]["past"].shape == (1, 6, 16)
    again, second = measure(run, tmp_path / "cut")
    assert (again.score, again.example_scores) == (whole.score, whole.example_scores)
    one, other = (load_file(next((its / "checkpoint").glob("chosen-*"))) for its in (first, second))
    assert all(one[name].equal(other[name]) for name in one)


@pytest.mark.usefixtures("unchecked_shapes")
def test_it_learns_and_says_how_it_was_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tiny(tmp_path)
    run = replace(run, train=replace(run.train, steps=120, eval_every=60, diagnostics=True))
    result, its = measure(run, tmp_path)
    assert result.score is not None
    assert result.score < result.floors["unigram"] - 0.5
    assert result.metrics["perplexity"] == pytest.approx(math.exp(result.score))
    assert result.metrics["perplexity_as_validated"] == pytest.approx(math.exp(result.metrics["loss_as_validated"]))
    assert np.mean(result.example_scores) == pytest.approx(result.score)
    assert result.notes == []
    text, model = loaded(run, tmp_path / "data")
    load_weights(next((its / "checkpoint").glob("chosen-*")), model)
    again = evaluate(model, text, "valid", run.validation, make_accelerator("float32"))
    assert result.validation == pytest.approx(dict(again.metrics))
    assert result.validation["loss"] != result.metrics["loss_as_validated"]
    layers = [json.loads(line) for line in (its / "metrics.jsonl").read_text().splitlines()]
    (seen, *_) = [line["diagnostics"] for line in layers if "diagnostics" in line]
    assert {name: len(values) for name, values in seen.items()}["token_similarity"] == 2
    assert len(seen["attention_norm"]) == 2
    capsys.readouterr()
    assert run_command(dispatch, ["leaderboard", "--runs", str(tmp_path / "runs")]) == 0
    table = capsys.readouterr().out
    assert f"{result.score:.3f}" in table
    assert "segments of 5, memory 9, distances up to 7, same length, 3 streams" in " ".join(table.split())
    assert "%" not in table.split("floors:")[1].split("\n")[0]


def test_weights_are_scored_again_under_other_protocols(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result, its = measure(tiny(tmp_path), tmp_path)
    command = ["pretraining", "perplexity", str(its), "--data-folder", str(tmp_path / "data")]
    assert run_command(dispatch, [*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["scored"]
    assert found["final"]["loss"] != result.score
    assert found["as validated"]["loss"] == result.validation["loss"]
    older = its / "checkpoint" / "chosen-00000001.safetensors"  # that a kill left behind
    older.write_bytes(b"")
    assert run_command(dispatch, [*command, "--json", "--split", "test"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (told["split"], told["step"], told["finished"], told["norm"]) == ("test", 12, True, "post")
    found = told["scored"]
    older.unlink()
    assert found["final"]["loss"] == result.score
    assert found["as validated"]["perplexity"] == result.metrics["perplexity_as_validated"]
    assert sum(share for share, _ in found["final"]["clusters"]) == pytest.approx(1.0)
    assert run_command(dispatch, [*command, "--final.streams", "1", "--split", "valid"]) == 0
    assert "312 of 312 tokens scored" in capsys.readouterr().out
    assert run_command(dispatch, [*command, "--split", "test", "--save", str(tmp_path / "found.json")]) == 0
    rows = read_table(tmp_path / "found.json").rows
    assert [(row[0].split(":")[0], row[2]) for row in rows] == [
        (name, f"{found[name]['loss']:.4f}") for name in ("final", "as validated")
    ]
    for wrong, message in (
        (["--model.dim", "8"], "model.dim: fixed when the run was trained"),
        (["--data.path", str(rhymes(tmp_path / "more", 50))], "another text, or another vocabulary"),
    ):
        assert run_command(dispatch, [*command, *wrong]) in (1, 2)
        assert message in capsys.readouterr().err
    assert run_command(dispatch, ["pretraining", "perplexity", str(tmp_path)]) == 2
    assert "expected the directory of a run of wikitext103 or wikitext2" in capsys.readouterr().err


def command(tmp_path: Path, *more: str) -> list[str]:
    where = ["--runs", str(tmp_path / "runs"), "--data-folder", str(tmp_path / "data")]
    fields = "--model.vocabulary 9 --model.cutoffs 5 --model.dim 8 --model.heads 2 --model.ffn-dim 8 --train.steps 2"
    batch = "--train.batch-size 4 --segments.length 8 --optim.schedule.warmup 1 --validation.length 8 --final.length 8"
    text = ["--data.path", str(rhymes(tmp_path / "wiki"))]
    return ["pretraining", "wikitext2", *where, *text, *fields.split(), *batch.split(), *more]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("--model.vocabulary 12", "model.vocabulary 12, but the text's vocabulary has 9 words"),
        ("--model.vocabulary 12 --model.cutoffs 10 11", "--model.vocabulary 9 --model.cutoffs"),
        ("--validation.length 90", "validation, valid: a segment of 90 tokens is longer"),
        ("--segments.length 90", "a segment of 90 tokens is longer than the 79 targets of each of 4 streams"),
        ("--final.streams 400", "final, test: 304 tokens are too few for 400 streams"),
        ("--train.length-pool 2", "train.length_pool 2: expected 1"),
        ("--final.memory 0", "final.same_length: needs final.memory"),
        ("--segments.clamp 0", "segments.clamp: expected at least 1, or none"),
        ("--norm deescalated --model.norm.mean sequence", "gives a causal model access to future tokens"),
        ("--data.kind piece --data.pieces 99", "data.pieces 99: expected more than 256"),
    ],
)
def test_what_cannot_be_is_refused_before_it_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: str, message: str
) -> None:
    assert run_command(dispatch, command(tmp_path, *wrong.split())) == 2
    assert message in capsys.readouterr().err


def test_deescalation_is_causal_unless_a_leak_is_asked_for_and_then_every_table_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(dispatch, command(tmp_path, "--norm", "deescalated")) == 0
    assert "deescalated[mean=prefix]" in capsys.readouterr().out
    assert run_command(dispatch, command(tmp_path, "--norm", "deescalated", "--model.norm.leaky")) == 0
    assert "note: non-causal" in capsys.readouterr().out
    (leaky,) = (tmp_path / "runs" / "pretraining" / "wikitext2").glob("*leaky*")
    (leaky / "result.json").rename(tmp_path / "kept.json")
    assert (
        run_command(dispatch, ["pretraining", "perplexity", str(leaky), "--data-folder", str(tmp_path / "data")]) == 0
    )
    said = capsys.readouterr().out
    assert "(non-causal)" in said
    assert "the run is not finished" in said
    (tmp_path / "kept.json").rename(leaky / "result.json")
    assert run_command(dispatch, ["leaderboard", "--runs", str(tmp_path / "runs"), "--format", "markdown"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| softmax")]
    assert [("non-causal" in row, "leaky=True" in row) for row in rows] in ([(False, False), (True, True)],
                                                                          [(True, True), (False, False)])  # fmt: skip


@pytest.mark.parametrize("name", ["byte", "piece"])
def test_other_vocabularies_train_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    size = {"byte": "256", "piece": "260"}[name]
    more = ["--data.kind", name, "--model.vocabulary", size, "--model.cutoffs", "30"]
    more += ["--data.pieces", "260"] if name == "piece" else []
    assert run_command(dispatch, command(tmp_path, *more)) == 0
    assert "bits per byte" in capsys.readouterr().out


def test_the_presets_are_the_published_settings() -> None:
    run = BASE.run
    assert (run.train.steps, run.train.batch_size, run.segments.length, run.segments.memory) == (200_000, 60, 150, 150)
    assert (run.optim.lr, run.optim.clip, run.model.dropout, run.model.attention_dropout) == (2.5e-4, 0.25, 0.1, 0.0)
    assert (run.validation.streams, run.validation.length, run.validation.memory) == (10, 150, 150)
    assert (run.final.length, run.final.memory, run.final.clamp, run.final.same_length) == (64, 640, 400, True)
    deep, anchor = (PRESETS["wikitext103"][name].run for name in ("deep60", "base-50k"))
    assert (deep.model.layers, deep.model.ffn_dim, deep.model.dropout, deep.optim.clip) == (60, 820, 0.0, None)
    assert deep.train == anchor.train
    assert (deep.train.steps, deep.train.batch_size) == (50_000, 40)
    assert (anchor.model.layers, anchor.model.ffn_dim) == (16, 2_100)


def test_norms_go_without_a_name_where_they_are_the_presets(tmp_path: Path) -> None:
    assert norm_name(tiny(tmp_path).model.norm) == "post"
    assert replace(tiny(tmp_path), model=replace(QUICK.model, norm=PreNorm(final=False))).completed(
        set()
    ).model.norm == (PreNorm(final=False))

"""From pairs to a result: it learns, resumes, leaves its headlines, and says what it cannot do."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from seqarena.common.data.tokenization import word_tokenizer
from seqarena.common.errors import run_command
from seqarena.common.runs.folder import run_folder
from seqarena.common.runs.results import Result
from seqarena.common.runs.session import Session, execute
from seqarena.common.training.runtime import make_accelerator
from seqarena.scripts.seqarena import dispatch
from seqarena.summarization import trainer
from seqarena.summarization.__main__ import PACKAGE
from seqarena.summarization.data.text import encode
from seqarena.summarization.evaluator import banned_tokens, cross_entropy, generate
from seqarena.summarization.model import Summarizer
from seqarena.summarization.presets import QUICK
from seqarena.summarization.run import Run
from tests.interruption import stops_after
from tests.summarization.tiny import write_sumdata

TINY = replace(
    QUICK.run,
    data=replace(QUICK.run.data, generated=200),
    model=replace(QUICK.run.model, layers=1, dim=32, heads=2, ffn_dim=32),
    train=replace(QUICK.run.train, steps=6, batch_size=16, length_pool=2, eval_every=3),
    optim=replace(QUICK.run.optim, schedule=replace(QUICK.run.optim.schedule, warmup=2)),
    decoding=replace(QUICK.run.decoding, beam=2, max_length=8, n_best=2),
)
FIELDS = (
    "--data.generated 200 --model.layers 1 --model.dim 32 --model.heads 2 --model.ffn-dim 32 --train.steps 4 "
    "--train.batch-size 16 --train.length-pool 2 --train.eval-every 4 --optim.schedule.warmup 2 --decoding.beam 2 "
    "--decoding.max-length 8"
).split()


def measure(run: Run, folder: Path) -> tuple[Result, Path]:
    session = Session(runs=folder / "runs", data=folder / "data")
    return execute(PACKAGE, run, session), run_folder(run, "summarization", session.runs, PACKAGE.sources(run))


@pytest.mark.usefixtures("unchecked_shapes")
def test_it_learns_to_copy_and_to_leave_out(tmp_path: Path) -> None:
    """A hundred and fifty steps beat the first words and the best constant headline."""
    run = replace(
        QUICK.run,
        data=replace(QUICK.run.data, generated=800),
        model=replace(QUICK.run.model, dim=64, ffn_dim=64, layers=1),
        train=replace(QUICK.run.train, steps=150, batch_size=32, length_pool=10, eval_every=150),
        optim=replace(QUICK.run.optim, lr=4e-3),
        decoding=replace(QUICK.run.decoding, beam=2),
    )
    result, _ = measure(run, tmp_path)
    assert result.score is not None
    assert result.score > max(result.floors[rule] for rule in ("first 8 words", "best constant headline")) + 0.05
    assert result.validation["loss"] < 3.5


def test_a_finished_run_leaves_its_headlines_and_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result, folder = measure(TINY, tmp_path)
    said = capsys.readouterr().err
    assert "% of the tokens are not padding" in said
    for label in ("emit: unknown words count (reported score)", "drop:", "ban:", "greedy:", "floor: first 8 words"):
        assert label in said
    session = Session(runs=tmp_path / "runs", data=tmp_path / "data", overwrite=True)
    outputs = folder / "outputs"
    (outputs / "hypotheses.old.txt").write_text("of an earlier run")
    assert execute(PACKAGE, TINY, session).score == result.score
    assert not (outputs / "hypotheses.old.txt").exists()
    folder = outputs
    lines = {name: (folder / name).read_text().splitlines() for name in
             ("hypotheses.txt", "hypotheses.ban.txt", "hypotheses.greedy.txt", "nbest.txt")}  # fmt: skip
    assert {len(some) for name, some in lines.items() if name != "nbest.txt"} == {20}
    assert len(lines["nbest.txt"]) == 40
    assert not any("UNK" in line for line in lines["hypotheses.ban.txt"])
    rows = json.loads((folder / "rows.json").read_text())
    assert rows["emit"]["rouge1"] == result.example_scores
    report = json.loads((folder / "report.json").read_text())
    assert report["emit"]["rouge1"]["mean"] == pytest.approx(100 * result.metrics["rouge1"])
    for policy in ("drop", "ban", "greedy"):
        for name in ("rouge1", "rouge2", "rougeL"):
            assert report[policy][name]["mean"] == pytest.approx(100 * result.metrics[f"{name}_{policy}"])
    assert {"length_ratio", "novel_1", "novel_2", "unknown", "empty", "unended"} <= set(result.metrics)
    assert set(result.floors) == {"first 8 words", "best constant headline", "nearest training example"}


def test_a_test_set_that_is_cut_is_told_by_its_checksum(tmp_path: Path) -> None:
    few = replace(TINY, data=replace(TINY.data, test_limit=3))
    (_, whole), (_, cut) = (trainer.prepare(run, tmp_path) for run in (TINY, few))
    assert [pair for pair in whole.test.pairs if pair in cut.test.pairs] == cut.test.pairs
    assert (len(cut.test.pairs), len(cut.test.encoded.source_lengths)) == (3, 3)
    assert cut.checksum != whole.checksum
    assert cut.validation.pairs == whole.validation.pairs


def test_the_vocabulary_is_part_of_what_a_run_is_of(tmp_path: Path) -> None:
    """Two vocabularies that agree on the training texts, but not on the evaluated ones, are other data."""
    folder = write_sumdata(tmp_path / "pairs", (("a bus crashed", "a crash"),))
    for name in ("train/valid.article.filter.txt", "Giga/input.txt"):
        (folder / "sumdata" / name).write_text("a ferry crashed\n")
    sums = set()
    for first, second in (("ferry", "plane"), ("plane", "ferry")):
        words = word_tokenizer(["a", "bus", "crash", "crashed", first, second])
        words.save(tmp_path / first)
        data = replace(TINY.data, path=str(folder), tokenizer=str(tmp_path / first))
        run = replace(TINY, task="gigaword", data=data, model=replace(TINY.model, vocabulary=len(words)))
        sums.add(PACKAGE.assembly(run, tmp_path, make_accelerator("float32")).data_checksum)
    assert len(sums) == 2
    generated = PACKAGE.assembly(TINY, tmp_path, make_accelerator("float32"))
    assert generated.data_checksum == trainer.prepare(TINY, tmp_path)[1].checksum


def test_cross_entropy_is_a_mean_over_all_tokens_without_smoothing(tmp_path: Path) -> None:
    tokenizer, splits = trainer.prepare(TINY, tmp_path)
    torch.manual_seed(0)
    model = Summarizer(replace(TINY.model, initial_std=0.3)).eval()
    accelerator = make_accelerator("float32")
    batch = splits.validation.encoded.batch(np.arange(len(splits.validation.pairs)))
    with torch.no_grad():
        context = model.encode(batch.source, batch.source_real)
        stream = model.decode(batch.target, batch.target_real, context, batch.source_real)
        scores = model.masked(stream[batch.target_real], model.bert.embeddings.table)
    expected = torch.nn.functional.cross_entropy(scores, batch.labels[batch.target_real])
    how = replace(TINY.decoding, batch_size=3)
    found = cross_entropy(model, splits.validation, how, accelerator)
    assert found == pytest.approx(expected.item(), rel=1e-5)
    with torch.no_grad():
        model.masked.bias[tokenizer.id("[SEP]")] = 4.0
    greedy = generate(model, splits.validation, tokenizer, replace(how, beam=1, n_best=1, max_length=4), accelerator)
    lengths = [len(encode([text], tokenizer)[0]) for text in greedy.first]
    assert 0 < greedy.unended < len(lengths)
    assert greedy.unended == sum(length == 4 for length in lengths)


def test_banned_tokens_are_marks_and_numbers_without_a_token() -> None:
    tokenizer = word_tokenizer(["up"])
    assert banned_tokens(tokenizer, 8, (2, 3, 0)) == [0, 2, 4, 6, 7]
    assert [tokenizer.id(token) for token in ("[PAD]", "[CLS]", "[MASK]", "[UNK]", "[SEP]", "up")] == [0, 2, 4, 1, 3, 5]


def test_interrupted_and_started_again_it_ends_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = replace(TINY, model=replace(TINY.model, dropout=0.1, attention_dropout=0.1),
                  train=replace(TINY.train, checkpoint_seconds=0.0))  # fmt: skip
    whole, first = measure(run, tmp_path / "whole")
    real = trainer.smoothed_loss
    monkeypatch.setattr(trainer, "smoothed_loss", lambda smoothing: stops_after(4, real(smoothing)))
    with pytest.raises(KeyboardInterrupt):
        measure(run, tmp_path / "cut")
    monkeypatch.undo()
    again, second = measure(run, tmp_path / "cut")
    assert (again.score, again.example_scores) == (whole.score, whole.example_scores)
    one, other = (load_file(next((folder / "checkpoint").glob("chosen-*"))) for folder in (first, second))
    assert all(one[name].equal(other[name]) for name in one)


def test_from_the_command_line_with_files_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_sumdata(tmp_path / "giga")
    letters = "abcdefghijklmnopqrstuvwxyz"
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *"#.,-", *(f"##{letter}" for letter in letters)]
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    where = ["--runs", str(tmp_path / "runs"), "--data-folder", str(tmp_path / "data")]
    own = ["--data.path", str(folder), "--data.tokenizer", str(tmp_path / "vocab.txt")]
    variants = ["--attention", "hnas", "--norm", "deescalated", "--model.decoder-attention", "dnas"]
    at = FIELDS.index("--data.generated")
    fields = [*FIELDS[:at], *FIELDS[at + 2 :]]
    command = ["summarization", "gigaword", "--preset", "quick", *variants, *where, *own, *fields]
    assert run_command(dispatch, [*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["row"] == [
        ["attention", "hnas"], ["norm", "deescalated"], ["layers", "1"], ["decoder", "dnas"],
    ]  # fmt: skip
    assert "data.path" not in result["changed"]
    assert len(result["example_scores"]) == 4
    assert run_command(dispatch, ["leaderboard", "--runs", str(tmp_path / "runs")]) == 0
    assert "rougeL" in capsys.readouterr().out
    assert run_command(dispatch, command) == 0
    assert "this run was finished on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (["wire", "--data.path", "x"], "task wire is generated: omit --data.path and --data.hub"),
        (["gigaword", "--preset", "quick", "--data.path", "nowhere"], "no vocabulary: set --data.tokenizer"),
        (["gigaword", "--data.source-length", "90"], "data.source_length 90 is above model.max_length 80"),
        (["wire", "--decoding.max-length", "30"], "decoding.max_length 30 is above data.target_length 24"),
        (["wire", "--model.label-smoothing", "1"], "model.label_smoothing: expected 0 up to below 1, found 1.0"),
        (["wire", "--decoding.beams", "2"], "unknown field --decoding.beams; nearest: --decoding.beam"),
        (["wire", "--model.vocabulary", "100"], "model.vocabulary 100 is below the 637 tokens"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_read(
    fields: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run_command(dispatch, ["summarization", *fields, "--runs", str(tmp_path), "--data-folder", str(tmp_path)]) == 2
    )
    assert message in capsys.readouterr().err


def test_the_help_shows_fields_presets_and_how_a_decoder_attends(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["summarization", "gigaword", "--preset", "paper", "--help"]) == 0
    shown = capsys.readouterr().out
    for text in (
        "--model.cross-attention VARIANT",
        "--decoding.beam",
        "not stated in P2",
        "low-resource",
    ):
        assert text in shown

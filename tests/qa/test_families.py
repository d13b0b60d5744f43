"""Finetuning from each family of checkpoints: its pairs, its special tokens, every task, with another attention."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from seqarena.common.attention import ATTENTIONS
from seqarena.common.data.tokenization import Tokenizer, load_tokenizer, word_tokenizer
from seqarena.common.errors import WrongUseError
from seqarena.common.training.runtime import make_accelerator
from seqarena.qa.data.batch import format_of
from seqarena.qa.data.mnli import Mnli, Pair
from seqarena.qa.data.pairs import encode
from seqarena.qa.data.squad import Squad
from seqarena.qa.data.windows import windows_of
from seqarena.qa.run import Run
from seqarena.qa.trainer import assemble
from tests.common.data.byte_level import write_byte_level
from tests.common.model.families import CONFIGS, write_checkpoint
from tests.common.model.google.write import HERE as GOOGLE
from tests.qa.questions import asked
from tests.qa.test_training import RUNS, measure

TEXT = "The Normans lived in France. They gave their name to Normandy; Japanese cooks did not."


def texts_of(run: Run) -> list[str]:
    """Returns the texts that a run is trained on, on which each vocabulary is made."""
    splits, _ = run.data.load()
    if isinstance(run.data, Mnli):
        return [text for split in splits.values() for each in split for text in (each.premise, each.hypothesis)]
    return [text for split in splits.values() for text in (*split.contexts, *(each.text for each in split.questions))]


def started(task: str, family: str, folder: Path) -> Run:
    """Returns a short run that finetunes a checkpoint of a family with hnas."""
    run = RUNS[task]
    lengths = {"length": 80} if task == "mnli" else {"length": 80, "question_length": 20}
    run = replace(
        run, data=replace(run.data, **lengths, generated=100), train=replace(run.train, steps=2, eval_every=2)
    )
    model = replace(run.model, init=write_checkpoint(folder, family, texts_of(run)), attention=ATTENTIONS["hnas"])
    return replace(run, model=model).completed({"model.attention"})


@pytest.mark.parametrize(("task", "family"), [
    ("squad1", "roberta"), ("squad2", "albert"), ("squad1", "electra"), ("squad2", "distilbert"), ("mnli", "roberta"),
    ("mnli", "distilbert"),
])  # fmt: skip
def test_tasks_are_trained_from_every_family(
    task: str, family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = started(task, family, tmp_path / "checkpoint")
    run.check()
    result = measure(run, tmp_path / "out")
    assert (result.status, result.steps) == ("finished", 2)
    told = capsys.readouterr().err
    assert "pretrained with softmax" in told
    assert "not in the checkpoint: seqarena.bert.encoder.layers.*.attention" in told


@pytest.mark.parametrize("family", list(CONFIGS))
@pytest.mark.parametrize("task", ["squad2", "mnli"])
def test_hnas_begins_as_the_checkpoints_function(task: str, family: str, tmp_path: Path) -> None:
    run = started(task, family, tmp_path / "checkpoint")
    model = replace(run.model, dropout=0.0, attention_dropout=0.0)
    assert model.attention.u == 0.0  # type: ignore[attr-defined]
    losses = []
    for each in (model, replace(model, attention=ATTENTIONS["softmax"])):
        torch.manual_seed(0)
        assembly = assemble(replace(run, model=each), tmp_path, make_accelerator("float32"))
        losses.append(float(assembly.loss(assembly.model.eval(), assembly.batches[0]).detach()))
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_a_task_is_trained_from_googles_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RUNS["mnli"]
    run = replace(
        run, data=replace(run.data, length=24, generated=100), train=replace(run.train, steps=2, eval_every=2)
    )
    run = replace(run, model=replace(run.model, init=str(GOOGLE / "bert"))).completed(set())
    run.check()
    assert measure(run, tmp_path).status == "finished"
    told = capsys.readouterr().err
    assert "39 tensors loaded; not in the checkpoint: seqarena.classes." in told
    assert "not used: cls.predictions." in told
    assert (run.model.vocabulary, run.model.max_length) == (24, 24)


@pytest.fixture
def roberta(tmp_path: Path) -> Tokenizer:
    return load_tokenizer(write_byte_level(tmp_path, [TEXT]))


def test_robertas_pairs_have_two_separators(roberta: Tokenizer) -> None:
    pairs = [Pair(premise="They lived", hypothesis="in France", label=0), Pair(premise="a", hypothesis="b", label=1)]
    encoded = encode(pairs, roberta, 60)
    batch = encoded.batch(np.array([0, 1]))
    first, second = roberta.encode(["They lived", "in France"])
    whole = [0, *first, 2, 2, *second, 2]
    assert batch.tokens[0, : len(whole)].tolist() == whole
    assert batch.tokens[1].tolist()[:6] == [0, *roberta.encode(["a"])[0], 2, 2, *roberta.encode(["b"])[0], 2]
    assert (batch.tokens[1][~batch.real[1]] == 1).all()
    assert batch.real.sum(dim=1).tolist() == encoded.lengths.tolist()
    assert encode(pairs, roberta, 8).lengths.max() == 8


def test_answers_are_found_in_byte_level_windows(roberta: Tokenizer) -> None:
    """The tokens between start and end are those of the answer, without the space before it, in some window of each."""
    questions = asked([["Normandy"], ["Japanese cooks"], ["Norman"]])
    data = Squad(length=40, question_length=12, window_step=9)
    windows = windows_of(questions, data, roberta, all_windows=True)
    batch = windows.batch(np.arange(len(windows)))
    found: dict[int, str] = {}
    for row, (start, end) in enumerate(zip(batch.start.tolist(), batch.end.tolist(), strict=True)):
        assert batch.tokens[row][batch.real[row]].tolist().count(2) == 3
        if start:
            number = int(windows.question[row])
            shift = int(windows.first[row] - windows.opening[row])
            places = windows.places[questions.questions[number].context]
            text = questions.contexts[questions.questions[number].context]
            found[number] = text[places[start + shift, 0] : places[end + shift, 1]]
            assert batch.context[row, start : end + 1].all()
    assert found[0] == "Normandy"
    assert found[1] == "Japanese cooks"
    assert found[2].startswith("Norman")


def test_a_window_needs_room_for_the_special_tokens_of_its_vocabulary(roberta: Tokenizer) -> None:
    data = Squad(length=20, question_length=16)
    data.check()
    assert len(windows_of(asked([["Normandy"]]), data, word_tokenizer(["the"]), all_windows=True))
    with pytest.raises(WrongUseError, match=r"data.length: expected more than .* the 4 special tokens of .*, found 20"):
        windows_of(asked([["Normandy"]]), data, roberta, all_windows=True)


def test_the_format_is_the_tokenizers(roberta: Tokenizer) -> None:
    assert format_of(roberta).special == 4
    made = format_of(word_tokenizer(["the"]))
    assert (made.cls, made.sep, made.pad, made.separators, made.special) == (2, 3, 0, 1, 3)

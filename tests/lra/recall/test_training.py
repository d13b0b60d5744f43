"""Runs on associative recall end to end: they learn, go on after a kill with the same bits, and see no later token."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from seqarena.common.attention import ATTENTIONS
from seqarena.common.errors import WrongUseError
from seqarena.common.model.norms import NORMS
from seqarena.common.runs.results import Result
from seqarena.common.runs.session import Session, execute
from seqarena.common.training.runtime import make_accelerator
from seqarena.lra.__main__ import PACKAGE
from seqarena.lra.recall import trainer
from seqarena.lra.recall.data import Recall, batch
from seqarena.lra.recall.evaluator import evaluate
from seqarena.lra.recall.model import RecallModel
from seqarena.lra.recall.presets import PRESETS
from seqarena.lra.recall.run import RecallRun
from tests.interruption import stops_after

BASE = PRESETS["associative-recall"]["quick"].run
TINY = replace(
    BASE,
    data=Recall(lengths=(8, 16), pairs=(2, 3), train=(100, 0), validation=10, test=20, vocabulary=32),
    model=replace(BASE.model, vocabulary=32, max_length=16, dim=16, ffn_dim=16),
    optim=replace(BASE.optim, schedule=replace(BASE.optim.schedule, warmup=2)),
    train=replace(BASE.train, steps=6, batch_size=16, eval_every=3, checkpoint_seconds=0.0),
)


def measure(run: RecallRun, folder: Path) -> Result:
    return execute(PACKAGE, run, Session(runs=folder / "runs", data=folder / "data"))


def test_an_interrupted_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    whole = measure(TINY, tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "loss", stops_after(4, trainer.loss))
        with pytest.raises(KeyboardInterrupt):
            measure(TINY, tmp_path / "stopped")
    resumed = measure(TINY, tmp_path / "stopped")
    assert (resumed.score, resumed.validation) == (whole.score, whole.validation)
    assert resumed.metrics == whole.metrics
    assert resumed.example_scores == whole.example_scores


def test_a_result_has_a_score_for_each_number_of_pairs(tmp_path: Path) -> None:
    result = measure(TINY, tmp_path)
    assert set(result.floors) == {
        "any value of the sequence", "first pair not recalled", "usual pair at this position", "value in training"
    }  # fmt: skip
    assert set(result.metrics) == {"accuracy", "loss", "pairs_2", "pairs_3"}
    assert len(result.example_scores) == 40
    by_pairs = [np.mean(result.example_scores[:20]), np.mean(result.example_scores[20:])]
    assert by_pairs == [result.metrics["pairs_2"], result.metrics["pairs_3"]]
    assert result.score == pytest.approx(np.mean(by_pairs))
    assert {"lra/recall/generator.py", "lra/recall/data.py", "lra/recall/model.py"} <= set(result.sources)


def test_scores_and_losses_agree_with_a_loop_over_keys(tmp_path: Path) -> None:
    """``evaluate`` scores in batches; the loop takes one sequence and one key at a time."""
    splits, _ = TINY.data.load(tmp_path)
    torch.manual_seed(0)
    model = RecallModel(replace(TINY.model, embedding_std=1.0)).eval()
    found = evaluate(model, splits["test"], make_accelerator("float32"))
    scores, losses = [], []
    for example in range(len(splits["test"])):
        some = batch(splits["test"], np.array([example]))
        right, loss = [], []
        for place in some.is_query[0].nonzero()[:, 0].tolist():
            logits = model(some.tokens, some.real, torch.tensor([place]))[0].detach().double()
            right.append(float(logits.argmax() == some.values[0, place]))
            loss.append(float(-logits.log_softmax(dim=0)[some.values[0, place]]))
        scores.append(np.mean(right))
        losses.append(np.mean(loss))
    np.testing.assert_allclose(found.examples, scores)
    assert found.metrics["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    trained = float(trainer.loss(model, batch(splits["test"], np.array([0])).to(torch.device("cpu"))).detach())
    assert trained == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.parametrize("name", ["softmax", "dnas", "hnas", "x1-14", "x3-14", "relu", "sigmoid", "linear"])
@pytest.mark.parametrize("norm", ["pre", "deescalated"])
def test_an_answer_depends_on_no_later_token_and_no_padding(name: str, norm: str, tmp_path: Path) -> None:
    run = replace(TINY, model=replace(TINY.model, attention=ATTENTIONS[name], norm=NORMS[norm])).completed(set())
    model = RecallModel(run.model).eval()
    some = batch(TINY.data.load(tmp_path)[0]["test"], np.array([5]))  # of 8 tokens
    for position in some.is_query[0].nonzero()[:, 0].tolist():
        changed = some.tokens.clone()
        changed[:, position + 1 :] = 7
        found = model(some.tokens, some.real, torch.tensor([position]))
        torch.testing.assert_close(model(changed, some.real, torch.tensor([position])), found)
        padded = some.longer(16)
        torch.testing.assert_close(model(padded.tokens, padded.real, torch.tensor([position])), found)


@pytest.mark.usefixtures("unchecked_shapes")
def test_it_learns_to_recall(tmp_path: Path) -> None:
    run = replace(
        BASE,
        data=Recall(lengths=(12,), pairs=(3,), train=(5_000,), validation=50, test=100, vocabulary=32),
        model=replace(BASE.model, vocabulary=32, max_length=12),
        train=replace(BASE.train, steps=250, eval_every=250),
        optim=replace(BASE.optim, lr=6e-3),
    )
    result = measure(run, tmp_path)
    assert result.score > max(result.floors.values()) + 0.2


def test_positions_and_tokens_follow_the_data() -> None:
    run = replace(TINY, data=replace(TINY.data, lengths=(8, 30), vocabulary=50))
    assert (run.completed(set()).model.max_length, run.completed(set()).model.vocabulary) == (30, 50)
    typed = run.completed({"model.max_length"})
    with pytest.raises(WrongUseError, match=r"model.max_length: expected at least 30, found 16"):
        typed.check()


def test_variants_without_a_causal_form_are_refused() -> None:
    with pytest.raises(WrongUseError, match="causal"):
        replace(TINY, model=replace(TINY.model, attention=ATTENTIONS["linformer"])).check()

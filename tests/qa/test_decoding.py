"""From scores of tokens to answers: against the loops of run_squad.py, written out plainly."""

import json
import math
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seqarena.common.data.tokenization import Tokenizer, train_tokenizer
from seqarena.common.training.runtime import make_accelerator
from seqarena.qa.data.squad import Questions, Squad
from seqarena.qa.data.windows import Windows, windows_of
from seqarena.qa.decoding import QuestionAnswers, answers, best_spans
from seqarena.qa.evaluator import BEST, ODDS, PREDICTIONS, answer, score_answers
from seqarena.qa.model import Model, Reader
from tests.qa.questions import PARAGRAPH, asked


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer([PARAGRAPH, "what about it?"] * 3, "wordpiece", 120)


def cut_up(tokenizer: Tokenizer, questions: Questions, **changes: object) -> Windows:
    data = Squad(**{"version": "2.0", "length": 16, "question_length": 3, "window_step": 4, "answer_length": 3,
                    "n_best": 4, **changes})  # type: ignore[arg-type]  # fmt: skip
    return windows_of(questions, data, tokenizer, all_windows=False)


def plain(windows: Windows, start: np.ndarray, end: np.ndarray) -> dict[str, tuple[list[tuple[str, float]], float]]:
    """Google's loops: every window, its best beginnings and ends, pairs that are possible, sorted, each text once."""
    data = windows.data
    found: dict[str, list[tuple[float, int, int, int]]] = defaultdict(list)
    nulls: dict[str, float] = defaultdict(lambda: float("inf"))
    batch = windows.batch(np.arange(len(windows)))
    for window in range(len(windows)):
        name = windows.questions.questions[windows.question[window]].id
        real = int(windows.lengths[window])
        nulls[name] = min(nulls[name], start[window, 0] + end[window, 0])
        firsts = np.argsort(-start[window, :real], kind="stable")[: data.n_best]
        lasts = np.argsort(-end[window, :real], kind="stable")[: data.n_best]
        for first in firsts:
            for last in lasts:
                possible = batch.opens[window, first] and batch.context[window, last]
                if possible and first <= last < first + data.answer_length:
                    found[name].append((start[window, first] + end[window, last], window, first, last))
    result = {}
    for each in windows.questions.questions:
        texts: dict[str, float] = {}
        for value, window, first, last in sorted(found[each.id], key=lambda one: -one[0]):
            move = windows.first[window] - windows.opening[window]
            begin, stop = windows.places[0][first + move, 0], windows.places[0][last + move, 1]
            text = windows.questions.contexts[0][begin:stop]
            if len(texts) < data.n_best:
                texts.setdefault(text, value)
        best = next(iter(texts.values()), -1e9)
        result[each.id] = (list(texts.items()), nulls[each.id] - best)
    return result


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.sampled_from(["best", "all"]), st.booleans())
def test_answers_are_those_of_plain_loops(tokenizer: Tokenizer, seed: int, which: str, alike: bool) -> None:
    """``alike``: many spans have equal texts, which are one answer."""
    windows = cut_up(tokenizer, asked([["France"], [], ["name"]], version="2.0"), windows=which)
    if alike:
        texts = tuple(re.sub(r"\w", "x", text) for text in windows.questions.contexts)
        windows = replace(windows, questions=replace(windows.questions, contexts=texts))
    generator = np.random.default_rng(seed)
    shape = len(windows), int(windows.lengths.max())
    start, end = generator.standard_normal((2, *shape))
    batch = windows.batch(np.arange(len(windows)))
    masked = [torch.from_numpy(each).masked_fill(~batch.real, -torch.inf) for each in (start, end)]
    spans = best_spans(*masked, batch.opens, batch.context, n_best=4, longest=3)
    found = answers(windows, *(each.numpy() for each in (spans.score, spans.start, spans.end, spans.null)))
    for name, (best, odds) in plain(windows, start, end).items():
        assert found[name].best == tuple((text, pytest.approx(value)) for text, value in best)
        assert found[name].null_odds == pytest.approx(odds)
        assert found[name].text == (best[0][0] if best else "")


@pytest.mark.parametrize("head", ["span", "conditioned"])
def test_a_batch_of_one_window_answers_like_all_together(tokenizer: Tokenizer, head: str) -> None:
    """Padding and neighbours change no answer."""
    windows = cut_up(tokenizer, asked([["France"], []], version="2.0"))
    torch.manual_seed(0)
    model = Reader(Model(vocabulary=120, max_length=16, layers=1, dim=8, heads=2, ffn_dim=8, head=head)).eval()  # type: ignore[arg-type]
    together = model.best(*inputs(windows, np.arange(len(windows))), n_best=4, longest=3)
    for window in range(len(windows)):
        alone = model.best(*inputs(windows, np.array([window])), n_best=4, longest=3)
        some = torch.isfinite(alone.score[0])
        torch.testing.assert_close(alone.score[0][some], together.score[window][: len(some)][some])
        assert torch.equal(alone.start[0][some], together.start[window][: len(some)][some])
        assert torch.equal(alone.end[0][some], together.end[window][: len(some)][some])
        torch.testing.assert_close(alone.null[0], together.null[window])
        assert (alone.end[0][some] - alone.start[0][some] < 3).all()


def inputs(windows: Windows, examples: np.ndarray) -> list[torch.Tensor]:
    """All windows together are padded to the longest, one alone is not."""
    batch = windows.batch(examples)
    return [batch.tokens, batch.types, batch.real, batch.context, batch.opens]


def test_the_evaluator_leaves_questions_unanswered_above_the_threshold_and_saves_official_files(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    windows = cut_up(tokenizer, asked([["France"], [], ["Normandy"]], version="2.0"), null_threshold=1.0)
    answered = {
        "q0": QuestionAnswers(text="France", null_odds=-2.0, best=(("France", 3.0),)),
        "q1": QuestionAnswers(text="cooks", null_odds=2.0, best=(("cooks", 1.0),)),
        "q2": QuestionAnswers(text="Normandy", null_odds=1.5, best=(("Normandy", 1.0),)),
    }
    found = score_answers(windows, answered)
    assert found.evaluation.examples == [1.0, 1.0, 0.0]
    metrics = found.evaluation.metrics
    assert next(iter(metrics)) == "f1"
    assert metrics["f1"] == metrics["exact"] == pytest.approx(2 / 3)
    assert (metrics["answerable_f1"], metrics["unanswerable_f1"], metrics["oracle_f1"]) == (0.5, 1.0, 1.0)
    assert metrics["oracle_threshold"] == 1.5
    found.write(tmp_path)
    saved = [json.loads((tmp_path / name).read_text()) for name in (PREDICTIONS, ODDS, BEST)]
    assert saved[0] == {"q0": "France", "q1": "", "q2": ""}
    assert saved[1] == {"q0": -2.0, "q1": 2.0, "q2": 1.5}
    assert saved[2]["q1"] == [{"text": "cooks", "score": 1.0}]


def test_an_answer_of_an_article_is_an_answer(tokenizer: Tokenizer) -> None:
    """The official rules drop articles from texts, but to leave such a question unanswered is still wrong."""
    windows = cut_up(tokenizer, asked([["the"], []], version="2.0"), null_threshold=1.0)
    answered = {name: QuestionAnswers(text="", null_odds=2.0, best=()) for name in ("q0", "q1")}
    found = score_answers(windows, answered).evaluation
    assert found.examples == [0.0, 1.0]
    assert found.metrics["f1"] == 0.5


def test_a_model_answers_every_question(tokenizer: Tokenizer) -> None:
    windows = cut_up(tokenizer, asked([["France"], ["name"]]), version="1.1")
    model = Reader(Model(vocabulary=120, max_length=16, layers=1, dim=8, heads=2, ffn_dim=8))
    found = answer(model, windows, make_accelerator("float32"))
    assert set(found.answered) == {"q0", "q1"}
    assert all(each.text and each.text in PARAGRAPH for each in found.answered.values())
    assert set(found.evaluation.metrics) == {"f1", "exact"}


def test_scores_that_are_not_numbers_are_no_finished_test(tokenizer: Tokenizer) -> None:
    """Else an output of NaN is an empty answer, and the run one that scored 0."""
    for version in ("1.1", "2.0"):
        windows = cut_up(tokenizer, asked([["France"], ["name"]], version=version), version=version)
        model = Reader(Model(vocabulary=120, max_length=16, layers=1, dim=8, heads=2, ffn_dim=8))
        torch.nn.init.constant_(next(model.spans.parameters()), torch.nan)
        found = answer(model, windows, make_accelerator("float32"))
        assert all(math.isnan(value) for value in found.evaluation.metrics.values())

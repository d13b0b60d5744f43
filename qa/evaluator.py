"""Evaluates a model on questions or pairs, by the official rules."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import nn

from seqarena.common.data.batches import Indices
from seqarena.common.files import write_json
from seqarena.common.runs.metrics import accuracy
from seqarena.common.runs.package import Evaluation
from seqarena.common.training.evaluation import per_example
from seqarena.common.training.processes import Accelerator
from seqarena.qa.data.mnli import UNLABELLED
from seqarena.qa.data.pairs import EncodedPairs
from seqarena.qa.data.windows import Windows
from seqarena.qa.decoding import Floats, Places, QuestionAnswers, answers
from seqarena.qa.model import Reader
from seqarena.qa.scoring import score, summary_one, summary_two, with_threshold

BATCH_SIZE = 64
PREDICTIONS, ANSWERS, ODDS, BEST = "predictions.json", "answers.json", "null_odds.json", "nbest_predictions.json"
"""Output files of a finished run. PREDICTIONS: id -> text for the official scripts, empty if the threshold leaves the
question unanswered. For 2.0, ANSWERS: id -> best answer regardless of the threshold, and ODDS: id -> odds of no answer.
BEST: id -> best answers."""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The answers of all questions, and their scores."""

    evaluation: Evaluation
    answered: Mapping[str, QuestionAnswers]
    threshold: float | None = None
    """Questions with null odds above this are left unanswered. none: all are answered."""

    def text(self, name: str) -> str:
        """Returns the final answer to a question; empty if it is left unanswered."""
        each = self.answered[name]
        return "" if self.threshold is not None and each.null_odds > self.threshold else each.text

    def write(self, folder: Path) -> None:
        """Writes the predictions in the official format, the files for a search of thresholds, and the best answers."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / PREDICTIONS, {name: self.text(name) for name in self.answered})
        if self.threshold is not None:
            write_json(folder / ANSWERS, {name: each.text for name, each in self.answered.items()})
            write_json(folder / ODDS, {name: each.null_odds for name, each in self.answered.items()})
        best = {name: [{"text": text, "score": value} for text, value in each.best]
                for name, each in self.answered.items()}  # fmt: skip
        write_json(folder / BEST, best)


def answer(model: nn.Module, windows: Windows, accelerator: Accelerator) -> Answers:
    """Returns the model's answers to all questions, and their scores as fractions.

    f1 and exact are computed as in the official script. For 2.0, questions are left unanswered above
    ``data.null_threshold``, and there are also scores of answerable and unanswerable questions and of the best
    threshold on these same questions (oracle).
    """
    return score_answers(windows, predict_answers(model, windows, accelerator))


def predict_answers(model: nn.Module, windows: Windows, accelerator: Accelerator) -> dict[str, QuestionAnswers]:
    """Returns the model's answers to all questions. Windows are distributed over the processes."""
    assert isinstance(model, Reader)
    data = windows.data

    def read(examples: Indices) -> Iterable[tuple[Floats, Places, Places, Floats]]:
        batch = windows.batch(examples).to(accelerator.device)
        with accelerator.autocast():
            spans = model.best(
                batch.tokens, batch.types, batch.real, batch.context, batch.opens,
                n_best=data.n_best, longest=data.answer_length,
            )  # fmt: skip
        columns = (spans.score.float(), spans.start.int(), spans.end.int(), spans.null.float())
        return zip(*(each.cpu().numpy() for each in columns), strict=True)

    found = per_example(model, windows.lengths, BATCH_SIZE, read, accelerator)
    widest = max(len(scores) for scores, *_ in found)
    score_of, start, end = (
        np.stack([np.pad(each[column], (0, widest - len(each[column])), constant_values=fill) for each in found])
        for column, fill in ((0, -np.inf), (1, 0), (2, 0))
    )
    null = np.array([each[3] for each in found])
    return answers(windows, score_of, start, end, null, null_is_log_odds=model.outputs_log_odds)


def score_answers(windows: Windows, answered: Mapping[str, QuestionAnswers]) -> Answers:
    """Computes the scores of answers. All are NaN if a score of the model is, so that the run ends as diverged."""
    questions, data = windows.questions, windows.data
    if any(math.isnan(each.null_odds) for each in answered.values()):
        return Answers(
            evaluation=Evaluation(metrics={"f1": math.nan, "exact": math.nan}, examples=[]), answered=answered
        )
    texts = {name: each.text for name, each in answered.items()}
    raw = score(questions, texts, unanswerable=data.unanswerable)
    if not data.unanswerable:
        found = summary_one(questions, raw)
        metrics = {"f1": found["f1"] / 100, "exact": found["exact"] / 100}
        examples = [raw.f1[each.id] for each in questions.questions]
        return Answers(evaluation=Evaluation(metrics=metrics, examples=examples), answered=answered)
    odds = {name: each.null_odds for name, each in answered.items()}
    found = summary_two(questions, raw, texts, odds, data.null_threshold)
    names = {
        "f1": "f1", "exact": "exact", "HasAns_f1": "answerable_f1", "HasAns_exact": "answerable_exact",
        "NoAns_f1": "unanswerable_f1", "best_f1": "oracle_f1", "best_exact": "oracle_exact",
    }  # fmt: skip
    metrics = {mine: found[theirs] / 100 for theirs, mine in names.items() if theirs in found}
    final = with_threshold(questions, raw.f1, odds, data.null_threshold)
    examples = [final[each.id] for each in questions.questions]
    return Answers(
        evaluation=Evaluation(metrics=metrics | {"oracle_threshold": found["best_f1_thresh"]}, examples=examples),
        answered=answered,
        threshold=data.null_threshold,
    )


def classify(model: nn.Module, encoded: EncodedPairs, accelerator: Accelerator) -> tuple[list[int], list[float]]:
    """Returns the most probable label of each pair, and the cross-entropy of its true label (0 if unlabelled)."""

    def guesses(examples: Indices) -> Iterable[tuple[int, float]]:
        batch = encoded.batch(examples).to(accelerator.device)
        with accelerator.autocast():
            scores = model(batch.tokens, batch.types, batch.real).float()
        losses = nn.functional.cross_entropy(scores, batch.label, reduction="none", ignore_index=UNLABELLED)
        return zip(scores.argmax(dim=-1).tolist(), losses.tolist(), strict=True)

    found = per_example(model, encoded.lengths, BATCH_SIZE, guesses, accelerator)
    return [guess for guess, _ in found], [loss for _, loss in found]


def inference(
    model: nn.Module, main: EncodedPairs, others: Mapping[str, EncodedPairs], accelerator: Accelerator
) -> Evaluation:
    """Returns accuracy and cross-entropy on ``main``, and the accuracy on each other set as accuracy_NAME."""
    guesses, losses = classify(model, main, accelerator)
    right = accuracy(guesses, main.labels)
    metrics = {"accuracy": float(np.mean(right)), "loss": sum(losses) / len(losses)}
    for name, each in others.items():
        metrics[f"accuracy_{name}"] = float(np.mean(accuracy(classify(model, each, accelerator)[0], each.labels)))
    return Evaluation(metrics=metrics, examples=right.tolist())

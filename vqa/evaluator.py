"""Evaluates a model on a split: each answer is scored against those of ten annotators."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from seqarena.common.data.batches import Indices
from seqarena.common.files import write_json
from seqarena.common.runs.package import Evaluation
from seqarena.common.training.evaluation import per_example
from seqarena.common.training.processes import Accelerator
from seqarena.vqa.data import Split
from seqarena.vqa.data.batches import unread_batch
from seqarena.vqa.data.published import UNKNOWN, write_submission
from seqarena.vqa.masses import Masses, compute_key_masses
from seqarena.vqa.official import mean_per_cent

BATCH_SIZE = 256
CORRECT = 0.5
"""Answers with an accuracy above this count as right in the consistency of pairs."""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """A model's answers to the questions of a split."""

    split: Split
    guesses: Indices
    """Index of each question's answer in the answer list."""
    evaluation: Evaluation
    masses: Masses | None
    """Key masses. None if the fusion has no attention weights."""

    def write(self, folder: Path, answers: Sequence[str]) -> None:
        """Writes ``answers.json`` (VQA's submission format), ``accuracy.json`` (per category) and ``key_masses.json``.

        Accuracies are in per cent with two digits, as on the server.
        """
        folder.mkdir(parents=True, exist_ok=True)
        scores = np.array(self.evaluation.examples)
        parts = {
            f"per_{kind}": {
                name: mean_per_cent(scores[part.of == number].tolist())
                for number, name in enumerate(part.names)
                if (part.of == number).any()
            }
            for kind, part in self.split.parts.items()
        }
        write_json(folder / "accuracy.json", {"overall": mean_per_cent(self.evaluation.examples), **parts})
        said = {int(id): answers[guess] for id, guess in zip(self.split.ids, self.guesses, strict=True)}
        write_submission(folder / "answers.json", said, self.split.ids.tolist())
        if self.masses is not None:
            self.masses.write(folder)


def guess(
    model: nn.Module, split: Split, answers: Sequence[str], accelerator: Accelerator
) -> tuple[Indices, list[float]]:
    """Returns the most probable answer and the loss of each question. Batches are distributed over the processes.

    The answer ``UNKNOWN`` is never predicted.
    """
    unknown = answers.index(UNKNOWN) if UNKNOWN in answers else None

    def answers_to(questions: Indices) -> Iterable[tuple[int, float]]:
        batch = unread_batch(split, questions, len(answers)).to(accelerator.device)
        with accelerator.autocast():
            logits = model(batch.words, batch.picture, batch.features, batch.centres, batch.real).float()
        losses = nn.functional.binary_cross_entropy_with_logits(logits, batch.targets, reduction="none").sum(dim=1)
        if unknown is not None:
            logits[:, unknown] = -torch.inf
        return zip(logits.argmax(dim=1).tolist(), losses.tolist(), strict=True)

    equal_lengths = np.zeros(len(split), dtype=np.int64)  # cost does not depend on length: keep the order of the data
    found = per_example(model, equal_lengths, BATCH_SIZE, answers_to, accelerator)
    return np.array([guessed for guessed, _ in found]), [loss for _, loss in found]


def evaluate(model: nn.Module, split: Split, answers: Sequence[str], accelerator: Accelerator) -> Answers:
    """Returns a model's answers with accuracy, loss, accuracies of categories and groups, and key masses.

    Consistency is the fraction of complementary pairs of which both answers have an accuracy above a half.
    """
    guesses, losses = guess(model, split, answers, accelerator)
    scores = split.score(guesses)
    metrics = {"accuracy": float(scores.mean()), "loss": float(np.mean(losses))}
    first = next(iter(split.parts.values()))
    inside = {name: first.of == number for number, name in enumerate(first.names)}
    metrics |= {name: float(scores[some].mean()) for name, some in {**inside, **split.groups}.items() if some.any()}
    if len(split.pairs):
        metrics["consistency"] = float((scores[split.pairs].min(axis=1) > CORRECT).mean())
    masses = compute_key_masses(model, split, accelerator)
    metrics |= {} if masses is None else masses.metrics()
    evaluation = Evaluation(metrics=metrics, examples=scores.tolist())
    return Answers(split=split, guesses=guesses, evaluation=evaluation, masses=masses)

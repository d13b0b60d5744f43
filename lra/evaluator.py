"""Evaluates a model on a split. Every example is scored exactly once, whatever the batch size."""

from collections.abc import Iterable

from torch import nn

from seqarena.common.data.batches import Indices, Ragged
from seqarena.common.runs.metrics import accuracy
from seqarena.common.runs.package import Evaluation
from seqarena.common.training.evaluation import per_example
from seqarena.common.training.processes import Accelerator
from seqarena.lra.data import sequences

BATCH_SIZE = 128


def evaluate(model: nn.Module, split: Ragged, accelerator: Accelerator) -> Evaluation:
    """Returns accuracy and cross-entropy over a split. Batches are distributed over the processes."""

    def classify(examples: Indices) -> Iterable[tuple[int, float]]:
        batch = sequences(split, examples).to(accelerator.device)
        with accelerator.autocast():
            logits = model(batch.tokens, batch.real).float()
        losses = nn.functional.cross_entropy(logits, batch.labels, reduction="none")
        return zip(logits.argmax(dim=-1).tolist(), losses.tolist(), strict=True)

    found = per_example(model, split.lengths, BATCH_SIZE, classify, accelerator)
    correct = accuracy([guess for guess, _ in found], split.labels)
    loss = sum(each for _, each in found) / len(split)
    return Evaluation(metrics={"accuracy": float(correct.mean()), "loss": loss}, examples=correct.tolist())

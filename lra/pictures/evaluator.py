"""Evaluates a model on a split of pictures. Every picture is scored once, from its central part."""

from collections.abc import Iterable

import numpy as np
from torch import nn

from seqarena.common.data.batches import Indices
from seqarena.common.runs.metrics import accuracy
from seqarena.common.runs.package import Evaluation
from seqarena.common.training.evaluation import per_example
from seqarena.common.training.processes import Accelerator
from seqarena.lra.pictures.data.batches import centred
from seqarena.lra.pictures.data.store import PictureSplit

BATCH_SIZE = 128


def evaluate(model: nn.Module, split: PictureSplit, side: int, accelerator: Accelerator) -> Evaluation:
    """Returns accuracy and cross-entropy over a split. Batches are distributed over the processes."""

    def classify(examples: Indices) -> Iterable[tuple[int, float]]:
        batch = centred(split, examples, side=side, tokens=0).to(accelerator.device)
        with accelerator.autocast():
            logits = model(batch.pictures.float() / 255).float()
        losses = nn.functional.cross_entropy(logits, batch.labels, reduction="none")
        return zip(logits.argmax(dim=-1).tolist(), losses.tolist(), strict=True)

    found = per_example(model, np.ones(len(split), np.int64), BATCH_SIZE, classify, accelerator)
    correct = accuracy([guess for guess, _ in found], split.labels)
    loss = sum(each for _, each in found) / len(split)
    return Evaluation(metrics={"accuracy": float(correct.mean()), "loss": loss}, examples=correct.tolist())

"""Evaluates a model on a split. The score of a sequence is the fraction of its keys whose value is predicted."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import nn

from seqarena.common.data.batches import Indices, Ragged
from seqarena.common.runs.package import Evaluation
from seqarena.common.training.evaluation import per_example
from seqarena.common.training.processes import Accelerator
from seqarena.lra.recall.data import batch

BATCH_SIZE = 64


def evaluate(model: nn.Module, split: Ragged, accelerator: Accelerator) -> Evaluation:
    """Returns accuracy and cross-entropy over a split, and the accuracy of each number of pairs."""

    def recall(examples: Indices) -> Iterable[tuple[float, float]]:
        some = batch(split, examples).to(accelerator.device)
        with accelerator.autocast():
            scores = model(some.tokens, some.real, some.query_indices).float()
        wanted = some.values.flatten()[some.query_indices]
        losses = nn.functional.cross_entropy(scores, wanted, reduction="none")
        right = torch.stack([(scores.argmax(dim=-1) == wanted).double(), losses.double()], dim=1).cpu()
        counts = split.labels[examples].tolist()  # a sequence has as many keys to recall as pairs
        return [(float(part[:, 0].mean()), float(part[:, 1].mean())) for part in torch.split(right, counts)]

    found = np.array(per_example(model, split.lengths, BATCH_SIZE, recall, accelerator))
    accuracy, losses = found[:, 0], found[:, 1]
    pairs = np.unique(split.labels).tolist()
    by_pairs = {pairs_name(count): float(accuracy[split.labels == count].mean()) for count in pairs}
    return Evaluation(
        metrics={"accuracy": float(accuracy.mean()), "loss": float(losses.mean()), **by_pairs},
        examples=accuracy.tolist(),
    )


def pairs_name(count: int) -> str:
    """Returns the name of the metric of sequences with this number of pairs."""
    return f"pairs_{count}"

"""From a model and a split to scores: each answer against what ten people said."""

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn

from common.package import Evaluation
from vqa.data import SHARE, Data, Split, asked

BATCH_SIZE = 256


@torch.no_grad()
def evaluate(model: nn.Module, split: Split, data: Data, accelerator: Accelerator) -> Evaluation:
    """Returns accuracy and loss over a split, and the accuracy of each kind and group of questions."""
    model.eval()
    mine: list[tuple[int, int, float]] = []
    count = len(split)
    step = BATCH_SIZE * accelerator.num_processes
    for start in range(accelerator.process_index * BATCH_SIZE, count, step):
        questions = np.arange(start, min(start + BATCH_SIZE, count))
        batch = asked(split, questions, len(data.answers)).to(accelerator.device)
        with accelerator.autocast():
            logits = model(batch.words, batch.picture, batch.features, batch.centres, batch.real).float()
        losses = nn.functional.binary_cross_entropy_with_logits(logits, batch.targets, reduction="none").sum(dim=1)
        mine += zip(questions.tolist(), logits.argmax(dim=1).tolist(), losses.tolist(), strict=True)
    everyone = sorted(gather_object(mine))
    guesses = np.array([guess for _, guess, _ in everyone])
    agreeing = (split.answers == guesses[:, None]).sum(axis=1)
    scores = np.minimum(SHARE * agreeing, 1.0)
    metrics = {"accuracy": float(scores.mean()), "loss": float(np.mean([loss for _, _, loss in everyone]))}
    parts = {name: split.kinds == number for number, name in enumerate(data.kinds)} | dict(split.groups)
    metrics |= {name: float(scores[part].mean()) for name, part in parts.items() if part.any()}
    return Evaluation(metrics=metrics, examples=scores.tolist())

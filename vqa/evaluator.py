"""From a model and a split to scores: each answer against what ten people said."""

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn

from common.package import Evaluation
from vqa.data import SHARE, Data, Split, asked
from vqa.model import Answerer

BATCH_SIZE = 256
LOOKED_AT = 256
"""Pictures whose key masses are told."""


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
    return Evaluation(metrics=metrics | _masses(model, split, data, accelerator), examples=scores.tolist())


def _masses(model: nn.Module, split: Split, data: Data, accelerator: Accelerator) -> dict[str, float]:
    """Returns how much attention keys get on the first pictures (P2, Figure 1); nothing where there is no attention.

    The least, the first percentile, the median, and the share of keys that get less than a tenth.
    """
    bare = accelerator.unwrap_model(model)
    if not isinstance(bare, Answerer) or bare.config.fusion.kind != "attention":
        return {}
    questions = np.flatnonzero(split.pictures < LOOKED_AT)
    batch = asked(split, questions, len(data.answers)).to(accelerator.device)
    masses = bare.fused.key_masses(bare.described(batch.features, batch.centres), batch.real)
    low, middle = torch.quantile(masses, masses.new_tensor([0.01, 0.5])).tolist()
    return {
        "key_mass_least": float(masses.min()),
        "key_mass_1_percent": low,
        "key_mass_median": middle,
        "keys_below_a_tenth": float((masses < 0.1).double().mean()),
    }

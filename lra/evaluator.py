"""From a model and a split to scores: every example once, whatever the batch."""

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn

from common.data.batches import Ragged
from common.runs.metrics import accuracy
from common.runs.package import Evaluation
from common.training.log import shared_in_order
from lra.data import sequences

BATCH_SIZE = 128


@torch.no_grad()
def evaluate(model: nn.Module, split: Ragged, accelerator: Accelerator, drop_tail_of: int | None = None) -> Evaluation:
    """Returns accuracy and cross-entropy over a split; the processes share the batches out.

    ``drop_tail_of`` (a legacy option) leaves out what does not fill a batch of that size.
    """
    model.eval()
    count = len(split) - (len(split) % drop_tail_of if drop_tail_of else 0)
    mine: list[tuple[int, int, float]] = []
    for examples in shared_in_order(split.lengths[:count], BATCH_SIZE, accelerator):
        batch = sequences(split, examples).to(accelerator.device)
        with accelerator.autocast():
            logits = model(batch.tokens, batch.real).float()
        losses = nn.functional.cross_entropy(logits, batch.labels, reduction="none")
        mine += zip(examples.tolist(), logits.argmax(dim=-1).tolist(), losses.tolist(), strict=True)
    everyone = sorted(gather_object(mine))
    correct = accuracy([guess for _, guess, _ in everyone], split.labels[:count])
    loss = sum(each for _, _, each in everyone) / count
    return Evaluation(metrics={"accuracy": float(correct.mean()), "loss": loss}, examples=correct.tolist())

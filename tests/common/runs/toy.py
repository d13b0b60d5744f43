"""A regression small enough to train in a blink, with everything that ``fit`` asks of a task."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from seqarena.common.attention.hybrid import Hybrid
from seqarena.common.attention.module import MultiHeadAttention
from seqarena.common.attention.visibility import Visibility
from seqarena.common.data.batches import Batch
from seqarena.common.shapes import Hidden
from seqarena.common.training.log import Log
from seqarena.common.training.loop import Progress, Train, fit
from seqarena.common.training.optim import Optim
from seqarena.common.training.runtime import make_accelerator, seed_torch


@dataclass(frozen=True, kw_only=True)
class ToyBatch(Batch):
    inputs: Hidden
    targets: Hidden

    def token_count(self) -> int:
        return self.inputs.shape[0] * self.inputs.shape[1]


class ToyBatches:
    """The batch of a step, from the step alone."""

    def __init__(self, poison: int | None = None) -> None:
        self.poison = poison

    def __getitem__(self, step: int) -> ToyBatch:
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(6, 4, 8, generator=generator)
        targets = inputs.flip(1)
        return ToyBatch(inputs=inputs, targets=targets * float("nan") if step == self.poison else targets)


class ToyModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(Hybrid(), dim=8, heads=2, dropout=0.2, projection_bias=True)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.attention(inputs, Visibility())


def toy_loss(model: nn.Module, batch: ToyBatch) -> Tensor:
    return nn.functional.mse_loss(model(batch.inputs), batch.targets)


def toy_evaluate(model: nn.Module) -> Mapping[str, float]:
    return {"loss": toy_loss(model, ToyBatches()[10_000]).item()}


OPTIM = Optim(lr=1e-2, clip=1.0)
TRAIN = Train(steps=12, batch_size=6, eval_every=5, log_every=3, checkpoint_seconds=0.0)


def toy_fit(
    out: Path, *, train: Train = TRAIN, optim: Optim = OPTIM, batches: ToyBatches | None = None, dropout: bool = True
) -> tuple[ToyModel, Progress]:
    """Trains the toy in a folder, going on from what is there."""
    seed_torch(0, 0)
    model = ToyModel()
    if not dropout:
        model.attention.kernel.dropout = 0.0
    out.mkdir(parents=True, exist_ok=True)
    accelerator = make_accelerator("float32")
    with Log(accelerator, out, title="toy", steps=train.steps) as log:
        progress = fit(
            model,
            toy_loss,
            batches or ToyBatches(),
            optim,
            train,
            evaluate=toy_evaluate,
            metric="loss",
            higher_is_better=False,
            seed=0,
            out=out,
            accelerator=accelerator,
            log=log,
        )
    return model, progress

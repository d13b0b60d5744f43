"""Brings data, model and loss of a run together."""

from pathlib import Path

from accelerate import Accelerator
from torch import Tensor, nn

from common.package import Assembly
from vqa.data import Asked, Grouped, TrainingBatches
from vqa.evaluator import evaluate
from vqa.model import Answerer
from vqa.run import Run


def loss(model: nn.Module, batch: Asked) -> Tensor:
    """Returns the binary cross-entropy with the people's agreement, summed over answers, the mean over questions."""
    logits = model(batch.words, batch.picture, batch.features, batch.centres, batch.real)
    return nn.functional.binary_cross_entropy_with_logits(logits, batch.targets, reduction="sum") / len(batch)


def assemble(run: Run, folder: Path, accelerator: Accelerator) -> Assembly:
    """Returns the run's model, loss, batches and evaluations; prepared data are below ``folder``."""
    splits, checksum = run.data.load(folder)
    order = Grouped(pictures=splits["train"].pictures, batch_size=run.train.batch_size, seed=run.seed)
    return Assembly(
        model=Answerer(run.model, run.data),
        loss=loss,
        batches=TrainingBatches(split=splits["train"], order=order, answers=len(run.data.answers)),
        validate=lambda model: evaluate(model, splits["validation"], run.data, accelerator),
        test=lambda model: evaluate(model, splits["test"], run.data, accelerator),
        floors=lambda: run.data.floors(splits),
        data_checksum=checksum,
    )

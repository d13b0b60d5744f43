"""Assembles data, model and loss of a run on pictures."""

from functools import partial
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from seqarena.common.data.batches import ShuffledIndices
from seqarena.common.runs.package import Assembly
from seqarena.common.training.processes import Accelerator
from seqarena.lra.pictures.augmentation import Augmentation, augmented
from seqarena.lra.pictures.data import PictureBatch
from seqarena.lra.pictures.data.batches import TrainingPictures
from seqarena.lra.pictures.evaluator import evaluate
from seqarena.lra.pictures.floors import floors
from seqarena.lra.pictures.run import PictureRun


def loss(augmentation: Augmentation, classes: int, model: nn.Module, batch: PictureBatch) -> Tensor:
    """Returns the mean cross-entropy of a batch of changed pictures."""
    pixels, targets = augmented(augmentation, batch, classes)
    return nn.functional.cross_entropy(model(pixels), targets)


def assemble(run: PictureRun, folder: Path, accelerator: Accelerator) -> Assembly:
    """Returns the run's model, loss, batches and evaluations. Prepared pictures are stored below ``folder``.

    Raises:
        BadDataError: the data are damaged.
    """
    splits, checksum = run.data.load(folder)
    side, tokens = run.data.side, run.model.longest
    order = ShuffledIndices(
        lengths=np.full(len(splits["train"]), tokens), batch_size=run.train.batch_size, seed=run.seed
    )
    return Assembly(
        model=run.model.build(),
        loss=partial(loss, run.augmentation, run.data.classes),
        batches=TrainingPictures(
            split=splits["train"],
            order=order,
            side=side,
            tokens=tokens,
            seed=run.seed,
            crop="resized" if run.augmentation.crop == "resized" else "centre",
        ),
        validate=lambda model: evaluate(model, splits["validation"], side, accelerator),
        test=lambda model: evaluate(model, splits["test"], side, accelerator),
        floors=lambda: floors(splits, side),
        data_checksum=checksum,
    )

"""Assembles data, model and loss of a run."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from seqarena.common.data.batches import ShuffledIndices
from seqarena.common.data.prepared import Splits
from seqarena.common.errors import WrongUseError
from seqarena.common.runs.package import Assembly
from seqarena.common.training.processes import Accelerator
from seqarena.lra.data import Sequences, TrainingBatches
from seqarena.lra.evaluator import evaluate
from seqarena.lra.model import Classifier
from seqarena.lra.run import Run


def loss(model: nn.Module, batch: Sequences) -> Tensor:
    """Returns the mean cross-entropy of a batch."""
    return nn.functional.cross_entropy(model(batch.tokens, batch.real), batch.labels)


def assemble(run: Run, folder: Path, accelerator: Accelerator) -> Assembly:
    """Returns the run's model, loss, batches and evaluations. Prepared data are stored below ``folder``.

    Raises:
        BadDataError: the data are damaged.
        WrongUseError: the model does not fit the data, or an evaluation set is smaller than one batch.
    """
    splits, checksum = run.data.load_tested(folder)
    if run.legacy.zero_is_padding:
        splits = {name: replace(split, zero_is_padding=True) for name, split in splits.items()}
    longest = max(int(split.lengths.max()) for split in splits.values())
    run.model.check_task(run.data, longest=longest)
    if run.legacy.drop_tail:
        splits |= _whole_batches(splits, run.train.batch_size)
    order = ShuffledIndices(
        lengths=splits["train"].lengths,
        batch_size=run.train.batch_size,
        seed=run.seed,
        pool=run.train.length_pool,
    )
    return Assembly(
        model=Classifier(run.model, run.data.sequences, run.model.max_length if run.legacy.padded_pooling else None),
        loss=loss,
        batches=TrainingBatches(split=splits["train"], order=order),
        validate=lambda model: evaluate(model, splits["validation"], accelerator),
        test=lambda model: evaluate(model, splits["test"], accelerator),
        floors=lambda: run.data.floors(splits),
        data_checksum=checksum,
    )


def _whole_batches(splits: Splits, size: int) -> Splits:
    """Returns the evaluated splits without the last examples that do not fill a batch.

    Raises:
        WrongUseError: a split, also the training set, has fewer examples than a batch.
    """
    if size > min(len(split) for split in splits.values()):
        raise WrongUseError(
            f"legacy.drop_tail: expected at least train.batch_size {size} examples in every split, found a smaller one"
        )
    evaluated = {name: split for name, split in splits.items() if name != "train"}
    return {name: split.some(np.arange(len(split) - len(split) % size)) for name, split in evaluated.items()}

"""Assembles data, model and loss of a run on associative recall."""

from pathlib import Path

from torch import Tensor, nn

from seqarena.common.data.batches import ShuffledIndices
from seqarena.common.runs.package import Assembly
from seqarena.common.training.processes import Accelerator
from seqarena.lra.recall.data import RecallBatch, RecallBatches
from seqarena.lra.recall.evaluator import evaluate
from seqarena.lra.recall.floors import floors
from seqarena.lra.recall.model import RecallModel
from seqarena.lra.recall.run import RecallRun


def loss(model: nn.Module, batch: RecallBatch) -> Tensor:
    """Returns the mean cross-entropy over the keys to recall."""
    assert batch.query_indices is not None  # set by ``to``
    scores = model(batch.tokens, batch.real, batch.query_indices)
    return nn.functional.cross_entropy(scores, batch.values.flatten()[batch.query_indices])


def assemble(run: RecallRun, folder: Path, accelerator: Accelerator) -> Assembly:
    """Returns the run's model, loss, batches and evaluations. Prepared sequences are stored below ``folder``."""
    splits, checksum = run.data.load(folder)
    order = ShuffledIndices(
        lengths=splits["train"].lengths,
        batch_size=run.train.batch_size,
        seed=run.seed,
        pool=run.train.length_pool,
    )
    return Assembly(
        model=RecallModel(run.model),
        loss=loss,
        batches=RecallBatches(split=splits["train"], order=order),
        validate=lambda model: evaluate(model, splits["validation"], accelerator),
        test=lambda model: evaluate(model, splits["test"], accelerator),
        floors=lambda: floors(splits, run.data.vocabulary),
        data_checksum=checksum,
    )

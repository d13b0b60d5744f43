"""Brings data, model and loss of a run together."""

from dataclasses import replace

from accelerate import Accelerator
from torch import Tensor, nn

from common.data import Shuffled
from common.errors import BadDataError, WrongUseError
from common.run import BaseRun
from common.session import Prepared, Session
from lra.data import Sequences, TrainingBatches
from lra.evaluator import evaluate
from lra.model import Classifier
from lra.presets import PRESETS
from lra.run import Run
from lra.tasks import TASKS


def loss(model: nn.Module, batch: Sequences) -> Tensor:
    """Returns the mean cross-entropy of a batch."""
    return nn.functional.cross_entropy(model(batch.tokens_padded, batch.real), batch.labels)


def prepare(run: BaseRun, session: Session, accelerator: Accelerator) -> Prepared:
    """Returns the run's model, loss, batches and evaluations.

    Raises:
        BadDataError: data that are damaged, or not those that the preset's checksum names.
    """
    if not isinstance(run, Run):
        raise TypeError(f"expected a run of lra, found {type(run).__name__}")
    with accelerator.main_process_first():
        splits, checksum = run.data.load(session.data)
    _check_data(run, checksum, session)
    if run.legacy.zero_is_padding:
        splits = {name: replace(split, zero_is_padding=True) for name, split in splits.items()}
    longest = max(int(split.lengths.max()) for split in splits.values())
    run.model.check_task(run.data, longest=longest)
    tail = run.train.batch_size if run.legacy.drop_tail else None
    if tail is not None and tail > min(len(split) for split in splits.values()):
        raise WrongUseError(
            f"legacy.drop_tail would leave nothing: a split has fewer than train.batch_size {tail} examples"
        )

    order = Shuffled(
        lengths=splits["train"].lengths,
        batch_size=run.train.batch_size,
        seed=run.seed,
        pool=run.train.length_pool,
    )
    return Prepared(
        model=Classifier(run.model, run.data.sequences, run.model.max_length if run.legacy.padded_pooling else None),
        loss=loss,
        batches=TrainingBatches(split=splits["train"], order=order),
        validate=lambda model: evaluate(model, splits["validation"], accelerator, tail),
        test=lambda model: evaluate(model, splits["test"], accelerator, tail),
        floors=lambda: run.data.floors(splits),
        data_checksum=checksum,
    )


def _check_data(run: Run, checksum: str, session: Session) -> None:
    """Refuses generated data that are not those a task's record names; readers check what they read."""
    meant = PRESETS[run.task][run.preset].run.data
    expected = TASKS[run.task].checksums.get(run.preset)
    if run.data.generated and run.data == meant and expected not in (None, checksum):
        raise BadDataError(
            f"{run.task}: the data's sha256 is {checksum}, but preset {run.preset} means {expected}; delete "
            f"its folder below {session.data}/lra and run again"
        )

"""Assembles data, model and loss of a run."""

import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from seqarena.common.errors import WrongUseError
from seqarena.common.runs.package import Assembly, Evaluation
from seqarena.common.training.precision import precision_name
from seqarena.common.training.processes import Accelerator
from seqarena.vqa.data.batches import PictureOrder, QuestionBatch, TrainingBatches
from seqarena.vqa.data.vqa2 import Vqa2
from seqarena.vqa.evaluator import evaluate
from seqarena.vqa.floors import floors
from seqarena.vqa.model import Answerer
from seqarena.vqa.run import Run


def loss(model: nn.Module, batch: QuestionBatch) -> Tensor:
    """Returns the binary cross-entropy with the annotators' agreement, summed over answers, averaged over questions."""
    logits = model(batch.words, batch.picture, batch.features, batch.centres, batch.real)
    return nn.functional.binary_cross_entropy_with_logits(logits, batch.targets, reduction="sum") / len(batch)


def assemble(run: Run, folder: Path, accelerator: Accelerator) -> Assembly:
    """Returns the run's model, loss, batches and evaluations. Generated files are stored below ``folder``.

    Raises:
        BadDataError: files are missing, damaged, or do not match.
        WrongUseError: word vectors or detector layers have another width than the model's, or this machine has no
            recurrent layers in the run's precision.
    """
    require_recurrent_layers(accelerator)
    loaded = run.data.load(folder)
    train, answers = loaded.splits["train"], loaded.answers
    order = PictureOrder(pictures=train.pictures, batch_size=run.train.batch_size, seed=run.seed)
    best = loaded.splits["test"].scores.max(axis=1).mean()
    if isinstance(run.data, Vqa2) and accelerator.is_main_process:
        print(
            f"{run.task}: {len(answers):,} answers; always the best of them scores {100 * best:.2f} on test",
            file=sys.stderr,
        )

    def test(model: nn.Module) -> Evaluation:
        tested = evaluate(model, loaded.splits["test"], answers, accelerator)
        return replace(tested.evaluation, write_outputs=lambda folder: tested.write(folder, answers))

    return Assembly(
        model=Answerer(run.model, loaded),
        loss=loss,
        batches=TrainingBatches(split=train, order=order, answers=len(answers)),
        validate=lambda model: evaluate(model, loaded.splits["validation"], answers, accelerator).evaluation,
        test=test,
        floors=lambda: floors(loaded),
        data_checksum=loaded.checksum,
    )


def require_recurrent_layers(accelerator: Accelerator) -> None:
    """Raises a ``WrongUseError`` if this machine has no recurrent layers in the run's precision.

    PyTorch computes none in bfloat16 on a processor with AVX2 alone.
    """
    with torch.random.fork_rng(devices=[]):
        layer = nn.LSTM(1, 1).to(accelerator.device)
    try:
        with accelerator.autocast(), torch.no_grad():
            layer(torch.zeros(1, 1, 1, device=accelerator.device))
    except RuntimeError as error:
        raise WrongUseError(
            f"train.precision {precision_name(accelerator)}: PyTorch has no recurrent layers in this precision on "
            "this machine, and vqa encodes questions by one; use float32"
        ) from error

"""Assembles data, model and loss of a finetuning run."""

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn
from torch.nn import functional as F

from seqarena.common.data.batches import ShuffledIndices
from seqarena.common.data.tokenization import Tokenizer, save_in_run
from seqarena.common.model.bert.checkpoint import family_for
from seqarena.common.model.bert.start import start, tokenizer_of, unrecorded_text
from seqarena.common.runs.package import VOCABULARY, Assembly, Evaluation
from seqarena.common.training.processes import Accelerator
from seqarena.qa.data import entailment, world
from seqarena.qa.data.mnli import LABELS, Mnli
from seqarena.qa.data.pairs import EncodedPairs, PairBatch, PairBatches, encode
from seqarena.qa.data.squad import Squad
from seqarena.qa.data.windows import SpanBatch, SpanBatches, windows_of
from seqarena.qa.evaluator import answer, inference
from seqarena.qa.finetuned import FINETUNED, save_finetuned
from seqarena.qa.floors import pair_floors, squad_floors
from seqarena.qa.model import PairClassifier, Reader
from seqarena.qa.run import Run

ANSWERABLE = 0.5
"""Weight of the conditioned head's loss of predicting whether there is an answer."""


def span_loss(model: nn.Module, batch: SpanBatch) -> Tensor:
    """Returns the mean over windows of the average cross-entropy of start and end.

    The conditioned head adds half the cross-entropy of whether there is an answer.
    """
    start, end, odds = model(batch.tokens, batch.types, batch.real, batch.context, batch.start)
    loss = (F.cross_entropy(start, batch.start) + F.cross_entropy(end, batch.end)) / 2
    if odds is None:
        return loss
    return loss + ANSWERABLE * F.binary_cross_entropy_with_logits(odds, (batch.end == 0).float())


def pair_loss(model: nn.Module, batch: PairBatch) -> Tensor:
    """Returns the mean cross-entropy of a batch."""
    return F.cross_entropy(model(batch.tokens, batch.types, batch.real).float(), batch.label)


def assemble(run: Run, _folder: Path, accelerator: Accelerator) -> Assembly:
    """Returns the run's model, loss, batches and evaluations. No prepared data are stored: text is read each time.

    Raises:
        BadDataError: data or a checkpoint are missing or damaged.
        WrongUseError: the vocabulary is too large for the model, or is not that of its checkpoint.
    """
    words = world.words if isinstance(run.data, Squad) else entailment.words
    tokenizer, warning = tokenizer_of(run.data.tokenizer, run.model.init, run.model, words)
    unrecorded = unrecorded_text(run.model, str(run.model.init))
    if accelerator.is_main_process:
        print("".join(f"{run.task}: {each}\n" for each in (warning, unrecorded) if each), end="", file=sys.stderr)
    assert isinstance(run.data, Squad | Mnli)
    made = _squad(run, run.data, tokenizer, accelerator) if isinstance(run.data, Squad) else _mnli(
        run, run.data, tokenizer, accelerator
    )  # fmt: skip
    if run.model.init is not None:
        report = start(made.model, run.model)
        if accelerator.is_main_process:
            print(f"{run.task}: {report}", file=sys.stderr)
    return made


def _order(run: Run, lengths: object) -> ShuffledIndices:
    return ShuffledIndices(
        lengths=lengths,  # type: ignore[arg-type]
        batch_size=run.train.batch_size,
        seed=run.seed,
        pool=run.train.length_pool,
    )


def _squad(run: Run, data: Squad, tokenizer: Tokenizer, accelerator: Accelerator) -> Assembly:
    splits, checksum = data.load()
    train = windows_of(splits["train"], data, tokenizer, all_windows=True)
    held_out = {name: windows_of(splits[name], data, tokenizer, all_windows=False) for name in ("validation", "test")}

    def test(model: nn.Module) -> Evaluation:
        answers = answer(model, held_out["test"], accelerator)
        return replace(answers.evaluation, write_outputs=answers.write)

    return Assembly(
        model=Reader(run.model, answerable=data.unanswerable),
        loss=span_loss,
        batches=SpanBatches(windows=train, order=_order(run, train.lengths)),
        validate=lambda model: answer(model, held_out["validation"], accelerator).evaluation,
        test=test,
        floors=lambda: squad_floors(
            splits["train"], splits["test"], unanswerable=data.unanswerable, generated=data.is_generated
        ),
        data_checksum=_with_vocabulary(checksum, run, tokenizer),
        text_checksum=checksum,
        write_checkpoint=lambda model, folder: _write_checkpoint(model, run, tokenizer, folder),
    )


def _mnli(run: Run, data: Mnli, tokenizer: Tokenizer, accelerator: Accelerator) -> Assembly:
    splits, checksum = data.load()
    encoded: Mapping[str, EncodedPairs] = {
        name: encode(split, tokenizer, data.length) for name, split in splits.items()
    }
    others = {name: encoded[name] for name in ("mismatched", "extra") if name in encoded}
    return Assembly(
        model=PairClassifier(run.model, len(LABELS)),
        loss=pair_loss,
        batches=PairBatches(encoded=encoded["train"], order=_order(run, encoded["train"].lengths)),
        validate=lambda model: inference(model, encoded["validation"], {}, accelerator),
        test=lambda model: inference(model, encoded["matched"], others, accelerator),
        floors=lambda: pair_floors(splits["train"], splits["matched"]),
        data_checksum=_with_vocabulary(checksum, run, tokenizer),
        text_checksum=checksum,
        write_checkpoint=lambda model, folder: _write_checkpoint(model, run, tokenizer, folder),
    )


def _write_checkpoint(model: nn.Module, run: Run, tokenizer: Tokenizer, folder: Path) -> None:
    """Writes the vocabulary, for predictions, and the model for other programs, into the run's directory."""
    assert isinstance(model, Reader | PairClassifier)
    save_in_run(tokenizer, folder / VOCABULARY)
    save_finetuned(folder / FINETUNED, model, family_for(run.model, run.model.init), tokenizer)


def _with_vocabulary(checksum: str, run: Run, tokenizer: Tokenizer) -> str:
    """Returns the checksum of the model's input: of the texts and of the tokenizer's vocabulary.

    The vocabulary of generated text is determined by the sources, so it is not included.
    """
    if run.data.tokenizer is None and run.model.init is None:
        return checksum
    return hashlib.sha256(f"{checksum} {tokenizer.fingerprint}".encode()).hexdigest()

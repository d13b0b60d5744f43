"""Assembles the pairs, model and loss of a headline run."""

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from seqarena.common.data.tokenization import Tokenizer, save_in_run
from seqarena.common.errors import WrongUseError
from seqarena.common.model.bert.checkpoint import copy_tensors, folder_of, read_weights
from seqarena.common.model.bert.start import tokenizer_of, unrecorded_text
from seqarena.common.runs.package import VOCABULARY, Assembly, Evaluation
from seqarena.common.training.processes import Accelerator
from seqarena.common.training.step import Loss
from seqarena.summarization.data import Splits, wire
from seqarena.summarization.data.batches import HeadlineBatch, HeadlineBatches, TokenBudgetOrder, padding_statistics
from seqarena.summarization.evaluator import test, validate
from seqarena.summarization.floors import floors
from seqarena.summarization.model import Summarizer
from seqarena.summarization.run import Run

BATCHES_MEASURED = 200
"""Number of batches that the reported padding statistics are computed on."""


def smoothed_loss(smoothing: float) -> Loss:
    """Returns the loss: the mean smoothed cross-entropy over all target tokens of a batch."""

    def loss(model: nn.Module, batch: HeadlineBatch) -> Tensor:
        mean: Tensor = model(
            batch.source, batch.source_real, batch.target, batch.target_real, batch.labels, batch.picked, smoothing
        )
        return mean

    return loss


def assemble(run: Run, folder: Path, accelerator: Accelerator) -> Assembly:
    """Returns the run's model, loss, batches and evaluations; training tokens are stored in ``folder``.

    Raises:
        BadDataError: data or a checkpoint is missing or damaged.
        WrongUseError: a vocabulary larger than the model's, or a batch size that the processes cannot share evenly.
    """
    checkpoint = run.model.encoder_init or run.model.decoder_init
    if run.train.batch_size % accelerator.num_processes:
        raise WrongUseError(
            f"train.batch_size {run.train.batch_size} cannot be shared out evenly to "
            f"{accelerator.num_processes} processes"
        )
    tokenizer, splits = prepare(run, folder, verbose=accelerator.is_main_process)
    notes = []
    train = splits.train
    order = TokenBudgetOrder(
        lengths=train.source_lengths, targets=train.target_lengths, batch_size=run.train.batch_size, seed=run.seed,
        pool=run.train.length_pool, processes=accelerator.num_processes,
    )  # fmt: skip
    share, mean, most = padding_statistics(order, min(run.train.steps, BATCHES_MEASURED))
    notes.append(
        f"batches of {run.train.batch_size} pairs and {mean:,} tokens on average, at most {most:,}; "
        f"{100 * share:.1f} % of the tokens are not padding"
    )
    model = Summarizer(run.model)
    if checkpoint is not None:
        notes += _start(model, checkpoint)
    if accelerator.is_main_process:
        print("".join(f"{run.task}: {note}\n" for note in notes), end="", file=sys.stderr)
    found: dict[str, dict[str, float]] = {}

    def rules() -> Mapping[str, Mapping[str, float]]:
        if not found:
            found.update(floors(splits, tokenizer))
        return found

    def tests(trained: nn.Module) -> Evaluation:
        headlines = test(trained, splits.test, tokenizer, run.decoding, accelerator)
        if accelerator.is_main_process:
            print(headlines.report(rules()), file=sys.stderr)
        return headlines.evaluation()

    return Assembly(
        model=model,
        loss=smoothed_loss(run.model.label_smoothing),
        batches=HeadlineBatches(encoded=train, order=order),
        validate=lambda trained: validate(trained, splits.validation, tokenizer, run.decoding, accelerator),
        test=tests,
        floors=lambda: {name: values["rouge1"] for name, values in rules().items()},
        data_checksum=_with_vocabulary(splits.checksum, run, tokenizer),
        write_checkpoint=lambda _model, folder: save_in_run(tokenizer, folder / VOCABULARY),
    )


def prepare(run: Run, folder: Path, *, verbose: bool = True) -> tuple[Tokenizer, Splits]:
    """Returns a run's tokenizer and pairs; ``verbose``: whether to print irregularities.

    Raises:
        BadDataError: data or a checkpoint is missing or damaged.
        WrongUseError: a vocabulary larger than the model's, or other than its checkpoint's.
    """
    checkpoint = run.model.encoder_init or run.model.decoder_init
    tokenizer, warning = tokenizer_of(run.data.tokenizer, checkpoint, run.model, wire.words)
    unrecorded = unrecorded_text(run.model, str(checkpoint))
    if verbose:
        print("".join(f"{run.task}: {each}\n" for each in (warning, unrecorded) if each), end="", file=sys.stderr)
    return tokenizer, run.data.load(tokenizer, folder, verbose=verbose)


def _with_vocabulary(checksum: str, run: Run, tokenizer: Tokenizer) -> str:
    """Returns a checksum of the pairs that also covers the tokenizer's vocabulary, as evaluated texts are tokenized.

    The vocabulary of generated text is determined by the sources, so it is not included.
    """
    if run.data.tokenizer is None and (run.model.encoder_init or run.model.decoder_init) is None:
        return checksum
    return hashlib.sha256(f"{checksum} {tokenizer.fingerprint}".encode()).hexdigest()


def _start(model: Summarizer, source: str) -> list[str]:
    """Loads a checkpoint into encoder and decoder; returns notes on the tensors used and not used."""
    weights = read_weights(folder_of(source))
    config, notes = model.config, []
    embeddings = {"word": model.bert.embeddings.word, **dict(model.target.named_children())}
    decoder = nn.ModuleDict({"embeddings": nn.ModuleDict(embeddings), "encoder": model.decoder})  # type: ignore[arg-type]
    parts = {
        "encoder": (config.encoder_init, {"bert": model.bert}),
        "decoder": (config.decoder_init, {"bert": decoder, "masked": model.masked}),
    }
    for name, (init, part) in parts.items():
        if init is not None:
            notes.append(f"{name} from {source}: {copy_tensors(nn.ModuleDict(part), weights, source)}")  # type: ignore[arg-type]
    return notes

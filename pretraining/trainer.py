"""Assembles the text, model and loss of a masked-language run."""

import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from seqarena.common.attention import attention_name
from seqarena.common.data.batches import ShuffledIndices
from seqarena.common.data.tokenization import Tokenizer
from seqarena.common.model.bert.checkpoint import RUN_CHECKPOINT, Pretraining, family_for, save
from seqarena.common.model.bert.model import BertForPretraining
from seqarena.common.model.bert.start import start, tokenizer_of, unrecorded_text
from seqarena.common.runs.config import to_json
from seqarena.common.runs.package import Assembly, Evaluation
from seqarena.common.runs.run import settings
from seqarena.common.runs.sources import digest as hash_of
from seqarena.common.runs.sources import sources_of
from seqarena.common.training.precision import precision_name
from seqarena.common.training.processes import Accelerator
from seqarena.pretraining.cost import estimate
from seqarena.pretraining.data import MaskedText, sequences, split
from seqarena.pretraining.data.batches import Builder, MaskedBatch, Phase, TrainingBatches
from seqarena.pretraining.data.sequences import Sequences
from seqarena.pretraining.data.shards import Corpus, say
from seqarena.pretraining.evaluator import evaluate_all_lengths, floors, frequencies
from seqarena.pretraining.masking import NONE, Masker
from seqarena.pretraining.model import has_order, losses, predictions
from seqarena.pretraining.run import Run
from seqarena.pretraining.tasks import MLM


def loss(model: nn.Module, batch: MaskedBatch) -> Tensor:
    """Returns the mean loss over targets, plus the mean over rows of the order loss where sequences are pairs."""
    scores, order = predictions(model, batch)
    masked, ordered = losses(scores, order, batch)
    return (masked.sum() + ordered.sum() * batch.targets_each[0]) / (batch.targets != NONE).sum()


def assemble(run: Run, folder: Path, accelerator: Accelerator) -> Assembly:
    """Returns the run's model, loss, batches and evaluations; prepared text is read from and written to ``folder``.

    Raises:
        BadDataError: text that is missing, damaged or too short; or such a checkpoint.
        WrongUseError: a vocabulary larger than the model's, or other than its checkpoint's.
    """
    if accelerator.is_main_process:
        say(f"mlm, preset {run.preset}: {estimate(run, accelerator.num_processes)}")
    tokenizer = None if run.model.init is None else _checkpoint_tokenizer(run, accelerator)
    corpus, checksum = run.data.load(folder, run.model.vocabulary, tokenizer)
    parts, counts = split(corpus, run.data), frequencies(corpus)
    masks = functools.partial(Masker, run.data.masking, corpus.tokenizer, counts)
    held_out = {
        name: {
            length: Builder(corpus, _held_out(corpus, run.data, parts[name], length), masks(run.data.seed))
            for length in run.data.lengths
        }
        for name in ("validation", "test")
    }
    unigram = (counts + 1) / (counts + 1).sum()

    def evaluate_on(name: str) -> Callable[[nn.Module], Evaluation]:
        return lambda model: evaluate_all_lengths(model, held_out[name], unigram, accelerator)

    family = family_for(run.model, run.model.init).model_type
    model = BertForPretraining(run.model, sentences=has_order(run.data), family=family)
    if run.model.init is not None:
        report = start(model, run.model)
        if accelerator.is_main_process:
            say(f"mlm: {report}")
    return Assembly(
        model=model,
        loss=loss,
        batches=TrainingBatches(phases=tuple(_phases(run, corpus, parts["train"], masks(run.seed)))),
        validate=evaluate_on("validation"),
        test=evaluate_on("test"),
        floors=lambda: floors(corpus, held_out["test"][run.data.length], counts),
        data_checksum=checksum,
        write_checkpoint=lambda model, folder: _write_checkpoint(
            model, corpus, pretraining_record(run, checksum, precision_name(accelerator)), folder / RUN_CHECKPOINT
        ),
    )


def _checkpoint_tokenizer(run: Run, accelerator: Accelerator) -> Tokenizer:
    """Returns the tokenizer of a run from a checkpoint: the checkpoint's, or a named one that does not contradict it.

    Prints what is to be known of the vocabulary and of the checkpoint's pretraining.
    """
    tokenizer, warning = tokenizer_of(run.data.tokenizer, run.model.init, run.model, list)
    for each in (warning, unrecorded_text(run.model, str(run.model.init))):
        if each is not None and accelerator.is_main_process:
            say(f"mlm: {each}")
    return tokenizer


def pretraining_record(run: Run, text: str, precision: str) -> Pretraining:
    """Returns the pretraining record stored in a checkpoint; runs of one protocol differ only in the seed.

    The hash covers what makes a result's protocol: settings, task version, checksum of the text, precision. Fields that
    were added later count if they differ from their defaults, so that earlier checkpoints keep their protocol. The
    pretraining of the checkpoint that the run starts from is recorded beside it, with its seed if it is known.
    """
    model, own_sources = run.model, hash_of(sources_of(assemble, run))
    own = settings(type(run), to_json(run, later=False))
    own.pop("model.pretraining", None)
    protocol = json.dumps(["pretraining", own, MLM.version, text, precision], sort_keys=True)
    hashed = hashlib.sha256(protocol.encode()).hexdigest()[:8]
    return Pretraining(
        settings=f"{run.task}, preset {run.preset}, {run.train.steps:,} steps, protocol {hashed}",
        text=text,
        seed=run.seed if model.pretraining_seed is None else model.pretraining_seed,
        sources=" ".join(filter(None, [model.pretraining_sources, own_sources])),
        before=model.pretraining,
        attentions=f"{model.pretrained_with}, then {attention_name(model.attention)}" if run.row_parts else "",
    )


def _write_checkpoint(model: nn.Module, corpus: Corpus, record: Pretraining, folder: Path) -> None:
    """Writes the model with its vocabulary as a public checkpoint (``seqarena.common.model.bert.checkpoint``)."""
    assert isinstance(model, BertForPretraining)
    save(folder, model, record)
    corpus.tokenizer.save(folder)


def _held_out(corpus: Corpus, data: MaskedText, chosen: list[np.ndarray], length: int) -> Sequences:
    return sequences(corpus, data, chosen, length).some(data.evaluated, data.seed)


def _phases(run: Run, corpus: Corpus, chosen: list[np.ndarray], masker: Masker) -> list[Phase]:
    """Returns the phases of training, one per sequence length."""
    data: MaskedText = run.data
    firsts = [0] if data.last_length is None else [0, round(run.train.steps * (1 - data.last_share))]
    phases = []
    for first, length in zip(firsts, data.lengths, strict=True):
        builder = Builder(
            corpus, sequences(corpus, data, chosen, length), masker, pad_to=length if run.train.compile else None
        )
        order = ShuffledIndices(
            lengths=builder.lengths, batch_size=run.train.batch_size, seed=run.seed, pool=run.train.length_pool
        )
        phases.append(Phase(first=first, order=order, builder=builder))
    return phases

"""Scores of a masked-language model, on masks that are the same for every run, and the floors of trivial rules."""

import math
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from seqarena.common.data.batches import Indices, in_order
from seqarena.common.runs.package import Evaluation
from seqarena.common.training.evaluation import per_example
from seqarena.common.training.processes import Accelerator
from seqarena.pretraining.data.batches import Builder, MaskedBatch
from seqarena.pretraining.data.shards import Corpus
from seqarena.pretraining.masking import NONE
from seqarena.pretraining.model import losses, predictions

BATCH_SIZE = 64
EVALUATION = -1
"""Epoch whose masks evaluation uses. Training steps never use it."""
NEIGHBOURS = 5_000_000
"""Maximum number of tokens that the neighbour rule is fitted on."""


def masked_batch(builder: Builder, examples: Indices) -> MaskedBatch:
    """Returns the batch of these sequences under the masks of evaluation."""
    return builder.batch(examples, np.full(len(examples), EVALUATION))


def evaluate(
    model: nn.Module, builder: Builder, unigram: npt.NDArray[np.float64], accelerator: Accelerator
) -> Evaluation:
    """Returns the metrics over all sequences; the batches are distributed over the processes.

    accuracy: fraction of a sequence's hidden tokens predicted correctly, averaged over sequences. loss: cross-entropy
    of a hidden token, in nats. perplexity: exp(loss). unigram_loss: cross-entropy of token frequencies alone
    (``unigram``, V). order_accuracy: accuracy of the order of two segments, where sequences are pairs.
    """

    def rows(examples: Indices) -> Iterable[tuple[float, ...]]:
        batch = masked_batch(builder, examples)
        here = batch.to(accelerator.device)
        with accelerator.autocast():
            scores, order = predictions(model, here)
        masked, _ = losses(scores, order, here)
        real = batch.targets != NONE
        right = ((scores.argmax(dim=-1).cpu() == batch.targets) & real).sum(dim=1) / real.sum(dim=1)
        plain = -np.log(unigram)[batch.targets.clamp(min=0).numpy()] * real.numpy()
        paired = batch.order != NONE
        ordered = torch.zeros_like(batch.order) if order is None else order.argmax(dim=-1).cpu() == batch.order
        columns = (right, masked.sum(dim=1), plain.sum(axis=1), real.sum(dim=1), ordered & paired, paired)
        return zip(*(column.tolist() for column in columns), strict=True)

    found = per_example(model, builder.lengths, BATCH_SIZE, rows, accelerator)
    right, masked, plain, targets, ordered, paired = np.array(found).T
    loss = masked.sum() / targets.sum()
    metrics = {
        "accuracy": float(right.mean()),
        "loss": float(loss),
        "perplexity": math.exp(min(float(loss), 700.0)),
        "unigram_loss": float(plain.sum() / targets.sum()),
    }
    if paired.any():
        metrics["order_accuracy"] = float(ordered.sum() / paired.sum())
    return Evaluation(metrics=metrics, examples=right.tolist())


def evaluate_all_lengths(
    model: nn.Module, builders: Mapping[int, Builder], unigram: npt.NDArray[np.float64], accelerator: Accelerator
) -> Evaluation:
    """Returns the metrics at each length. From the second length on, metric names end with the length."""
    first, *others = ((length, evaluate(model, each, unigram, accelerator)) for length, each in builders.items())
    metrics = dict(first[1].metrics)
    for length, found in others:
        metrics |= {f"{name}_{length}": value for name, value in found.metrics.items()}
    return Evaluation(metrics=metrics, examples=first[1].examples)


def frequencies(corpus: Corpus) -> npt.NDArray[np.int64]:
    """Returns the number of occurrences of each token in the corpus; V."""
    size = len(corpus.tokenizer)
    counts: npt.NDArray[np.int64] = sum(
        (np.bincount(shard.tokens, minlength=size) for shard in corpus.shards), np.zeros(size, dtype=np.int64)
    )
    return counts


def floors(corpus: Corpus, builder: Builder, counts: npt.NDArray[np.int64]) -> Mapping[str, float]:
    """Returns the scores of two trivial rules: the most frequent token, and the most frequent token after the left one.

    Both are fitted on the whole corpus. Held-out documents are included, which can only raise these floors.
    """
    size, most = len(counts), int(counts.argmax())
    text = np.zeros(0, dtype=np.int64)
    for shard in corpus.shards:  # reads no more shards than needed
        text = np.concatenate([text, shard.tokens[: NEIGHBOURS - len(text)]])
    pairs, times = np.unique(text[:-1].astype(np.int64) * size + text[1:], return_counts=True)
    after = np.full(size, most)
    by_count = np.argsort(times, kind="stable")
    after[pairs[by_count] // size] = pairs[by_count] % size  # the last one written is the most frequent
    scores: dict[str, list[float]] = {"most frequent token": [], "most frequent after its neighbour": []}
    for examples in in_order(builder.lengths, BATCH_SIZE):
        batch = masked_batch(builder, examples)
        real = (batch.targets != NONE).numpy()
        left = batch.tokens.gather(1, (batch.places - 1).clamp(min=0)).numpy()
        for name, guess in zip(scores, (np.full_like(left, most), after[left]), strict=True):
            right = ((guess == batch.targets.numpy()) & real).sum(axis=1) / real.sum(axis=1)
            scores[name] += right.tolist()
    return {name: float(np.mean(values)) for name, values in scores.items()}

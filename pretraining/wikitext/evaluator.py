"""Loss of a language model in nats per word, and the floors of unigram and bigram frequencies."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from seqarena.common.data.batches import TokenArray
from seqarena.common.runs.package import Evaluation
from seqarena.common.training.evaluation import main_progress
from seqarena.common.training.processes import Accelerator, gather_object
from seqarena.pretraining.transformer_xl import TransformerXL
from seqarena.pretraining.wikitext.data import EncodedText
from seqarena.pretraining.wikitext.run import Scoring
from seqarena.pretraining.wikitext.streams import Streams

BLOCK = 500
"""Tokens per example in paired tests, because neighbouring losses are not independent. A block may cross the end of a
stream."""
Losses = npt.NDArray[np.float64]


def streams_of(text: EncodedText, split: str, scoring: Scoring) -> Streams:
    """Returns the streams in which a split is scored.

    Raises:
        WrongUseError: a segment longer than a stream, or more streams than tokens.
    """
    ids: TokenArray = text.ids[split]
    if scoring.streams == 1:
        ids = np.concatenate([np.array([text.end], dtype=ids.dtype), ids])
    return Streams(ids=ids, count=scoring.streams, length=scoring.length)


@torch.no_grad()
def token_losses(model: nn.Module, streams: Streams, scoring: Scoring, accelerator: Accelerator) -> Losses:
    """Returns the loss of every scored token in nats, stream by stream; streams are distributed over processes.

    Keys and values of the memory are projected once only.
    """
    assert isinstance(model, TransformerXL)
    model.eval()
    own = slice(accelerator.process_index, None, accelerator.num_processes)
    rows = range(streams.count)[own]
    kept: list[torch.Tensor] = []
    if rows:
        with accelerator.autocast():
            longest = min(scoring.memory + scoring.length, streams.each)
            memory = model.projected_memory(len(rows), longest, scoring.clamp)
            for step in main_progress(range(streams.segments), streams.segments, accelerator):
                batch = streams[step].to(accelerator.device)
                tokens, targets = batch.tokens[own], batch.targets[own]
                hidden, memory = model.read(
                    tokens, memory, memory_length=scoring.memory, clamp=scoring.clamp, window=scoring.window
                )
                found = model.softmax.losses(hidden.flatten(0, 1), model.word.weight, targets.flatten())
                kept.append(found.view(targets.shape))
    mine = torch.cat(kept, dim=1).double().cpu().numpy() if kept else np.zeros((0, 0))
    gathered = gather_object([(row, losses) for row, losses in zip(rows, mine, strict=True)])
    return np.stack([losses for _, losses in sorted(gathered, key=lambda each: each[0])])


def evaluate(model: nn.Module, text: EncodedText, split: str, scoring: Scoring, accelerator: Accelerator) -> Evaluation:
    """Returns the metrics of a split."""
    losses = token_losses(model, streams_of(text, split, scoring), scoring, accelerator)
    return metrics_of(losses.flatten(), text, split)


def metrics_of(losses: Losses, text: EncodedText, split: str) -> Evaluation:
    """Returns the metrics of a split from the losses of its scored tokens, in text order.

    loss: nats per word (mean per token times tokens per word, each line's end counted as a word), the same unit for
    all kinds of tokens. perplexity: exp(loss). bits_per_byte: bits per byte of the text. loss_per_token: nats per
    token, the unit of the training loss, if tokens are not words. One example is a block of ``BLOCK`` tokens, weighted
    so that the mean over examples is the loss.
    """
    tokens = len(text.ids[split])
    per_word = tokens / text.words[split]
    loss = float(losses.mean()) * per_word
    blocks = np.array_split(losses, max(len(losses) // BLOCK, 1))
    examples = [float(block.sum()) * len(blocks) / len(losses) * per_word for block in blocks]
    metrics = {
        "loss": loss,
        "perplexity": perplexity(loss),
        "bits_per_byte": float(losses.mean()) * tokens / text.bytes[split] / math.log(2),
    }
    if tokens != text.words[split]:
        metrics["loss_per_token"] = float(losses.mean())
    return Evaluation(metrics=metrics, examples=examples)


def loss_by_cluster(losses: Losses, targets: TokenArray, cutoffs: Sequence[int]) -> list[tuple[float, float | None]]:
    """Returns (fraction of tokens, mean loss) below the first cutoff and of each further cluster; None if empty."""
    clusters = np.searchsorted(cutoffs, targets, side="right")
    count = np.bincount(clusters, minlength=len(cutoffs) + 1)
    total = np.bincount(clusters, weights=losses, minlength=len(cutoffs) + 1)
    return [(each / len(losses), nats / each if each else None) for each, nats in zip(count, total, strict=True)]


def perplexity(loss: float) -> float:
    """Returns exp(loss), capped so that it stays finite."""
    return math.exp(min(loss, 700.0))


def floors(text: EncodedText) -> Mapping[str, float]:
    """Returns the loss on the test set of a uniform distribution, and of the training text's unigrams and bigrams.

    unigram: one is added to every count. bigram: interpolated Kneser-Ney.
    """
    per_word = len(text.ids["test"]) / text.words["test"]
    train, test = (text.ids[name].astype(np.int64) for name in ("train", "test"))
    before = np.concatenate([[text.end], test[:-1]])
    counts = np.bincount(train, minlength=text.vocabulary)
    unigram = (counts + 1) / (counts + 1).sum()
    found = {
        "uniform": np.full(len(test), 1 / text.vocabulary),
        "unigram": unigram[test],
        "bigram": kneser_ney(train, text.vocabulary, before, test),
    }
    return {name: float(-np.log(each).mean()) * per_word for name, each in found.items()}


def kneser_ney(
    train: npt.NDArray[np.int64], size: int, before: npt.NDArray[np.int64], after: npt.NDArray[np.int64]
) -> Losses:
    """Returns p(after | before) by interpolated Kneser-Ney over pairs of tokens.

    max(c(v, w) - D, 0) / c(v) + D n(v) / c(v) p(w), where n(v) is the number of different tokens after v, p(w) is
    proportional to 1 + the number of different tokens before w, and D = n1 / (n1 + 2 n2) from the numbers of pairs
    that occur once and twice (D = 0.5 if no pair occurs once).
    """
    pairs, times = np.unique(train[:-1] * size + train[1:], return_counts=True)
    once, twice = (int((times == number).sum()) for number in (1, 2))
    discount = once / (once + 2 * twice) if once else 0.5
    contexts = np.bincount(pairs // size, weights=times, minlength=size)
    followers = np.bincount(pairs // size, minlength=size)
    continued = np.bincount(pairs % size, minlength=size) + 1
    lower = (continued / continued.sum())[after]
    asked = before * size + after
    places = np.searchsorted(pairs, asked).clip(max=len(pairs) - 1)
    seen = np.where(pairs[places] == asked, times[places], 0)
    total = contexts[before]
    with np.errstate(divide="ignore", invalid="ignore"):
        known = (np.maximum(seen - discount, 0) + discount * followers[before] * lower) / total
    found: Losses = np.where(total > 0, known, lower)
    return found

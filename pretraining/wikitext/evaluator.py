"""From a model and a text to nats per word; what the frequencies of words and of pairs of them reach there."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn

from seqarena.common.data.batches import TokenArray
from seqarena.common.runs.package import Evaluation
from seqarena.common.training.evaluation import main_progress
from seqarena.pretraining.transformer_xl import TransformerXL
from seqarena.pretraining.wikitext.data import EncodedText
from seqarena.pretraining.wikitext.run import Scoring
from seqarena.pretraining.wikitext.streams import Streams

BLOCK = 500
"""Tokens that count as one example, for paired tests: neighbours are not independent. They follow each other, but where
a stream ends."""
Losses = npt.NDArray[np.float64]


def streams_of(text: EncodedText, split: str, scoring: Scoring) -> Streams:
    """Returns what is scored of a split.

    Raises:
        WrongUseError: a segment longer than a stream, or more streams than tokens.
    """
    ids: TokenArray = text.ids[split]
    if scoring.streams == 1:
        ids = np.concatenate([np.array([text.end], dtype=ids.dtype), ids])
    return Streams(ids=ids, count=scoring.streams, length=scoring.length)


@torch.no_grad()
def token_losses(model: nn.Module, streams: Streams, scoring: Scoring, accelerator: Accelerator) -> Losses:
    """Returns the nats of every scored token, stream by stream in the order of the text; processes share streams out.

    Keys and values of the memory are made once.
    """
    assert isinstance(model, TransformerXL)
    model.eval()
    rows = range(accelerator.process_index, streams.count, accelerator.num_processes)
    kept: list[torch.Tensor] = []
    if rows:
        with accelerator.autocast():
            longest = min(scoring.memory + scoring.length, streams.each)
            memory = model.projected(len(rows), longest, scoring.clamp)
            for step in main_progress(range(streams.segments), streams.segments, accelerator):
                batch = streams[step].to(accelerator.device)
                tokens, targets = batch.tokens[list(rows)], batch.targets[list(rows)]
                hidden, memory = model.read(
                    tokens, memory, kept=scoring.memory, clamp=scoring.clamp, window=scoring.window
                )
                found = model.softmax.losses(hidden.flatten(0, 1), model.word.weight, targets.flatten())
                kept.append(found.view(targets.shape))
    mine = torch.cat(kept, dim=1).double().cpu().numpy() if kept else np.zeros((0, 0))
    gathered = gather_object([(row, losses) for row, losses in zip(rows, mine, strict=True)])
    return np.stack([losses for _, losses in sorted(gathered, key=lambda each: each[0])])


def evaluate(model: nn.Module, text: EncodedText, split: str, scoring: Scoring, accelerator: Accelerator) -> Evaluation:
    """Returns what ``summed_up`` says of a split."""
    losses = token_losses(model, streams_of(text, split, scoring), scoring, accelerator)
    return summed_up(losses.flatten(), text, split)


def summed_up(losses: Losses, text: EncodedText, split: str) -> Evaluation:
    """Returns the metrics of a split, given the nats of its scored tokens in their order.

    loss: nats per word of the text, the end of each line counted, whatever the tokens are: those of a token times
    tokens per word; perplexity: its exponential; bits_per_byte: the same, shared out to bytes. An example is a block of
    ``BLOCK`` tokens, weighted so that the mean of all is the loss.
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
    return Evaluation(metrics=metrics, examples=examples)


def in_clusters(losses: Losses, targets: TokenArray, cutoffs: Sequence[int]) -> list[tuple[float, float]]:
    """Returns of the tokens below the first cutoff, and of each cluster behind it, their share and mean loss."""
    clusters = np.searchsorted(cutoffs, targets, side="right")
    count = np.bincount(clusters, minlength=len(cutoffs) + 1)
    total = np.bincount(clusters, weights=losses, minlength=len(cutoffs) + 1)
    return [(each / len(losses), nats / each if each else math.nan) for each, nats in zip(count, total, strict=True)]


def perplexity(loss: float) -> float:
    """Returns exp(loss), which stays a number however bad the model is."""
    return math.exp(min(loss, 700.0))


def floors(text: EncodedText) -> Mapping[str, float]:
    """Returns the loss on the test set by the frequencies of single tokens and of pairs in the training text.

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

    max(c(v, w) - D, 0) / c(v) + D n(v) / c(v) p(w), with n(v) the different tokens behind v, p(w) from the different
    tokens before w (one added to each), and D = n1 / (n1 + 2 n2) from the pairs that stand there once and twice (0.5
    where none stands there once).
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

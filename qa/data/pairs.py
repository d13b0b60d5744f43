"""Batches of pairs of sentences."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from seqarena.common.data.batches import Indices, ShuffledIndices
from seqarena.common.data.tokenization import Ids, Tokenizer
from seqarena.common.shapes import PerExample
from seqarena.qa.data.batch import PairFormat, TextBatch, format_of
from seqarena.qa.data.mnli import Pair


@dataclass(frozen=True, kw_only=True)
class PairBatch(TextBatch):
    """Batch of premise and hypothesis pairs with their labels."""

    label: PerExample


@dataclass(frozen=True, kw_only=True)
class EncodedPairs:
    """Tokenized pairs."""

    first: list[Ids]
    second: list[Ids]
    labels: npt.NDArray[np.int64]
    format: PairFormat

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Number of tokens of each pair, including special tokens."""
        pairs = zip(self.first, self.second, strict=True)
        return np.array([len(one) + len(two) + self.format.special for one, two in pairs])

    def batch(self, examples: Indices) -> PairBatch:
        """Returns the batch of the given pairs."""
        tokens, types, real = self.format.join([(self.first[each], self.second[each]) for each in examples.tolist()])
        return PairBatch(
            tokens=torch.from_numpy(tokens),
            types=torch.from_numpy(types),
            real=torch.from_numpy(real),
            label=torch.from_numpy(self.labels[examples]),
        )


@dataclass(frozen=True, kw_only=True)
class PairBatches:
    """The batch of every training step."""

    encoded: EncodedPairs
    order: ShuffledIndices

    def __getitem__(self, step: int) -> PairBatch:
        """Returns the batch of a step."""
        return self.encoded.batch(self.order[step])


def encode(pairs: Sequence[Pair], tokenizer: Tokenizer, length: int) -> EncodedPairs:
    """Tokenizes pairs and truncates them to ``length``, including special tokens; see ``_fit``."""
    layout = format_of(tokenizer)
    first = tokenizer.encode([each.premise for each in pairs])
    second = tokenizer.encode([each.hypothesis for each in pairs])
    lengths = [_fit(len(one), len(two), length - layout.special) for one, two in zip(first, second, strict=True)]
    return EncodedPairs(
        first=[tokens[:count] for tokens, (count, _) in zip(first, lengths, strict=True)],
        second=[tokens[:count] for tokens, (_, count) in zip(second, lengths, strict=True)],
        labels=np.array([each.label for each in pairs], dtype=np.int64),
        format=layout,
    )


def _fit(first: int, second: int, room: int) -> tuple[int, int]:
    """Reduces two lengths until their sum fits: the longer one loses a token each time, the second if equal."""
    while first + second > room:
        first, second = (first - 1, second) if first > second else (first, second - 1)
    return first, second

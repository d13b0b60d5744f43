"""Batches of pairs with similar numbers of tokens and little padding."""

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from seqarena.common.data.batches import Batch, Indices, Ragged, ShuffledIndices, moved
from seqarena.common.shapes import Mask, SourceMask, SourceTokens, TokenIds, Tokens

GRAIN = 8
"""Batch sizes are multiples of this if the mean batch size is: 1, 2, 4 or 8 processes then have equal shares."""


@dataclass(frozen=True, kw_only=True)
class HeadlineBatch(Batch):
    """Texts [CLS] x [SEP], and headlines: the decoder reads [CLS] y and predicts y [SEP]."""

    source: SourceTokens
    source_real: SourceMask
    target: Tokens
    target_real: Mask
    labels: Tokens
    """The token after each target token; arbitrary at padding."""
    picked: TokenIds | None = None
    """Indices of the target tokens among all B T positions; set by ``to``, where the host still has the mask."""

    def rows(self, start: int, stop: int) -> "HeadlineBatch":
        """Returns the examples from ``start`` up to ``stop``."""
        return super(HeadlineBatch, replace(self, picked=None)).rows(start, stop)

    def to(self, device: torch.device) -> "HeadlineBatch":
        """Returns the batch on a device, with the indices of its target tokens."""
        picked = self.target_real.flatten().nonzero()[:, 0]
        return replace(super().to(device), picked=moved(picked, device))

    def weight(self) -> int:
        """Returns the number of target tokens."""
        return int(self.target_real.sum())

    def token_count(self) -> int:
        """Returns the number of tokens read, texts and headlines, without padding."""
        return int(self.source_real.sum()) + self.weight()

    def longer(self, length: int) -> "HeadlineBatch":
        """Returns the batch with its texts padded to ``length``, at least their present length."""
        more = length - self.source.shape[1]
        if more < 0:
            raise ValueError(f"texts of {self.source.shape[1]} tokens cannot be padded to {length}")
        return replace(self, source=F.pad(self.source, (0, more)), source_real=F.pad(self.source_real, (0, more)))


@dataclass(frozen=True, kw_only=True)
class EncodedPairs:
    """Tokenized pairs without special tokens, cut to the maximum lengths."""

    sources: Ragged
    targets: Ragged
    special: tuple[int, int, int]
    """[CLS], [SEP], [PAD]."""

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def source_lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each text, special ones counted."""
        return self.sources.lengths + 2

    @property
    def target_lengths(self) -> npt.NDArray[np.int64]:
        """Number of decoder inputs, or targets, of each headline."""
        return self.targets.lengths + 1

    def batch(self, examples: Indices) -> HeadlineBatch:
        """Returns a batch of pairs."""
        start, end, pad = self.special
        source, source_real = _with_marks(self.sources, examples, (start, end), pad)
        whole, real = _with_marks(self.targets, examples, (start, end), pad)
        return HeadlineBatch(
            source=source, source_real=source_real, target=whole[:, :-1], target_real=real[:, 1:], labels=whole[:, 1:]
        )


def _with_marks(some: Ragged, examples: Indices, marks: tuple[int, int], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns sequences between a start and an end token, and a mask of the tokens that are not padding."""
    lengths = some.lengths[examples] + 2
    tokens = np.full((len(examples), int(lengths.max())), pad, dtype=np.int64)
    place = np.arange(tokens.shape[1])
    inner = (place > 0) & (place < lengths[:, None] - 1)
    tokens[inner] = np.concatenate([some[example] for example in examples.tolist()])
    tokens[:, 0] = marks[0]
    tokens[np.arange(len(examples)), lengths - 1] = marks[1]
    return torch.from_numpy(tokens), torch.from_numpy(place < lengths[:, None])


@dataclass(frozen=True, kw_only=True)
class TokenBudgetOrder(ShuffledIndices):
    """Order of examples in pools of ``pool`` batches, split with nearly equal padded tokens per batch.

    Lengths of texts and headlines vary independently: a pool is divided into strips by text length, and each strip is
    sorted by headline length, alternately ascending and descending. ``batch_size`` is the mean number of pairs.
    """

    targets: npt.NDArray[np.int64]
    """Tokens of each headline; ``lengths`` are those of the texts."""
    processes: int = 1
    """Number of processes that share each batch, and so the minimum size of a batch. Otherwise it changes no batch."""

    @property
    def grain(self) -> int:
        """Divisor of every batch size."""
        return math.gcd(self.batch_size, GRAIN)

    def cut(self, examples: Indices) -> list[Indices]:
        """Returns the batches of a pool, as indices into ``examples``; cached for the latest pool."""
        cached: tuple[Indices, list[Indices]] | None = self.__dict__.get("_cut")
        if cached is None or not np.array_equal(cached[0], examples):
            cached = self.__dict__["_cut"] = examples, self._split(examples)
        return cached[1]

    def _split(self, examples: Indices) -> list[Indices]:
        source, target = self.lengths[examples], self.targets[examples]
        strips = round(2 * math.sqrt(self.pool))  # least padding among 0.7 to 2.8 times the root
        rank = np.empty(len(examples), dtype=np.int64)
        rank[np.lexsort((target, source))] = np.arange(len(examples))
        strip = rank * strips // len(examples)
        order = np.lexsort((np.where(strip % 2 == 0, target, -target), strip))
        cost = np.cumsum((source + target)[order])
        grains = len(examples) // self.grain
        wanted = np.searchsorted(cost, cost[-1] * np.arange(1, self.pool) / self.pool) / self.grain
        ends = np.rint(wanted).astype(np.int64)
        least = math.ceil(self.processes / self.grain)
        for batch in range(self.pool - 1):
            most = grains - least * (self.pool - 1 - batch)
            ends[batch] = np.clip(ends[batch], (ends[batch - 1] if batch else 0) + least, most)
        return np.split(order, ends * self.grain)


def padding_statistics(order: TokenBudgetOrder, steps: int) -> tuple[float, int, int]:
    """Returns the fraction of tokens in the first steps that are not padding, and mean and maximum tokens per batch."""
    real, padded = 0, []
    for step in range(steps):
        examples = order[step]
        source, target = order.lengths[examples], order.targets[examples]
        real += int(source.sum() + target.sum())
        padded.append(len(examples) * int(source.max() + target.max()))
    return real / sum(padded), sum(padded) // len(padded), max(padded)


@dataclass(frozen=True, kw_only=True)
class HeadlineBatches:
    """Training batches by step."""

    encoded: EncodedPairs
    order: TokenBudgetOrder

    def __getitem__(self, step: int) -> HeadlineBatch:
        """Returns the batch of a step."""
        return self.encoded.batch(self.order[step])

"""Batches of pairs that hold alike many tokens and little padding."""

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from seqarena.common.data.batches import Batch, Indices, Ragged, ShuffledIndices
from seqarena.common.shapes import Mask, SourceMask, SourceTokens, Tokens

GRAIN = 8
"""Batches hold a multiple of so many pairs where the mean does, so that several processes can share each."""


@dataclass(frozen=True, kw_only=True)
class HeadlineBatch(Batch):
    """Texts, [CLS] x [SEP], and headlines: a decoder reads [CLS] y and is to say y [SEP]."""

    source: SourceTokens
    source_real: SourceMask
    target: Tokens
    target_real: Mask
    labels: Tokens
    """The next token after each token of the target; arbitrary at padding."""

    def weight(self) -> int:
        """Returns the number of tokens to be said."""
        return int(self.target_real.sum())

    def token_count(self) -> int:
        """Returns the number of real tokens that are read: texts and headlines."""
        return int(self.source_real.sum()) + self.weight()

    def longer(self, length: int) -> "HeadlineBatch":
        """Returns the batch with its texts padded to a length, which none may exceed."""
        more = length - self.source.shape[1]
        if more < 0:
            raise ValueError(f"texts of {self.source.shape[1]} tokens cannot be padded to {length}")
        return replace(self, source=F.pad(self.source, (0, more)), source_real=F.pad(self.source_real, (0, more)))


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """Pairs as tokens without special ones, cut to what the model reads."""

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
        """Tokens that a decoder reads, or says, of each headline."""
        return self.targets.lengths + 1

    def batch(self, examples: Indices) -> HeadlineBatch:
        """Returns some pairs."""
        start, end, pad = self.special
        source, source_real = _between(self.sources, examples, (start, end), pad)
        whole, real = _between(self.targets, examples, (start, end), pad)
        return HeadlineBatch(
            source=source, source_real=source_real, target=whole[:, :-1], target_real=real[:, 1:], labels=whole[:, 1:]
        )


def _between(some: Ragged, examples: Indices, marks: tuple[int, int], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns sequences between two marks, and which tokens are real."""
    lengths = some.lengths[examples] + 2
    tokens = np.full((len(examples), int(lengths.max())), pad, dtype=np.int64)
    place = np.arange(tokens.shape[1])
    inner = (place > 0) & (place < lengths[:, None] - 1)
    tokens[inner] = np.concatenate([some[example] for example in examples.tolist()])
    tokens[:, 0] = marks[0]
    tokens[np.arange(len(examples)), lengths - 1] = marks[1]
    return torch.from_numpy(tokens), torch.from_numpy(place < lengths[:, None])


@dataclass(frozen=True, kw_only=True)
class Budgeted(ShuffledIndices):
    """Pools of ``pool`` batches, cut so that each costs as many tokens as the others, padding counted.

    Texts and headlines differ in length apart from each other: a pool is cut into strips by the text's length, and a
    strip sorted by the headline's, up in one strip and down in the next. ``batch_size`` is the mean number of pairs.
    """

    targets: npt.NDArray[np.int64]
    """Tokens of each headline; ``lengths`` are those of the texts."""
    processes: int = 1
    """That share each batch; any number that divides 8 gets the same batches as one."""

    @property
    def grain(self) -> int:
        """The number of pairs in a batch is a multiple of this."""
        return math.lcm(math.gcd(self.batch_size, GRAIN), self.processes)

    def cut(self, examples: Indices) -> list[Indices]:
        """Returns the batches of a pool: for each the places of its examples among these."""
        kept: tuple[Indices, list[Indices]] | None = self.__dict__.get("_cut")
        if kept is None or not np.array_equal(kept[0], examples):
            kept = self.__dict__["_cut"] = examples, self._cut_anew(examples)
        return kept[1]

    def _cut_anew(self, examples: Indices) -> list[Indices]:
        source, target = self.lengths[examples], self.targets[examples]
        strips = round(2 * math.sqrt(self.pool))  # of 0.7 to 2.8 times the root, what left least padding
        rank = np.empty(len(examples), dtype=np.int64)
        rank[np.lexsort((target, source))] = np.arange(len(examples))
        strip = rank * strips // len(examples)
        order = np.lexsort((np.where(strip % 2 == 0, target, -target), strip))
        cost = np.cumsum((source + target)[order])
        grains = len(examples) // self.grain
        wanted = np.searchsorted(cost, cost[-1] * np.arange(1, self.pool) / self.pool) / self.grain
        ends = np.rint(wanted).astype(np.int64)
        for batch in range(self.pool - 1):  # none is empty
            ends[batch] = np.clip(ends[batch], (ends[batch - 1] if batch else 0) + 1, grains - (self.pool - 1 - batch))
        return np.split(order, ends * self.grain)


def filled(order: Budgeted, steps: int) -> tuple[float, int, int]:
    """Returns what share of the tokens of the first steps is real, and the mean and the most tokens of a batch."""
    real, padded = 0, []
    for step in range(steps):
        examples = order[step]
        source, target = order.lengths[examples], order.targets[examples]
        real += int(source.sum() + target.sum())
        padded.append(len(examples) * int(source.max() + target.max()))
    return real / sum(padded), sum(padded) // len(padded), max(padded)


@dataclass(frozen=True, kw_only=True)
class HeadlineBatches:
    """The batch of every training step."""

    encoded: Encoded
    order: Budgeted

    def __getitem__(self, step: int) -> HeadlineBatch:
        """Returns the batch of a step."""
        return self.encoded.batch(self.order[step])

"""Batches as a function of (seed, step), so that a killed run resumes exactly and comparisons are paired.

Examples of different lengths lie end to end in flat arrays (``Ragged``).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from seqarena.common.data.counter import permutation

Indices = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
TokenArray = npt.NDArray[np.integer[Any]]
SameBatch = TypeVar("SameBatch", bound="Batch")  # typing.Self does not survive the tests' shape checks


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Tensors of examples computed together, one row an example; or None. A task's own batch adds the fields."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def rows(self: SameBatch, start: int, stop: int) -> SameBatch:
        """Returns the examples from ``start`` up to ``stop``."""
        return self._each(lambda tensor: tensor[start:stop])

    def to(self: SameBatch, device: torch.device) -> SameBatch:
        """Returns the batch on a device."""
        return self._each(lambda tensor: tensor.to(device))

    def _each(self: SameBatch, change: Callable[[Tensor], Tensor]) -> SameBatch:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return type(self)(**{name: None if value is None else change(value) for name, value in values.items()})

    def weight(self) -> int:
        """Returns the number of things that the loss is a mean over, so that shares of a batch add up exactly."""
        return len(self)

    def token_count(self) -> int:
        """Returns the number of real tokens in the batch, what throughput counts."""
        raise TypeError(f"{type(self).__name__} does not say how many tokens it holds")

    def longer(self: SameBatch, length: int) -> SameBatch:
        """Returns the batch with its sequences padded to a length."""
        raise TypeError(f"{type(self).__name__} does not say how it is padded")


@runtime_checkable
class Batches(Protocol):
    """Training data: the batch of every step, the same one whenever it is asked for."""

    def __getitem__(self, step: int) -> Batch:
        """Returns the batch of a step, counted from 0, on the CPU; the whole batch, for all processes together."""
        ...


@dataclass(frozen=True, kw_only=True)
class Shuffled:
    """Which examples each training step sees: every epoch in a new order, epochs following without a gap.

    ``pool`` batches at a time are sorted by length and cut again, so that examples of like length meet and little is
    padding; 1 leaves them as drawn. Batches stay in random order.
    """

    lengths: npt.NDArray[np.int64]
    batch_size: int
    seed: int
    pool: int = 1

    def __getitem__(self, step: int) -> Indices:
        """Returns the numbers of the ``batch_size`` examples of a step."""
        return self.seen(step)[0]

    def seen(self, step: int) -> tuple[Indices, Indices]:
        """Returns the numbers of the ``batch_size`` examples of a step, and the epoch in which each is seen."""
        first = step - step % self.pool
        examples, epochs = self._drawn(first * self.batch_size + np.arange(self.pool * self.batch_size))
        place = permutation(self.pool, self.seed, 1, first)[step % self.pool]
        part = self.cut(examples)[place] if self.pool > 1 else slice(None)
        return examples[part], epochs[part]

    def cut(self, examples: Indices) -> list[Indices]:
        """Returns the batches of a pool: for each the places of its examples among these."""
        return np.split(np.argsort(self.lengths[examples], kind="stable"), self.pool)

    def _drawn(self, positions: Indices) -> tuple[Indices, Indices]:
        count = len(self.lengths)
        epochs = positions // count
        examples = [self._order(epoch)[positions[epochs == epoch] % count] for epoch in np.unique(epochs).tolist()]
        return np.concatenate(examples), epochs

    def _order(self, epoch: int) -> Indices:
        kept: dict[int, Indices] = self.__dict__.setdefault("_orders", {})
        return kept_order(kept, epoch, lambda: permutation(len(self.lengths), self.seed, 0, epoch))


def kept_order(kept: dict[int, Indices], epoch: int, make: Callable[[], Indices]) -> Indices:
    """Returns an epoch's order, asked for at each of its steps; the last two are kept, for batches may straddle."""
    if epoch not in kept:
        while len(kept) > 1:
            kept.pop(min(kept))
        kept[epoch] = make()
    return kept[epoch]


def in_order(
    lengths: npt.NDArray[np.int64], batch_size: int, process: int = 0, processes: int = 1
) -> Iterator[Indices]:
    """Yields every example once, sorted by length, for evaluation: nothing is dropped, little is padding.

    Of several processes each gets every so many-th batch.
    """
    order = np.argsort(lengths, kind="stable")
    starts = range(process * batch_size, len(order), processes * batch_size)
    return (order[start : start + batch_size] for start in starts)


def drawn(count: int, limit: int | None, *keys: int) -> Indices:
    """Returns the numbers of at most ``limit`` of ``count`` examples, drawn by the keys, in order; none: of all."""
    return np.arange(count) if limit is None or limit >= count else np.sort(permutation(count, *keys)[:limit])


@dataclass(frozen=True, kw_only=True)
class Ragged:
    """Labelled sequences of integers, end to end: sequence n is ``tokens[offsets[n]:offsets[n + 1]]``.

    An example is one sequence, or several that follow each other: as many as there are sequences to a label.
    """

    tokens: TokenArray
    offsets: npt.NDArray[np.int64]
    labels: npt.NDArray[np.uint8]
    shift: int = 0
    """Added to what is stored to make a token: 1 where a stored 0 is not padding."""
    limit: int | None = None
    """Tokens after so many are left out; none: all are taken."""
    zero_is_padding: bool = False
    """Whether a stored 0 counts as padding, as it did where tokens were not shifted."""

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, sequence: int) -> TokenArray:
        """Returns a sequence as it is stored."""
        return self.tokens[self.offsets[sequence] : self.offsets[sequence + 1]][: self.limit]

    @property
    def sequences(self) -> int:
        """The number of sequences in an example."""
        return (len(self.offsets) - 1) // max(len(self.labels), 1)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The number of tokens of each example; of several sequences, those of the longest."""
        lengths: npt.NDArray[np.int64] = self._taken(np.diff(self.offsets)).reshape(len(self), -1).max(axis=1)
        return lengths

    def some(self, examples: Indices) -> "Ragged":
        """Returns some of the examples."""
        numbers = (examples[:, None] * self.sequences + np.arange(self.sequences)).flatten()
        lengths = self.offsets[numbers + 1] - self.offsets[numbers]
        whole = [self.tokens[self.offsets[number] : self.offsets[number + 1]] for number in numbers.tolist()]
        return replace(
            self,
            tokens=np.concatenate([self.tokens[:0], *whole]),
            offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            labels=self.labels[examples],
        )

    @staticmethod
    def of(sequences: Sequence[TokenArray], labels: Sequence[int], shift: int = 0) -> "Ragged":
        """Returns the sequences laid end to end."""
        lengths = [len(sequence) for sequence in sequences]
        return Ragged(
            tokens=np.concatenate(sequences) if sequences else np.zeros(0, dtype=np.uint8),
            offsets=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64),
            labels=np.asarray(labels, dtype=np.uint8),
            shift=shift,
        )

    def padded(self, examples: Indices) -> tuple[Tensor, Tensor]:
        """Returns (tokens, real) of some examples, both (B, T), or (B, sequences, T); T the longest of them."""
        numbers = examples[:, None] * self.sequences + np.arange(self.sequences)
        lengths = self._taken(self.offsets[numbers + 1] - self.offsets[numbers])
        real = np.arange(lengths.max()) < lengths[..., None]
        tokens = np.zeros(real.shape, dtype=np.int64)
        tokens[real] = np.concatenate([self[number] for number in numbers.flatten().tolist()])
        tokens[real] += self.shift
        if self.zero_is_padding:
            real &= tokens != self.shift
        one = 0 if self.sequences == 1 else slice(None)
        return torch.from_numpy(tokens[:, one]), torch.from_numpy(real[:, one])

    def _taken(self, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return lengths if self.limit is None else np.minimum(lengths, self.limit)

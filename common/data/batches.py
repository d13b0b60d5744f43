"""Batches as a function of (seed, step), so that a killed run resumes exactly and comparisons are paired.

Examples of different lengths are stored end to end in flat arrays (``Ragged``).
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


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns a tensor on a device. A copy to a GPU is made from pinned memory, since the host would wait otherwise."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def needed_mask(real: Tensor | None, device: torch.device) -> Tensor | None:
    """Returns a batch's mask on a device; None if nothing is padded, since attention without a mask is faster.

    The mask must still be on the CPU: on a GPU the host would wait for the answer.
    """
    return None if real is None or bool(real.all()) else moved(real, device)


def longer_mask(real: Tensor | None, tokens: Tensor, more: int) -> Tensor | None:
    """Returns the mask of ``tokens`` with ``more`` padding at the end; None: nothing is padded."""
    if real is None and more:
        real = torch.ones_like(tokens, dtype=torch.bool)
    return None if real is None else torch.nn.functional.pad(real, (0, more))


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Tensors of examples that are computed together, one row per example, or None. Each task adds its own fields."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def rows(self: SameBatch, start: int, stop: int) -> SameBatch:
        """Returns the examples from ``start`` up to ``stop``."""
        return self._each(lambda tensor: tensor[start:stop])

    def to(self: SameBatch, device: torch.device) -> SameBatch:
        """Returns the batch on a device."""
        return self._each(lambda tensor: moved(tensor, device))

    def _each(self: SameBatch, change: Callable[[Tensor], Tensor]) -> SameBatch:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return type(self)(**{name: None if value is None else change(value) for name, value in values.items()})

    def read(self) -> "Batch":
        """Returns the batch with all its tensors in memory. A subclass may read some of them from files here."""
        return self

    def pinned(self: SameBatch) -> SameBatch:
        """Returns the batch in pinned memory, from which a GPU copies while the host goes on."""
        return self._each(lambda tensor: tensor.pin_memory() if tensor.device.type == "cpu" else tensor)

    def weight(self) -> int:
        """Returns the number of terms of the mean loss, by which the losses of parts of a batch are weighted."""
        return len(self)

    def token_count(self) -> int:
        """Returns the number of real tokens in the batch, for throughput."""
        raise TypeError(f"{type(self).__name__} does not define token_count")

    def longer(self: SameBatch, length: int) -> SameBatch:
        """Returns the batch with its sequences padded to ``length``."""
        raise TypeError(f"{type(self).__name__} does not define longer")


@runtime_checkable
class Batches(Protocol):
    """Training data: maps each step to its batch, always the same one."""

    def __getitem__(self, step: int) -> Batch:
        """Returns the batch of a step (from 0) on the CPU. It is the whole batch, for all processes together."""
        ...


@dataclass(frozen=True, kw_only=True)
class ShuffledIndices:
    """Indices of the examples of each training step. Each epoch has a new order, and epochs follow without a gap.

    ``pool`` batches at a time are sorted by length and split again, so that a batch has examples of similar length
    and little padding. 1: no sorting. The batches of a pool come in random order.
    """

    lengths: npt.NDArray[np.int64]
    batch_size: int
    seed: int
    pool: int = 1

    def __getitem__(self, step: int) -> Indices:
        """Returns the indices of the ``batch_size`` examples of a step."""
        return self.with_epochs(step)[0]

    def with_epochs(self, step: int) -> tuple[Indices, Indices]:
        """Returns the indices of the ``batch_size`` examples of a step, and the epoch of each."""
        first = step - step % self.pool
        examples, epochs = self._examples_at(first * self.batch_size + np.arange(self.pool * self.batch_size))
        index = permutation(self.pool, self.seed, 1, first)[step % self.pool]
        part = self.cut(examples)[index] if self.pool > 1 else slice(None)
        return examples[part], epochs[part]

    def cut(self, examples: Indices) -> list[Indices]:
        """Returns the batches of a pool, each as the positions of its examples in ``examples``."""
        return np.split(np.argsort(self.lengths[examples], kind="stable"), self.pool)

    def _examples_at(self, positions: Indices) -> tuple[Indices, Indices]:
        count = len(self.lengths)
        epochs = positions // count
        examples = [self._order(epoch)[positions[epochs == epoch] % count] for epoch in np.unique(epochs).tolist()]
        return np.concatenate(examples), epochs

    def _order(self, epoch: int) -> Indices:
        cache: dict[int, Indices] = self.__dict__.setdefault("_orders", {})
        return cached_order(cache, epoch, lambda: permutation(len(self.lengths), self.seed, 0, epoch))


def cached_order(cache: dict[int, Indices], epoch: int, make: Callable[[], Indices]) -> Indices:
    """Returns an epoch's order. The last two epochs are cached, since a batch may span both."""
    if epoch not in cache:
        while len(cache) > 1:
            cache.pop(min(cache))
        cache[epoch] = make()
    return cache[epoch]


def in_order(
    lengths: npt.NDArray[np.int64], batch_size: int, process: int = 0, processes: int = 1
) -> Iterator[Indices]:
    """Yields the index of every example once, sorted by length to reduce padding, for evaluation.

    With several processes, each gets every ``processes``-th batch.
    """
    order = np.argsort(lengths, kind="stable")
    starts = range(process * batch_size, len(order), processes * batch_size)
    return (order[start : start + batch_size] for start in starts)


def sample_indices(count: int, limit: int | None, *keys: int) -> Indices:
    """Returns ``limit`` of ``count`` indices in order, a function of the keys; all if there is no smaller limit."""
    return np.arange(count) if limit is None or limit >= count else np.sort(permutation(count, *keys)[:limit])


@dataclass(frozen=True, kw_only=True)
class Ragged:
    """Labelled integer sequences, end to end: sequence n is ``tokens[offsets[n]:offsets[n + 1]]``.

    An example is one sequence, or several consecutive ones: the number of sequences divided by the number of labels.
    """

    tokens: TokenArray
    offsets: npt.NDArray[np.int64]
    labels: npt.NDArray[np.uint8]
    shift: int = 0
    """Added to a stored value to obtain a token: 1 where a stored 0 is not padding."""
    limit: int | None = None
    """Maximum tokens per sequence, the first ones; none: all."""
    zero_is_padding: bool = False
    """Whether a stored 0 counts as padding, as in published code that did not shift tokens."""

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, sequence: int) -> TokenArray:
        """Returns a sequence as stored, cut to ``limit``."""
        return self.tokens[self.offsets[sequence] : self.offsets[sequence + 1]][: self.limit]

    @property
    def sequences(self) -> int:
        """Number of sequences per example."""
        return (len(self.offsets) - 1) // max(len(self.labels), 1)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Number of tokens of each example; the longest of its sequences if there are several."""
        lengths: npt.NDArray[np.int64] = self._limited(np.diff(self.offsets)).reshape(len(self), -1).max(axis=1)
        return lengths

    def some(self, examples: Indices) -> "Ragged":
        """Returns a subset of the examples."""
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
        """Returns the sequences stored end to end."""
        lengths = [len(sequence) for sequence in sequences]
        return Ragged(
            tokens=np.concatenate(sequences) if sequences else np.zeros(0, dtype=np.uint8),
            offsets=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64),
            labels=np.asarray(labels, dtype=np.uint8),
            shift=shift,
        )

    def padded(self, examples: Indices) -> tuple[Tensor, Tensor]:
        """Returns (tokens, real) of some examples, padded to the longest: both (B, T), or (B, sequences, T)."""
        numbers = examples[:, None] * self.sequences + np.arange(self.sequences)
        lengths = self._limited(self.offsets[numbers + 1] - self.offsets[numbers])
        real = np.arange(lengths.max()) < lengths[..., None]
        tokens = np.zeros(real.shape, dtype=np.int64)
        tokens[real] = np.concatenate([self[number] for number in numbers.flatten().tolist()])
        tokens[real] += self.shift
        if self.zero_is_padding:
            real &= tokens != self.shift
        one = 0 if self.sequences == 1 else slice(None)
        return torch.from_numpy(tokens[:, one]), torch.from_numpy(real[:, one])

    def _limited(self, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return lengths if self.limit is None else np.minimum(lengths, self.limit)

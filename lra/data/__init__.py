"""The data of each task, and the batch that all of them fill."""

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from seqarena.common.data.batches import Batch, Indices, Ragged, ShuffledIndices, sample_indices
from seqarena.common.data.prepared import Splits
from seqarena.common.errors import WrongUseError
from seqarena.common.runs.roles import Role, added, role
from seqarena.common.shapes import Labels, MaskOfSome, TokensOfSome

SPLITS = ("train", "validation", "test")
BYTE_VOCABULARY = 257
"""Tokens of bytes, or of pixels: 256 values, and 0 for padding."""


@dataclass(frozen=True, kw_only=True)
class Data(ABC):
    """Which examples a task is made of. Each task's own config adds its fields."""

    vocabulary: ClassVar[int]
    """Token ids there are, padding counted."""
    classes: ClassVar[int]
    sequences: ClassVar[int] = 1
    """Sequences in an example: 2 where two documents are compared."""
    path: str | None = field(default=None, metadata=role(Role.LOCATION))
    """Files of the user's own; none: generated, or fetched from the hub."""
    test_limit: int | None = field(default=None, metadata=added(2))
    """Test examples that are evaluated, drawn from all; none: all. A score on fewer is in no table with those on
    all."""

    @property
    @abstractmethod
    def longest(self) -> int:
        """The most tokens of a sequence; 0 where only the files tell."""

    def check(self) -> None:  # noqa: B027  # most describe nothing that could be wrong
        """Raises a ``WrongUseError`` for settings that describe no data."""

    def load_tested(self, folder: Path) -> tuple[Splits, str]:
        """Returns the splits and their checksum, of the test set so much as is evaluated; see ``load``.

        Raises:
            BadDataError: see ``load``.
            WrongUseError: nothing would be evaluated.
        """
        if self.test_limit is not None and self.test_limit < 1:
            raise WrongUseError(f"data.test_limit: expected at least 1, or none for all, found {self.test_limit}")
        splits, checksum = replace(self, test_limit=None).load(folder)  # what is kept below it is of all
        numbers = sample_indices(len(splits["test"]), self.test_limit, 0)
        if len(numbers) == len(splits["test"]):
            return splits, checksum
        checksum = hashlib.sha256(f"{checksum}, tests {numbers.tolist()}".encode()).hexdigest()
        return {**splits, "test": splits["test"].some(numbers)}, checksum

    @abstractmethod
    def load(self, folder: Path) -> tuple[Splits, str]:
        """Returns the splits of ``SPLITS`` and their checksum; what is made once is kept below ``folder``.

        Raises:
            BadDataError: files are missing or damaged; names file, what was found and what was expected.
        """

    @abstractmethod
    def floors(self, splits: Splits) -> dict[str, float]:
        """Returns what trivial rules score on the test set, by the name of the rule."""


@dataclass(frozen=True, kw_only=True)
class Sequences(Batch):
    """Labelled token sequences, padded at the end with token 0; several an example where they are compared."""

    tokens: TokensOfSome
    real: MaskOfSome
    labels: Labels

    def token_count(self) -> int:
        """Returns the number of real tokens."""
        return int(self.real.sum())

    def longer(self, length: int) -> "Sequences":
        """Returns the batch with its sequences padded to a length, which none may exceed."""
        more = length - self.real.shape[-1]
        if more < 0:
            raise ValueError(f"sequences of {self.real.shape[-1]} tokens cannot be padded to {length}")
        tokens, real = (torch.nn.functional.pad(each, (0, more)) for each in (self.tokens, self.real))
        return Sequences(tokens=tokens, real=real, labels=self.labels)


def sequences(split: Ragged, examples: Indices) -> Sequences:
    """Returns a batch of some examples, as long as the longest of them."""
    tokens, real = split.padded(examples)
    labels = torch.from_numpy(split.labels[examples].astype(np.int64))
    return Sequences(tokens=tokens, real=real, labels=labels)


def majority_class(splits: Splits, examples: int | None = None) -> float:
    """Returns what the most frequent label of the first ``examples`` in training (none: all) scores on the test set."""
    return float((splits["test"].labels == np.bincount(splits["train"].labels[:examples]).argmax()).mean())


def cropped(splits: Splits, limit: int) -> Splits:
    """Returns the splits with every sequence cut after so many tokens."""
    return {name: replace(split, limit=limit) for name, split in splits.items()}


@dataclass(frozen=True, kw_only=True)
class TrainingBatches:
    """The batch of every training step."""

    split: Ragged
    order: ShuffledIndices

    def __getitem__(self, step: int) -> Sequences:
        return sequences(self.split, self.order[step])

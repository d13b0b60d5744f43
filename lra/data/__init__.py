"""The data config that every task extends, and the batch type that all tasks share."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from seqarena.common.data.batches import (
    Batch,
    Indices,
    Ragged,
    ShuffledIndices,
    longer_mask,
    needed_mask,
    sample_indices,
)
from seqarena.common.data.prepared import Splits
from seqarena.common.errors import WrongUseError
from seqarena.common.runs.roles import Role, added, role
from seqarena.common.shapes import Labels, MaskOfSome, TokensOfSome

SPLITS = ("train", "validation", "test")
BYTE_VOCABULARY = 257
"""Vocabulary size for bytes and pixels: 256 values, and token 0 for padding."""


@dataclass(frozen=True, kw_only=True)
class Data(ABC):
    """Config of a task's examples. Each task's own config adds its fields."""

    vocabulary: ClassVar[int]
    """Number of token ids, including padding."""
    classes: ClassVar[int]
    sequences: ClassVar[int] = 1
    """Sequences per example: 2 where two documents are compared."""
    path: str | None = field(default=None, metadata=role(Role.LOCATION))
    """Path of your own files. none: the data are generated, or downloaded from the hub."""
    test_limit: int | None = field(default=None, metadata=added(2))
    """Number of test examples to evaluate, sampled from all. none: all. Scores on a sample are kept out of the tables
    of scores on the whole test set."""

    @property
    @abstractmethod
    def longest(self) -> int:
        """Maximum number of tokens of a sequence; 0 if it is known only after the files are read."""

    @property
    def without_effect(self) -> Mapping[str, str]:
        """Name of a field -> the setting with which it has no effect."""
        return {}

    def check(self) -> None:  # noqa: B027  # most configs have nothing to check
        """Raises a ``WrongUseError`` for invalid settings."""

    def load_tested(self, folder: Path) -> tuple[Splits, str]:
        """Loads the splits as ``load`` does, and reduces the test set to ``test_limit`` examples.

        The checksum covers the sampled test set.

        Raises:
            BadDataError: see ``load``.
            WrongUseError: ``test_limit`` is below 1.
        """
        if self.test_limit is not None and self.test_limit < 1:
            raise WrongUseError(f"data.test_limit: expected at least 1, or none for all, found {self.test_limit}")
        splits, checksum = replace(self, test_limit=None).load(folder)  # prepared data contain the whole test set
        numbers = sample_indices(len(splits["test"]), self.test_limit, 0)
        if len(numbers) == len(splits["test"]):
            return splits, checksum
        checksum = hashlib.sha256(f"{checksum}, tests {numbers.tolist()}".encode()).hexdigest()
        return {**splits, "test": splits["test"].some(numbers)}, checksum

    @abstractmethod
    def load(self, folder: Path) -> tuple[Splits, str]:
        """Returns the splits of ``SPLITS`` and their checksum. Prepared data are stored below ``folder``.

        Raises:
            BadDataError: files are missing or damaged. The message names the file, the content found and the content
                expected.
        """

    @abstractmethod
    def floors(self, splits: Splits) -> dict[str, float]:
        """Returns the test score of each trivial rule, by the name of the rule."""


@dataclass(frozen=True, kw_only=True)
class Sequences(Batch):
    """Batch of labelled token sequences, padded at the end with token 0. Retrieval has two per example."""

    tokens: TokensOfSome
    real: MaskOfSome | None
    """None: nothing is padded."""
    labels: Labels

    def to(self, device: torch.device) -> "Sequences":
        """Returns the batch on a device, without a mask if nothing is padded."""
        return replace(super(Sequences, replace(self, real=None)).to(device), real=needed_mask(self.real, device))

    def token_count(self) -> int:
        """Returns the number of real tokens."""
        return self.tokens.numel() if self.real is None else int(self.real.sum())

    def longer(self, length: int) -> "Sequences":
        """Returns the batch with its sequences padded to a length; raises a ``ValueError`` if one is longer."""
        more = length - self.tokens.shape[-1]
        if more < 0:
            raise ValueError(f"sequences of {self.tokens.shape[-1]} tokens cannot be padded to {length}")
        tokens, real = torch.nn.functional.pad(self.tokens, (0, more)), longer_mask(self.real, self.tokens, more)
        return Sequences(tokens=tokens, real=real, labels=self.labels)


def sequences(split: Ragged, examples: Indices) -> Sequences:
    """Returns a batch of the given examples, padded to the longest of them."""
    tokens, real = split.padded(examples)
    labels = torch.from_numpy(split.labels[examples].astype(np.int64))
    return Sequences(tokens=tokens, real=real, labels=labels)


def majority_class(splits: Splits, examples: int | None = None) -> float:
    """Returns the test accuracy of the most frequent label of the first ``examples`` of training (none: all)."""
    return float((splits["test"].labels == np.bincount(splits["train"].labels[:examples]).argmax()).mean())


def truncate(splits: Splits, limit: int) -> Splits:
    """Returns the splits with every sequence truncated to ``limit`` tokens."""
    return {name: replace(split, limit=limit) for name, split in splits.items()}


@dataclass(frozen=True, kw_only=True)
class TrainingBatches:
    """The batch of every training step."""

    split: Ragged
    order: ShuffledIndices

    def __getitem__(self, step: int) -> Sequences:
        return sequences(self.split, self.order[step])

"""Config of the generated sequences, and their batches."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from seqarena.common.data.batches import Batch, Indices, Ragged, ShuffledIndices, TokenArray, moved
from seqarena.common.data.prepared import Splits, prepared
from seqarena.common.errors import WrongUseError
from seqarena.common.runs.config import fingerprint
from seqarena.common.shapes import Mask, TokenIds, Tokens
from seqarena.lra.data import SPLITS
from seqarena.lra.recall.generator import sequences

VERSION = 1
MOST_PAIRS = 255
"""Maximum number of pairs: the number is stored in a byte."""
MOST_TOKENS = 2**16


@dataclass(frozen=True, kw_only=True)
class Recall:
    """Sequences of one or several lengths and numbers of pairs. The three tuples have one entry for each setting."""

    lengths: tuple[int, ...] = (64,)
    """Tokens of a sequence."""
    pairs: tuple[int, ...] = (4,)
    """Pairs of a key and a value in a sequence. Each key is a query once."""
    train: tuple[int, ...] = (100_000,)
    """Training sequences; 0 for a setting that is only validated and tested."""
    validation: int = 1_000
    """Validation sequences of each setting."""
    test: int = 1_000
    """Test sequences of each setting."""
    vocabulary: int = 8_192
    """Number of tokens: the filler 0, keys below vocabulary / 2, and values from there on."""
    power: float = 0.01
    """Exponent a of the weights n^(a - 1) of the places n of a key's second appearance; 1 makes them equal."""
    seed: int = 0
    """Seed of the data, independent of the seed of the run."""

    @property
    def longest(self) -> int:
        """Maximum tokens of a sequence."""
        return max(self.lengths, default=0)

    def check(self) -> None:
        """Raises a ``WrongUseError`` for settings that no sequence can have."""
        if not len(self.lengths) == len(self.pairs) == len(self.train) or not self.lengths:
            raise WrongUseError(
                "data.lengths, data.pairs and data.train: expected the same number of entries, at least 1; found "
                f"{len(self.lengths)}, {len(self.pairs)} and {len(self.train)}"
            )
        if min(self.train) < 0 or sum(self.train) < 1:
            raise WrongUseError(f"data.train: expected counts of at least 0 that are not all 0, found {self.train}")
        for name in ("validation", "test"):
            if getattr(self, name) < 1:
                raise WrongUseError(f"data.{name}: expected at least 1, found {getattr(self, name)}")
        if not 0 < self.power <= 1:
            raise WrongUseError(f"data.power: expected a number above 0 and at most 1, found {self.power}")
        for length, pairs in self.settings():
            if self.settings().count((length, pairs)) > 1:
                raise WrongUseError(f"data.lengths and data.pairs: {length} tokens with {pairs} pairs are given twice")
            if not 2 <= pairs <= MOST_PAIRS or length < 4 * pairs:
                raise WrongUseError(
                    f"data.pairs: expected 2 to {MOST_PAIRS}, and at least four tokens for each pair; found {pairs} "
                    f"pairs in {length} tokens"
                )
        if not 2 * max(self.pairs) + 2 <= self.vocabulary <= MOST_TOKENS:
            raise WrongUseError(
                f"data.vocabulary: expected {2 * max(self.pairs) + 2} (different tokens for all keys and values) to "
                f"{MOST_TOKENS:,}, found {self.vocabulary}"
            )

    def settings(self) -> list[tuple[int, int]]:
        """Returns (length, pairs) of each setting."""
        return list(zip(self.lengths, self.pairs, strict=True))

    def load(self, folder: Path) -> tuple[Splits, str]:
        """Returns the splits and their checksum. The label of a sequence is its number of pairs."""
        self.check()
        where = folder / "lra" / f"recall-v{VERSION}-{fingerprint(self)}"
        return prepared(where, "associative-recall: generating sequences", self._generate)

    def _generate(self) -> Splits:
        splits = {
            name: _joined([list(self._part(number, setting)) for setting in range(len(self.lengths))])
            for number, name in enumerate(SPLITS)
        }
        train = {sequence.tobytes() for sequence in map(splits["train"].__getitem__, range(len(splits["train"])))}
        copies = sum(splits["test"][example].tobytes() in train for example in range(len(splits["test"])))
        if copies:
            print(
                f"associative-recall: {copies:,} of {len(splits['test']):,} test sequences are also in train; more "
                "pairs or a larger vocabulary avoid this",
                file=sys.stderr,
            )
        return splits

    def _part(self, split: int, setting: int) -> Iterator[tuple[TokenArray, int]]:
        length, pairs = self.settings()[setting]
        count = (self.train[setting], self.validation, self.test)[split]
        keys = (self.seed, split, length, pairs)
        for row in sequences(
            count, length=length, pairs=pairs, vocabulary=self.vocabulary, power=self.power, keys=keys
        ):
            yield row, pairs


def _joined(parts: list[list[tuple[TokenArray, int]]]) -> Ragged:
    every = [each for part in parts for each in part]
    return Ragged.of([tokens for tokens, _ in every], [pairs for _, pairs in every])


@dataclass(frozen=True, kw_only=True)
class RecallBatch(Batch):
    """Batch of sequences, padded at the end."""

    tokens: Tokens
    real: Mask
    is_query: Mask
    """Whether a token is a key that appears for the second time."""
    values: Tokens
    """The value of each such key; 0 elsewhere."""
    query_indices: TokenIds | None = None
    """Indices of these keys among all B T positions; set by ``to``, where the host still has the mask."""

    def rows(self, start: int, stop: int) -> "RecallBatch":
        """Returns the examples from ``start`` up to ``stop``."""
        return super(RecallBatch, replace(self, query_indices=None)).rows(start, stop)

    def to(self, device: torch.device) -> "RecallBatch":
        """Returns the batch on a device, with the indices of the keys to recall."""
        query_indices = self.is_query.flatten().nonzero()[:, 0]
        return replace(super().to(device), query_indices=moved(query_indices, device))

    def weight(self) -> int:
        """Returns the number of keys to recall."""
        return int(self.is_query.sum())

    def token_count(self) -> int:
        """Returns the number of tokens without padding."""
        return int(self.real.sum())

    def longer(self, length: int) -> "RecallBatch":
        """Returns the batch with its sequences padded to a length; raises a ``ValueError`` if one is longer."""
        more = length - self.tokens.shape[1]
        if more < 0:
            raise ValueError(f"sequences of {self.tokens.shape[1]} tokens cannot be padded to {length}")
        names = ("tokens", "real", "is_query", "values")
        return RecallBatch(**{name: F.pad(getattr(self, name), (0, more)) for name in names})


def batch(split: Ragged, examples: Indices) -> RecallBatch:
    """Returns a batch of the given examples, padded to the longest of them."""
    tokens, real = split.padded(examples)
    values = answers(tokens.numpy(), split.labels[examples])
    found = torch.from_numpy(values)
    return RecallBatch(tokens=tokens, real=real, is_query=found > 0, values=found)


def answers(tokens: npt.NDArray[np.int64], pairs: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Returns the value of each key that appears for the second time, and 0 at all other tokens."""
    values = np.zeros_like(tokens)
    known = np.zeros(int(tokens.max()) + 1, dtype=np.int64)
    for row, context in enumerate((2 * pairs.astype(np.int64)).tolist()):
        keys = tokens[row, 0:context:2]
        known[keys] = tokens[row, 1:context:2]
        values[row, context:] = known[tokens[row, context:]]
        known[keys] = 0
    return values


@dataclass(frozen=True, kw_only=True)
class RecallBatches:
    """The batch of every training step."""

    split: Ragged
    order: ShuffledIndices

    def __getitem__(self, step: int) -> RecallBatch:
        return batch(self.split, self.order[step])

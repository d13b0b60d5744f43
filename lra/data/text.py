"""Text: is a review for or against its film? Bytes of IMDB reviews."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from common.data import Ragged
from common.errors import WrongUseError
from common.prepared import Splits, checksum, prepared
from lra import checksums
from lra.data import Data, cropped
from lra.data.imdb import Review, as_array, read_imdb
from lra.data.origin import kept_in

VALIDATION = 5_000
"""Training reviews that become the validation set: those whose hash is least."""


@dataclass(frozen=True, kw_only=True)
class Text(Data):
    """Which reviews, and how much of each."""

    vocabulary: ClassVar[int] = 257
    classes: ClassVar[int] = 2
    path: str | None = None
    """aclImdb_v1.tar.gz (or .tar.xz), its folder, or a folder of the hub's Parquet files; none: the hub."""
    length: int = 4_000
    """Bytes that are read of a review."""
    validation: Literal["held-out", "test"] = "held-out"
    """held-out: 5,000 of the training reviews; test: the test set itself, which makes the task text-legacy."""

    @property
    def longest(self) -> int:
        """The most bytes of a review."""
        return self.length

    def check(self) -> None:
        """Raises a ``WrongUseError`` for a length of nothing."""
        if self.length < 1:
            raise WrongUseError(f"data.length: expected at least 1, found {self.length}")

    def load(self, folder: Path) -> tuple[Splits, str]:
        """Returns the splits, cut to ``length``, and the checksum of the whole reviews."""
        self.check()
        where = kept_in(folder, "text", self.path)
        kept, found = prepared(
            where, "text: reading 50,000 reviews", lambda: split(read_imdb(self.path)), checksums.TEXT
        )
        if self.validation == "test":
            kept = validated_on_test(kept)
            found = checksum(kept)
        return cropped(kept, self.length), found

    def floors(self, splits: Splits) -> dict[str, float]:
        """Returns what counts of bytes tell."""
        return byte_floors(splits)


def split(reviews: dict[str, list[Review]]) -> Splits:
    """Returns train, validation and test, each in the order of its texts' hashes: the same from any source."""
    train, test = (in_hash_order(reviews[name]) for name in ("train", "test"))
    parts = {"train": train[VALIDATION:], "validation": train[:VALIDATION], "test": test}
    return {name: of_reviews(part) for name, part in parts.items()}


def of_reviews(reviews: Sequence[Review]) -> Ragged:
    """Returns reviews as sequences; token n is byte n - 1."""
    return Ragged.of([as_array(each.text) for each in reviews], [each.positive for each in reviews], shift=1)


def in_hash_order(reviews: Sequence[Review]) -> list[Review]:
    """Returns the reviews sorted by a hash of their texts."""
    return sorted(reviews, key=lambda each: (hashlib.blake2b(each.text, digest_size=16).digest(), each.positive))


def validated_on_test(splits: Splits) -> Splits:
    """Returns the splits of published code: the validation examples train, those of the test set validate too."""
    train = joined([splits["train"], splits["validation"]])
    return {"train": train, "validation": splits["test"], "test": splits["test"]}


def joined(parts: Sequence[Ragged]) -> Ragged:
    """Returns several splits as one."""
    ends = np.cumsum([0, *(part.offsets[-1] for part in parts[:-1])])
    offsets = [part.offsets[:-1] + end for part, end in zip(parts, ends, strict=True)]
    return Ragged(
        tokens=np.concatenate([part.tokens for part in parts]),
        offsets=np.concatenate([*offsets, [parts[-1].offsets[-1] + ends[-1]]]),
        labels=np.concatenate([part.labels for part in parts]),
        shift=parts[0].shift,
    )


def byte_floors(splits: Splits) -> dict[str, float]:
    """Returns rule -> accuracy on the test set: majority class, naive Bayes over bytes and over pairs of bytes."""
    train, test = splits["train"], splits["test"]
    rules = {"majority class": np.full(len(test), np.bincount(train.labels, minlength=2).argmax())}
    rules["bag of bytes"] = naive_bayes(train, test, pairs=False)
    rules["bag of byte pairs"] = naive_bayes(train, test, pairs=True)
    return {name: float((guess == test.labels).mean()) for name, guess in rules.items()}


def naive_bayes(train: Ragged, test: Ragged, *, pairs: bool) -> npt.NDArray[np.int64]:
    """Returns the labels that naive Bayes with add-one smoothing guesses from the counts of bytes, or of pairs."""
    size = 2**16 if pairs else 2**8

    def symbols(sequence: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        wide = sequence.astype(np.int64)
        return wide[:-1] * 256 + wide[1:] if pairs else wide

    classes = int(train.labels.max()) + 1
    counts = np.ones((classes, size))
    for example, label in enumerate(train.labels.tolist()):
        np.add.at(counts[label], symbols(train[example]), 1)
    evidence = np.log(counts) - np.log(counts.sum(axis=1, keepdims=True))
    prior = np.log(np.bincount(train.labels, minlength=classes) / len(train))
    scores = [evidence[:, symbols(test[example])].sum(axis=1) + prior for example in range(len(test))]
    guesses: npt.NDArray[np.int64] = np.array(scores).argmax(axis=1)
    return guesses

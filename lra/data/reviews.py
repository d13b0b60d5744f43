"""Base config of binary text classification, byte by byte: film reviews and the bundled book."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from seqarena.common.data.batches import Ragged, TokenArray
from seqarena.common.data.nearest import FLOOR, TESTED, TRAINED, label_of_nearest, word_counts
from seqarena.common.data.prepared import Splits
from seqarena.lra.data import BYTE_VOCABULARY, Data, majority_class


class Review(NamedTuple):
    """One labelled text."""

    text: bytes
    positive: int
    film: str
    """The film's identifier; empty if the source does not provide it."""


@dataclass(frozen=True, kw_only=True)
class Reviews(Data):
    """Config of texts of two classes. Token n is byte n - 1."""

    vocabulary: ClassVar[int] = BYTE_VOCABULARY
    classes: ClassVar[int] = 2
    length: int
    """Number of bytes read per text."""
    validation: Literal["held-out", "test"] = "held-out"
    """Validation set. held-out: separate examples; test: the test set itself, which makes the task text-legacy."""

    @property
    def longest(self) -> int:
        """Maximum number of bytes of a text."""
        return self.length

    def floors(self, splits: Splits) -> dict[str, float]:
        """Returns the scores of the majority class, naive Bayes on bytes and byte pairs, and the nearest text."""
        train, test = splits["train"], splits["test"]
        rules = {"bag of bytes": False, "bag of byte pairs": True}
        guesses = {name: naive_bayes(train, test, pairs=pairs) for name, pairs in rules.items()}
        return {
            "majority class": majority_class(splits),
            **{name: float((guess == test.labels).mean()) for name, guess in guesses.items()},
            FLOOR: nearest_text(train, test),
        }


def as_array(text: bytes) -> npt.NDArray[np.uint8]:
    """Returns a text's bytes as an array."""
    return np.frombuffer(text, dtype=np.uint8)


def reviews_to_sequences(reviews: Sequence[Review]) -> Ragged:
    """Returns reviews as sequences. Token n is byte n - 1."""
    return Ragged.of([as_array(each.text) for each in reviews], [each.positive for each in reviews], shift=1)


def in_hash_order(reviews: Sequence[Review]) -> list[Review]:
    """Returns the reviews sorted by a hash of their texts."""
    return sorted(reviews, key=lambda each: (hashlib.blake2b(each.text, digest_size=16).digest(), each.positive))


def validate_on_test(splits: Splits) -> Splits:
    """Returns the splits of published code.

    Validation examples are added to training, and the test set is also the validation set.
    """
    train = concatenate_splits([splits["train"], splits["validation"]])
    return {"train": train, "validation": splits["test"], "test": splits["test"]}


def concatenate_splits(parts: Sequence[Ragged]) -> Ragged:
    """Concatenates splits."""
    ends = np.cumsum([0, *(part.offsets[-1] for part in parts[:-1])])
    offsets = [part.offsets[:-1] + end for part, end in zip(parts, ends, strict=True)]
    return Ragged(
        tokens=np.concatenate([part.tokens for part in parts]),
        offsets=np.concatenate([*offsets, [parts[-1].offsets[-1] + ends[-1]]]),
        labels=np.concatenate([part.labels for part in parts]),
        shift=parts[0].shift,
    )


def nearest_text(train: Ragged, test: Ragged) -> float:
    """Returns the test accuracy of the label of the training example with the most similar words.

    The texts of a pair are concatenated.
    """
    train_counts, test_counts = word_counts(_texts(train, TRAINED), _texts(test, TESTED))
    return label_of_nearest(train_counts, train.labels, test_counts, test.labels)


def _texts(split: Ragged, limit: int) -> list[str]:
    """Returns the texts of the first ``limit`` examples, one character per byte."""
    texts = [split[number].tobytes().decode("latin-1") for number in range(min(len(split), limit) * split.sequences)]
    return [" ".join(texts[first : first + split.sequences]) for first in range(0, len(texts), split.sequences)]


def naive_bayes(train: Ragged, test: Ragged, *, pairs: bool) -> npt.NDArray[np.int64]:
    """Returns the labels predicted by naive Bayes with add-one smoothing on the counts of bytes or byte pairs."""
    size = 2**16 if pairs else 2**8

    def symbols(sequence: TokenArray) -> npt.NDArray[np.int64]:
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

"""Retrieval: does one of two papers cite the other (AAN)?

retrieval-imdb is our substitute with public data: are two reviews of the same film?
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from seqarena.common.data.archives import folder_of
from seqarena.common.data.batches import Ragged
from seqarena.common.data.imdb import ARCHIVE
from seqarena.common.data.nearest import FLOOR
from seqarena.common.data.prepared import Splits, prepared
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.training.log import with_progress
from seqarena.lra import checksums
from seqarena.lra.data import BYTE_VOCABULARY, Data, majority_class, truncate
from seqarena.lra.data.imdb import read_imdb
from seqarena.lra.data.origin import prepared_folder
from seqarena.lra.data.reviews import Review, as_array, in_hash_order, nearest_text

FILES = {split: f"new_aan_pairs.{name}.tsv" for split, name in
         {"train": "train", "validation": "eval", "test": "test"}.items()}  # fmt: skip
KEPT = 4_096
"""Maximum number of bytes stored per paper. No published code reads more."""
VALIDATION_FILMS = 0.2
"""Fraction of the training films whose reviews form the validation set."""
Pair = tuple[bytes, bytes, int]


@dataclass(frozen=True, kw_only=True)
class Pairs(Data):
    """Config of examples of two documents."""

    vocabulary: ClassVar[int] = BYTE_VOCABULARY
    classes: ClassVar[int] = 2
    sequences: ClassVar[int] = 2
    length: int = 4_000
    """Number of bytes read per document."""

    @property
    def longest(self) -> int:
        """Maximum number of bytes of a document."""
        return self.length

    def check(self) -> None:
        """Raises a ``WrongUseError`` unless ``length`` is 1 to 4,096."""
        if not 1 <= self.length <= KEPT:
            raise WrongUseError(f"data.length: expected 1 to {KEPT:,}, found {self.length}")

    def floors(self, splits: Splits) -> dict[str, float]:
        """Returns the scores of the majority class, a threshold on shared words, and the nearest training pair."""
        train, test = splits["train"], splits["test"]
        some = range(min(len(train), 4_000))
        known = np.array([shared_words(train, example) for example in some])
        labels = train.labels[: len(some)]
        cut = max(np.unique(known), key=lambda each: float(((known >= each) == labels).mean()))
        guess = np.array([shared_words(test, example) for example in range(len(test))]) >= cut
        return {
            "majority class": majority_class(splits),
            "shared words": float((guess == test.labels).mean()),
            FLOOR: nearest_text(train, test),
        }


@dataclass(frozen=True, kw_only=True)
class Retrieval(Pairs):
    """Pairs of papers of the ACL Anthology Network, from the user's own copy."""

    path: str | None = None
    """Folder that contains new_aan_pairs.train.tsv, .eval.tsv and .test.tsv of the official release, at any depth.
    There is no other source."""
    rows: tuple[int, int, int] = (147_086, 18_090, 17_437)
    """Expected number of pairs in each of the three files."""

    def load(self, folder: Path) -> tuple[Splits, str]:
        """Returns the splits, truncated to ``length``, and the checksum of the stored documents."""
        self.check()
        there = None if self.path is None else str(folder_of(Path(self.path), FILES["train"]))
        where = prepared_folder(folder, f"retrieval-{'-'.join(map(str, self.rows))}", there, alike=False)
        if self.path is None and not where.exists():
            raise BadDataError(
                f"retrieval needs your own copy of the data: --data.path FOLDER with {', '.join(FILES.values())} "
                "(tsv_data of lra_release.gz, 7.7 GB, of google-research/long-range-arena). "
                "lra retrieval-imdb is a similar task with public data; lra listops needs no files"
            )
        wanted = dict(zip(FILES, self.rows, strict=True))
        kept, found = prepared(
            where,
            f"retrieval: reading {sum(self.rows):,} pairs",
            lambda: {
                split: pairs_to_sequences(
                    with_progress(read_aan(Path(there or ".") / file, wanted[split]), split, wanted[split])
                )
                for split, file in FILES.items()
            },
        )
        return truncate(kept, self.length), found


def read_aan(path: Path, rows: int) -> Iterator[Pair]:
    """Yields both texts and the label of each line.

    A line has five columns separated by tabs: label, two ids, two texts. There is no header and no quoting.

    Raises:
        BadDataError: the file is missing or invalid. The message names the file, the line, the content found and the
            content expected.
    """
    if not path.is_file():
        raise BadDataError(f"{path} does not exist; expected {', '.join(FILES.values())} in --data.path")
    number = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            columns = line.rstrip(b"\r\n").split(b"\t")
            if len(columns) != 5:
                raise BadDataError(f"{path}, line {number}: expected 5 columns separated by tabs, found {len(columns)}")
            if columns[0] not in (b"0", b"1", b"0.0", b"1.0"):
                raise BadDataError(f"{path}, line {number}: expected label 0 or 1, found {columns[0]!r:.40}")
            if not columns[3] or not columns[4]:
                raise BadDataError(f"{path}, line {number}: expected two texts, found an empty one")
            if not line.endswith(b"\n"):
                raise BadDataError(
                    f"{path}, line {number}: expected a line end, found the end of the file; the copy may be truncated"
                )
            yield columns[3][:KEPT], columns[4][:KEPT], int(float(columns[0]))
    if number != rows:
        raise BadDataError(
            f"{path}: expected {rows:,} lines, found {number:,}; the copy may be truncated. For files of other lengths "
            "set --data.rows TRAIN VALIDATION TEST"
        )


@dataclass(frozen=True, kw_only=True)
class RetrievalImdb(Pairs):
    """Pairs of reviews of one film, or of two films. This task is ours: do not average it with published scores."""

    path: str | None = None
    """aclImdb_v1.tar.gz (or .tar.xz) or its folder. The hub's copy does not identify the films."""

    def load(self, folder: Path) -> tuple[Splits, str]:
        """Returns the splits, truncated to ``length``, and the checksum of the stored documents."""
        self.check()
        where = prepared_folder(folder, "retrieval-imdb", self.path)
        if self.path is None and not where.exists():
            raise BadDataError(
                f"retrieval-imdb needs --data.path with the authors' archive, which lists the films: {ARCHIVE}"
            )
        kept, found = prepared(
            where,
            "retrieval-imdb: pairing 50,000 reviews",
            lambda: film_pairs(read_imdb(self.path), str(self.path)),
            checksums.RETRIEVAL_IMDB,
        )
        return truncate(kept, self.length), found


def film_pairs(reviews: dict[str, list[Review]], source: str) -> Splits:
    """Returns the pairs. No film is in two splits, and no review is in two pairs of the same label.

    Raises:
        BadDataError: the source does not identify the films.
    """
    if not all(review.film for each in reviews.values() for review in each):
        raise BadDataError(
            f"{source}: expected urls_pos.txt and urls_neg.txt in train and test, found none; use {ARCHIVE}"
        )
    reviews = _distinct(reviews)
    held_out = {review.film for review in reviews["train"] if _film_hash(review.film) < VALIDATION_FILMS}
    tested = {review.film for review in reviews["test"]}
    parts = {
        "train": [review for review in reviews["train"] if review.film not in held_out | tested],
        "validation": [review for review in reviews["train"] if review.film in held_out - tested],
        "test": reviews["test"],
    }
    return {name: pairs_to_sequences(balanced_pairs(part)) for name, part in parts.items()}


def _distinct(reviews: dict[str, list[Review]]) -> dict[str, list[Review]]:
    """Removes duplicate texts. A text of the test set is removed from training."""
    test = {review.text: review for review in in_hash_order(reviews["test"])}
    train = {review.text: review for review in in_hash_order(reviews["train"]) if review.text not in test}
    return {"train": list(train.values()), "test": list(test.values())}


def _film_hash(film: str) -> float:
    """Returns a hash of the film, between 0 and 1."""
    return int.from_bytes(hashlib.blake2b(film.encode(), digest_size=8).digest(), "big") / 2**64


def balanced_pairs(reviews: Sequence[Review]) -> Iterator[Pair]:
    """Yields equal numbers of pairs of one film and of two films, made of the same reviews.

    Each pair of two films replaces the second review by one of similar length and the same sentiment. No rule based on
    one review alone, or on the lengths or sentiments of both, can therefore predict the label.
    """
    films: dict[str, list[Review]] = {}
    for review in in_hash_order(reviews):
        films.setdefault(review.film, []).append(review)
    pairs = [
        (some[number], some[number + 1]) for _, some in sorted(films.items()) for number in range(0, len(some) - 1, 2)
    ]
    pairs.sort(key=lambda each: (each[1].positive, len(each[1].text)))
    others = [second for _, second in pairs]
    for index, (first, second) in enumerate(pairs):
        if others[index].film != first.film:
            continue  # swapped already
        after = range(index + 1, len(pairs))
        fits = (n for n in after if others[n].film != first.film != pairs[n][0].film)
        swap = next(fits, None)
        if swap is not None and others[swap].positive == second.positive:
            others[index], others[swap] = others[swap], others[index]
    for (first, second), other in zip(pairs, others, strict=True):
        if other.film != first.film:  # the last few pairs may have no review to swap with
            yield first.text, second.text, 1
            yield first.text, other.text, 0


def pairs_to_sequences(pairs: Iterator[Pair]) -> Ragged:
    """Returns pairs of texts as examples of two sequences."""
    texts: list[npt.NDArray[np.uint8]] = []
    labels: list[int] = []
    for first, second, label in pairs:
        texts += as_array(first[:KEPT]), as_array(second[:KEPT])
        labels.append(label)
    return Ragged.of(texts, labels, shift=1)


def shared_words(split: Ragged, example: int) -> float:
    """Returns the number of distinct words that two documents share, as a fraction of the smaller document's.

    Only words of four or more letters count.
    """
    first, second = (
        {word for word in split[2 * example + side].tobytes().lower().split() if len(word) > 3} for side in (0, 1)
    )
    return len(first & second) / max(1, min(len(first), len(second)))

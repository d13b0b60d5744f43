"""Retrieval: do two papers cite each other (AAN)? And our own, which anybody can run: are two reviews of one film?"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from seqarena.common.data.batches import Ragged
from seqarena.common.data.nearest import FLOOR
from seqarena.common.data.prepared import Splits, prepared
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.training.log import with_progress
from seqarena.lra import checksums
from seqarena.lra.data import BYTE_VOCABULARY, Data, cropped, majority_class
from seqarena.lra.data.archives import folder_of
from seqarena.lra.data.imdb import ARCHIVE, read_imdb
from seqarena.lra.data.origin import kept_in
from seqarena.lra.data.reviews import Review, as_array, in_hash_order, nearest_text

FILES = {split: f"new_aan_pairs.{name}.tsv" for split, name in
         {"train": "train", "validation": "eval", "test": "test"}.items()}  # fmt: skip
KEPT = 4_096
"""Bytes of a paper that are kept: no published code reads more."""
VALIDATION_FILMS = 0.2
"""Share of the training films that go to the validation set."""
Pair = tuple[bytes, bytes, int]


@dataclass(frozen=True, kw_only=True)
class Pairs(Data):
    """Two documents an example."""

    vocabulary: ClassVar[int] = BYTE_VOCABULARY
    classes: ClassVar[int] = 2
    sequences: ClassVar[int] = 2
    length: int = 4_000
    """Bytes that are read of a document."""

    @property
    def longest(self) -> int:
        """The most bytes of a document."""
        return self.length

    def check(self) -> None:
        """Raises a ``WrongUseError`` for a length of nothing."""
        if not 1 <= self.length <= KEPT:
            raise WrongUseError(f"data.length: expected 1 to {KEPT:,}, found {self.length}")

    def floors(self, splits: Splits) -> dict[str, float]:
        """Returns the most frequent class, a threshold on how many of their words the two share, the nearest pair."""
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
    """Folder at or above new_aan_pairs.train.tsv, .eval.tsv and .test.tsv of the official release, the only source."""
    rows: tuple[int, int, int] = (147_086, 18_090, 17_437)
    """Pairs that the three files must hold."""

    def load(self, folder: Path) -> tuple[Splits, str]:
        """Returns the splits, cut to ``length``, and the checksum of what is kept."""
        self.check()
        there = None if self.path is None else str(folder_of(Path(self.path), FILES["train"]))
        where = kept_in(folder, f"retrieval-{'-'.join(map(str, self.rows))}", there, alike=False)
        if self.path is None and not where.exists():
            raise BadDataError(
                f"retrieval has no source but your own copy: --data.path FOLDER with {', '.join(FILES.values())} "
                "(tsv_data of lra_release.gz, 7.7 GB, of google-research/long-range-arena). "
                "lra retrieval-imdb asks a like question of data that anybody can get; lra listops needs none"
            )
        wanted = dict(zip(FILES, self.rows, strict=True))
        kept, found = prepared(
            where,
            f"retrieval: reading {sum(self.rows):,} pairs",
            lambda: {
                split: as_pairs(with_progress(read_aan(Path(there or ".") / file, wanted[split]), split, wanted[split]))
                for split, file in FILES.items()
            },
        )
        return cropped(kept, self.length), found


def read_aan(path: Path, rows: int) -> Iterator[Pair]:
    """Yields both texts and the label of each line: label, two ids, two texts between tabs; no header, no quoting.

    Raises:
        BadDataError: names the file, the line, what was found and what was expected.
    """
    if not path.is_file():
        raise BadDataError(f"{path} does not exist; expected {', '.join(FILES.values())} in --data.path")
    number = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            columns = line.rstrip(b"\r\n").split(b"\t")
            if len(columns) != 5:
                raise BadDataError(f"{path}, line {number}: expected 5 columns between tabs, found {len(columns)}")
            if columns[0] not in (b"0", b"1", b"0.0", b"1.0"):
                raise BadDataError(f"{path}, line {number}: expected label 0 or 1, found {columns[0]!r:.40}")
            if not columns[3] or not columns[4]:
                raise BadDataError(f"{path}, line {number}: expected two texts, found an empty one")
            if not line.endswith(b"\n"):
                raise BadDataError(f"{path}, line {number}: expected a line end, found the file's; a cut copy?")
            yield columns[3][:KEPT], columns[4][:KEPT], int(float(columns[0]))
    if number != rows:
        raise BadDataError(
            f"{path}: expected {rows:,} lines, found {number:,}; a cut copy? (--data.rows A B C for others)"
        )


@dataclass(frozen=True, kw_only=True)
class RetrievalImdb(Pairs):
    """Pairs of reviews of one film, or of two films; ours, never to be averaged with papers."""

    path: str | None = None
    """aclImdb_v1.tar.gz (or .tar.xz) or its folder: the hub's copy does not tell films apart."""

    def load(self, folder: Path) -> tuple[Splits, str]:
        """Returns the splits, cut to ``length``, and the checksum of what is kept."""
        self.check()
        where = kept_in(folder, "retrieval-imdb", self.path)
        if self.path is None and not where.exists():
            raise BadDataError(
                f"retrieval-imdb has no source but the authors' archive, with its lists of films: {ARCHIVE}"
            )
        kept, found = prepared(
            where,
            "retrieval-imdb: pairing 50,000 reviews",
            lambda: film_pairs(read_imdb(self.path), str(self.path)),
            checksums.RETRIEVAL_IMDB,
        )
        return cropped(kept, self.length), found


def film_pairs(reviews: dict[str, list[Review]], source: str) -> Splits:
    """Returns the pairs: no film is in two splits, no review in two pairs of one label.

    Raises:
        BadDataError: a source that does not tell films.
    """
    if not all(review.film for each in reviews.values() for review in each):
        raise BadDataError(f"{source}: no urls_pos.txt and urls_neg.txt in train and test; only {ARCHIVE} has them")
    reviews = _distinct(reviews)
    held_out = {review.film for review in reviews["train"] if _share(review.film) < VALIDATION_FILMS}
    tested = {review.film for review in reviews["test"]}
    parts = {
        "train": [review for review in reviews["train"] if review.film not in held_out | tested],
        "validation": [review for review in reviews["train"] if review.film in held_out - tested],
        "test": reviews["test"],
    }
    return {name: as_pairs(balanced(part)) for name, part in parts.items()}


def _distinct(reviews: dict[str, list[Review]]) -> dict[str, list[Review]]:
    """Returns each text once, in the test set if it is there."""
    test = {review.text: review for review in in_hash_order(reviews["test"])}
    train = {review.text: review for review in in_hash_order(reviews["train"]) if review.text not in test}
    return {"train": list(train.values()), "test": list(test.values())}


def _share(film: str) -> float:
    """Returns a number from 0 to 1 that depends on the film alone."""
    return int.from_bytes(hashlib.blake2b(film.encode(), digest_size=8).digest(), "big") / 2**64


def balanced(reviews: Sequence[Review]) -> Iterator[Pair]:
    """Yields pairs of one film, and as many of two: the same reviews, the second swapped for another.

    It is one of like length, and as much for or against its film: no rule that looks at one review, at the lengths or
    the sentiments of both, can tell the label.
    """
    films: dict[str, list[Review]] = {}
    for review in in_hash_order(reviews):
        films.setdefault(review.film, []).append(review)
    pairs = [
        (some[number], some[number + 1]) for _, some in sorted(films.items()) for number in range(0, len(some) - 1, 2)
    ]
    pairs.sort(key=lambda each: (each[1].positive, len(each[1].text)))
    others = [second for _, second in pairs]
    for place, (first, second) in enumerate(pairs):
        if others[place].film != first.film:
            continue  # swapped already
        after = range(place + 1, len(pairs))
        fits = (n for n in after if others[n].film != first.film != pairs[n][0].film)
        swap = next(fits, None)
        if swap is not None and others[swap].positive == second.positive:
            others[place], others[swap] = others[swap], others[place]
    for (first, second), other in zip(pairs, others, strict=True):
        if other.film != first.film:  # the last few may find no partner
            yield first.text, second.text, 1
            yield first.text, other.text, 0


def as_pairs(pairs: Iterator[Pair]) -> Ragged:
    """Returns pairs of texts as examples of two sequences."""
    texts: list[npt.NDArray[np.uint8]] = []
    labels: list[int] = []
    for first, second, label in pairs:
        texts += as_array(first[:KEPT]), as_array(second[:KEPT])
        labels.append(label)
    return Ragged.of(texts, labels, shift=1)


def shared_words(split: Ragged, example: int) -> float:
    """Returns how many of the words of four letters and more two documents share, of those of the smaller."""
    first, second = (
        {word for word in split[2 * example + side].tobytes().lower().split() if len(word) > 3} for side in (0, 1)
    )
    return len(first & second) / max(1, min(len(first), len(second)))

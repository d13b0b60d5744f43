"""The bundled book in pieces, for runs of a minute: where does a passage come from, and do two share a chapter?"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from seqarena.common.data import corpus
from seqarena.common.data.counter import hash64, permutation
from seqarena.common.data.prepared import Splits, prepared
from seqarena.common.errors import WrongUseError
from seqarena.common.runs.config import fingerprint
from seqarena.lra.data import SPLITS
from seqarena.lra.data.retrieval import Pair, Pairs, as_pairs
from seqarena.lra.data.reviews import Review, Reviews, of_reviews, validated_on_test

SHARES = {"train": 0.8, "validation": 0.9, "test": 1.0}
"""Chapters up to which share of all go to each split."""
VERSION = 1


def _chapters() -> list[list[bytes]]:
    return [[line.encode() for line in lines] for lines in corpus.chapters()]


def split_chapters(count: int) -> dict[str, list[int]]:
    """Returns the numbers of each split's chapters: none is in two."""
    order, start = permutation(count, 0).tolist(), 0
    parts = {}
    for name, share in SHARES.items():
        stop = round(share * count)
        parts[name], start = sorted(order[start:stop]), stop
    return parts


def passages(lines: list[bytes], length: int) -> list[bytes]:
    """Returns a chapter cut into passages of so many bytes; what is left over is dropped."""
    text = b" ".join(lines)
    return [text[start : start + length] for start in range(0, len(text) - length + 1, length)]


@dataclass(frozen=True, kw_only=True)
class Book(Reviews):
    """Passages of the bundled book; the class is which half of it a passage comes from."""

    path: str | None = None
    """None: the book is bundled."""
    length: int = 128
    """Bytes of a passage."""

    def check(self) -> None:
        """Raises a ``WrongUseError`` for files, or a length that no chapter has."""
        _check(self.path, self.length)

    def load(self, folder: Path) -> tuple[Splits, str]:
        """Returns the splits and their checksum."""
        self.check()
        where = folder / "lra" / f"book-v{VERSION}-{fingerprint(self)}"
        return prepared(where, "text: cutting the bundled book", self._cut)

    def _cut(self) -> Splits:
        book = _chapters()
        ends = np.cumsum([sum(map(len, lines)) for lines in book])
        parts = split_chapters(len(book))
        found = {
            name: of_reviews(
                [
                    Review(text=passage, positive=int(ends[number] > ends[-1] / 2), film="")
                    for number in parts[name]
                    for passage in passages(book[number], self.length)
                ]
            )
            for name in SPLITS
        }
        return found if self.validation == "held-out" else validated_on_test(found)


@dataclass(frozen=True, kw_only=True)
class Chapters(Pairs):
    """Pairs of passages of the bundled book, of one chapter or of two."""

    path: str | None = None
    """None: the book is bundled."""
    length: int = 128
    """Bytes of a passage."""

    def check(self) -> None:
        """Raises a ``WrongUseError`` for files, or a length that no chapter has."""
        _check(self.path, self.length)

    def load(self, folder: Path) -> tuple[Splits, str]:
        """Returns the splits and their checksum."""
        self.check()
        where = folder / "lra" / f"chapters-v{VERSION}-{fingerprint(self)}"
        return prepared(where, "retrieval: pairing passages of the bundled book", self._paired)

    def _paired(self) -> Splits:
        book = _chapters()
        parts = split_chapters(len(book))
        cut = {name: [passages(book[number], self.length) for number in parts[name]] for name in SPLITS}
        return {name: as_pairs(iter(self._pairs(some))) for name, some in cut.items()}

    def _pairs(self, chapters: list[list[bytes]]) -> list[Pair]:
        """Returns a pair of one chapter and one of two for every two passages of a chapter."""
        pairs: list[Pair] = []
        firsts = [(chapter, number) for chapter, some in enumerate(chapters) for number in range(0, len(some) - 1, 2)]
        for chapter, number in firsts:
            first, second = chapters[chapter][number : number + 2]
            drawn = int(hash64(0, chapter, number)[0] % np.uint64(len(firsts)))
            while firsts[drawn][0] == chapter:
                drawn = (drawn + 1) % len(firsts)
            other, place = firsts[drawn]
            pairs += (first, second, 1), (first, chapters[other][place + 1], 0)
        return pairs


def _check(path: str | None, length: int) -> None:
    if path is not None:
        raise WrongUseError("data.path: the quick preset cuts the bundled book; choose a preset that reads files")
    if not 8 <= length <= 1_000:
        raise WrongUseError(f"data.length: expected 8 to 1,000 bytes, found {length}")

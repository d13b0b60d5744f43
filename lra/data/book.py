"""Passages of the bundled book, for runs of a minute.

Tasks: which half of the book contains a passage; are two passages from one chapter?
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seqarena.common.data import corpus
from seqarena.common.data.batches import Ragged
from seqarena.common.data.counter import hash64, permutation
from seqarena.common.data.prepared import Splits, prepared
from seqarena.common.errors import WrongUseError
from seqarena.common.runs.config import fingerprint
from seqarena.lra.data import BYTE_VOCABULARY, SPLITS
from seqarena.lra.data.retrieval import Pair, Pairs, pairs_to_sequences
from seqarena.lra.data.reviews import Review, Reviews, reviews_to_sequences, validate_on_test

SPLIT_ENDS = {"train": 0.8, "validation": 0.9, "test": 1.0}
"""Upper bound of each split, as a fraction of the shuffled chapters."""
VERSION, PAIRS_VERSION = 1, 2
"""Versions of the passages, and of the pairs of passages."""
GAP = 2
"""Distance between two passages of a chapter in a pair. With 1, the second would often continue a word of the first."""


def _chapters() -> list[list[bytes]]:
    return [[line.encode() for line in lines] for lines in corpus.chapters()]


def split_chapters(count: int) -> dict[str, list[int]]:
    """Returns the chapter numbers of each split. Every chapter is in one split only."""
    order, start = permutation(count, 0).tolist(), 0
    parts = {}
    for name, end in SPLIT_ENDS.items():
        stop = round(end * count)
        parts[name], start = sorted(order[start:stop]), stop
    return parts


def passages(lines: list[bytes], length: int) -> list[bytes]:
    """Returns a chapter cut into passages of ``length`` bytes. The remainder is dropped."""
    text = b" ".join(lines)
    return [text[start : start + length] for start in range(0, len(text) - length + 1, length)]


@dataclass(frozen=True, kw_only=True)
class Book(Reviews):
    """Passages of the bundled book. The class is the half of the book that contains the passage."""

    path: str | None = None
    """Must be none: the book is bundled."""
    length: int = 128
    """Bytes per passage."""

    def check(self) -> None:
        """Raises a ``WrongUseError`` if a path is set, or for a length that no chapter has."""
        _check(self.path, self.length)

    def load(self, folder: Path) -> tuple[Splits, str]:
        """Returns the splits and their checksum."""
        self.check()
        where = folder / "lra" / f"book-v{VERSION}-{fingerprint(self)}"
        return prepared(where, "text: cutting the bundled book", self._cut_passages)

    def _cut_passages(self) -> Splits:
        book = _chapters()
        ends = np.cumsum([sum(map(len, lines)) for lines in book])
        parts = split_chapters(len(book))
        found = {
            name: reviews_to_sequences(
                [
                    Review(text=passage, positive=int(ends[number] > ends[-1] / 2), film="")
                    for number in parts[name]
                    for passage in passages(book[number], self.length)
                ]
            )
            for name in SPLITS
        }
        return found if self.validation == "held-out" else validate_on_test(found)


@dataclass(frozen=True, kw_only=True)
class Chapters(Pairs):
    """Pairs of passages of the bundled book, from one chapter or from two."""

    path: str | None = None
    """Must be none: the book is bundled."""
    length: int = 128
    """Bytes per passage."""

    def check(self) -> None:
        """Raises a ``WrongUseError`` if a path is set, or for a length that no chapter has."""
        _check(self.path, self.length)

    def load(self, folder: Path) -> tuple[Splits, str]:
        """Returns the splits and their checksum."""
        self.check()
        where = folder / "lra" / f"chapters-v{PAIRS_VERSION}-{fingerprint(self)}"
        return prepared(where, "retrieval: pairing passages of the bundled book", self._pair_passages)

    def floors(self, splits: Splits) -> dict[str, float]:
        """Returns the floors of all pairs, and the score of the bytes between the first passage and the second."""
        return super().floors(splits) | {"bytes at the seam": seam(splits)}

    def _pair_passages(self) -> Splits:
        book = _chapters()
        parts = split_chapters(len(book))
        cut = {name: [passages(book[number], self.length) for number in parts[name]] for name in SPLITS}
        return {name: pairs_to_sequences(iter(self._pairs(some))) for name, some in cut.items()}

    def _pairs(self, chapters: list[list[bytes]]) -> list[Pair]:
        """Returns two pairs for every two passages of a chapter: one within the chapter, one across two chapters.

        Passages 0 and 2 of a chapter are a pair, 1 and 3, 4 and 6, 5 and 7, and so on.
        """
        pairs: list[Pair] = []
        firsts = [
            (chapter, number)
            for chapter, some in enumerate(chapters)
            for number in range(len(some) - GAP)
            if number % (2 * GAP) < GAP
        ]
        for chapter, number in firsts:
            first, second = chapters[chapter][number], chapters[chapter][number + GAP]
            drawn = int(hash64(0, chapter, number)[0] % np.uint64(len(firsts)))
            while firsts[drawn][0] == chapter:
                drawn = (drawn + 1) % len(firsts)
            other, index = firsts[drawn]
            pairs += (first, second, 1), (first, chapters[other][index + GAP], 0)
        return pairs


def seam(splits: Splits) -> float:
    """Returns the test accuracy of the more frequent label of the last two bytes of the first passage and the next.

    If the second passage followed the first in the book, it would often continue a word, and the bytes would tell that.
    """
    train, test = splits["train"], splits["test"]
    sums = np.bincount(_seams(train), weights=2.0 * train.labels - 1.0, minlength=BYTE_VOCABULARY**3)
    return float(((sums[_seams(test)] > 0) == test.labels).mean())


def _seams(split: Ragged) -> npt.NDArray[np.int64]:
    """Returns the number of the three bytes around the seam of each pair."""
    seams = split.offsets[1::2]
    last, end, first = (np.asarray(split.tokens)[seams + at].astype(np.int64) for at in (-2, -1, 0))
    return (last * BYTE_VOCABULARY + end) * BYTE_VOCABULARY + first


def _check(path: str | None, length: int) -> None:
    if path is not None:
        raise WrongUseError(
            "data.path: expected none, for the quick preset uses the bundled book; choose a preset that reads files"
        )
    if not 8 <= length <= 1_000:
        raise WrongUseError(f"data.length: expected 8 to 1,000 bytes, found {length}")

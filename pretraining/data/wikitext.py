"""WikiText as Transformer-XL reads it: words of a closed vocabulary, one long stream, cut into parallel ones.

``wiki.train.tokens``, ``wiki.valid.tokens`` and ``wiki.test.tokens`` of wikitext-103-v1 or wikitext-2-v1. A line is
split at blanks, case kept, and every line, empty ones too, ends with ``<eos>``. Words are numbered by how often they
stand in the training file, ties by where they first stand there; ``<eos>``, which is not counted, is 0.
"""

import io
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from common.data import Batch, Ragged
from common.errors import BadDataError, WrongUseError
from common.files import text_lines
from common.shapes import Labels, PerExample, Tokens

END, UNKNOWN = "<eos>", "<unk>"
SPLITS = ("train", "valid", "test")
Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class Words:
    """A closed vocabulary, most frequent word first behind ``<eos>``."""

    words: tuple[str, ...]
    numbers: dict[str, int]

    @staticmethod
    def of(words: Sequence[str]) -> "Words":
        """Returns the vocabulary of words in the order of their numbers."""
        return Words(words=tuple(words), numbers={word: number for number, word in enumerate(words)})

    @staticmethod
    def counted(lines: Iterable[str], source: str) -> "Words":
        """Returns the vocabulary of a training file.

        Raises:
            BadDataError: no word, or none of them ``<unk>``: not the word-level text.
        """
        counts: Counter[str] = Counter()
        for line in lines:
            counts.update(line.split())
        if UNKNOWN not in counts:
            raise BadDataError(
                f"{source}: there is no {UNKNOWN} in it; expected the word-level text, wiki.train.tokens of "
                "wikitext-103-v1 or wikitext-2-v1 (not the -raw- one)"
            )
        counts.pop(END, None)
        return Words.of([END, *(word for word, _ in counts.most_common())])  # a stable sort: ties by first appearance

    def encode(self, lines: Iterable[str], source: str) -> Ids:
        """Returns the numbers of all words, with ``<eos>`` behind every line.

        Raises:
            BadDataError: a word that is not in the vocabulary; names it and its line.
        """
        found: list[npt.NDArray[np.int32]] = []
        for number, line in enumerate(lines, start=1):
            try:
                ids = [self.numbers[word] for word in line.split()]
            except KeyError as error:
                raise BadDataError(
                    f"{source}, line {number}: {error.args[0]!r} is not in the vocabulary of {len(self.words):,} "
                    "words, which is closed; is the training file whole, and of the same set?"
                ) from error
            found.append(np.array([*ids, 0], dtype=np.int32))
        return np.concatenate([np.zeros(0, dtype=np.int32), *found])


def read(path: Path) -> tuple[Words, dict[str, Ids]]:
    """Returns vocabulary and streams of a folder with the three files, or of the zip as it is published.

    Raises:
        BadDataError: a file that is missing or damaged, or not of word-level text.
    """
    words = Words.counted(_lines(path, "train"), f"{path}, wiki.train.tokens")
    return words, {split: words.encode(_lines(path, split), f"{path}, wiki.{split}.tokens") for split in SPLITS}


def _lines(path: Path, split: str) -> Iterator[str]:
    name = f"wiki.{split}.tokens"
    if path.is_dir():
        found = next((each for each in (path / name, *sorted(path.glob(f"*/{name}"))) if each.exists()), path / name)
        yield from text_lines(found)
        return
    try:
        with zipfile.ZipFile(path) as archive:
            inside = next((each for each in archive.namelist() if each.split("/")[-1] == name), None)
            if inside is None:
                raise BadDataError(f"{path}: there is no {name} in it")
            with archive.open(inside) as file:
                yield from (line.rstrip("\n") for line in io.TextIOWrapper(file, encoding="utf-8", newline="\n"))
    except FileNotFoundError as error:
        raise BadDataError(f"{path} does not exist; expected a folder with {name}, or a zip of it") from error
    except (OSError, zipfile.BadZipFile, UnicodeDecodeError) as error:
        raise BadDataError(f"{path}: cannot be read ({error}); fetch it again") from error


def as_ragged(words: Words, streams: dict[str, Ids]) -> dict[str, Ragged]:
    """Returns vocabulary and streams as they are kept: each word is a sequence of bytes, each split one of numbers."""
    kept = {
        name: Ragged(tokens=ids, offsets=np.array([0, len(ids)]), labels=np.zeros(1, dtype=np.uint8))
        for name, ids in streams.items()
    }
    spelled = [np.frombuffer(word.encode(), dtype=np.uint8) for word in words.words]
    return kept | {"words": Ragged.of(spelled, [0] * len(spelled))}


def of_ragged(kept: dict[str, Ragged]) -> tuple[Words, dict[str, Ids]]:
    """Returns what ``as_ragged`` was given."""
    spelled = kept["words"]
    words = Words.of([bytes(spelled[number]).decode() for number in range(len(spelled))])
    return words, {name: np.asarray(kept[name].tokens, dtype=np.int32) for name in SPLITS}


@dataclass(frozen=True, kw_only=True)
class SegmentBatch(Batch):
    """The next segment of parallel streams."""

    tokens: Tokens
    targets: Tokens
    """What follows each token."""
    stream: Labels
    """The number of each row's stream, whose memory it goes on from."""
    fresh: PerExample
    """Whether a row begins its stream, with no memory."""

    def weight(self) -> int:
        """Returns the number of targets."""
        return self.targets.numel()

    def token_count(self) -> int:
        """Returns the number of tokens that are read."""
        return self.tokens.numel()


@dataclass(frozen=True, kw_only=True)
class Streams:
    """A stream cut into so many of equal length, side by side, read a segment at a time; what is left over is not read.

    Epochs follow one another; at the beginning of each the memory is empty, as in the published PyTorch code.
    """

    ids: Ids
    count: int
    """Streams side by side."""
    length: int
    """Tokens of a segment; the last of an epoch may be shorter."""

    def __post_init__(self) -> None:
        if self.each < 2:
            raise WrongUseError(
                f"{len(self.ids):,} tokens are too few for {self.count:,} streams: each needs two at least"
            )
        if self.length > self.each - 1:
            raise WrongUseError(
                f"a segment of {self.length:,} tokens is longer than the {self.each - 1:,} targets of each of "
                f"{self.count:,} streams; fewer streams, or a shorter segment"
            )

    @property
    def each(self) -> int:
        """Tokens of each stream."""
        return len(self.ids) // self.count

    @property
    def segments(self) -> int:
        """Segments of an epoch."""
        return -(-(self.each - 1) // self.length)

    def __getitem__(self, step: int) -> SegmentBatch:
        """Returns the batch of a step, counted from 0."""
        segment = step % self.segments
        start = segment * self.length
        stop = min(start + self.length, self.each - 1)
        side_by_side = self.ids[: self.each * self.count].reshape(self.count, self.each)
        rows = side_by_side[:, start : stop + 1].astype(np.int64)
        return SegmentBatch(
            tokens=torch.from_numpy(rows[:, :-1].copy()),
            targets=torch.from_numpy(rows[:, 1:].copy()),
            stream=torch.arange(self.count),
            fresh=torch.full((self.count,), segment == 0),
        )

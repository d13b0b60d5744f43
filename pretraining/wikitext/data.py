"""Which text, how it becomes numbers, and how many words and bytes these say."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np

from seqarena.common.data.batches import Ragged, TokenArray
from seqarena.common.data.prepared import Splits, origin, prepared
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.runs.roles import Role, role
from seqarena.pretraining.wikitext.sources import SPLITS, Lines, of_book, of_hub, of_path
from seqarena.pretraining.wikitext.vocabularies import BYTES, Bytes, Kind, Pieces, Vocabulary, Words, plain

VERSION = 1
"""Raised whenever text would become other numbers, so that what was prepared is not taken for it."""
Totals = Mapping[str, int]
PUBLISHED: Mapping[str, Totals] = MappingProxyType(
    {
        "wikitext103": {"vocabulary": 267_735, "train": 103_227_021, "valid": 217_646, "test": 245_569},
        "wikitext2": {"vocabulary": 33_278, "train": 2_088_628, "valid": 217_646, "test": 245_569},
    }
)
"""Words of the vocabulary and of each split, ``<eos>`` counted, as everybody has them."""


@dataclass(frozen=True, kw_only=True)
class EncodedText:
    """The splits as numbers."""

    ids: Mapping[str, TokenArray]
    vocabulary: int
    """How many different numbers there are."""
    end: int
    """The number at the end of every line."""
    words: Totals
    """Number of words of each split, each line's end counted. Losses are divided by it."""
    bytes: Totals
    """Number of bytes of each split in UTF-8, each line's end counted as one."""
    checksum: str


@dataclass(frozen=True, kw_only=True)
class WikiText:
    """Which text, and what its tokens are."""

    path: str | None = field(default=None, metadata=role(Role.LOCATION))
    """Folder or zip with wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens, read instead of the hub's."""
    hub: str | None = field(default=None, metadata=role(Role.ORIGIN))
    """A data set of the hub, ID:CONFIG; without it and without ``path`` it is the bundled King James Bible."""
    kind: Kind = "word"
    """word: a closed vocabulary; piece: byte-level pieces trained on the text; byte. Scores are per word for all."""
    pieces: int = 32_000
    """Vocabulary of pieces."""
    unknown: Literal["refuse", "replace"] = "refuse"
    """Of a word outside the closed vocabulary: whether it is refused, or read as <unk>, as parts of a set need."""

    def check(self) -> None:
        """Raises a ``WrongUseError`` for settings that describe no data."""
        if self.kind == "piece" and self.pieces <= BYTES:
            raise WrongUseError(f"data.pieces {self.pieces}: expected more than the {BYTES} bytes")

    @property
    def is_bundled(self) -> bool:
        """Whether the text is the one that comes with the suite."""
        return self.path is None and self.hub is None

    def load(self, folder: Path, task: str, *, told: bool) -> EncodedText:
        """Returns the text; its numbers are made once and kept below ``folder``.

        ``told``: whether it is printed in what it differs from the published set of the ``task``.

        Raises:
            BadDataError: files that are missing, damaged, or not word-level text.
        """
        self.check()
        kept, checksum = prepared(
            folder / "pretraining" / f"wikitext-{self._key()}", f"{task}: numbers of {self._source}", self._made
        )
        counts = dict(zip(SIZES, kept["sizes"].tokens.tolist(), strict=True))
        text = EncodedText(
            ids={name: kept[name].tokens for name in SPLITS},
            vocabulary=counts["vocabulary"],
            end=counts["end"],
            words={name: counts[f"words of {name}"] for name in SPLITS},
            bytes={name: counts[f"bytes of {name}"] for name in SPLITS},
            checksum=checksum,
        )
        if told and not self.is_bundled:
            for line in differing(text, self.kind, task):
                print(f"{task}: {line}", file=sys.stderr)
        return text

    @property
    def _source(self) -> str:
        return self.path or self.hub or "the bundled book"

    def _key(self) -> str:
        """Returns the folder's name: it changes with the text, and with the vocabulary that is asked for."""
        text = origin(Path(self.path)) if self.path else (self.hub or "book").replace("/", "-").replace(":", "-")
        kind = f"piece{self.pieces}" if self.kind == "piece" else self.kind
        return f"{text}-{kind}-v{VERSION}" + ("-unknown" if self.unknown == "replace" else "")

    def _lines(self) -> Lines:
        if self.path is not None:
            return of_path(Path(self.path), ("tokens",) if self.kind == "word" else ("tokens", "raw"))
        return of_book() if self.hub is None else of_hub(self.hub)

    def _made(self) -> Splits:
        lines = self._lines()
        vocabulary = self._vocabulary(lines)
        streams = {name: vocabulary.encode(lines(name), f"{self._source}, {name}") for name in SPLITS}
        for name, ids in streams.items():
            if not len(ids):
                raise BadDataError(f"{self._source}, {name}: there is nothing in it")
        counts = {"vocabulary": len(vocabulary), "end": vocabulary.end}
        for name in SPLITS:
            words, size = sizes(lines, name)
            counts |= {f"words of {name}": words, f"bytes of {name}": size}
        whole = {**streams, "sizes": np.array([counts[name] for name in SIZES], dtype=np.int64)}
        whole["vocabulary"] = np.frombuffer(spelled(vocabulary), dtype=np.uint8)
        return {
            name: Ragged(tokens=ids, offsets=np.array([0, len(ids)]), labels=np.zeros(1, dtype=np.uint8))
            for name, ids in whole.items()
        }

    def _vocabulary(self, lines: Lines) -> Vocabulary:
        if self.kind == "byte":
            return Bytes()
        if self.kind == "piece":
            return Pieces.trained(lines("train"), self.pieces)
        return Words.counted(lines("train"), f"{self._source}, train", self.unknown)


SIZES = ("vocabulary", "end", *(f"{what} of {name}" for name in SPLITS for what in ("words", "bytes")))


def sizes(lines: Lines, split: str) -> tuple[int, int]:
    """Returns how many words and bytes a split has, the end of each line counted."""
    words = size = 0
    for line in map(plain, lines(split)):
        words += len(line.split()) + 1
        size += len(line.encode()) + 1
    return words, size


def spelled(vocabulary: Vocabulary) -> bytes:
    """Returns what the numbers stand for: words a line, ``tokenizer.json``; nothing of bytes."""
    if isinstance(vocabulary, Words):
        return "\n".join(vocabulary.words).encode()
    return vocabulary.inner.to_str().encode() if isinstance(vocabulary, Pieces) else b""


def differing(text: EncodedText, kind: Kind, task: str) -> list[str]:
    """Returns in what the text is not the published one, if in anything; a line each."""
    published = PUBLISHED[task]
    found = dict(text.words) | ({"vocabulary": text.vocabulary} if kind == "word" else {})
    return [
        f"{found[name]:,} words of {name}; as published there are {published[name]:,}"
        for name in found
        if found[name] != published[name]
    ]

"""Text of a language model: its source, its token ids, and its numbers of words and bytes."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np

from seqarena.common.data.batches import Ragged, TokenArray
from seqarena.common.data.hub import hub_label
from seqarena.common.data.prepared import Splits, origin, prepared
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.runs.roles import Role, role
from seqarena.pretraining.wikitext.sources import SPLITS, Lines, lines_of_book, lines_of_hub, lines_of_path
from seqarena.pretraining.wikitext.vocabularies import BYTES, Bytes, Kind, Pieces, Vocabulary, Words, plain

VERSION = 1
"""Raised whenever a text would get other ids, so that older prepared data are not used."""
Totals = Mapping[str, int]
PUBLISHED: Mapping[str, Totals] = MappingProxyType(
    {
        "wikitext103": {"vocabulary": 267_735, "train": 103_227_021, "valid": 217_646, "test": 245_569},
        "wikitext2": {"vocabulary": 33_278, "train": 2_088_628, "valid": 217_646, "test": 245_569},
    }
)
"""Published numbers of words in the vocabulary and in each split, ``<eos>`` counted."""


@dataclass(frozen=True, kw_only=True)
class EncodedText:
    """The three splits as token ids."""

    ids: Mapping[str, TokenArray]
    vocabulary: int
    """Number of different ids."""
    end: int
    """Id of the end of a line."""
    words: Totals
    """Number of words in each split, each line's end counted. Losses are divided by it."""
    bytes: Totals
    """Number of UTF-8 bytes in each split, each line's end counted as one."""
    checksum: str


@dataclass(frozen=True, kw_only=True)
class WikiText:
    """Source of the text, and its kind of tokens."""

    path: str | None = field(default=None, metadata=role(Role.LOCATION))
    """Folder or zip with wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens; replaces the hub's data set."""
    hub: str | None = field(default=None, metadata=role(Role.ORIGIN))
    """Data set of the hub, ID:CONFIG. Without it and without ``path``: the bundled King James Bible."""
    kind: Kind = "word"
    """word: closed vocabulary; piece: byte-level BPE trained on the text; byte. Scores are per word for all three."""
    pieces: int = 32_000
    """Vocabulary size for kind piece."""
    unknown: Literal["refuse", "replace"] = "refuse"
    """Words outside the closed vocabulary: an error (refuse), or <unk> (replace), which parts of a data set need."""

    def check(self) -> None:
        """Raises a ``WrongUseError`` for invalid settings."""
        if self.kind == "piece" and self.pieces <= BYTES:
            raise WrongUseError(f"data.pieces {self.pieces}: expected more than {BYTES}, the number of bytes")

    @property
    def is_bundled(self) -> bool:
        """Whether the text is the bundled book."""
        return self.path is None and self.hub is None

    def load(self, folder: Path, task: str, *, report_differences: bool) -> EncodedText:
        """Returns the text. Its ids are computed once and stored in ``folder``.

        ``report_differences``: whether to print the differences from the published data set of ``task``.

        Raises:
            BadDataError: files that are missing, damaged, or not word-level text.
        """
        self.check()
        kept, checksum = prepared(
            folder / "pretraining" / f"wikitext-{self._key()}", f"{task}: numbers of {self._source}", self._prepare
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
        if report_differences and not self.is_bundled:
            for line in differences(text, self.kind, task):
                print(f"{task}: {line}", file=sys.stderr)
        return text

    @property
    def _source(self) -> str:
        return self.path or self.hub or "the bundled book"

    def _key(self) -> str:
        """Returns the folder's name, which depends on the text and on the vocabulary's settings."""
        text = origin(Path(self.path)) if self.path else "book" if self.is_bundled else hub_label(str(self.hub))
        kind = f"piece{self.pieces}" if self.kind == "piece" else self.kind
        return f"{text}-{kind}-v{VERSION}" + ("-unknown" if self.unknown == "replace" else "")

    def _lines(self) -> Lines:
        if self.path is not None:
            return lines_of_path(Path(self.path), ("tokens",) if self.kind == "word" else ("tokens", "raw"))
        return lines_of_book() if self.hub is None else lines_of_hub(self.hub)

    def _prepare(self) -> Splits:
        lines = self._lines()
        vocabulary = self._vocabulary(lines)
        streams = {name: vocabulary.encode(lines(name), f"{self._source}, {name}") for name in SPLITS}
        for name, ids in streams.items():
            if not len(ids):
                raise BadDataError(f"{self._source}, {name}: the split is empty")
        counts = {"vocabulary": len(vocabulary), "end": vocabulary.end}
        for name in SPLITS:
            words, size = sizes(lines, name)
            counts |= {f"words of {name}": words, f"bytes of {name}": size}
        whole = {**streams, "sizes": np.array([counts[name] for name in SIZES], dtype=np.int64)}
        whole["vocabulary"] = np.frombuffer(to_bytes(vocabulary), dtype=np.uint8)
        return {
            name: Ragged(tokens=ids, offsets=np.array([0, len(ids)]), labels=np.zeros(1, dtype=np.uint8))
            for name, ids in whole.items()
        }

    def _vocabulary(self, lines: Lines) -> Vocabulary:
        if self.kind == "byte":
            return Bytes()
        if self.kind == "piece":
            return Pieces.train(lines("train"), self.pieces)
        return Words.from_lines(lines("train"), f"{self._source}, train", self.unknown)


SIZES = ("vocabulary", "end", *(f"{what} of {name}" for name in SPLITS for what in ("words", "bytes")))


def sizes(lines: Lines, split: str) -> tuple[int, int]:
    """Returns the numbers of words and bytes in a split, the end of each line counted."""
    words = size = 0
    for line in map(plain, lines(split)):
        words += len(line.split()) + 1
        size += len(line.encode()) + 1
    return words, size


def to_bytes(vocabulary: Vocabulary) -> bytes:
    """Returns the vocabulary as bytes: one word per line, or ``tokenizer.json``; empty for bytes."""
    if isinstance(vocabulary, Words):
        return "\n".join(vocabulary.words).encode()
    return vocabulary.inner.to_str().encode() if isinstance(vocabulary, Pieces) else b""


def differences(text: EncodedText, kind: Kind, task: str) -> list[str]:
    """Returns one line per size that differs from the published data set."""
    published = PUBLISHED[task]
    found = dict(text.words) | ({"vocabulary": text.vocabulary} if kind == "word" else {})
    return [
        f"found {found[name]:,} words of {name}, published {published[name]:,}"
        for name in found
        if found[name] != published[name]
    ]

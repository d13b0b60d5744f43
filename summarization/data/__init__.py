"""Texts and their headlines: read or generated, made into tokens."""

import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from seqarena.common.data.batches import Ragged, TokenArray, sample_indices
from seqarena.common.data.prepared import prepared
from seqarena.common.data.tokenization import Tokenizer
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.runs.roles import Role, added, role
from seqarena.summarization.data import wire
from seqarena.summarization.data.batches import Encoded
from seqarena.summarization.data.layouts import Pair, Pairs, find, of_hub
from seqarena.summarization.data.text import encode

GIGAWORD = {"train": 3_803_957, "validation": 189_651, "test": 1_951}
"""Pairs of each split as everybody has them."""
AT_ONCE = 20_000
"""Pairs that are made into tokens together."""
HINT = "--data.path takes a folder of your own"


@dataclass(frozen=True, kw_only=True)
class Split:
    """Pairs to look at: as they were read, and as tokens."""

    pairs: list[Pair]
    encoded: Encoded


@dataclass(frozen=True, kw_only=True)
class Splits:
    """The training and evaluation pairs."""

    train: Encoded
    validation: Split
    test: Split
    checksum: str


@dataclass(frozen=True, kw_only=True)
class Data:
    """Which pairs, and how they become tokens."""

    path: str | None = field(default=None, metadata=role(Role.LOCATION))
    """Folder of pairs: sumdata's or org_data's text files, or train, validation and test as tables."""
    hub: str | None = field(default=None, metadata=role(Role.ORIGIN))
    """A data set of the hub, as ID or ID:CONFIG; without it and without ``path`` pairs are generated."""
    train_pairs: int | None = None
    """Pairs to train on, drawn from all; none: all."""
    validation_pairs: int | None = 10_000
    """Pairs to validate on, drawn from all (P2 has 10,000); none: all."""
    test_limit: int | None = field(default=None, metadata=added(2))
    """Pairs to test on, drawn from all; none: all. A score on fewer is in no table with those on all."""
    generated: int = 20_000
    """Generated pairs to train on; a tenth as many test, a twentieth validate."""
    tokenizer: str | None = field(default=None, metadata=role(Role.ORIGIN))
    """tokenizer.json or vocab.txt, a folder or id of the hub; none: the checkpoint's; generated text: its own words."""
    source_length: int = 128
    """Tokens of a text at most, special ones counted; more are cut off."""
    target_length: int = 64
    """Tokens of a headline at most, a special one counted; more are cut off."""
    seed: int = 0
    """Seed of generated pairs, and of which ones are drawn."""

    @property
    def is_generated(self) -> bool:
        """Whether the pairs are generated."""
        return self.hub is None and self.path is None

    def check(self) -> None:
        """Raises a ``WrongUseError`` for settings that describe no data."""
        if self.hub is not None and self.path is not None:
            raise WrongUseError("data.path and data.hub both name the pairs; leave one out")
        if self.generated < 100:
            raise WrongUseError(f"data.generated: expected at least 100, found {self.generated}")
        for name in ("train_pairs", "validation_pairs", "test_limit"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise WrongUseError(f"data.{name}: expected at least 1, or none for all, found {count}")
        for name in ("source_length", "target_length"):
            if getattr(self, name) < 3:
                raise WrongUseError(f"data.{name}: expected at least 3, found {getattr(self, name)}")

    def load(self, tokenizer: Tokenizer, folder: Path, *, told: bool = True) -> Splits:
        """Returns the splits; the tokens of the pairs to train on are kept below ``folder``.

        ``told``: whether it is printed what is cut, empty, or of another number than everybody has.

        Raises:
            BadDataError: files that are missing, damaged, or not parallel.
        """
        self.check()
        read = self._readers()
        counts = {name: sum(1 for _ in read[name]()) for name in ("validation", "test")}
        counts["train"], content = _counted(read["train"]())
        for name, count in counts.items():
            if not count:
                raise BadDataError(f"{self.path or self.hub}: there is no pair for {name}")
            if told and not self.is_generated and count != GIGAWORD[name]:
                print(f"{name}: {count:,} pairs; Gigaword as published has {GIGAWORD[name]:,}", file=sys.stderr)
        looked_at = {
            name: list(_drawn(read[name], counts[name], limit, self.seed))
            for name, limit in (("validation", self.validation_pairs), ("test", self.test_limit))
        }
        kept = self._key(tokenizer, content)
        arrays, checksum = prepared(
            folder / "summarization" / f"pairs-{kept}",
            f"tokens of {min(self.train_pairs or counts['train'], counts['train']):,} pairs to train on",
            lambda: self._encoded(
                _drawn(read["train"], counts["train"], self.train_pairs, self.seed), tokenizer, "train", told
            ),
        )
        splits = {name: self.split(pairs, tokenizer, name, told=told) for name, pairs in looked_at.items()}
        digest = hashlib.sha256(checksum.encode())
        for each in looked_at.values():
            digest.update(json.dumps([[pair.document, pair.summary] for pair in each]).encode())
        return Splits(train=_of(arrays, tokenizer), **splits, checksum=digest.hexdigest())

    def split(self, pairs: list[Pair], tokenizer: Tokenizer, name: str, *, told: bool) -> Split:
        """Returns pairs with their tokens, cut; ``told``: whether it is printed how many are cut or empty."""
        return Split(pairs=pairs, encoded=_of(self._encoded(iter(pairs), tokenizer, name, told), tokenizer))

    def _readers(self) -> dict[str, Pairs]:
        if self.path is not None:
            return find(Path(self.path))
        if self.hub is not None:
            return of_hub(self.hub, HINT)
        sizes = {"train": self.generated, "validation": self.generated // 20, "test": self.generated // 10}
        made = {
            name: [Pair(document=text, summary=title) for text, title in wire.pairs(size, self.seed, number)]
            for number, (name, size) in enumerate(sizes.items())
        }
        return {name: partial(iter, some) for name, some in made.items()}

    def _key(self, tokenizer: Tokenizer, content: str) -> str:
        """Returns what the tokens to train on depend on, in 12 hex digits."""
        settings = [content, self.train_pairs, self.seed, self.source_length, self.target_length]
        return hashlib.sha256(json.dumps([tokenizer.fingerprint, *settings]).encode()).hexdigest()[:12]

    def _encoded(self, pairs: Iterator[Pair], tokenizer: Tokenizer, name: str, told: bool) -> dict[str, Ragged]:
        """Returns the tokens of texts and headlines, and says how many were cut or are empty."""
        rooms = {"sources": self.source_length - 2, "targets": self.target_length - 1}
        kind = np.uint16 if len(tokenizer) <= 2**16 else np.int32
        parts: dict[str, list[TokenArray]] = {side: [] for side in rooms}
        lengths: dict[str, list[TokenArray]] = {side: [] for side in rooms}
        cut = dict.fromkeys(rooms, 0)
        empty = dict.fromkeys(rooms, 0)
        while some := list(islice(pairs, AT_ONCE)):
            for side, texts in (
                ("sources", [each.document for each in some]), ("targets", [each.summary for each in some])
            ):  # fmt: skip
                tokens = encode(texts, tokenizer)
                cut[side] += sum(len(each) > rooms[side] for each in tokens)
                empty[side] += sum(len(each) == 0 for each in tokens)
                kept = [each[: rooms[side]] for each in tokens]
                lengths[side].append(np.array([len(each) for each in kept], dtype=np.int64))
                parts[side].append(np.concatenate(kept).astype(kind))
        for count, what in (
            (cut["sources"], f"texts cut to {self.source_length} tokens"),
            (cut["targets"], f"headlines cut to {self.target_length} tokens"),
            (empty["sources"], "empty texts"),
            (empty["targets"], "empty headlines"),
        ):
            if count and told:
                print(f"{name}, {what}: {count:,}", file=sys.stderr)
        return {
            side: Ragged(
                tokens=np.concatenate(some),
                offsets=np.concatenate([[0], np.cumsum(np.concatenate(lengths[side]))]).astype(np.int64),
                labels=np.zeros(sum(map(len, lengths[side])), dtype=np.uint8),
            )
            for side, some in parts.items()
        }


def _counted(pairs: Iterator[Pair]) -> tuple[int, str]:
    """Returns how many pairs there are, and a hash of all that they say."""
    digest, count = hashlib.blake2b(digest_size=16), 0
    for pair in pairs:
        digest.update(f"{pair.document}\t{pair.summary}\n".encode())
        count += 1
    return count, digest.hexdigest()


def _drawn(read: Pairs, count: int, limit: int | None, seed: int) -> Iterator[Pair]:
    """Yields all pairs of a split, or so many drawn ones, in the order of the file."""
    if limit is None or limit >= count:
        return read()
    chosen = np.zeros(count, dtype=np.bool_)
    chosen[sample_indices(count, limit, seed, 2)] = True
    return (pair for pair, taken in zip(read(), chosen.tolist(), strict=True) if taken)


def _of(arrays: dict[str, Ragged], tokenizer: Tokenizer) -> Encoded:
    special = tokenizer.id("[CLS]"), tokenizer.id("[SEP]"), tokenizer.id("[PAD]")
    return Encoded(sources=arrays["sources"], targets=arrays["targets"], special=special)

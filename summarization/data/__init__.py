"""Pairs of texts and headlines: read or generated, then tokenized."""

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
from seqarena.summarization.data.batches import EncodedPairs
from seqarena.summarization.data.layouts import Pair, Pairs, find, of_hub
from seqarena.summarization.data.text import encode

GIGAWORD = {"train": 3_803_957, "validation": 189_651, "test": 1_951}
"""Published number of pairs in each split."""
AT_ONCE = 20_000
"""Number of pairs that are tokenized together."""
HINT = "or set --data.path to a folder of your own"


@dataclass(frozen=True, kw_only=True)
class Split:
    """Evaluation pairs, as text and as tokens."""

    pairs: list[Pair]
    encoded: EncodedPairs


@dataclass(frozen=True, kw_only=True)
class Splits:
    """Training, validation and test pairs."""

    train: EncodedPairs
    validation: Split
    test: Split
    checksum: str


@dataclass(frozen=True, kw_only=True)
class Data:
    """Source of the pairs, and their tokenization."""

    path: str | None = field(default=None, metadata=role(Role.LOCATION))
    """Folder of pairs: text files as in sumdata or org_data, or train, validation and test as tables."""
    hub: str | None = field(default=None, metadata=role(Role.ORIGIN))
    """Hub data set, ID or ID:CONFIG. Without it and without ``path``, pairs are generated."""
    train_pairs: int | None = None
    """Number of training pairs, drawn from all. None: all."""
    validation_pairs: int | None = 10_000
    """Number of validation pairs, drawn from all (10,000 in P2). None: all."""
    test_limit: int | None = field(default=None, metadata=added(2))
    """Number of test pairs, drawn from all. None: all. Results on fewer are not in one table with results on all."""
    generated: int = 20_000
    """Number of generated training pairs; the test set has a tenth as many, the validation set a twentieth."""
    tokenizer: str | None = field(default=None, metadata=role(Role.ORIGIN))
    """spiece.model, tokenizer.json, vocab.json or vocab.txt, folder, or hub id. None: the checkpoint's; for generated
    text, its own words."""
    source_length: int = 128
    """Maximum tokens of a text, special ones counted; the rest is cut."""
    target_length: int = 64
    """Maximum tokens of a headline, one special token counted; the rest is cut."""
    seed: int = 0
    """Seed of generated pairs and of drawn subsets."""

    @property
    def is_generated(self) -> bool:
        """Whether the pairs are generated."""
        return self.hub is None and self.path is None

    def check(self) -> None:
        """Raises a ``WrongUseError`` for invalid settings."""
        if self.hub is not None and self.path is not None:
            raise WrongUseError("data.path and data.hub both set the source of the pairs; omit one")
        if self.generated < 100:
            raise WrongUseError(f"data.generated: expected at least 100, found {self.generated}")
        for name in ("train_pairs", "validation_pairs", "test_limit"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise WrongUseError(f"data.{name}: expected at least 1, or none for all, found {count}")
        for name in ("source_length", "target_length"):
            if getattr(self, name) < 3:
                raise WrongUseError(f"data.{name}: expected at least 3, found {getattr(self, name)}")

    def load(self, tokenizer: Tokenizer, folder: Path, *, verbose: bool = True) -> Splits:
        """Returns the splits. The tokens of the training pairs are stored in ``folder``.

        ``verbose``: whether to print the numbers of cut and empty texts, and split sizes other than the published.

        Raises:
            BadDataError: files that are missing, damaged, or not parallel.
        """
        self.check()
        read = self._readers()
        counts = {name: sum(1 for _ in read[name]()) for name in ("validation", "test")}
        counts["train"], content = _count_and_hash(read["train"]())
        for name, count in counts.items():
            if not count:
                raise BadDataError(f"{self.path or self.hub}: the {name} split has no pairs")
            if verbose and not self.is_generated and count != GIGAWORD[name]:
                print(f"{name}: {count:,} pairs, but published Gigaword has {GIGAWORD[name]:,}", file=sys.stderr)
        evaluated = {
            name: list(_subset(read[name], counts[name], limit, self.seed))
            for name, limit in (("validation", self.validation_pairs), ("test", self.test_limit))
        }
        key = self._key(tokenizer, content)
        arrays, checksum = prepared(
            folder / "summarization" / f"pairs-{key}",
            f"tokens of {min(self.train_pairs or counts['train'], counts['train']):,} training pairs",
            lambda: self._encode(
                _subset(read["train"], counts["train"], self.train_pairs, self.seed), tokenizer, "train", verbose
            ),
        )
        splits = {name: self.split(pairs, tokenizer, name, verbose=verbose) for name, pairs in evaluated.items()}
        digest = hashlib.sha256(checksum.encode())
        for each in evaluated.values():
            digest.update(json.dumps([[pair.document, pair.summary] for pair in each]).encode())
        return Splits(train=_of(arrays, tokenizer), **splits, checksum=digest.hexdigest())

    def split(self, pairs: list[Pair], tokenizer: Tokenizer, name: str, *, verbose: bool) -> Split:
        """Returns pairs with their cut tokens; ``verbose``: whether to print the numbers of cut and empty texts."""
        return Split(pairs=pairs, encoded=_of(self._encode(iter(pairs), tokenizer, name, verbose), tokenizer))

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
        """Returns a key of everything the training tokens depend on, 12 hex digits."""
        settings = [content, self.train_pairs, self.seed, self.source_length, self.target_length]
        return hashlib.sha256(json.dumps([tokenizer.fingerprint, *settings]).encode()).hexdigest()[:12]

    def _encode(self, pairs: Iterator[Pair], tokenizer: Tokenizer, name: str, verbose: bool) -> dict[str, Ragged]:
        """Returns the tokens of texts and headlines; prints the numbers of cut and empty ones if ``verbose``."""
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
            if count and verbose:
                print(f"{name}, {what}: {count:,}", file=sys.stderr)
        return {
            side: Ragged(
                tokens=np.concatenate(some),
                offsets=np.concatenate([[0], np.cumsum(np.concatenate(lengths[side]))]).astype(np.int64),
                labels=np.zeros(sum(map(len, lengths[side])), dtype=np.uint8),
            )
            for side, some in parts.items()
        }


def _count_and_hash(pairs: Iterator[Pair]) -> tuple[int, str]:
    """Returns the number of pairs, and a hash of their content."""
    digest, count = hashlib.blake2b(digest_size=16), 0
    for pair in pairs:
        digest.update(f"{pair.document}\t{pair.summary}\n".encode())
        count += 1
    return count, digest.hexdigest()


def _subset(read: Pairs, count: int, limit: int | None, seed: int) -> Iterator[Pair]:
    """Yields all pairs of a split, or ``limit`` drawn ones, in file order."""
    if limit is None or limit >= count:
        return read()
    chosen = np.zeros(count, dtype=np.bool_)
    chosen[sample_indices(count, limit, seed, 2)] = True
    return (pair for pair, is_chosen in zip(read(), chosen.tolist(), strict=True) if is_chosen)


def _of(arrays: dict[str, Ragged], tokenizer: Tokenizer) -> EncodedPairs:
    special = tokenizer.id("[CLS]"), tokenizer.id("[SEP]"), tokenizer.id("[PAD]")
    return EncodedPairs(sources=arrays["sources"], targets=arrays["targets"], special=special)

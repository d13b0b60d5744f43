"""Text of masked-language models: its source, and its sequences and masks."""

import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seqarena.common.data import corpus
from seqarena.common.data.counter import hash64
from seqarena.common.data.hub import hub_folder, hub_label
from seqarena.common.data.imdb import is_imdb
from seqarena.common.data.prepared import origin
from seqarena.common.data.tokenization import FILES, VOCABULARIES, Kind, Tokenizer, load_tokenizer, train_tokenizer
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.files import lock_folder
from seqarena.common.runs.roles import Role, role
from seqarena.pretraining.data.documents import Text, documents, from_hub, sentences, sources
from seqarena.pretraining.data.sequences import Building, Sequences, build
from seqarena.pretraining.data.shards import Corpus, begin, read_corpus, say, summary, write_corpus
from seqarena.pretraining.masking import Masking

SPLITS = ("train", "validation", "test")
TRAINED = 30_000
"""Default size of a vocabulary trained on the text."""
VERSION = 3
"""Raised whenever a text would get other tokens, so that older prepared data are not used."""
TRAINED_ON = 200_000
"""Maximum number of documents that a vocabulary is trained on."""


@dataclass(frozen=True, kw_only=True)
class MaskedText:
    """Source of the text, its sequences and masks."""

    path: str | None = field(default=None, metadata=role(Role.LOCATION))
    """File or folder of Parquet or JSON lines with ``text``, or of plain text with empty lines between documents; or
    IMDB's archive aclImdb_v1.tar.gz or its folder: the reviews of train (neg, pos, unsup), none of test."""
    hub: str | None = field(default=None, metadata=role(Role.ORIGIN))
    """Hub data set with a column ``text``, ID or ID:CONFIG; several, joined with commas, are read one after the other.
    None, without a path: the bundled King James Bible."""
    tokenizer: str | None = field(default=None, metadata=role(Role.ORIGIN))
    """spiece.model, tokenizer.json, vocab.json or vocab.txt, a folder with one, or an id of the hub. None: that of the
    checkpoint ``model.init``, or trained on the text."""
    kind: Kind = "wordpiece"
    """Kind of a trained vocabulary: wordpiece (BERT) or sentencepiece (ALBERT)."""
    vocabulary: int | None = None
    """Size of a trained vocabulary. None: 30,000, or the 4,000 tokens that are bundled with the book."""
    strict: bool = False
    """Whether invalid UTF-8 is an error; otherwise it is replaced and counted."""
    building: Building = "blocks"
    """blocks: sentences of one document; order, next: pairs of its segments, half of them swapped (order) or with the
    second from another document (next); packed: several blocks per row, without attention across documents."""
    length: int = 128
    """Maximum tokens per sequence, special ones counted."""
    last_length: int | None = None
    """Sequence length of the last steps, such as BERT's 512. None: ``length`` throughout."""
    last_share: float = 0.1
    """Fraction of the steps at ``last_length``."""
    short: float = 0.1
    """Probability that a pair has a random target length."""
    held_out: float = 0.05
    """Fraction of the documents held out for validation, and again for the test."""
    evaluated: int = 5_000
    """Maximum number of sequences evaluated per held-out split, drawn by the data's seed."""
    seed: int = 0
    """Seed of sequences and evaluation masks; independent of the seed of the run."""
    masking: Masking = field(default_factory=Masking)
    """Masking of the targets."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """The sequence lengths, in the order of the steps."""
        return (self.length,) if self.last_length is None else (self.length, self.last_length)

    def check(self) -> None:
        """Raises a ``WrongUseError`` for invalid settings."""
        if self.path is not None and self.hub is not None:
            raise WrongUseError("data.path and data.hub are both set: expected at most one of them")
        if self.hub is not None and not all(self.hub.split(",")):
            raise WrongUseError(f"data.hub: expected ids of the hub, joined with commas, found {self.hub!r}")
        if self.evaluated < 1:
            raise WrongUseError(f"data.evaluated: expected at least 1 sequence, found {self.evaluated}")
        for length in self.lengths:
            if not 8 <= length <= 2**15:
                raise WrongUseError(f"data.length and data.last_length: expected 8 to 32,768 tokens, found {length}")
        if not 0 < self.last_share < 1 or not 0 <= self.short < 1 or not 0 < self.held_out < 0.5:
            raise WrongUseError(
                "expected 0 < data.last_share < 1, 0 <= data.short < 1 and 0 < data.held_out < 0.5, found "
                f"{self.last_share}, {self.short} and {self.held_out}"
            )
        self.masking.check()

    def load(self, folder: Path, room: int | None = None, tokenizer: Tokenizer | None = None) -> tuple[Corpus, str]:
        """Returns the tokens, computed once and stored in ``folder``, and their checksum.

        ``room``: the model's vocabulary size. An existing tokenizer is checked against it before any text is
        tokenized. ``tokenizer``: that of a checkpoint; none: the one of this config.

        Raises:
            BadDataError: text that is missing, damaged or empty; a damaged folder.
            WrongUseError: another process is preparing the same text, or the vocabulary is larger than ``room``.
        """
        self.check()
        where = folder / "pretraining" / self._name(tokenizer)
        if not (where / "manifest.json").exists():
            if tokenizer is not None or not self.is_trained:
                _require_room(tokenizer or self._tokenizer(where), room)
            say(f"mlm: tokenizing {self._source} into {where}")
            where.mkdir(parents=True, exist_ok=True)
            with lock_folder(where):
                begin(where)
                self._write(where, tokenizer or self._tokenizer(where))
        made, checksum = read_corpus(where)
        _require_room(made.tokenizer, room)
        if self.strict and made.manifest["replaced"]:
            raise BadDataError(
                f"{self._source}: {made.manifest['replaced']:,} invalid sequences of UTF-8 were replaced when it was "
                "prepared, and --data.strict rejects them; correct the text, or omit --data.strict"
            )
        say(f"mlm: {summary(made)}")
        return made, checksum

    @property
    def _source(self) -> str:
        return self.path or self.hub or "the bundled book"

    def _name(self, tokenizer: Tokenizer | None = None) -> str:
        """Returns the folder's name, which depends on the text and on the vocabulary's settings."""
        text = "book" if self.path is None else origin(Path(self.path))
        if self.path is not None and is_imdb(Path(self.path)):
            text = f"imdb-{text}"  # earlier versions read every file of the folder, test reviews too, as plain text
        text = text if self.hub is None else f"hub-{hub_label(self.hub)}"
        text = f"{text}-v{VERSION}"
        if tokenizer is not None:
            return f"{text}-{tokenizer.fingerprint}"
        if self.tokenizer is not None:
            path = Path(self.tokenizer)
            return f"{text}-{origin(path) if path.exists() else self.tokenizer.replace('/', '-')}"
        return text if self._is_bundled else f"{text}-{self.kind}{self.trained_size}"

    @property
    def trained_size(self) -> int:
        """Size of a trained vocabulary."""
        return TRAINED if self.vocabulary is None else self.vocabulary

    @property
    def _is_bundled(self) -> bool:
        """Whether text and vocabulary are the bundled ones."""
        ours = self.path is None and self.hub is None and self.tokenizer is None
        return ours and self.kind == "wordpiece" and self.vocabulary is None

    @property
    def is_trained(self) -> bool:
        """Whether the vocabulary is trained on the text."""
        return self.tokenizer is None and not self._is_bundled

    def _write(self, where: Path, tokenizer: Tokenizer) -> None:
        text, workers = Text(strict=self.strict), os.cpu_count() or 1
        started = time.monotonic()
        characters = write_corpus(
            self._documents(text), tokenizer, where, workers=workers, what=self._source, read=text
        )
        seconds = time.monotonic() - started
        rate = characters / 1e6 / seconds / workers
        say(f"mlm: {rate:.2f} M characters per second and core, {workers} cores, process start included")
        if text.replaced:
            say(f"mlm: {text.replaced:,} invalid sequences of UTF-8 were replaced (--data.strict rejects them)")

    def _documents(self, text: Text) -> Iterator[str]:
        if self.hub is not None:
            return itertools.chain.from_iterable(map(from_hub, self.hub.split(",")))
        if self.path is not None:
            return (each for path in sources(Path(self.path)) for each in documents(path, text))
        return ("\n".join(verses) for verses in corpus.chapters())

    def _tokenizer(self, where: Path) -> Tokenizer:
        if self.tokenizer is not None:
            return load_tokenizer(hub_folder(self.tokenizer, VOCABULARIES))
        if self._is_bundled:
            return load_tokenizer(corpus.VOCABULARY)
        kept = where / "tokenizer"
        if any((kept / name).exists() for name in FILES):  # from an interrupted run; another one could differ
            return load_tokenizer(kept)
        say(f"mlm: training a vocabulary of {self.trained_size:,} tokens")
        texts = itertools.islice(self._documents(Text(strict=self.strict)), TRAINED_ON)
        some = (sentence for text in texts for sentence in sentences(text))
        first = next(some, None)
        if first is None:
            raise BadDataError(f"{self._source}: there is no text in it")
        made = train_tokenizer(itertools.chain([first], some), self.kind, self.trained_size)
        made.save(kept)
        return made


def _require_room(tokenizer: Tokenizer, room: int | None) -> None:
    if room is not None and room < len(tokenizer):
        raise WrongUseError(
            f"model.vocabulary {room:,} is below the tokenizer's {len(tokenizer):,} tokens; set it to at least that"
        )


def split(made: Corpus, data: MaskedText) -> dict[str, list[npt.NDArray[np.bool_]]]:
    """Returns masks of the documents of each shard that are in each split, by a hash of the document's number.

    Raises:
        BadDataError: a split without a document.
    """
    parts: dict[str, list[npt.NDArray[np.bool_]]] = {name: [] for name in SPLITS}
    for number, shard in enumerate(made.shards):
        drawn = hash64(number, np.arange(len(shard.documents) - 1)) / 2.0**64
        parts["validation"].append(drawn < data.held_out)
        parts["test"].append((data.held_out <= drawn) & (drawn < 2 * data.held_out))
        parts["train"].append(drawn >= 2 * data.held_out)
    for name, some in parts.items():
        if not any(each.any() for each in some):
            raise BadDataError(
                f"{made.manifest['documents']} documents are too few for three splits: none is in {name}; "
                "empty lines separate documents in plain text, and --data.held-out sets the fraction held out"
            )
    return parts


def sequences(made: Corpus, data: MaskedText, chosen: list[npt.NDArray[np.bool_]], length: int) -> Sequences:
    """Returns the sequences of the chosen documents."""
    return build(made.shards, chosen, data.building, length, data.short, data.seed)

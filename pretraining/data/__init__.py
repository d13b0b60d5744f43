"""Text for masked-language models: which, how it becomes sequences, what is hidden in them."""

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
from seqarena.common.data.hub import hub_folder
from seqarena.common.data.prepared import origin
from seqarena.common.data.tokenization import VOCABULARIES, Kind, Tokenizer, load_tokenizer, train_tokenizer
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.files import lock_folder
from seqarena.common.runs.roles import Role, role
from seqarena.pretraining.data.documents import Text, documents, from_hub, sentences, sources
from seqarena.pretraining.data.sequences import Building, Sequences, build
from seqarena.pretraining.data.shards import Corpus, read_corpus, say, told, write_corpus
from seqarena.pretraining.masking import Masking

SPLITS = ("train", "validation", "test")
TRAINED = 30_000
"""Tokens of a vocabulary that is trained, if nobody says how many."""
VERSION = 2
"""Raised whenever text would become other tokens, so that what was prepared is not taken for it."""
TRAINED_ON = 200_000
"""Documents that a vocabulary is trained on, at most."""


@dataclass(frozen=True, kw_only=True)
class MaskedText:
    """Which text, and what is asked of it."""

    path: str | None = field(default=None, metadata=role(Role.LOCATION))
    """A file or folder of Parquet or JSON lines with ``text``, or of plain text with empty lines between documents."""
    hub: str | None = field(default=None, metadata=role(Role.ORIGIN))
    """A data set of the hub with a column ``text``, as ID or ID:CONFIG; neither: the bundled King James Bible."""
    tokenizer: str | None = field(default=None, metadata=role(Role.ORIGIN))
    """tokenizer.json or vocab.txt, a folder with one, or an id of the hub; none: one is trained on the text."""
    kind: Kind = "wordpiece"
    """Kind of a vocabulary that is trained: wordpiece (BERT) or unigram (SentencePiece, ALBERT)."""
    vocabulary: int | None = None
    """Tokens of a vocabulary that is trained; none: 30,000, and for the bundled book the 4,000 that come with it."""
    strict: bool = False
    """Whether invalid UTF-8 is refused; otherwise it is replaced and counted."""
    building: Building = "blocks"
    """blocks: sentences of one document; order, next: pairs of segments of it, swapped or from elsewhere half of the
    time; packed: blocks of several documents in a row, which do not see each other."""
    length: int = 128
    """Tokens of a sequence at most, special ones counted."""
    last_length: int | None = None
    """Another length for the last steps, as BERT's 512; none: ``length`` throughout."""
    last_share: float = 0.1
    """Share of the steps that are at ``last_length``."""
    short: float = 0.1
    """Probability that a pair aims at a random length."""
    held_out: float = 0.05
    """Share of the documents that validate, and as many that test."""
    evaluated: int = 5_000
    """Sequences of each held-out split that are evaluated at most, drawn by the data's seed."""
    seed: int = 0
    """Seed of sequences and of the masks of evaluation, apart from the seed of the run."""
    masking: Masking = field(default_factory=Masking)
    """Masking of the targets."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths there are, in the order of the steps."""
        return (self.length,) if self.last_length is None else (self.length, self.last_length)

    def check(self) -> None:
        """Raises a ``WrongUseError`` for settings that describe no data."""
        if self.path is not None and self.hub is not None:
            raise WrongUseError("data.path and data.hub: expected one of them")
        if self.evaluated < 1:
            raise WrongUseError(f"data.evaluated: expected at least 1 sequence, found {self.evaluated}")
        for length in self.lengths:
            if not 8 <= length <= 2**15:
                raise WrongUseError(f"data.length and data.last_length: expected 8 to 32,768 tokens, found {length}")
        if not 0 < self.last_share < 1 or not 0 <= self.short < 1 or not 0 < self.held_out < 0.5:
            raise WrongUseError("expected 0 < data.last_share < 1, 0 <= data.short < 1 and 0 < data.held_out < 0.5")
        self.masking.check()

    def load(self, folder: Path, room: int | None = None) -> tuple[Corpus, str]:
        """Returns the tokens, made once and kept below ``folder``, and their checksum.

        ``room``: tokens that the model can hold; a vocabulary that is there already is compared before any text is
        tokenized.

        Raises:
            BadDataError: text that is missing, damaged or empty; a damaged folder.
            WrongUseError: another process is making them; a vocabulary of more tokens than there is room for.
        """
        self.check()
        where = folder / "pretraining" / self._name()
        if not (where / "manifest.json").exists():
            if not self.is_trained:
                _require_room(self._tokenizer(where), room)
            say(f"mlm: tokens of {self._source}, kept in {where}")
            where.mkdir(parents=True, exist_ok=True)
            with lock_folder(where):
                self._write(where)
        made, checksum = read_corpus(where)
        _require_room(made.tokenizer, room)
        if self.strict and made.manifest["replaced"]:
            raise BadDataError(
                f"{self._source}: {made.manifest['replaced']:,} invalid bytes of UTF-8 were replaced when it was "
                "prepared, and --data.strict refuses them; mend the text, or leave --data.strict out"
            )
        say(f"mlm: {told(made)}")
        return made, checksum

    @property
    def _source(self) -> str:
        return self.path or self.hub or "the bundled book"

    def _name(self) -> str:
        """Returns the folder's name: it changes with the text, and with the vocabulary that is asked for."""
        text = f"book-v{VERSION}" if self.path is None else f"{origin(Path(self.path))}-v{VERSION}"
        text = text if self.hub is None else "hub-" + self.hub.replace("/", "-").replace(":", "-")
        if self.tokenizer is not None:
            path = Path(self.tokenizer)
            return f"{text}-{origin(path) if path.exists() else self.tokenizer.replace('/', '-')}"
        return text if self._is_bundled else f"{text}-{self.kind}{self.trained_size}"

    @property
    def trained_size(self) -> int:
        """Tokens of a vocabulary that is trained."""
        return TRAINED if self.vocabulary is None else self.vocabulary

    @property
    def _is_bundled(self) -> bool:
        """Whether text and vocabulary are those that come with the suite."""
        ours = self.path is None and self.hub is None and self.tokenizer is None
        return ours and self.kind == "wordpiece" and self.vocabulary is None

    @property
    def is_trained(self) -> bool:
        """Whether the vocabulary is trained on the text."""
        return self.tokenizer is None and not self._is_bundled

    def _write(self, where: Path) -> None:
        text = Text(strict=self.strict)
        tokenizer, workers = self._tokenizer(where), os.cpu_count() or 1
        started = time.monotonic()
        characters = write_corpus(
            self._documents(text), tokenizer, where, workers=workers, what=self._source, read=text
        )
        seconds = time.monotonic() - started
        rate = characters / 1e6 / seconds / workers
        say(f"mlm: {rate:.2f} M characters a second and core, {workers} cores, the start of their processes included")
        if text.replaced:
            say(f"mlm: {text.replaced:,} invalid bytes of UTF-8 were replaced (--data.strict refuses them)")

    def _documents(self, text: Text) -> Iterator[str]:
        if self.hub is not None:
            return from_hub(self.hub)
        if self.path is not None:
            return (each for path in sources(Path(self.path)) for each in documents(path, text))
        return ("\n".join(verses) for verses in corpus.chapters())

    def _tokenizer(self, where: Path) -> Tokenizer:
        if self.tokenizer is not None:
            return load_tokenizer(hub_folder(self.tokenizer, VOCABULARIES))
        if self._is_bundled:
            return load_tokenizer(corpus.VOCABULARY)
        kept = where / "tokenizer"
        if (kept / "tokenizer.json").exists():  # of an earlier run that was interrupted: training is not repeatable
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
        raise WrongUseError(f"model.vocabulary {room:,} is below the tokenizer's {len(tokenizer):,} tokens")


def split(made: Corpus, data: MaskedText) -> dict[str, list[npt.NDArray[np.bool_]]]:
    """Returns which documents of each shard are in each split: by a hash of their number.

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
                "empty lines separate documents in plain text, and --data.held-out says how many are kept apart"
            )
    return parts


def sequences(made: Corpus, data: MaskedText, chosen: list[npt.NDArray[np.bool_]], length: int) -> Sequences:
    """Returns the sequences of some documents."""
    return build(made.shards, chosen, data.building, length, data.short, data.seed)

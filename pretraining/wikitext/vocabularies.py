"""Converts lines to token ids: words of a closed vocabulary, byte-level BPE trained on the text, or bytes.

A line is its words joined by single spaces, case preserved. Every line, also an empty one, ends with ``<eos>``. All
three kinds therefore encode the same text, and their losses can be divided by the same number of words.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from seqarena.common.data.batches import TokenArray
from seqarena.common.errors import BadDataError

Kind = Literal["word", "piece", "byte"]
END, UNKNOWN = "<eos>", "<unk>"
BYTES = 256
AT_ONCE = 10_000
"""Number of lines that are tokenized together."""


def plain(line: str) -> str:
    """Returns a line's words joined by single spaces."""
    return " ".join(line.split())


@runtime_checkable
class Vocabulary(Protocol):
    """Interface of the three kinds of vocabularies."""

    end: int
    """Id of the end of a line."""

    def __len__(self) -> int: ...

    def encode(self, lines: Iterable[str], source: str) -> TokenArray:
        """Returns the ids of all lines as one stream; ``source`` names the lines in messages."""
        ...


@dataclass(frozen=True, kw_only=True)
class Words:
    """A closed vocabulary, ordered by descending frequency. Id 0 is ``<eos>``."""

    words: tuple[str, ...]
    numbers: dict[str, int]
    unknown: Literal["refuse", "replace"] = "refuse"
    """Treatment of words outside the vocabulary."""
    end = 0

    def __len__(self) -> int:
        return len(self.words)

    @staticmethod
    def from_lines(lines: Iterable[str], source: str, unknown: Literal["refuse", "replace"] = "refuse") -> "Words":
        """Returns the vocabulary of a training text; equally frequent words are in the order of their first occurrence.

        Raises:
            BadDataError: the text is empty or has no ``<unk>``, so it is not the word-level text.
        """
        counts: Counter[str] = Counter()
        for line in lines:
            counts.update(line.split())
        if UNKNOWN not in counts:
            raise BadDataError(
                f"{source}: there is no {UNKNOWN} in it; expected the word-level text, wiki.train.tokens of "
                "wikitext-103-v1 or wikitext-2-v1 (the -raw- ones are for --data.kind piece or byte)"
            )
        counts.pop(END, None)
        words = (END, *(word for word, _ in counts.most_common()))  # a stable sort
        return Words(words=words, numbers={word: number for number, word in enumerate(words)}, unknown=unknown)

    def encode(self, lines: Iterable[str], source: str) -> TokenArray:
        """Returns the ids of all words, with ``<eos>`` after each line.

        Raises:
            BadDataError: a word outside the vocabulary, unless such words are replaced; names the word and its line.
        """
        found = [np.zeros(0, dtype=np.int32)]
        for number, line in enumerate(lines, start=1):
            words = line.split()
            try:
                ids = [self.numbers[word] for word in words]
            except KeyError as error:
                if self.unknown == "refuse":
                    raise BadDataError(
                        f"{source}, line {number}: {error.args[0]!r} is not in the vocabulary of {len(self):,} "
                        "words; is the training file complete, and of the same data set? --data.unknown replace reads "
                        f"such words as {UNKNOWN}; the result is then not comparable with published ones"
                    ) from error
                ids = [self.numbers.get(word, self.numbers[UNKNOWN]) for word in words]
            found.append(np.array([*ids, self.end], dtype=np.int32))
        return np.concatenate(found)


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """Byte-level BPE. It encodes every text without loss; id 0 is ``<eos>``."""

    inner: tokenizers.Tokenizer
    end = 0

    def __len__(self) -> int:
        return self.inner.get_vocab_size()

    @staticmethod
    def train(lines: Iterable[str], size: int) -> "Pieces":
        """Returns a vocabulary of ``size`` pieces, more than ``BYTES``, trained on lines."""
        made = tokenizers.Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=size, special_tokens=[END], show_progress=False, initial_alphabet=made.pre_tokenizer.alphabet()
        )
        made.train_from_iterator(map(plain, lines), trainer)
        return Pieces(inner=made)

    def encode(self, lines: Iterable[str], source: str) -> TokenArray:
        """Returns the ids of all pieces, with ``<eos>`` after each line; a literal ``<eos>`` is encoded as text."""
        self.inner.encode_special_tokens = True
        found = [np.zeros(0, dtype=np.int32)]
        for some in _parts(map(plain, lines)):
            encoded = self.inner.encode_batch_fast(some, add_special_tokens=False)
            found += [np.array([*each.ids, self.end], dtype=np.int32) for each in encoded]
        return np.concatenate(found)


@dataclass(frozen=True, kw_only=True)
class Bytes:
    """UTF-8 bytes; the end of a line is the newline byte."""

    end = ord("\n")

    def __len__(self) -> int:
        return BYTES

    def encode(self, lines: Iterable[str], source: str) -> TokenArray:
        """Returns the bytes of all lines."""
        text = b"".join(plain(line).encode() + b"\n" for line in lines)
        return np.frombuffer(text, dtype=np.uint8)


def _parts(lines: Iterable[str]) -> Iterator[Sequence[str]]:
    lines = iter(lines)
    while some := list(islice(lines, AT_ONCE)):
        yield some

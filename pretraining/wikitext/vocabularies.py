"""From lines to numbers: words of a closed vocabulary, byte-level pieces trained on the text, or bytes.

A line is its words with one blank between them, case kept, and every line, empty ones too, ends with ``<eos>``; so all
three kinds say the same text, and what they cost in nats can be shared out to the same words.
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
"""Lines that are made into pieces together."""


def plain(line: str) -> str:
    """Returns a line's words with one blank between them."""
    return " ".join(line.split())


@runtime_checkable
class Vocabulary(Protocol):
    """The word of each number."""

    end: int
    """The number at the end of every line."""

    def __len__(self) -> int: ...

    def encode(self, lines: Iterable[str], source: str) -> TokenArray:
        """Returns the numbers of all lines, one stream; ``source`` names them in messages."""
        ...


@dataclass(frozen=True, kw_only=True)
class Words:
    """A closed vocabulary, most frequent word first behind ``<eos>``, which is 0 and not counted."""

    words: tuple[str, ...]
    numbers: dict[str, int]
    unknown: Literal["refuse", "replace"] = "refuse"
    """Treatment of a word that is not in it."""
    end = 0

    def __len__(self) -> int:
        return len(self.words)

    @staticmethod
    def counted(lines: Iterable[str], source: str, unknown: Literal["refuse", "replace"] = "refuse") -> "Words":
        """Returns the vocabulary of a training text; of words equally frequent the one that first stands there first.

        Raises:
            BadDataError: no word, or none of them ``<unk>``: not the word-level text.
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
        """Returns the numbers of all words, with ``<eos>`` behind every line.

        Raises:
            BadDataError: a word that is not in the vocabulary, and is not to be replaced; names it and its line.
        """
        found = [np.zeros(0, dtype=np.int32)]
        for number, line in enumerate(lines, start=1):
            words = line.split()
            try:
                ids = [self.numbers[word] for word in words]
            except KeyError as error:
                if self.unknown == "refuse":
                    raise BadDataError(
                        f"{source}, line {number}: {error.args[0]!r} is not in the vocabulary of {len(self):,} words, "
                        "which is closed: is the training file whole, and of the same set? (--data.unknown replace "
                        f"reads such words as {UNKNOWN}; the numbers are then no longer those of the published set)"
                    ) from error
                ids = [self.numbers.get(word, self.numbers[UNKNOWN]) for word in words]
            found.append(np.array([*ids, self.end], dtype=np.int32))
        return np.concatenate(found)


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """Byte-level pieces (BPE): every text has some, and they say it to the last byte; ``<eos>`` is 0."""

    inner: tokenizers.Tokenizer
    end = 0

    def __len__(self) -> int:
        return self.inner.get_vocab_size()

    @staticmethod
    def trained(lines: Iterable[str], size: int) -> "Pieces":
        """Returns a vocabulary of that size, above ``BYTES``, trained on lines."""
        made = tokenizers.Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=size, special_tokens=[END], show_progress=False, initial_alphabet=made.pre_tokenizer.alphabet()
        )
        made.train_from_iterator(map(plain, lines), trainer)
        return Pieces(inner=made)

    def encode(self, lines: Iterable[str], source: str) -> TokenArray:
        """Returns the numbers of all pieces, with ``<eos>`` behind every line; text that says ``<eos>`` is text."""
        self.inner.encode_special_tokens = True
        found = [np.zeros(0, dtype=np.int32)]
        for some in _parts(map(plain, lines)):
            encoded = self.inner.encode_batch_fast(some, add_special_tokens=False)
            found += [np.array([*each.ids, self.end], dtype=np.int32) for each in encoded]
        return np.concatenate(found)


@dataclass(frozen=True, kw_only=True)
class Bytes:
    """The bytes of UTF-8; a line's end is its own byte."""

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

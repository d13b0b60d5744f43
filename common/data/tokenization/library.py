"""Tokenizers of the tokenizers library: WordPiece, and whatever a tokenizer.json describes."""

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import models

from seqarena.common.data.tokenization.interface import BEGUN, Ids, Tokenizer
from seqarena.common.errors import BadDataError
from seqarena.common.files import write_atomically

BYTES_BEGUN = "Ġ"
"""Prefix of byte-level tokens that begin a word: the space before it. The first word of a text has none."""


@dataclass(frozen=True, kw_only=True)
class LibraryTokenizer(Tokenizer):
    """A tokenizer of the tokenizers library."""

    inner: tokenizers.Tokenizer

    def __post_init__(self) -> None:
        super().__post_init__()
        most = max(self.numbers.values())
        if most >= len(self):
            raise BadDataError(f"{self.source}: {len(self):,} tokens, but ids up to {most:,}; some tokens are missing")
        # A text that contains [MASK] gets no special token.
        self.inner.encode_special_tokens = True
        self.inner.no_truncation()
        self.inner.no_padding()

    @functools.cached_property
    def tokens(self) -> Sequence[str]:
        """The tokens, in the order of their ids."""
        return [self.inner.id_to_token(number) or "" for number in range(self.inner.get_vocab_size())]

    @functools.cached_property
    def numbers(self) -> Mapping[str, int]:
        """Ids by token."""
        numbers: dict[str, int] = self.inner.get_vocab()
        return numbers

    @property
    def begun(self) -> str:
        """Prefix of the tokens that begin a word: that of SentencePiece or of byte-level BPE for their models."""
        return {models.Unigram: BEGUN, models.BPE: BYTES_BEGUN}.get(type(self.inner.model), "")

    @property
    def separators(self) -> int:
        """Number of [SEP] between the texts of a pair, as the tokenizer joins them."""
        return max(1, self.inner.num_special_tokens_to_add(is_pair=True) - 2)

    @property
    def fingerprint(self) -> str:
        """Hash of 12 hex digits that changes whenever a text could get other tokens."""
        return hashlib.sha256(self.inner.to_str().encode()).hexdigest()[:12]

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Returns the token ids of each text, without special tokens."""
        found = self.inner.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(each.ids, dtype=np.int32) for each in found]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[Ids, Ids]]:
        """Returns the token ids of each text, and the character offsets of each token's begin and end; T and T 2."""
        found = self.inner.encode_batch(list(texts), add_special_tokens=False)
        return [
            (np.array(each.ids, dtype=np.int32), np.array(each.offsets, dtype=np.int32).reshape(-1, 2))
            for each in found
        ]

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of token ids, without special tokens."""
        text: str = self.inner.decode(list(ids))
        return text

    def save(self, folder: Path) -> None:
        """Writes ``tokenizer.json``, and for WordPiece ``vocab.txt``, in the layout of public checkpoints."""
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "tokenizer.json", lambda file: file.write(self.inner.to_str(pretty=True).encode()))
        if isinstance(self.inner.model, models.WordPiece):
            lines = "".join(f"{token}\n" for token in self.tokens)
            write_atomically(folder / "vocab.txt", lambda file: file.write(lines.encode()))


def read_tokenizer(path: Path) -> LibraryTokenizer:
    """Returns the tokenizer of a ``tokenizer.json``."""
    # The library's from_file reports every failure as damage.
    inner = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
    return LibraryTokenizer(inner=inner, source=str(path))

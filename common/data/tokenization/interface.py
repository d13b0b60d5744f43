"""Interface of the tokenizers: the tokens of texts, and special tokens by the names of their roles."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seqarena.common.errors import BadDataError

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""Special tokens, in the order of their ids in a vocabulary that is trained here. Public vocabularies have other
ids."""
ALIASES = {"[PAD]": "<pad>", "[UNK]": "<unk>", "[CLS]": "<s>", "[SEP]": "</s>", "[MASK]": "<mask>"}
"""Names of the special tokens in RoBERTa's vocabularies, and of the first two in ALBERT's."""
CONTINUED, BEGUN = "##", "▁"
"""Prefixes of tokens: ``CONTINUED`` of a WordPiece token that continues a word, ``BEGUN`` of a SentencePiece token
that begins one, where it stands for the space before the word."""
Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class Tokenizer(ABC):
    """A vocabulary and the rules that split a text into its tokens."""

    source: str
    """File or description of the vocabulary, for messages."""

    def __post_init__(self) -> None:
        missing = [token for token in SPECIAL if self.id(token) < 0]
        if missing:
            raise BadDataError(
                f"{self.source}: the vocabulary has no {', '.join(missing)}; expected {' '.join(SPECIAL)}, or "
                f"{' '.join(ALIASES.values())}"
            )

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    @abstractmethod
    def tokens(self) -> Sequence[str]:
        """The tokens, in the order of their ids."""

    @functools.cached_property
    def numbers(self) -> Mapping[str, int]:
        """Ids by token."""
        return {token: number for number, token in enumerate(self.tokens)}

    def id(self, token: str) -> int:
        """Returns a token's id, by any of its names; -1 for a token that is not in the vocabulary."""
        found = (self.numbers.get(name) for name in (token, ALIASES.get(token, token)))
        return next((number for number in found if number is not None), -1)

    @property
    def separators(self) -> int:
        """Number of [SEP] between the texts of a pair: 1, or 2 in RoBERTa's <s> A </s></s> B </s>."""
        return 1

    @functools.cached_property
    def special(self) -> npt.NDArray[np.bool_]:
        """Mask of the tokens that represent no text: those of ``SPECIAL`` and ``[unusedN]``; one entry per id."""
        known = (*SPECIAL, *ALIASES.values())
        return np.array([token in known or token.startswith("[unused") for token in self.tokens])

    @functools.cached_property
    def continues(self) -> npt.NDArray[np.bool_]:
        """Mask of the tokens that continue a word; one entry per id.

        Punctuation of SentencePiece is a word of its own; letters after it, as in (in, belong to it, as in ALBERT. So
        it is for byte-level BPE. There the first word of a text, which has no space before it, counts as continued.
        """

        def inside(token: str) -> bool:
            return not token.startswith(self.begun) and any(letter.isalnum() for letter in token)

        marks = [inside(token) if self.begun else token.startswith(CONTINUED) for token in self.tokens]
        return np.array(marks) & ~self.special

    @property
    @abstractmethod
    def begun(self) -> str:
        """Prefix of the tokens that begin a word; empty: ``CONTINUED`` marks those that continue one."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Hash of 12 hex digits that changes whenever a text could get other tokens."""

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Returns the token ids of each text, without special tokens."""

    @abstractmethod
    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[Ids, Ids]]:
        """Returns the token ids of each text, and the character offsets of each token's begin and end; T and T 2."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of token ids, without special tokens."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Writes the files of the vocabulary, in the layout of public checkpoints."""

"""Two texts in one sequence of tokens: the format of the sequence, and the base class of batches of them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from seqarena.common.data.batches import Batch
from seqarena.common.data.tokenization import Ids, Tokenizer
from seqarena.common.shapes import Mask, Tokens

Matrix = npt.NDArray[Any]
Same = TypeVar("Same", bound="TextBatch")


@dataclass(frozen=True, kw_only=True)
class PairFormat:
    """Special tokens of a sequence of two texts: [CLS] A [SEP] B [SEP], with two [SEP] after A for RoBERTa."""

    cls: int
    sep: int
    pad: int
    separators: int
    """Number of [SEP] between the texts."""

    @property
    def before(self) -> int:
        """Number of special tokens before the second text."""
        return 1 + self.separators

    @property
    def special(self) -> int:
        """Number of special tokens of a sequence."""
        return self.before + 1

    def join(self, pairs: Sequence[tuple[Ids, Ids]]) -> tuple[Matrix, Matrix, Matrix]:
        """Returns the tokens of a batch, their segments (0 up to the last [SEP] before B, then 1), and which are real.

        All three are B T.
        """
        opening = np.array([len(first) + self.before for first, _ in pairs])
        lengths = np.array([len(first) + len(second) + self.special for first, second in pairs])
        tokens = np.full((len(pairs), int(lengths.max())), self.pad, dtype=np.int64)
        for row, (first, second) in enumerate(pairs):
            start = len(first) + self.before
            tokens[row, 0] = self.cls
            tokens[row, 1 : len(first) + 1] = first
            tokens[row, len(first) + 1 : start] = self.sep
            tokens[row, start : start + len(second)] = second
            tokens[row, start + len(second)] = self.sep
        position = np.arange(tokens.shape[1])
        real = position < lengths[:, None]
        return tokens, ((position >= opening[:, None]) & real).astype(np.int64), real


def format_of(tokenizer: Tokenizer) -> PairFormat:
    """Returns the format that a tokenizer's models were trained with."""
    return PairFormat(
        cls=tokenizer.id("[CLS]"),
        sep=tokenizer.id("[SEP]"),
        pad=tokenizer.id("[PAD]"),
        separators=tokenizer.separators,
    )


@dataclass(frozen=True, kw_only=True)
class TextBatch(Batch):
    """Batch of sequences [CLS] text [SEP] text [SEP] padding.

    Fields that a task adds have one entry per example, or one per token.
    """

    tokens: Tokens
    types: Tokens
    """Segment ids: 0 up to the [SEP] before the second text, then 1. A model with fewer than two types ignores them."""
    real: Mask

    def token_count(self) -> int:
        """Returns the number of real tokens."""
        return int(self.real.sum())

    def longer(self: Same, length: int) -> Same:
        """Returns the batch with its sequences padded to a length; raises a ``ValueError`` if one is longer."""
        more = length - self.tokens.shape[1]
        if more < 0:
            raise ValueError(f"sequences of {self.tokens.shape[1]} tokens cannot be padded to {length}")
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        wide = {name: torch.nn.functional.pad(value, (0, more)) for name, value in values.items() if value.ndim == 2}
        return replace(self, **wide)

"""Base class of the batches of windows and of pairs: two texts in one sequence of tokens."""

from dataclasses import dataclass, fields, replace
from typing import TypeVar

import torch

from seqarena.common.data.batches import Batch
from seqarena.common.shapes import Mask, Tokens

Same = TypeVar("Same", bound="TextBatch")


@dataclass(frozen=True, kw_only=True)
class TextBatch(Batch):
    """Batch of sequences [CLS] text [SEP] text [SEP] padding.

    Fields that a task adds have one entry per example, or one per token.
    """

    tokens: Tokens
    types: Tokens
    """Segment ids: 0 up to the first [SEP], 1 after it."""
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

"""Absolute positions: learned or sinusoidal."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import Hidden

Positions = Literal["learned", "sinusoidal"]


def sinusoids(length: int, dim: int) -> Tensor:
    """Returns the (length, dim) table of "Attention is all you need": sines in even columns, cosines in odd ones."""
    position = torch.arange(length, dtype=torch.float64)[:, None]
    rate = torch.exp(torch.arange(0, dim, 2, dtype=torch.float64) * (-math.log(10_000.0) / dim))
    table = torch.zeros(length, dim, dtype=torch.float64)
    table[:, 0::2] = torch.sin(position * rate)
    table[:, 1::2] = torch.cos(position * rate)[:, : dim // 2]
    return table.float()


class AbsolutePositions(nn.Module):
    """Adds a position embedding. Learned ones are initialised from N(0, std)."""

    def __init__(self, kind: Positions, *, length: int, dim: int, std: float) -> None:
        super().__init__()
        self.length = length
        if kind == "learned":
            self.table = nn.Parameter(torch.randn(length, dim) * std)
        else:
            self.register_buffer("table", sinusoids(length, dim), persistent=False)

    def forward(self, hidden: Hidden) -> Hidden:
        """Returns ``hidden`` plus the embeddings of its positions.

        Raises:
            WrongUseError: a sequence longer than the table.
        """
        if hidden.shape[1] > self.length:
            raise WrongUseError(f"a sequence of {hidden.shape[1]} tokens is longer than the {self.length} positions")
        return hidden + self.table[: hidden.shape[1]]

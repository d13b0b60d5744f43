"""The classifier of Long Range Arena: embeddings, encoder, pooling, two-layer head."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from common.attention.visibility import Visibility
from common.errors import WrongUseError
from common.positions import AbsolutePositions, Positions
from common.shapes import Hidden, Logits, Mask, Pooled, Tokens
from common.transformer import Encoder, EncoderConfig


@dataclass(frozen=True, kw_only=True)
class Model(EncoderConfig):
    """An encoder over tokens with a classification head."""

    vocabulary: int
    """Number of token embeddings; token 0 is padding."""
    positions: Positions = "learned"
    """Absolute positions: learned, or the fixed sinusoids."""
    max_length: int
    """Positions there are; the longest sequence, the classification token counted."""
    embedding_std: float = 0.02
    """Standard deviation of the initial token and position embeddings."""
    pooling: Literal["mean", "cls"] = "mean"
    """mean over real tokens; or cls, a learned vector put in front and read at the end."""
    classes: int
    """Number of classes."""

    def check_task(self, *, longest: int, symbols: int, classes: int) -> None:
        """Refuses a model that cannot read a task's sequences.

        Raises:
            WrongUseError: names the field.
        """
        self.check(order="none", mean_pooled=self.pooling == "mean")
        needed = longest + (self.pooling == "cls")
        if self.max_length < needed:
            raise WrongUseError(f"model.max_length {self.max_length} is below the longest sequence, {needed}")
        if self.classes < classes or self.embedding_std < 0:
            raise WrongUseError(f"expected model.classes of at least {classes} and model.embedding_std of at least 0")
        if self.vocabulary < symbols:
            raise WrongUseError(f"model.vocabulary {self.vocabulary} is below the {symbols} symbols of the task")


class Classifier(nn.Module):
    """Maps padded token sequences to class logits.

    ``padded_length`` (a legacy option) divides the mean by this length instead of the number of real tokens.
    """

    def __init__(self, config: Model, padded_length: int | None = None) -> None:
        super().__init__()
        self.pooling, self.padded_length = config.pooling, padded_length
        self.embedding = nn.Embedding(config.vocabulary, config.dim)
        nn.init.normal_(self.embedding.weight, std=config.embedding_std)
        self.positions = AbsolutePositions(
            config.positions, length=config.max_length, dim=config.dim, std=config.embedding_std
        )
        self.cls = nn.Parameter(torch.zeros(config.dim)) if config.pooling == "cls" else None
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = Encoder(config)
        self.head = nn.Sequential(
            nn.Linear(config.dim, config.ffn_dim), nn.ReLU(), nn.Linear(config.ffn_dim, config.classes)
        )

    def forward(self, tokens: Tokens, real: Mask) -> Logits:
        """Returns class logits (B, classes)."""
        logits: Tensor = self.head(self._pool(*self._encode(tokens, real)))
        return logits

    def _encode(self, tokens: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.embedding(tokens)
        if self.cls is not None:
            first = self.cls.expand(len(tokens), 1, -1)
            hidden = torch.cat([first.to(hidden.dtype), hidden], dim=1)
            real = torch.cat([torch.ones_like(real[:, :1]), real], dim=1)
        hidden = self.dropout(self.positions(hidden))
        return self.encoder(hidden, Visibility(query_real=real, key_real=real)), real

    def _pool(self, hidden: Hidden, real: Mask) -> Pooled:
        if self.pooling == "cls":
            return hidden[:, 0]
        total = (hidden * real[..., None]).sum(dim=1)
        length = real.sum(dim=1, keepdim=True) if self.padded_length is None else self.padded_length
        return total / length

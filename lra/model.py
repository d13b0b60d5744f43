"""The classifier of Long Range Arena: embeddings, encoder, pooling and head; two towers for pairs of documents."""

import itertools
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.model.positions import AbsolutePositions, Positions
from seqarena.common.model.transformer import Encoder, EncoderConfig
from seqarena.common.shapes import Hidden, Logits, Mask, MaskOfSome, Pooled, TokensOfSome
from seqarena.lra.data import Data


@dataclass(frozen=True, kw_only=True)
class Model(EncoderConfig):
    """An encoder over tokens with a classification head."""

    vocabulary: int
    """Number of token embeddings; token 0 is padding."""
    positions: Positions = "learned"
    """Absolute positions: learned or sinusoidal."""
    max_length: int
    """Number of positions: the maximum sequence length, including the classification token."""
    embedding_std: float = 0.02
    """Standard deviation of the initial token embeddings."""
    position_std: float = 0.02
    """Standard deviation of the initial learned positions."""
    pooling: Literal["mean", "cls", "first"] = "mean"
    """mean: mean over real tokens; cls: output of a learned vector prepended to the sequence; first: output of the
    first token."""
    pairing: Literal["product", "concat"] = "product"
    """Input of the head for two documents a and b. product: [a, b, a * b, a - b]; concat: [a, b]."""
    head_dims: tuple[int, ...] = ()
    """Widths of the head's hidden layers. Empty: one layer of width ffn_dim."""
    classes: int
    """Number of classes."""

    @property
    def longest(self) -> int:
        """Maximum number of tokens of an input sequence."""
        return self.max_length - (self.pooling == "cls")

    @property
    def encoder_length(self) -> int:
        """Maximum number of tokens, including the classification token."""
        return self.max_length

    def check_task(self, data: Data, *, longest: int) -> None:
        """Checks that the model fits a task's sequences.

        Raises:
            WrongUseError: it does not. The message names the field.
        """
        self.check(order="none", mean_pooled=self.pooling == "mean")
        needed = longest + (self.pooling == "cls")
        if self.max_length < needed:
            raise WrongUseError(
                f"model.max_length: expected at least {needed}, the length of the longest sequence, found "
                f"{self.max_length}"
            )
        for name in ("classes", "vocabulary"):
            if getattr(self, name) < getattr(data, name):
                raise WrongUseError(
                    f"model.{name}: expected at least the task's {getattr(data, name)}, found {getattr(self, name)}"
                )
        if any(width < 1 for width in self.head_dims):
            raise WrongUseError(f"model.head_dims: expected widths of at least 1, found {self.head_dims}")
        for name in ("embedding_std", "position_std"):
            if getattr(self, name) < 0:
                raise WrongUseError(f"model.{name}: expected at least 0, found {getattr(self, name)}")


class Classifier(nn.Module):
    """Maps padded token sequences, or pairs of them, to class logits.

    The documents of a pair are encoded separately by the same encoder. With ``padded_length`` (a legacy option), mean
    pooling divides by this length instead of the number of real tokens.
    """

    def __init__(self, config: Model, sequences: int = 1, padded_length: int | None = None) -> None:
        super().__init__()
        self.pooling, self.pairing, self.padded_length = config.pooling, config.pairing, padded_length
        self.embedding = nn.Embedding(config.vocabulary, config.dim)
        nn.init.normal_(self.embedding.weight, std=config.embedding_std)
        self.positions = AbsolutePositions(
            config.positions, length=config.max_length, dim=config.dim, std=config.position_std
        )
        self.cls = nn.Parameter(torch.zeros(config.dim)) if config.pooling == "cls" else None
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = Encoder(config)
        parts = 1 if sequences == 1 else 4 if config.pairing == "product" else 2
        widths = [parts * config.dim, *(config.head_dims or (config.ffn_dim,))]
        hidden = [layer for pair in itertools.pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]
        self.head = nn.Sequential(*hidden, nn.Linear(widths[-1], config.classes))

    def forward(self, tokens: TokensOfSome, real: MaskOfSome | None) -> Logits:
        """Returns class logits (B, classes). ``real``: None if nothing is padded."""
        pooled = self._pool(*self._encode(tokens.flatten(0, -2), None if real is None else real.flatten(0, -2)))
        if tokens.dim() == 3:
            pooled = self._combine_pair(pooled.view(len(tokens), 2, -1))
        logits: Tensor = self.head(pooled)
        return logits

    def _combine_pair(self, both: Tensor) -> Pooled:
        first, second = both.unbind(dim=1)
        parts = [first, second] if self.pairing == "concat" else [first, second, first * second, first - second]
        return torch.cat(parts, dim=1)

    def _encode(self, tokens: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor | None]:
        hidden = self.embedding(tokens)
        if self.cls is not None:
            first = self.cls.expand(len(tokens), 1, -1)
            hidden = torch.cat([first.to(hidden.dtype), hidden], dim=1)
            real = None if real is None else torch.cat([torch.ones_like(real[:, :1]), real], dim=1)
        hidden = self.dropout(self.positions(hidden))
        return self.encoder(hidden, Visibility(query_real=real, key_real=real)), real

    def _pool(self, hidden: Hidden, real: Mask | None) -> Pooled:
        if self.pooling != "mean":
            return hidden[:, 0]
        total = (hidden if real is None else hidden * real[..., None]).sum(dim=1)
        if self.padded_length is not None:
            return total / self.padded_length
        return total / (hidden.shape[1] if real is None else real.sum(dim=1, keepdim=True).clamp(min=1))

"""A causal Transformer that predicts the value of each key to recall."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.model.positions import AbsolutePositions, Positions
from seqarena.common.model.transformer import Encoder, EncoderConfig
from seqarena.common.shapes import Mask, Scored, TokenIds, Tokens


@dataclass(frozen=True, kw_only=True)
class Model(EncoderConfig):
    """A stack of causal layers. The output matrix is the table of token embeddings."""

    vocabulary: int
    """Number of token embeddings."""
    max_length: int
    """Number of positions: the maximum sequence length."""
    positions: Positions = "learned"
    """Absolute positions: learned or sinusoidal."""
    embedding_std: float = 0.02
    """Standard deviation of the initial token embeddings, and of learned positions."""

    @property
    def longest(self) -> int:
        """Maximum number of tokens of an input sequence."""
        return self.max_length

    def check_recall(self, *, longest: int, vocabulary: int) -> None:
        """Raises a ``WrongUseError`` if the model cannot read sequences of these lengths and tokens."""
        self.check(order="causal", mean_pooled=False)
        for name, least in (("max_length", longest), ("vocabulary", vocabulary)):
            if getattr(self, name) < least:
                raise WrongUseError(f"model.{name}: expected at least {least}, found {getattr(self, name)}")
        if self.embedding_std < 0:
            raise WrongUseError(f"model.embedding_std: expected at least 0, found {self.embedding_std}")


class RecallModel(nn.Module):
    """Maps sequences to scores of all tokens at the keys to recall."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.dim)
        nn.init.normal_(self.embedding.weight, std=config.embedding_std)
        self.positions = AbsolutePositions(
            config.positions, length=config.max_length, dim=config.dim, std=config.embedding_std
        )
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = Encoder(config)

    def forward(self, tokens: Tokens, real: Mask, query_indices: TokenIds) -> Scored:
        """Returns the scores of all tokens (P, vocabulary), at ``query_indices`` of the B T positions."""
        hidden: Tensor = self.dropout(self.positions(self.embedding(tokens)))
        visibility = Visibility(query_real=real, key_real=real, order="causal", padded_at_end=True)
        output = self.encoder(hidden, visibility).flatten(0, 1)[query_indices]  # P C
        return torch.matmul(output, self.embedding.weight.T)

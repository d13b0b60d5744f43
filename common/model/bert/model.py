"""BERT: embeddings, the shared encoder, pooler and pretraining heads, with any attention variant and norm."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqarena.common.attention.visibility import Order, Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.model.feed_forward import ACTIVATIONS
from seqarena.common.model.norms.base import Residual, scale_initial_weights
from seqarena.common.model.norms.peri import PeriNorm
from seqarena.common.model.transformer import Decoder, Encoder, EncoderConfig
from seqarena.common.runs.roles import added
from seqarena.common.shapes import Hidden, Places, Pooled, Scored, Table, Tokens, TwoWay


@dataclass(frozen=True, kw_only=True)
class BertConfig(EncoderConfig):
    """A BERT: post-norm, erf GELU, no dropout inside the feed-forward."""

    dropout: float = 0.1
    """Dropout probability of the embeddings and of each sublayer's output, as in BERT."""
    vocabulary: int
    """Number of token embeddings."""
    max_length: int = 512
    """Number of position embeddings: maximum tokens per sequence."""
    token_types: int = 2
    """Number of segment types (A and B). Below 2, the two texts of a pair have the same type; 0: no types."""
    embedding_dim: int | None = field(default=None, metadata=added(3))
    """Width of the embeddings and their norm, which are then projected to dim (ALBERT, ELECTRA); none: dim, without a
    projection."""
    shared_layers: bool = field(default=False, metadata=added(3))
    """Whether all layers are one layer, applied repeatedly (ALBERT)."""
    norm_eps: float = 1e-12
    """Added to the variance in every LayerNorm."""
    initial_std: float = 0.02
    """Standard deviation of initial matrices and embeddings, from a normal distribution truncated at two standard
    deviations. Biases start at 0."""

    @property
    def longest(self) -> int:
        """Maximum tokens per sequence."""
        return self.max_length

    @property
    def distinct_layers(self) -> int:
        """1 if the layers are shared."""
        return 1 if self.shared_layers else self.layers

    @property
    def embedding_width(self) -> int:
        """Width of the token embeddings."""
        return self.dim if self.embedding_dim is None else self.embedding_dim

    @property
    def inner_dropout(self) -> float:
        """Always 0: BERT applies dropout to sublayer outputs, not between the two matrices of a feed-forward."""
        return 0.0

    def check(self, *, order: Order = "none", mean_pooled: bool = False) -> None:
        """Raises a ``WrongUseError`` that names an invalid field."""
        super().check(order=order, mean_pooled=mean_pooled)
        for name, value in (("vocabulary", self.vocabulary), ("max_length", self.max_length),
                            ("embedding_dim", self.embedding_width)):  # fmt: skip
            if value < 1:
                raise WrongUseError(f"model.{name}: expected at least 1, found {value}")
        if self.attention_labels:
            raise WrongUseError(
                "model.relative_positions and model.query_key_norm: checkpoints of BERT have neither; leave them out"
            )
        if self.token_types < 0:
            raise WrongUseError(f"model.token_types: expected at least 0, found {self.token_types}")
        if self.shared_layers and isinstance(self.norm, PeriNorm):
            raise WrongUseError(
                "model.shared_layers: the first layer of the norm peri differs from the others, so they cannot be one; "
                "choose another norm"
            )
        if not self.initial_std > 0:
            raise WrongUseError(f"model.initial_std: expected a number above 0, found {self.initial_std}")


class Embeddings(nn.Module):
    """LayerNorm of the sum of token, position and segment embeddings, projected if ``embedding_dim`` is set."""

    def __init__(self, config: BertConfig, *, words: bool = True) -> None:
        """``words``: whether to create a table of token embeddings; without one, ``forward`` needs ``word``."""
        super().__init__()
        width = config.embedding_width
        self.word = nn.Embedding(config.vocabulary, width) if words else None
        self.position = nn.Embedding(config.max_length, width)
        self.token_type = nn.Embedding(config.token_types, width) if config.token_types else None
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.projection = None if config.embedding_dim is None else nn.Linear(width, config.dim)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, tokens: Tokens, types: Tokens, positions: Tokens | None = None, word: Table | None = None
    ) -> Hidden:
        """Returns the input of the first layer.

        ``positions`` None: 0, 1, 2, ... in each row. ``word``: token embeddings to use in place of the own table.

        Raises:
            WrongUseError: a sequence longer than the number of positions.
        """
        length, most = tokens.shape[1], self.position.num_embeddings
        if positions is None:
            if length > most:
                raise WrongUseError(f"a sequence of {length} tokens is longer than the {most} positions")
            position = self.position.weight[:length]
        else:
            position = self.position(positions)
        vectors = F.embedding(tokens, self.table if word is None else word) + position
        if self.token_type is not None:
            has_pairs = self.token_type.num_embeddings > 1
            vectors = vectors + (self.token_type(types) if has_pairs else self.token_type.weight)
        hidden: Tensor = self.dropout(self.norm(vectors))
        return hidden if self.projection is None else self.projection(hidden)

    @property
    def table(self) -> Table:
        """Table of token embeddings."""
        if self.word is None:
            raise WrongUseError("these embeddings have no token table of their own; pass one as word")
        return self.word.weight


class Bert(nn.Module):
    """BERT's body: maps tokens to a stream of vectors, and the first vector to a pooled one."""

    def __init__(self, config: BertConfig, *, pooler: bool = True) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config)
        self.pooler = nn.Linear(config.dim, config.dim) if pooler else None
        initialise(self, config.initial_std)

    def forward(self, tokens: Tokens, types: Tokens, visibility: Visibility, positions: Tokens | None = None) -> Hidden:
        """Returns the last layer's stream. Padded positions have finite values that are never read."""
        hidden: Tensor = self.encoder(self.embeddings(tokens, types, positions), visibility)
        return hidden

    def pooled(self, hidden: Hidden) -> Pooled:
        """Returns tanh of a projection of the first token's vector."""
        if self.pooler is None:
            raise WrongUseError("this BERT was built, or saved, without a pooler")
        return torch.tanh(self.pooler(hidden[:, 0]))


class MaskedLanguageHead(nn.Module):
    """Prediction of masked tokens: a dense layer, then products with the token embeddings (tied)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.dim, config.embedding_width)
        self.activation = ACTIVATIONS[config.activation]()
        self.norm = nn.LayerNorm(config.embedding_width, eps=config.norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocabulary))

    def forward(self, hidden: Tensor, word: Tensor) -> Scored:
        """Returns the scores of all tokens at some positions (P C), given the token embeddings (V C)."""
        return F.linear(self.transform(hidden), word, self.bias)

    def transform(self, hidden: Tensor) -> Tensor:
        """Returns the vectors that are multiplied with the token embeddings, as wide as these."""
        output: Tensor = self.norm(self.activation(self.dense(hidden)))
        return output


class BertForPretraining(nn.Module):
    """BERT's body with the pretraining heads."""

    def __init__(self, config: BertConfig, *, sentences: bool = True, family: str | None = None) -> None:
        """``family``: layout in which ``checkpoint.save`` writes it; None: the first that has these fields."""
        super().__init__()
        self.family = family
        self.bert = Bert(config, pooler=sentences)
        self.masked = MaskedLanguageHead(config)
        self.sentences = nn.Linear(config.dim, 2) if sentences else None
        initialise(self.masked, config.initial_std)
        if self.sentences is not None:
            initialise(self.sentences, config.initial_std)

    def forward(
        self,
        tokens: Tokens,
        types: Tokens,
        visibility: Visibility,
        places: Places,
        positions: Tokens | None = None,
    ) -> tuple[Scored, TwoWay | None]:
        """Returns the scores of all tokens at ``places``, and those of the two segment orders (None without that head).

        ``places`` are indices into the flattened batch, b T + t. The projection to the vocabulary, which takes more
        operations than a layer, is computed only there.
        """
        hidden = self.bert(tokens, types, visibility, positions)
        picked = hidden.flatten(0, 1).index_select(0, places)  # P C
        scores = self.masked(picked, self.bert.embeddings.table)
        return scores, None if self.sentences is None else self.sentences(self.bert.pooled(hidden))


@torch.no_grad()
def initialise(module: nn.Module, std: float) -> None:
    """Initialises matrices and embeddings as BERT does. Norms keep 1 and 0, bounded parameters their initial values.

    Matrices inside norms are drawn apart, so that models of all norms share the initial values of all others.
    """
    inside = set[nn.Module]()
    for each in module.modules():
        if isinstance(each, Residual | Encoder | Decoder):
            inside.update((each if isinstance(each, Residual) else each.final_norm).modules())
    _initialise_matrices([each for each in module.modules() if each not in inside], std)
    with torch.random.fork_rng(devices=[]):
        _initialise_matrices([each for each in module.modules() if each in inside], std)
    scale_initial_weights(module)


def _initialise_matrices(modules: Sequence[nn.Module], std: float) -> None:
    for each in modules:
        if isinstance(each, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(each.weight, std=std, a=-2 * std, b=2 * std)
        if isinstance(each, nn.Linear) and each.bias is not None:
            each.bias.zero_()

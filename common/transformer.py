"""The encoder, made of blocks: any attention variant, any norm, any depth."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from common.attention import require_order
from common.attention.base import AttentionConfig
from common.attention.module import MultiHeadAttention
from common.attention.softmax import Softmax
from common.attention.visibility import Order, Visibility
from common.blocks import Activation, NormConfig, PostNorm, feed_forward
from common.errors import WrongUseError
from common.shapes import Hidden


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """A stack of layers of attention and feed-forward."""

    layers: int
    """Number of layers, each with attention and a feed-forward."""
    dim: int
    """Width of the stream."""
    heads: int
    """Attention heads; each is attention_dim / heads wide."""
    attention_dim: int | None = None
    """Width of all heads together; none: dim."""
    ffn_dim: int
    """Width inside the feed-forward."""
    attention: AttentionConfig = field(default_factory=Softmax)
    """The attention variant and its parameters."""
    norm: NormConfig = field(default_factory=PostNorm)
    """The block normalisation and its parameters."""
    activation: Activation = "gelu"
    """Activation inside the feed-forward."""
    dropout: float = 0.1
    """Probability of dropping an entry of a sublayer's output or of the feed-forward's inside."""
    attention_dropout: float = 0.1
    """Probability of dropping an attention weight."""
    projection_bias: bool = True
    """Whether the attention's four projections have biases."""
    norm_eps: float = 1e-5
    """Added to the variance in every LayerNorm."""

    @property
    def longest(self) -> int:
        """The most tokens of a sequence it can read."""
        raise TypeError(f"{type(self).__name__} does not say how long its sequences may be")

    @property
    def inner_dropout(self) -> float:
        """Probability of dropping an entry between the two matrices of a feed-forward."""
        return self.dropout

    def check(self, *, order: Order, mean_pooled: bool) -> None:
        """Refuses, before anything is loaded, a model that could not work.

        Raises:
            WrongUseError: names the fields.
        """
        for name in ("layers", "dim", "heads", "ffn_dim"):
            if getattr(self, name) < 1:
                raise WrongUseError(f"model.{name}: expected at least 1, found {getattr(self, name)}")
        width = self.dim if self.attention_dim is None else self.attention_dim
        if width < 1 or width % self.heads:
            name = "dim" if self.attention_dim is None else "attention_dim"
            raise WrongUseError(f"model.{name} {width} is not a multiple of model.heads {self.heads}")
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise WrongUseError(f"model.{name}: expected 0 up to below 1, found {getattr(self, name)}")
        if not self.norm_eps > 0:
            raise WrongUseError(f"model.norm_eps: expected a number above 0, found {self.norm_eps}")
        require_order(self.attention, order)
        self.norm.check(order=order, mean_pooled=mean_pooled)


class Layer(nn.Module):
    """One attention and one feed-forward, joined to the stream by the norm's residual block."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(
            config.attention,
            dim=config.dim,
            heads=config.heads,
            attention_dim=config.attention_dim,
            dropout=config.attention_dropout,
            projection_bias=config.projection_bias,
        )
        self.feed_forward = feed_forward(config.dim, config.ffn_dim, config.activation, config.inner_dropout)
        self.residual = config.norm.residual(config.dim, config.norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: Hidden, visibility: Visibility) -> Hidden:
        """Returns the layer's output; padded positions hold something finite that nothing reads."""

        def attention(tokens: Tensor) -> Tensor:
            return self.dropout(self.attention(tokens, visibility))  # type: ignore[no-any-return]

        def feed_forward(tokens: Tensor) -> Tensor:
            return self.dropout(self.feed_forward(tokens))  # type: ignore[no-any-return]

        output: Tensor = self.residual(hidden, attention, feed_forward, visibility)[0]
        return output


class Encoder(nn.Module):
    """Maps a stream of tokens to one of the same shape."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.final_norm = config.norm.final_norm(config.dim, config.norm_eps)

    def forward(self, hidden: Hidden, visibility: Visibility) -> Hidden:
        """Returns the last layer's stream, normalised where the norm asks for it."""
        for layer in self.layers:
            hidden = layer(hidden, visibility)
        final: torch.Tensor = self.final_norm(hidden)
        return final

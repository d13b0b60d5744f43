"""Encoder and decoder built from blocks: any attention variant, any norm, any depth."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from seqarena.common.attention import attention_name, require_options, require_order
from seqarena.common.attention.base import AttentionConfig
from seqarena.common.attention.mixer import LayerShape, MixerConfig
from seqarena.common.attention.module import kernel_attention, self_attention
from seqarena.common.attention.positions import RelativePositions
from seqarena.common.attention.softmax import Softmax
from seqarena.common.attention.visibility import Order, Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.model.beams import LayerMemory, Memory, attend_beams
from seqarena.common.model.deescalation import DeescalationState
from seqarena.common.model.feed_forward import Activation, feed_forward
from seqarena.common.model.norms import norm_name
from seqarena.common.model.norms.base import LayerPosition, NormConfig, Sublayer, Sublayers, scale_initial_weights
from seqarena.common.model.norms.deescalated import Deescalated
from seqarena.common.model.norms.post import PostNorm
from seqarena.common.runs.roles import Role, added, role
from seqarena.common.shapes import BeamHidden, Context, Hidden, KeyMask


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Base config of all measured models: the attention variant, and labels of the model for tables."""

    attention: AttentionConfig = field(default_factory=Softmax, metadata=role(Role.ROW))
    """The attention variant and its parameters."""

    @property
    def longest(self) -> int:
        """Maximum tokens per sequence."""
        raise TypeError(f"{type(self).__name__} does not define longest")

    @property
    def norm_label(self) -> str:
        """Name of the block normalisation in tables."""
        raise TypeError(f"{type(self).__name__} does not define norm_label")

    @property
    def depth_label(self) -> int:
        """Number of layers in tables."""
        raise TypeError(f"{type(self).__name__} does not define depth_label")

    @property
    def attention_labels(self) -> tuple[str, ...]:
        """Settings of every attention that tables name beside the variant."""
        return ()

    @property
    def notes(self) -> list[str]:
        """Notes that every table prints beside its results."""
        return []


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(ModelConfig):
    """A stack of layers, each with attention and a feed-forward."""

    layers: int = field(metadata=role(Role.ROW))
    """Number of layers, each with attention and a feed-forward."""
    dim: int
    """Width of the stream."""
    heads: int
    """Number of attention heads, each attention_dim / heads wide."""
    attention_dim: int | None = None
    """Total width of all heads; none: dim."""
    ffn_dim: int
    """Hidden width of the feed-forward."""
    norm: NormConfig = field(default_factory=PostNorm, metadata=role(Role.ROW))
    """The block normalisation and its parameters."""
    relative_positions: RelativePositions = field(default="none", metadata=role(Role.ROW) | added(4))
    """Relative positions in every attention, beside those added to the embeddings. rope: queries and keys are rotated;
    alibi: a bias proportional to the distance, which needs a matrix over all pairs."""
    query_key_norm: bool = field(default=False, metadata=role(Role.ROW) | added(4))
    """Whether each head's queries and keys pass a LayerNorm."""
    activation: Activation = "gelu"
    """Activation of the feed-forward."""
    dropout: float = 0.1
    """Dropout probability of each sublayer's output and of the feed-forward's hidden layer."""
    attention_dropout: float = 0.1
    """Dropout probability of attention weights. It has no effect on a variant without them, which tables note."""
    projection_bias: bool = True
    """Whether the attention's four projections have biases."""
    norm_eps: float = 1e-5
    """Added to the variance in every LayerNorm."""

    @property
    def norm_label(self) -> str:
        """Name of the norm in its table, with the fields that differ."""
        return norm_name(self.norm)

    @property
    def attention_labels(self) -> tuple[str, ...]:
        """Relative positions, and the norm of queries and keys."""
        positions = () if self.relative_positions == "none" else (self.relative_positions,)
        return (*positions, "qk-norm") if self.query_key_norm else positions

    @property
    def depth_label(self) -> int:
        """Number of layers."""
        return self.layers

    @property
    def decoder_depth(self) -> int:
        """Number of layers of the decoder that reads this encoder; 0: none."""
        return 0

    @property
    def notes(self) -> list[str]:
        """``non-causal`` if the norm includes future tokens in a causal model; attention dropout that has no effect."""
        found = ["non-causal"] if isinstance(self.norm, Deescalated) and self.norm.leaky else []
        if self.attention_dropout and "dropout" not in self.attention.supports:
            found.append("no attention dropout")
        return found

    @property
    def distinct_layers(self) -> int:
        """Number of layers with parameters of their own; fewer than ``layers`` if they are applied repeatedly."""
        return self.layers

    @property
    def encoder_length(self) -> int:
        """Maximum tokens of the stream, with those that the model adds itself."""
        return self.longest

    @property
    def inner_dropout(self) -> float:
        """Dropout probability between the two matrices of a feed-forward."""
        return self.dropout

    def check(self, *, order: Order, mean_pooled: bool) -> None:
        """Checks, before anything is loaded, that the model can work.

        Raises:
            WrongUseError: invalid fields; names them.
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
                raise WrongUseError(f"model.{name}: expected a number from 0 to below 1, found {getattr(self, name)}")
        if not self.norm_eps > 0:
            raise WrongUseError(f"model.norm_eps: expected a number above 0, found {self.norm_eps}")
        self.check_attention(self.attention, order)
        if self.attention_labels and isinstance(self.attention, MixerConfig):
            raise WrongUseError(
                f"model.relative_positions and model.query_key_norm need queries and keys, which the token mixer "
                f"{attention_name(self.attention)!r} has not"
            )
        if self.relative_positions == "alibi":
            require_options(self.attention, ["bias"], "model.relative_positions alibi")
        if self.relative_positions == "rope" and width // self.heads % 2:
            raise WrongUseError(
                f"model.relative_positions rope: expected heads of an even width, found {width // self.heads}"
            )
        self.norm.check(order=order, mean_pooled=mean_pooled)

    def check_attention(self, attention: AttentionConfig, order: Order) -> None:
        """Raises a ``WrongUseError`` if this model cannot have an attention in an order."""
        require_order(attention, order)
        require_options(attention, ["padding"], "every task")


def _shape(config: EncoderConfig, number: int, attention: AttentionConfig) -> LayerShape:
    return LayerShape(
        dim=config.dim,
        heads=config.heads,
        width=config.dim if config.attention_dim is None else config.attention_dim,
        dropout=config.attention_dropout if "dropout" in attention.supports else 0.0,
        projection_bias=config.projection_bias,
        length=config.encoder_length,
        number=number,
    )


class Layer(nn.Module):
    """One attention and one feed-forward, added to the stream by the norm's residual block."""

    def __init__(self, config: EncoderConfig, position: LayerPosition) -> None:
        super().__init__()
        self.attention = self_attention(
            config.attention,
            _shape(config, position.number, config.attention),
            positions=config.relative_positions,
            query_key_norm=config.query_key_norm,
        )
        self.feed_forward = feed_forward(config.dim, config.ffn_dim, config.activation, config.inner_dropout)
        self.residual = config.norm.build_residual(config.dim, config.norm_eps, position)
        self.initial_scale = config.norm.initial_scale(position)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: Hidden, visibility: Visibility) -> Hidden:
        """Returns the layer's output. Padded positions have finite values that are never read."""

        def attention(tokens: Tensor) -> Tensor:
            return self.dropout(self.attention(tokens, visibility))  # type: ignore[no-any-return]

        def feed_forward(tokens: Tensor) -> Tensor:
            return self.dropout(self.feed_forward(tokens))  # type: ignore[no-any-return]

        output: Tensor = self.residual(hidden, Sublayers(attention, feed_forward), visibility)[0]
        return output


class Encoder(nn.Module):
    """Maps a stream of tokens to a stream of the same shape."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        positions = (
            LayerPosition(number=number, depth=config.layers, decoder_depth=config.decoder_depth)
            for number in range(config.distinct_layers)
        )
        self.layers = nn.ModuleList(Layer(config, position) for position in positions)
        self.repeats = config.layers // config.distinct_layers
        self.final_norm = config.norm.build_final_norm(config.dim, config.norm_eps)
        scale_initial_weights(self)

    def forward(self, hidden: Hidden, visibility: Visibility) -> Hidden:
        """Returns the last layer's stream, normalised if the norm has a final one."""
        for _ in range(self.repeats):
            for layer in self.layers:
                hidden = layer(hidden, visibility)
        final: torch.Tensor = self.final_norm(hidden)
        return final


class DecoderLayer(nn.Module):
    """Self-attention to the tokens so far, cross-attention to the encoder's stream, and a feed-forward."""

    def __init__(
        self, config: EncoderConfig, position: LayerPosition, attention: AttentionConfig, cross: AttentionConfig
    ) -> None:
        super().__init__()
        self.attention, self.cross = (
            kernel_attention(each, _shape(config, position.number, each)) for each in (attention, cross)
        )
        self.feed_forward = feed_forward(config.dim, config.ffn_dim, config.activation, config.inner_dropout)
        self.residual = config.norm.causal().build_residual(config.dim, config.norm_eps, position)
        self.initial_scale = config.norm.initial_scale(position)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: Hidden, visibility: Visibility, context: Context, of_context: Visibility) -> Hidden:
        """Returns the layer's output for whole target sequences."""
        return self._apply_residual(
            hidden,
            lambda tokens: self.attention(tokens, visibility),
            lambda tokens: self.cross(tokens, of_context, context),
            visibility,
        )[0]

    def step(self, hidden: Hidden, memory: Memory, own: LayerMemory) -> Hidden:
        """Returns the output for the newest token of every hypothesis, one row per hypothesis: (B W) 1 C."""
        batch = len(memory.real)

        def beams(rows: Tensor) -> Tensor:
            return rows.view(batch, -1, rows.shape[-1])

        def attention(rows: Tensor) -> Tensor:
            key, value = own.append(*self.attention.project_key_value(beams(rows)), memory.key_count, memory.capacity)
            causal = Visibility(order="causal", memory=memory.time - 1)
            query = self.attention.project_query(beams(rows))
            heads, own.attention_state = attend_beams(
                self.attention.kernel, query, key, value, causal, own.attention_state, memory.ancestry
            )
            return self.attention.merge_heads(heads).view_as(rows)

        def cross(rows: Tensor) -> Tensor:
            ordered = Visibility(order="ordered_queries", key_real=memory.real)
            key, value = own.source_key, own.source_value
            query = self.cross.project_query(beams(rows))
            heads, own.source_state = attend_beams(self.cross.kernel, query, key, value, ordered, own.source_state)
            return self.cross.merge_heads(heads).view_as(rows)

        causal = Visibility(order="causal")
        hidden, own.norm_state = self._apply_residual(hidden, attention, cross, causal, own.norm_state)
        return hidden

    def _apply_residual(
        self,
        hidden: Hidden,
        attention: Sublayer,
        cross: Sublayer,
        visibility: Visibility,
        state: DeescalationState | None = None,
    ) -> tuple[Hidden, DeescalationState | None]:
        def with_dropout(sublayer: Sublayer) -> Sublayer:
            return lambda tokens: self.dropout(sublayer(tokens))

        sublayers = Sublayers(with_dropout(attention), with_dropout(self.feed_forward), with_dropout(cross))
        output: tuple[Hidden, DeescalationState | None] = self.residual(hidden, sublayers, visibility, state)
        return output


class Decoder(nn.Module):
    """Maps the tokens so far to a stream of the same shape, reading an encoder's stream. Fully causal.

    The norm is the config's in its causal form. The two attentions are separate arguments, because the variant of an
    encoder may not be defined in a decoder.
    """

    def __init__(
        self, config: EncoderConfig, *, layers: int, attention: AttentionConfig, cross: AttentionConfig
    ) -> None:
        super().__init__()
        positions = (
            LayerPosition(number=number, depth=layers, encoder_depth=config.layers) for number in range(layers)
        )
        self.layers = nn.ModuleList(DecoderLayer(config, position, attention, cross) for position in positions)
        self.final_norm = config.norm.build_final_norm(config.dim, config.norm_eps)
        scale_initial_weights(self)

    def forward(self, hidden: Hidden, visibility: Visibility, context: Context, real: KeyMask) -> Hidden:
        """Returns the last layer's stream. ``real``: mask of the context's real tokens."""
        of_context = Visibility(query_real=visibility.query_real, key_real=real, order="ordered_queries")
        for layer in self.layers:
            hidden = layer(hidden, visibility, context, of_context)
        final: torch.Tensor = self.final_norm(hidden)
        return final

    def begin(self, context: Context, real: KeyMask, *, steps: int, beams: int) -> Memory:
        """Returns the decoding state of empty hypotheses, with the keys and values of the sources computed once."""
        layers = [LayerMemory(*layer.cross.project_key_value(context)) for layer in self.layers]  # type: ignore[union-attr, operator]
        return Memory(layers, real, steps, beams)

    def step(self, hidden: BeamHidden, memory: Memory) -> BeamHidden:
        """Returns the stream of the newest token of every hypothesis, and adds the token to ``memory``."""
        memory.begin_step()
        rows = hidden.flatten(0, 1)[:, None]  # (B W) 1 C
        for layer, own in zip(self.layers, memory.layers, strict=True):
            rows = layer.step(rows, memory, own)  # type: ignore[operator]
        memory.end_step()
        final: torch.Tensor = self.final_norm(rows)
        return final.view_as(hidden)

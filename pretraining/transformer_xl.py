"""Transformer-XL (Dai et al. 2019) with any causal attention and any norm: relative positions, and a memory.

With q_i = W_q h_i, k_j = W_k h_j, r_d = W_r s(d), s(d) the sinusoids of the distance d = i - j:
s_ij = (q_i . k_j + q_i . r_d + u . k_j + v . r_d) / sqrt(head_dim). The terms with k are the product of q + u with k,
those with r a bias; so every variant that has a causal form takes them. Departures from the published code: queries are
projected for the segment alone, and the shift of the bias is a view.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from common.attention.base import AttentionConfig
from common.attention.visibility import Visibility
from common.blocks import Activation, Deescalated, feed_forward
from common.deescalation import Carried
from common.errors import WrongUseError
from common.shapes import Context, EarlierMass, Hidden, KeyMass, Tokens
from common.transformer import EncoderConfig
from pretraining.adaptive_softmax import AdaptiveSoftmax

STD = 0.02
"""Standard deviation of every initial matrix, embedding, bias u and v, and of the norms' gains around 1."""


@dataclass(frozen=True, kw_only=True)
class Model(EncoderConfig):
    """A Transformer-XL; its defaults are the published base model for WikiText-103."""

    vocabulary: int
    """Number of words."""
    layers: int = 16
    """Number of layers."""
    dim: int = 410
    """Width of the stream and of the embeddings."""
    heads: int = 10
    """Attention heads."""
    ffn_dim: int = 2_100
    """Width inside the feed-forward."""
    activation: Activation = "relu"
    """Activation inside the feed-forward."""
    attention_dropout: float = 0.0
    """Probability of dropping an attention weight."""
    projection_bias: bool = False
    """Whether the attention's projections have biases."""
    shared_biases: bool = True
    """Whether all layers share u and v, as in the published PyTorch code, or each has its own."""
    cutoffs: tuple[int, ...] = (20_000, 40_000, 200_000)
    """Words below the first are scored at once, the others in these clusters, only where one is meant."""

    def check(self, *, order: str = "causal", mean_pooled: bool = False) -> None:
        """Raises a ``WrongUseError`` that names the field which no model can have."""
        super().check(order="causal", mean_pooled=mean_pooled)
        if self.attention_dim not in (None, self.dim):
            raise WrongUseError("model.attention_dim: a Transformer-XL's heads are as wide as its stream together")
        if list(self.cutoffs) != sorted({each for each in self.cutoffs if 0 < each < self.vocabulary}):
            raise WrongUseError(
                f"model.cutoffs {self.cutoffs}: expected rising numbers between 0 and model.vocabulary "
                f"{self.vocabulary:,}"
            )


class LayerMemory(NamedTuple):
    """What a layer keeps of the segments before: the stream that it read, and what its attention and norm carry on."""

    stream: Context
    mass: KeyMass | None
    carried: Carried | None


Memory = Sequence[LayerMemory]
"""One of each layer."""


class Seen(NamedTuple):
    """How far away what stands, and how much of it is seen."""

    distances: Tensor
    """Sinusoids of the distances from the largest, M - 1, to 0; M C."""
    u: Tensor
    """H D."""
    v: Tensor
    """H D."""
    window: int | None
    """So many of the newest tokens; None: all."""


def sinusoids(distances: Tensor, dim: int) -> Tensor:
    """Returns sin, then cos, of each distance at ``dim / 2`` rates; D C."""
    rate = 10_000 ** (-torch.arange(0.0, dim, 2.0, device=distances.device) / dim)
    angles = distances[:, None] * rate
    return torch.cat([angles.sin(), angles.cos()], dim=-1)[:, :dim]


class Shift(torch.autograd.Function):
    """Products with every distance (B H N K, the largest distance first) to the bias of each pair, without a copy.

    Entry (i, j) is that of distance K - N + i - j. Where j lies in the future of i it is whatever: row i begins
    N - 1 - i places to the right, and its end is the next row's beginning.
    """

    @staticmethod
    def forward(ctx: Any, products: Tensor) -> Tensor:
        """Returns a view of the same numbers; B H N K."""
        _, heads, queries, keys = products.shape
        ctx.shape = products.shape
        flat = products.contiguous()
        return flat.as_strided(
            flat.shape, (heads * queries * keys, queries * keys, keys - 1, 1), flat.storage_offset() + queries - 1
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """Returns the gradient; the last key of a row is of the future but in the last row."""
        batch, heads, queries, keys = ctx.shape
        found = grads[0].new_zeros(ctx.shape)
        strides = (heads * queries * keys, queries * keys, keys - 1, 1)
        found.as_strided((batch, heads, queries, keys - 1), strides, queries - 1).copy_(grads[0][..., :-1])
        found[..., -1, -1] = grads[0][..., -1, -1]
        return found


class RelativeAttention(nn.Module):
    """Attention of a segment to itself and to a memory, with the four terms of Transformer-XL in any variant."""

    def __init__(self, config: EncoderConfig, variant: AttentionConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query, self.key, self.value, self.position, self.output = (
            nn.Linear(config.dim, config.dim, bias=config.projection_bias and name != "position")
            for name in ("query", "key", "value", "position", "output")
        )
        self.kernel = variant.build(config.heads, config.attention_dropout)

    def forward(
        self, hidden: Hidden, memory: Context, seen: Seen, mass: EarlierMass | None
    ) -> tuple[Hidden, KeyMass | None]:
        """Returns what is found, and what the variant carries on from ``mass``."""
        source = torch.cat([memory, hidden], dim=1)
        query, key, value = (
            self._split(self.query(hidden)),
            self._split(self.key(source)),
            self._split(self.value(source)),
        )
        position = self.position(seen.distances).view(len(seen.distances), self.heads, -1).permute(1, 2, 0)  # H D M
        products = (query + seen.v[:, None]) @ position * query.shape[-1] ** -0.5  # B H N M
        bias: Tensor = Shift.apply(products)  # type: ignore[no-untyped-call]
        visibility = Visibility(order="causal", memory=memory.shape[1], window=seen.window)
        given = query + seen.u[:, None], key, value, visibility, bias
        rule = self.kernel.rule
        if rule is not None and rule.rounds:
            heads, mass = self.kernel.step(mass, *given)
        else:
            heads = self.kernel(*given)
        return self.output(heads.transpose(1, 2).flatten(2)), mass

    def _split(self, projected: Tensor) -> Tensor:
        return projected.unflatten(2, (self.heads, -1)).transpose(1, 2)  # type: ignore[no-untyped-call, no-any-return]


class Layer(nn.Module):
    """Attention to segment and memory, and a feed-forward."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.attention = RelativeAttention(config, config.attention)
        self.feed_forward = feed_forward(config.dim, config.ffn_dim, config.activation, config.inner_dropout)
        self.residual = config.norm.residual(config.dim, config.norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: Hidden, memory: LayerMemory, seen: Seen) -> tuple[Hidden, KeyMass | None, Carried | None]:
        """Returns the layer's output, and what its attention and its norm carry on."""
        carried_on: list[KeyMass | None] = []

        def attention(tokens: Tensor) -> Tensor:
            past = self.residual.recalled(memory.stream)
            found, mass = self.attention(tokens, past, seen, memory.mass)
            carried_on.append(mass)
            return self.dropout(found)  # type: ignore[no-any-return]

        def feed_forward(tokens: Tensor) -> Tensor:
            return self.dropout(self.feed_forward(tokens))  # type: ignore[no-any-return]

        visibility = Visibility(order="causal")
        output, carried = self.residual(hidden, attention, feed_forward, visibility, memory.carried)
        return output, carried_on[0], carried


class TransformerXL(nn.Module):
    """Words to the stream that the next ones are told from, segment after segment."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.config = config
        self.word = nn.Embedding(config.vocabulary, config.dim)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.final_norm = config.norm.final_norm(config.dim, config.norm_eps)
        pairs = 1 if config.shared_biases else config.layers
        shape = pairs, config.heads, config.dim // config.heads
        self.content_bias, self.position_bias = (nn.Parameter(torch.empty(shape)) for _ in range(2))
        self.dropout = nn.Dropout(config.dropout)
        self.softmax = AdaptiveSoftmax(config.vocabulary, config.dim, config.cutoffs)
        initialise(self)

    def empty(self, streams: int) -> Memory:
        """Returns the memory before the first segment of so many streams: nothing to attend to."""
        stream = self.word.weight.new_zeros(streams, 0, self.config.dim)
        return [LayerMemory(stream, None, None)] * self.config.layers

    def forward(
        self, tokens: Tokens, memory: Memory, *, kept: int, clamp: int | None = None, window: int | None = None
    ) -> tuple[Hidden, Memory]:
        """Returns the last layer's stream of a segment, and the memory for the next one, detached.

        ``kept``: its tokens at most; ``clamp``: the largest distance that is told apart, None: all are; ``window``: so
        many of the newest tokens, its own counted, are seen from each, None: all (the published ``same_length`` is the
        memory's length). Of the norms ``running`` alone carries its mean over.
        """
        length = tokens.shape[1] + memory[0].stream.shape[1]
        distances = torch.arange(length - 1.0, -1.0, -1.0, device=tokens.device)
        if clamp is not None:
            distances = distances.clamp(max=clamp)
        table = self.dropout(sinusoids(distances, self.config.dim).to(self.word.weight.dtype))
        hidden = self.dropout(self.word(tokens) * self.config.dim**0.5)
        goes_on = isinstance(self.config.norm, Deescalated) and self.config.norm.mean == "running"
        following = []
        for number, (layer, own) in enumerate(zip(self.layers, memory, strict=True)):
            pair = 0 if self.config.shared_biases else number
            read = hidden
            seen = Seen(table, self.content_bias[pair], self.position_bias[pair], window)
            hidden, mass, carried = layer(hidden, own, seen)
            stream = torch.cat([own.stream, read], dim=1)[:, length - min(kept, length) :].detach()
            mass = None if mass is None else mass[:, :, length - min(kept, length) :]
            following.append(LayerMemory(stream, mass, carried if goes_on else None))
        return self.dropout(self.final_norm(hidden)), following


@torch.no_grad()
def initialise(model: TransformerXL) -> None:
    """Gives a model the published initial values: N(0, 0.02) everywhere, gains N(1, 0.02), linear biases 0."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=STD)
        if isinstance(module, nn.LayerNorm):
            nn.init.normal_(module.weight, mean=1.0, std=STD)
        if isinstance(module, nn.Linear | nn.LayerNorm) and module.bias is not None:
            nn.init.zeros_(module.bias)
    for bias in (model.content_bias, model.position_bias, model.softmax.clusters):
        nn.init.normal_(bias, std=STD)

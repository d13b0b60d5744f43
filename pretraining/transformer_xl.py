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

from seqarena.common.attention.base import AttentionConfig
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.model.blocks import Activation, Deescalated, feed_forward
from seqarena.common.model.deescalation import DeescalationState
from seqarena.common.model.transformer import EncoderConfig
from seqarena.common.shapes import Context, EarlierMass, Hidden, Key, KeyMass, Tokens, Total, Value
from seqarena.pretraining.adaptive_softmax import AdaptiveSoftmax

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


class ProjectedMemory(NamedTuple):
    """Keys and values of earlier tokens, and of the distances (H D K, the largest first): while weights stay."""

    key: Key
    value: Value
    position: Tensor


class LayerMemory(NamedTuple):
    """A layer's memory of earlier segments: its input, and the states of its attention and norm."""

    past: Context | ProjectedMemory
    """The stream; or, to evaluate, what attention makes of it."""
    mass: KeyMass | None
    carried: DeescalationState | None

    @property
    def length(self) -> int:
        """The number of earlier tokens."""
        return self.past.key.shape[2] if isinstance(self.past, ProjectedMemory) else self.past.shape[1]


Memory = Sequence[LayerMemory]
"""One of each layer."""


class Distances(NamedTuple):
    """How far away what stands, and how much of it is seen."""

    distances: Tensor | None
    """Sinusoids of the distances from the largest, M - 1, to 0; M C. None: the memory has what is made of them."""
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
        self, hidden: Hidden, past: Context | ProjectedMemory, seen: Distances, mass: EarlierMass | None
    ) -> tuple[Hidden, KeyMass | None, ProjectedMemory | None]:
        """Returns what is found, what the variant carries on from ``mass``, and a projected past with the segment."""
        query = self._split(self.query(hidden))
        key, value, position = self._seen(hidden, past, seen)
        # In float32 they would end autocast's half precision here.
        u, v = (each[:, None].to(query.dtype) for each in (seen.u, seen.v))
        products = (query + v) * query.shape[-1] ** -0.5 @ position  # B H N M
        bias: Tensor = Shift.apply(products)  # type: ignore[no-untyped-call]
        visibility = Visibility(order="causal", memory=key.shape[2] - hidden.shape[1], window=seen.window)
        given = query + u, key, value, visibility, bias
        rule = self.kernel.rule
        if rule is not None and rule.rounds:
            heads, mass = self.kernel.step(mass, *given)
        else:
            heads = self.kernel(*given)
        whole = ProjectedMemory(key, value, past.position) if isinstance(past, ProjectedMemory) else None
        return self.output(heads.transpose(1, 2).flatten(2)), mass, whole

    def _seen(self, hidden: Hidden, past: Context | ProjectedMemory, seen: Distances) -> ProjectedMemory:
        """Returns keys and values of earlier and own tokens, and of as many distances."""
        if isinstance(past, ProjectedMemory):
            key, value = self._split(self.key(hidden)), self._split(self.value(hidden))
            if past.key.shape[2]:  # the empty one may be of another precision
                key, value = torch.cat([past.key, key], dim=2), torch.cat([past.value, value], dim=2)
            return ProjectedMemory(key, value, past.position[..., -key.shape[2] :])
        source = torch.cat([past, hidden], dim=1)
        assert seen.distances is not None
        return ProjectedMemory(
            self._split(self.key(source)), self._split(self.value(source)), self.positions(seen.distances)
        )

    def positions(self, distances: Tensor) -> Tensor:
        """Returns what attention makes of the sinusoids of distances (M C); H D M."""
        heads: Tensor = self.position(distances).view(len(distances), self.heads, -1)
        return heads.permute(1, 2, 0).contiguous()  # copied once here, or once for each of the batch in the product

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

    def forward(self, hidden: Hidden, memory: LayerMemory, seen: Distances, kept: int) -> tuple[Hidden, LayerMemory]:
        """Returns the layer's output, and the memory of the newest ``kept`` tokens that it has read, detached."""
        known: list[tuple[KeyMass | None, ProjectedMemory | None]] = []

        def attention(tokens: Tensor) -> Tensor:
            past = memory.past if isinstance(memory.past, ProjectedMemory) else self.residual.memory_input(memory.past)
            found, mass, projected = self.attention(tokens, past, seen, memory.mass)
            known.append((mass, projected))
            return self.dropout(found)  # type: ignore[no-any-return]

        def feed_forward(tokens: Tensor) -> Tensor:
            return self.dropout(self.feed_forward(tokens))  # type: ignore[no-any-return]

        visibility = Visibility(order="causal")
        output, carried = self.residual(hidden, attention, feed_forward, visibility, memory.carried)
        mass, projected = known[0]
        first = max(memory.length + hidden.shape[1] - kept, 0)
        past: Context | ProjectedMemory
        if projected is not None:
            past = ProjectedMemory(projected.key[:, :, first:], projected.value[:, :, first:], projected.position)
        elif isinstance(memory.past, Tensor):
            parts = [memory.past[:, first:], hidden.detach()[:, max(first - memory.length, 0) :]]
            past = torch.cat(parts, dim=1) if parts[0].shape[1] else parts[1].contiguous()
        return output, LayerMemory(past, None if mass is None else mass[:, :, first:], carried)


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

    @torch.no_grad()
    def projected(self, streams: int, longest: int, clamp: int | None) -> Memory:
        """Returns the same to evaluate with: keys and values are kept, and made once; so are those of the distances.

        ``longest``: the tokens of a segment and of its memory together, at most.
        """
        assert not self.training, "while weights change, keys and values do too"
        table = self._distances(longest, clamp)
        nothing = table.new_zeros(streams, self.config.heads, 0, self.config.dim // self.config.heads)
        positions = [layer.attention.positions(table) for layer in self.layers]  # type: ignore[operator, union-attr]
        return [LayerMemory(ProjectedMemory(nothing, nothing, each), None, None) for each in positions]

    def _distances(self, length: int, clamp: int | None) -> Tensor:
        weight = self.word.weight
        distances = torch.arange(length - 1.0, -1.0, -1.0, device=weight.device)
        if clamp is not None:
            distances = distances.clamp(max=clamp)
        return self.dropout(sinusoids(distances, self.config.dim).to(weight.dtype))  # type: ignore[no-any-return]

    def forward(
        self,
        tokens: Tokens,
        targets: Tokens,
        memory: Memory,
        *,
        kept: int,
        clamp: int | None = None,
        window: int | None = None,
    ) -> tuple[Total, Memory]:
        """Returns the sum of the cross-entropies of what follows each token, in nats, and the memory; see ``read``."""
        hidden, following = self.read(tokens, memory, kept=kept, clamp=clamp, window=window)
        return self.softmax(hidden.flatten(0, 1), self.word.weight, targets.flatten()), following

    def read(
        self, tokens: Tokens, memory: Memory, *, kept: int, clamp: int | None = None, window: int | None = None
    ) -> tuple[Hidden, Memory]:
        """Returns the last layer's stream of a segment, and the memory for the next one, detached.

        ``kept``: its tokens at most; ``clamp``: the largest distance that is told apart, None: all are; ``window``: so
        many of the newest tokens, its own counted, are seen from each, None: all (the published ``same_length`` is the
        memory's length). Of the norms ``running`` alone carries its mean over.
        """
        length = tokens.shape[1] + memory[0].length
        table = None if isinstance(memory[0].past, ProjectedMemory) else self._distances(length, clamp)
        hidden = self.dropout(self.word(tokens) * self.config.dim**0.5)
        goes_on = isinstance(self.config.norm, Deescalated) and self.config.norm.mean == "running"
        following = []
        for number, (layer, own) in enumerate(zip(self.layers, memory, strict=True)):
            pair = 0 if self.config.shared_biases else number
            seen = Distances(table, self.content_bias[pair], self.position_bias[pair], window)
            hidden, read = layer(hidden, own, seen, kept)
            following.append(read if goes_on else read._replace(carried=None))
        return self.dropout(self.final_norm(hidden)), following


@torch.no_grad()
def initialise(model: TransformerXL) -> None:
    """Gives a model the published initial values: N(0, 0.02) everywhere, gains N(1, 0.02), linear biases 0.

    The final norm, which some norms have not, is drawn last: models of all norms share every other initial value.
    """
    final = set(model.final_norm.modules())
    for module in (each for each in model.modules() if each not in final):
        _initialise(module)
    for bias in (model.content_bias, model.position_bias, model.softmax.clusters):
        nn.init.normal_(bias, std=STD)
    for module in model.final_norm.modules():
        _initialise(module)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=STD)
    if isinstance(module, nn.LayerNorm):
        nn.init.normal_(module.weight, mean=1.0, std=STD)
    if isinstance(module, nn.Linear | nn.LayerNorm) and module.bias is not None:
        nn.init.zeros_(module.bias)

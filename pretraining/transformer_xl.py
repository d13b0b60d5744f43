"""Transformer-XL (Dai et al. 2019) with any causal attention and any norm: relative positions, and a memory.

With q_i = W_q h_i, k_j = W_k h_j, r_d = W_r s(d), s(d) the sinusoids of the distance d = i - j:
s_ij = (q_i . k_j + q_i . r_d + u . k_j + v . r_d) / sqrt(head_dim). The terms in k are the product of q + u with k;
the terms in r are added as a bias. Any attention variant with a causal form can therefore be used. Departures from
the published code: queries are projected for the segment only, and the relative shift is a view.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from seqarena.common.attention import require_options, require_steps
from seqarena.common.attention.base import AttentionConfig
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.model.deescalation import DeescalationState
from seqarena.common.model.feed_forward import Activation, feed_forward
from seqarena.common.model.norms.base import LayerPosition, Residual, Sublayers, scale_initial_weights
from seqarena.common.model.norms.deescalated import Deescalated
from seqarena.common.model.transformer import EncoderConfig
from seqarena.common.shapes import ColumnLse, Context, EarlierLse, Hidden, Key, Tokens, Total, Value
from seqarena.pretraining.adaptive_softmax import AdaptiveSoftmax

STD = 0.02
"""Standard deviation of every initial matrix, embedding, bias u and v, and of the norms' gains around 1."""


@dataclass(frozen=True, kw_only=True)
class Model(EncoderConfig):
    """Config of a Transformer-XL. The defaults are the published base model for WikiText-103."""

    vocabulary: int
    """Number of words in the vocabulary."""
    layers: int = 16
    """Number of layers."""
    dim: int = 410
    """Width of the stream and of the embeddings."""
    heads: int = 10
    """Attention heads."""
    ffn_dim: int = 2_100
    """Width inside the feed-forward."""
    activation: Activation = "relu"
    """Activation of the feed-forward."""
    attention_dropout: float = 0.0
    """Probability of dropping an attention weight."""
    projection_bias: bool = False
    """Whether the attention's projections have biases."""
    shared_biases: bool = True
    """Whether all layers share u and v, as in the published PyTorch code, or each has its own."""
    cutoffs: tuple[int, ...] = (20_000, 40_000, 200_000)
    """Adaptive softmax: first id of each cluster; ids below the first one are scored at every position."""

    def check(self, *, order: str = "causal", mean_pooled: bool = False) -> None:
        """Raises a ``WrongUseError`` that names the invalid field."""
        super().check(order="causal", mean_pooled=mean_pooled)
        require_options(self.attention, ["bias", "memory"], "a Transformer-XL")
        if self.attention_labels:
            raise WrongUseError(
                "model.relative_positions and model.query_key_norm: omit them, a Transformer-XL has its own positions"
            )
        if self.attention.sums_over_queries:
            require_steps(self.attention, "causal", "a Transformer-XL")
        if self.attention_dim not in (None, self.dim):
            raise WrongUseError(
                f"model.attention_dim {self.attention_dim}: a Transformer-XL needs model.dim {self.dim}, or none"
            )
        if list(self.cutoffs) != sorted({each for each in self.cutoffs if 0 < each < self.vocabulary}):
            raise WrongUseError(
                f"model.cutoffs {self.cutoffs}: expected increasing numbers between 0 and model.vocabulary "
                f"{self.vocabulary:,}"
            )


class ProjectedMemory(NamedTuple):
    """Cached projections: keys and values of earlier tokens, and distances (H D K, largest first)."""

    key: Key
    value: Value
    position: Tensor


class LayerMemory(NamedTuple):
    """A layer's memory of earlier segments: its input, and the states of its attention and norm."""

    past: Context | ProjectedMemory
    """The layer's input stream; in evaluation, its projections."""
    attention_state: ColumnLse | None
    norm_state: DeescalationState | None

    @property
    def length(self) -> int:
        """The number of earlier tokens."""
        return self.past.key.shape[2] if isinstance(self.past, ProjectedMemory) else self.past.shape[1]


Memory = Sequence[LayerMemory]
"""One ``LayerMemory`` per layer."""


class Distances(NamedTuple):
    """Relative positions of a segment and its memory, biases u and v, and the attention window."""

    distances: Tensor | None
    """Sinusoids of the distances from the largest, M - 1, down to 0; M C. None: the memory holds their projections."""
    u: Tensor
    """H D."""
    v: Tensor
    """H D."""
    window: int | None
    """Number of most recent tokens each query attends to, itself included; None: all."""


def sinusoids(distances: Tensor, dim: int) -> Tensor:
    """Returns sin, then cos, of each distance at ``dim / 2`` frequencies; D C."""
    rate = 10_000 ** (-torch.arange(0.0, dim, 2.0, device=distances.device) / dim)
    angles = distances[:, None] * rate
    return torch.cat([angles.sin(), angles.cos()], dim=-1)[:, :dim]


class Shift(torch.autograd.Function):
    """Relative shift: maps products with every distance (B H N K, largest distance first) to the bias of each pair.

    The result is a view. Entry (i, j) is the product with distance K - N + i - j. Row i starts N - 1 - i entries to
    the right; where j is in the future of i, the view reads the start of the next row, and the causal mask hides it.
    """

    @staticmethod
    def forward(ctx: Any, products: Tensor) -> Tensor:
        """Returns the shifted view; B H N K."""
        _, heads, queries, keys = products.shape
        ctx.shape = products.shape
        flat = products.contiguous()
        return flat.as_strided(
            flat.shape, (heads * queries * keys, queries * keys, keys - 1, 1), flat.storage_offset() + queries - 1
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """Returns the gradient. The last key is in the future of every query but the last."""
        batch, heads, queries, keys = ctx.shape
        found = grads[0].new_zeros(ctx.shape)
        strides = (heads * queries * keys, queries * keys, keys - 1, 1)
        found.as_strided((batch, heads, queries, keys - 1), strides, queries - 1).copy_(grads[0][..., :-1])
        found[..., -1, -1] = grads[0][..., -1, -1]
        return found


class RelativeAttention(nn.Module):
    """Attention of a segment to itself and to its memory, with Transformer-XL's four score terms, in any variant."""

    def __init__(self, config: EncoderConfig, variant: AttentionConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query, self.key, self.value, self.position, self.output = (
            nn.Linear(config.dim, config.dim, bias=config.projection_bias and name != "position")
            for name in ("query", "key", "value", "position", "output")
        )
        self.kernel = variant.build(config.heads, config.attention_dropout)
        self.has_state = variant.sums_over_queries

    @property
    def residual_matrices(self) -> tuple[nn.Linear, ...]:
        """Matrices whose initial values some norms scale: those of the values and of the output."""
        return self.value, self.output

    def forward(
        self, hidden: Hidden, past: Context | ProjectedMemory, distances: Distances, state: EarlierLse | None
    ) -> tuple[Hidden, ColumnLse | None, ProjectedMemory | None]:
        """Returns the output, the variant's updated ``state``, and the extended ``ProjectedMemory`` if used."""
        query = self._split(self.query(hidden))
        key, value, position = self._keys_and_values(hidden, past, distances)
        # Biases in float32 would turn autocast's half precision off here.
        u, v = (each[:, None].to(query.dtype) for each in (distances.u, distances.v))
        products = (query + v) * query.shape[-1] ** -0.5 @ position  # B H N M
        bias: Tensor = Shift.apply(products)  # type: ignore[no-untyped-call]
        visibility = Visibility(order="causal", memory=key.shape[2] - hidden.shape[1], window=distances.window)
        arguments = query + u, key, value, visibility, bias
        if self.has_state:
            heads, state = self.kernel.step(state, *arguments)
        else:
            heads = self.kernel(*arguments)
        whole = ProjectedMemory(key, value, past.position) if isinstance(past, ProjectedMemory) else None
        return self.output(heads.transpose(1, 2).flatten(2)), state, whole

    def _keys_and_values(
        self, hidden: Hidden, past: Context | ProjectedMemory, distances: Distances
    ) -> ProjectedMemory:
        """Returns keys and values of memory and segment, and the projected distances."""
        if isinstance(past, ProjectedMemory):
            key, value = self._split(self.key(hidden)), self._split(self.value(hidden))
            if past.key.shape[2]:  # an empty memory may have another dtype
                key, value = torch.cat([past.key, key], dim=2), torch.cat([past.value, value], dim=2)
            return ProjectedMemory(key, value, past.position[..., -key.shape[2] :])
        source = torch.cat([past, hidden], dim=1)
        assert distances.distances is not None
        return ProjectedMemory(
            self._split(self.key(source)), self._split(self.value(source)), self.positions(distances.distances)
        )

    def positions(self, distances: Tensor) -> Tensor:
        """Returns the projected sinusoids of distances (M C); H D M."""
        heads: Tensor = self.position(distances).view(len(distances), self.heads, -1)
        return heads.permute(1, 2, 0).contiguous()  # one copy here instead of one per batch row in the product

    def _split(self, projected: Tensor) -> Tensor:
        return projected.unflatten(2, (self.heads, -1)).transpose(1, 2)  # type: ignore[no-untyped-call, no-any-return]


class Layer(nn.Module):
    """One layer: attention to segment and memory, then a feed-forward."""

    def __init__(self, config: Model, position: LayerPosition) -> None:
        super().__init__()
        self.attention = RelativeAttention(config, config.attention)
        self.feed_forward = feed_forward(config.dim, config.ffn_dim, config.activation, config.inner_dropout)
        self.residual = config.norm.build_residual(config.dim, config.norm_eps, position)
        self.initial_scale = config.norm.initial_scale(position)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, hidden: Hidden, memory: LayerMemory, distances: Distances, memory_length: int
    ) -> tuple[Hidden, LayerMemory]:
        """Returns the layer's output, and the detached memory of the last ``memory_length`` tokens it has read."""
        known: list[tuple[ColumnLse | None, ProjectedMemory | None]] = []

        def attention(tokens: Tensor) -> Tensor:
            past = memory.past if isinstance(memory.past, ProjectedMemory) else self.residual.memory_input(memory.past)
            found, state, projected = self.attention(tokens, past, distances, memory.attention_state)
            known.append((state, projected))
            return self.dropout(found)  # type: ignore[no-any-return]

        def feed_forward(tokens: Tensor) -> Tensor:
            return self.dropout(self.feed_forward(tokens))  # type: ignore[no-any-return]

        visibility = Visibility(order="causal")
        output, norm_state = self.residual(hidden, Sublayers(attention, feed_forward), visibility, memory.norm_state)
        state, projected = known[0]
        first = max(memory.length + hidden.shape[1] - memory_length, 0)
        past: Context | ProjectedMemory
        if projected is not None:
            past = ProjectedMemory(projected.key[:, :, first:], projected.value[:, :, first:], projected.position)
        elif isinstance(memory.past, Tensor):
            parts = [memory.past[:, first:], hidden.detach()[:, max(first - memory.length, 0) :]]
            past = torch.cat(parts, dim=1) if parts[0].shape[1] else parts[1].contiguous()
        return output, LayerMemory(past, None if state is None else state[:, :, first:], norm_state)


class TransformerXL(nn.Module):
    """Transformer-XL language model, run segment after segment with a memory."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.config = config
        self.word = nn.Embedding(config.vocabulary, config.dim)
        positions = (LayerPosition(number=number, depth=config.layers) for number in range(config.layers))
        self.layers = nn.ModuleList(Layer(config, position) for position in positions)
        self.final_norm = config.norm.build_final_norm(config.dim, config.norm_eps)
        pairs = 1 if config.shared_biases else config.layers
        shape = pairs, config.heads, config.dim // config.heads
        self.content_bias, self.position_bias = (nn.Parameter(torch.empty(shape)) for _ in range(2))
        self.dropout = nn.Dropout(config.dropout)
        self.softmax = AdaptiveSoftmax(config.vocabulary, config.dim, config.cutoffs)
        initialise(self)

    def empty_memory(self, streams: int) -> Memory:
        """Returns the empty memory before the first segment of ``streams`` streams."""
        stream = self.word.weight.new_zeros(streams, 0, self.config.dim)
        return [LayerMemory(stream, None, None)] * self.config.layers

    @torch.no_grad()
    def projected_memory(self, streams: int, longest: int, clamp: int | None) -> Memory:
        """Returns the same for evaluation; keys, values and distances are projected only once.

        ``longest``: maximum number of tokens of a segment and its memory together.
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
        memory_length: int,
        clamp: int | None = None,
        window: int | None = None,
    ) -> tuple[Total, Memory]:
        """Returns the summed cross-entropy of ``targets`` in nats, and the new memory; arguments as for ``read``."""
        hidden, following = self.read(tokens, memory, memory_length=memory_length, clamp=clamp, window=window)
        return self.softmax(hidden.flatten(0, 1), self.word.weight, targets.flatten()), following

    def read(
        self, tokens: Tokens, memory: Memory, *, memory_length: int, clamp: int | None = None, window: int | None = None
    ) -> tuple[Hidden, Memory]:
        """Returns the last layer's hidden states of a segment, and the detached memory for the next segment.

        ``memory_length``: maximum number of tokens in the new memory. ``clamp``: larger distances are replaced by it;
        None: no limit. ``window``: number of most recent tokens each query attends to, itself included; None: all
        (the published ``same_length`` sets it to the memory's length). De-escalation's state is passed on only for
        ``mean="running"``.
        """
        length = tokens.shape[1] + memory[0].length
        table = None if isinstance(memory[0].past, ProjectedMemory) else self._distances(length, clamp)
        hidden = self.dropout(self.word(tokens) * self.config.dim**0.5)
        is_running = isinstance(self.config.norm, Deescalated) and self.config.norm.mean == "running"
        following = []
        for number, (layer, own) in enumerate(zip(self.layers, memory, strict=True)):
            pair = 0 if self.config.shared_biases else number
            distances = Distances(table, self.content_bias[pair], self.position_bias[pair], window)
            hidden, read = layer(hidden, own, distances, memory_length)
            following.append(read if is_running else read._replace(norm_state=None))
        return self.dropout(self.final_norm(hidden)), following


@torch.no_grad()
def initialise(model: TransformerXL) -> None:
    """Sets the published initial values: N(0, 0.02) everywhere, gains N(1, 0.02), linear biases 0.

    Models of all norms share every other initial value: the two gains per layer that most norms have are drawn for
    every norm, and gains that only some norms have are drawn last.
    """
    blocks = [module for module in model.modules() if isinstance(module, Residual)]
    norms = [*model.final_norm.modules(), *(module for block in blocks for module in block.modules())]
    inside = set(norms)
    gains = {norm: norm.weight for norm in norms if isinstance(norm, nn.LayerNorm)}
    for module in model.modules():
        if isinstance(module, Residual):
            for name in ("attention_norm", "feed_forward_norm"):
                gain = gains.pop(getattr(module, name, None), None)  # type: ignore[arg-type]
                nn.init.normal_(model.word.weight.new_empty(model.config.dim) if gain is None else gain, 1.0, STD)
        if module not in inside:
            _initialise_matrix(module)
    for bias in (model.content_bias, model.position_bias, model.softmax.clusters):
        nn.init.normal_(bias, std=STD)
    for gain in gains.values():
        nn.init.normal_(gain, 1.0, STD)
    for module in norms:
        _initialise_matrix(module)
    scale_initial_weights(model)


def _initialise_matrix(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)

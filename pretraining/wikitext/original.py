"""A step of Transformer-XL in the formulation of its published code, with our weights, as the baseline of timings.

Written from a description of that code, for softmax and post-norm: streams are the second axis, queries are also
projected for the memory and discarded, the relative shift pads and copies, and each cluster copies the head's log
probabilities.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from seqarena.common.attention.softmax import Softmax
from seqarena.common.errors import WrongUseError
from seqarena.common.model.norms.post import PostNorm
from seqarena.pretraining.transformer_xl import Layer, TransformerXL


def step(
    model: TransformerXL,
    tokens: Tensor,
    targets: Tensor,
    memory: Sequence[Tensor],
    *,
    clamp: int | None = None,
    window: int | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """Returns the mean cross-entropy of a segment (B T), and each layer's input, memory and segment (T B C).

    ``clamp``: maximum distance. ``window``: number of most recent tokens each query attends to. None: no limit.

    Raises:
        WrongUseError: another attention or norm.
    """
    config = model.config
    if config.attention != Softmax() or config.norm != PostNorm():
        raise WrongUseError("the published code supports softmax and post-norm only")
    hidden = model.dropout(model.word(tokens.T) * config.dim**0.5)
    length = len(memory[0]) + len(hidden)
    positions = torch.arange(length - 1, -1, -1.0).clamp(max=length if clamp is None else clamp)
    rate = 1 / (10_000 ** (torch.arange(0.0, config.dim, 2.0) / config.dim))
    angles = torch.outer(positions, rate)
    table = model.dropout(torch.cat([angles.sin(), angles.cos()], dim=-1)[:, None].to(hidden.dtype))
    streams = []
    for number, (layer, past) in enumerate(zip(model.layers, memory, strict=True)):
        assert isinstance(layer, Layer)
        streams.append(torch.cat([past, hidden]).detach())
        pair = 0 if config.shared_biases else number
        biases = model.content_bias[pair], model.position_bias[pair]
        attended = _attention(layer, hidden, past, table, *biases, window)
        hidden = layer.residual.attention_norm(hidden + layer.dropout(attended))  # type: ignore[operator]
        hidden = layer.residual.feed_forward_norm(hidden + layer.dropout(layer.feed_forward(hidden)))  # type: ignore[operator]
    hidden = model.dropout(hidden)
    return _losses(model, hidden.flatten(0, 1), targets.T.flatten()).mean(), streams


def _attention(
    layer: Layer, hidden: Tensor, past: Tensor, table: Tensor, u: Tensor, v: Tensor, window: int | None
) -> Tensor:
    own = layer.attention
    queries, streams, dim = hidden.shape
    both = torch.cat([past, hidden])
    weight = torch.cat([own.query.weight, own.key.weight, own.value.weight])
    query, key, value = (
        each.view(len(both), streams, own.heads, -1) for each in F.linear(both, weight).chunk(3, dim=-1)
    )
    query = query[-queries:]
    position = own.position(table).view(len(both), own.heads, -1)
    content = torch.einsum("ibnd,jbnd->ijbn", query + u, key)
    shifted = _shift(torch.einsum("ibnd,jnd->ijbn", query + v, position))
    scores = (content + shifted) * (dim // own.heads) ** -0.5
    hidden_pairs = torch.ones(queries, len(both)).triu(1 + len(past)).bool()
    if window is not None:
        hidden_pairs |= torch.ones(queries, len(both)).tril(len(past) - window).bool()
    weights = scores.float().masked_fill(hidden_pairs[:, :, None, None], -torch.inf).type_as(scores).softmax(dim=1)
    weights = F.dropout(weights, own.kernel.active_dropout)
    found = torch.einsum("ijbn,jbnd->ibnd", weights, value)
    output: Tensor = own.output(found.reshape(queries, streams, dim))
    return output


def _shift(products: Tensor) -> Tensor:
    """Returns products with distances as products with keys: padded, reshaped and cut."""
    queries, keys, *rest = products.shape
    padded = torch.cat([products.new_zeros(queries, 1, *rest), products], dim=1)
    return padded.view(keys + 1, queries, *rest)[1:].view_as(products)


def _losses(model: TransformerXL, hidden: Tensor, targets: Tensor) -> Tensor:
    """Returns the cross-entropy of each position."""
    softmax, table = model.softmax, model.word.weight
    ends = (0, *softmax.ends)
    head = torch.cat([table[: ends[1]], softmax.clusters]), torch.cat([softmax.bias[: ends[1]], softmax.cluster_bias])
    of_head = F.linear(hidden, *head).log_softmax(dim=1)
    found = hidden.new_zeros(len(hidden))
    for number, (start, stop) in enumerate(itertools.pairwise(ends)):
        rows = ((targets >= start) & (targets < stop)).nonzero().squeeze(1)
        if not len(rows):
            continue
        labels, log_probability = targets[rows] - start, of_head.index_select(0, rows)
        if number == 0:
            each = log_probability.gather(1, labels[:, None]).squeeze(1)
        else:
            inside = F.linear(hidden.index_select(0, rows), table[start:stop], softmax.bias[start:stop])
            each = log_probability[:, ends[1] + number - 1] + inside.log_softmax(dim=1).gather(
                1, labels[:, None]
            ).squeeze(1)
        found = found.index_copy(0, rows, -each)
    return found

"""The formula of any variant in linear memory: a chunk of queries at a time, recomputed for the gradient."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from seqarena.common.attention.visibility import Visibility
from seqarena.common.shapes import Bias, ColumnLse, EarlierLse, Key, Output, Query, Value

CHUNK_BYTES = 2**23
"""Bytes of a chunk's scores in float32."""
LEAST_QUERIES = 64
"""Minimum number of queries per chunk; a variant with a state stores one state per chunk."""

Evaluate = Callable[[EarlierLse | None, Query, Key, Value, Visibility, Bias | None], tuple[Output, ColumnLse | None]]
"""Evaluates a formula on some queries, given the state after the queries before them; returns the state after them."""


def chunks(query: Query, key: Key) -> list[slice]:
    """Returns the range of queries of each chunk."""
    batch, heads, queries, _ = query.shape
    rows = max(LEAST_QUERIES, CHUNK_BYTES // (4 * batch * heads * key.shape[2]))
    return [slice(start, min(start + rows, queries)) for start in range(0, queries, rows)]


def attend_in_chunks(
    evaluate: Evaluate, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None
) -> Output:
    """Computes the output of all queries chunk by chunk. Apart from the bias, nothing of size N x M is stored.

    In order ``causal`` a chunk excludes keys newer than its last query.
    """
    outputs, state = list[Tensor](), None
    for some in split(query, key, value, visibility, bias, chunks(query, key)):
        output, state = checkpoint(
            evaluate, state, some.query, some.key, some.value, some.visibility, some.bias, use_reentrant=False
        )
        outputs.append(output)
    return torch.cat(outputs, dim=2)


class Chunk(NamedTuple):
    """Inputs of a chunk: some queries of a call, and the keys visible to any of them."""

    rows: slice
    query: Query
    key: Key
    value: Value
    visibility: Visibility
    bias: Bias | None


def split(
    query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None, rows: Sequence[slice]
) -> Iterator[Chunk]:
    """Yields the chunks of a call, given their ranges of queries."""
    for some in rows:
        seen = visibility.memory + some.stop if visibility.order == "causal" else key.shape[2]
        yield Chunk(
            some, query[:, :, some], key[:, :, :seen], value[:, :, :seen], _slice_visibility(visibility, some, seen),
            _slice_bias(bias, some, seen),
        )  # fmt: skip


def _slice_visibility(visibility: Visibility, rows: slice, seen: int) -> Visibility:
    """Returns the visibility of the first ``seen`` keys to the queries ``rows``."""
    query_real, key_real, segments = visibility.query_real, visibility.key_real, visibility.segments
    return replace(
        visibility,
        query_real=None if query_real is None else query_real[:, rows],
        key_real=None if key_real is None else key_real[:, :seen],
        memory=visibility.memory + rows.start if visibility.order == "causal" else 0,
        segments=None if segments is None else segments[:, :seen],
    )


def _slice_bias(bias: Tensor | None, rows: slice, seen: int) -> Tensor | None:
    if bias is None:
        return None
    some = bias[:, :, rows] if bias.shape[2] > 1 else bias
    return some[..., :seen]

"""Exact attention of any variant with a ``Rule``, by blocks of queries in linear memory, on any device.

Nothing of size N x M is stored. The backward pass recomputes each block, dropout included, and passes the gradient of
the block's weights to the rule.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from seqarena.common.attention.masses import added, column_masses, prefix, pull_columns, pull_prefix
from seqarena.common.attention.rule import NOTHING, ScoreGradient, pull_softmax_, softmax_
from seqarena.common.attention.tiles import Call, Sums, Tile, left

CARRIED_BYTES = 2**24
"""Maximum bytes of states stored at once by the backward pass for a group of heads; other states are recomputed."""


def forward(call: Call, state: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the output (L N E), column logsumexps over all queries (L rounds M), and the last state (L 1 M).

    The latter two are empty for variants without them.
    """
    columns, ordered = call.column_rounds > 0, call.is_prefix
    sums = Sums(call.query, call.value.shape[2], call.blocking.rows)
    masses = call.key.new_empty(len(call.key), call.column_rounds, call.key.shape[1])
    last = carried(call, state) if ordered else call.key.new_empty(0)
    for heads in call.head_blocks():
        if columns:
            masses[heads] = column_masses(call, heads)
        share = None if call.share is None else call.share[heads]
        for rows in call.row_blocks():
            for tile in call.tiles(heads, rows):
                scores, doubly = call.scores(tile), None
                if columns:
                    doubly = shifted_softmax(call, scores, masses[heads, -1:])
                elif ordered:
                    block = prefix(scores, last[heads, :, tile.keys], call.late(tile), call.masked, call.scratch)
                    doubly, last[heads, :, tile.keys] = block.doubly, block.last
                weights, _ = call.rule.apply(scores, doubly, share, call.scratch)
                if not call.rule.whole_rows:
                    weights = call.hide(weights, tile)
                sums.add(heads, rows, left(weights, call.kept(tile)), call.value[heads, tile.keys])
    return sums.whole() * call.row_scale, masses, last


def backward(call: Call, grad: Tensor, masses: Tensor, state: Tensor | None, bias_grad: bool) -> "Gradients":
    """Returns the gradients, given that of the output (L N E) and the column logsumexps returned by ``forward``."""
    gradients = Gradients(call, grad * call.row_scale, bias_grad)
    start = carried(call, state) if call.is_prefix else None
    for heads in call.head_blocks():
        if start is not None:
            gradients.prefix_blocks(heads, start[heads])
        elif call.column_rounds:
            gradients.column_blocks(heads, masses[heads])
        else:
            gradients.row_blocks(heads)
    return gradients


def shifted_softmax(call: Call, scores: Tensor, mass: Tensor) -> Tensor:
    """Returns softmax_j(s_ij - c_j). Overwrites the scores if the rule does not read them."""
    room = call.scratch.like("doubly", scores) if call.rule.reads_scores else scores
    return softmax_(torch.sub(scores, mass, out=room))


def carried(call: Call, state: Tensor | None) -> Tensor:
    """Returns the column logsumexps before the first query; L 1 M. Keys not in ``state`` start with an empty sum."""
    heads, keys = call.key.shape[:2]
    carry = call.key.new_full((heads, 1, keys), NOTHING)
    if state is not None:
        earlier = call.visibility.memory if call.visibility.order == "causal" else keys
        known = min(earlier, state.shape[-1])
        carry[:, 0, earlier - known : earlier] = state.flatten(0, 1)[:, state.shape[-1] - known :].to(carry.dtype)
    return carry


class Gradients:
    """Gradients of one call, accumulated tile by tile."""

    def __init__(self, call: Call, grad: Tensor, bias_grad: bool) -> None:
        self.call = call
        self.grad = grad
        self.query = Sums(call.query, call.query.shape[2], call.blocking.rows)
        self.key, self.value = (Sums(each, each.shape[2], call.blocking.keys) for each in (call.key, call.value))
        self.bias = None
        if bias_grad and call.bias is not None:
            self.bias = torch.zeros_like(call.bias, memory_format=torch.contiguous_format)
        self.share = None if call.share is None else torch.zeros_like(call.share)

    def block(self, tile: Tile, scores: Tensor, doubly: Tensor | None) -> ScoreGradient:
        """Accumulates a tile's gradients of value and mixing weight; returns those of its scores and of ``doubly``."""
        call, grad = self.call, self.grad[tile.heads, tile.rows]
        share = None if call.share is None else call.share[tile.heads]
        if call.bias_hides:  # rows without a visible key, known since the scores were computed
            grad = grad * (call.row_scale[tile.heads, tile.rows] != 0)
        weights, kept = call.rule.apply(scores, doubly, share, call.scratch)
        if not call.rule.whole_rows:
            weights = call.hide(weights, tile)
        kept_pairs = call.kept(tile)
        some = left(weights, kept_pairs, call.scratch.like("left", weights))
        self.value.add(tile.heads, tile.keys, some.transpose(1, 2), grad)
        of_weights = call.products("of_weights", tile, grad, call.value)
        pulled = call.rule.pull(kept, left(of_weights, kept_pairs), call.scratch)
        if self.share is not None and pulled.share is not None:
            self.share[tile.heads] += pulled.share.sum(dim=1, keepdim=True)
        return pulled

    def row_blocks(self, heads: slice) -> None:
        """Accumulates the gradients of a group of heads, for rules without column logsumexps."""
        for rows in self.call.row_blocks():
            for tile in self.call.tiles(heads, rows):
                pulled = self.block(tile, self.call.scores(tile), None)
                assert pulled.scores is not None
                grad = pulled.scores if self.call.rule.whole_rows else self.call.hide(pulled.scores, tile)
                self.scores(tile, grad, pulled.factor)

    def scores(self, tile: Tile, grad: Tensor, factor: float = 1.0) -> None:
        """Accumulates gradients of query, key and bias, given ``factor`` and the gradient of a tile's scores."""
        call = self.call
        self.query.add(tile.heads, tile.rows, grad, call.key[tile.heads, tile.keys], factor)
        self.key.add(tile.heads, tile.keys, grad.transpose(1, 2), call.query[tile.heads, tile.rows], factor)
        if self.bias is not None:
            call.add_bias_gradient(self.bias, grad.mul_(factor), tile)

    def column_blocks(self, heads: slice, masses: Tensor) -> None:
        """Accumulates the gradients of a group of heads, with column logsumexps over all queries."""
        grad = torch.zeros_like(masses[:, -1:])
        for rows in self.call.row_blocks():
            for tile in self.call.tiles(heads, rows):
                scores = self.call.scores(tile)
                doubly = shifted_softmax(self.call, scores, masses[:, -1:])
                pulled = self.block(tile, scores, doubly)
                assert pulled.doubly is not None
                of_scores = pull_softmax_(doubly, pulled.doubly)
                grad -= of_scores.sum(dim=1, keepdim=True)
                self.scores(tile, of_scores if pulled.scores is None else of_scores.add_(pulled.scores))
        pull_columns(self.call, heads, masses, grad, self.scores)

    def prefix_blocks(self, heads: slice, start: Tensor) -> None:
        """Accumulates the gradients of a group of heads, in a prefix form, from the last block to the first.

        The state before each block is recomputed, for a stretch of blocks at a time. Storing all states would take
        memory quadratic in the length.
        """
        rows = list(self.call.row_blocks())
        stretch = max(1, CARRIED_BYTES // (start.numel() * start.element_size()))
        starts = list(range(0, len(rows), stretch))
        carries = list(self._carries(heads, rows[: starts[-1] + 1], start, every=stretch))
        later = torch.zeros_like(start)
        for first, carry in zip(reversed(starts), reversed(carries), strict=True):
            part = rows[first : first + stretch]
            within = list(self._carries(heads, part, carry, every=1))
            for each, before in zip(reversed(part), reversed(within), strict=True):
                (tile,) = self.call.tiles(heads, each)
                scores = self.call.scores(tile)
                block = prefix(
                    scores, before[:, :, tile.keys], self.call.late(tile), self.call.masked, self.call.scratch
                )
                if self.call.rule.reads_scores:
                    scores = self.call.scratch.like("read", scores).copy_(scores)
                pulled = self.block(tile, scores, block.doubly)
                assert pulled.doubly is not None
                of_scores, later[:, :, tile.keys] = pull_prefix(block, pulled.doubly, later[:, :, tile.keys])
                self.scores(tile, of_scores if pulled.scores is None else of_scores.add_(pulled.scores))

    def _carries(self, heads: slice, rows: list[slice], carry: Tensor, every: int) -> Iterator[Tensor]:
        """Yields the state before every ``every``-th block of rows."""
        for index, each in enumerate(rows):
            if index % every == 0:
                yield carry
            if index < len(rows) - 1:
                (tile,) = self.call.tiles(heads, each)
                carry = carry.clone()
                carry[:, :, tile.keys] = added(carry[:, :, tile.keys], self.call.scores(tile), self.call.masked)

    def finished(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the gradients of query, key and value; L length width."""
        return self.query.whole() * self.call.query.shape[2] ** -0.5, self.key.whole(), self.value.whole()

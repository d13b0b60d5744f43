"""Exact attention of any variant with a ``Rule``, by blocks of queries in linear memory, on any device.

Nothing of size N x M is stored. The backward pass recomputes each block, dropout included, and passes the gradient of
the block's weights to the rule.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from seqarena.common.attention.column_logsumexp import (
    add_block,
    aligned_state,
    column_logsumexp,
    columns_backward,
    prefix,
    prefix_backward,
)
from seqarena.common.attention.rule import EMPTY_LOGSUMEXP, ScoreGradient, softmax_backward_
from seqarena.common.attention.tiles import Call, Tile, apply_dropout

STATE_BYTES = 2**24
"""Maximum bytes of states stored at once by the backward pass for a group of heads; other states are recomputed."""


def forward(call: Call, state: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the output (L N E), column logsumexps over all queries (L rounds M), and the last state (L 1 M).

    The latter two are empty for variants without them.
    """
    columns, ordered = call.column_rounds > 0, call.is_prefix
    sums = Sums(call.query, call.value.shape[2], call.blocking.rows)
    column_lse = call.key.new_empty(len(call.key), call.column_rounds, call.key.shape[1])
    last = initial_state(call, state) if ordered else call.key.new_empty(0)
    for heads in call.head_blocks:
        if columns:
            column_lse[heads] = column_logsumexp(call, heads)
        mixing_weight = None if call.mixing_weight is None else call.mixing_weight[heads]
        for tile in call.tiles(heads):
            scores, doubly = call.scores(tile), None
            if columns:
                doubly = call.shifted_softmax(scores, column_lse[heads, -1:])
            elif ordered:
                block = prefix(scores, last[heads, :, tile.keys], call.late(tile), call.masked, call)
                doubly, last[heads, :, tile.keys] = block.doubly, block.last
            weights, _ = call.rule.apply(scores, doubly, mixing_weight, call)
            if not call.rule.whole_rows:
                weights = call.hide(weights, tile)
            sums.add(heads, tile.rows, apply_dropout(weights, call.dropout_mask(tile)), call.value[heads, tile.keys])
    return sums.tensor() * call.row_scale, column_lse, last


def backward(call: Call, grad: Tensor, column_lse: Tensor, state: Tensor | None, bias_grad: bool) -> "Gradients":
    """Returns the gradients, given that of the output (L N E) and the column logsumexps returned by ``forward``."""
    gradients = Gradients(call, grad * call.row_scale, bias_grad)
    start = initial_state(call, state) if call.is_prefix else None
    for heads in call.head_blocks:
        if start is not None:
            gradients.prefix_blocks(heads, start[heads])
        elif call.column_rounds:
            gradients.column_blocks(heads, column_lse[heads])
        else:
            gradients.row_blocks(heads)
    return gradients


def initial_state(call: Call, state: Tensor | None) -> Tensor:
    """Returns the column logsumexps before the first query; L 1 M."""
    heads, keys = call.key.shape[:2]
    if state is None:
        return call.key.new_full((heads, 1, keys), EMPTY_LOGSUMEXP)
    return aligned_state(state.to(call.key.dtype), keys, call.visibility).flatten(0, 1)[:, None]


class Sums:
    """Sums of matrix products for each position, with the sums of a block contiguous in memory.

    PyTorch can add a batch of products in one call only if the matrices are contiguous.
    """

    def __init__(self, like: Tensor, width: int, block: int) -> None:
        self.block, self.length = block, like.shape[1]
        self.split = like.new_zeros(-(-self.length // block), len(like), block, width)

    def add(self, heads: slice, where: slice, left: Tensor, right: Tensor, factor: float = 1.0) -> None:
        """Adds factor times the products of left and right to the positions ``where``, which must be within a block."""
        part = self.split[where.start // self.block, heads, : where.stop - where.start]
        if part.is_contiguous():
            part.baddbmm_(left, right, alpha=factor)
        else:
            part.add_(torch.bmm(left, right), alpha=factor)

    def tensor(self) -> Tensor:
        """Returns the sums of all positions; L length width."""
        return self.split.transpose(0, 1).flatten(1, 2)[:, : self.length].contiguous()


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
        self.mixing_weight = None if call.mixing_weight is None else torch.zeros_like(call.mixing_weight)

    def block(self, tile: Tile, scores: Tensor, doubly: Tensor | None) -> ScoreGradient:
        """Accumulates a tile's gradients of value and mixing weight; returns those of its scores and of ``doubly``."""
        call, grad = self.call, self.grad[tile.heads, tile.rows]
        mixing_weight = None if call.mixing_weight is None else call.mixing_weight[tile.heads]
        if call.bias_hides:  # rows without a visible key, known since the scores were computed
            grad = grad * (call.row_scale[tile.heads, tile.rows] != 0)
        weights, saved = call.rule.apply(scores, doubly, mixing_weight, call)
        if not call.rule.whole_rows:
            weights = call.hide(weights, tile)
        mask = call.dropout_mask(tile)
        some = apply_dropout(weights, mask, call.like("dropped", weights))
        self.value.add(tile.heads, tile.keys, some.transpose(1, 2), grad)
        grad_weights = call.products("grad_weights", tile, grad, call.value)
        gradient = call.rule.backward(saved, apply_dropout(grad_weights, mask), call)
        if self.mixing_weight is not None and gradient.mixing_weight is not None:
            self.mixing_weight[tile.heads] += gradient.mixing_weight.sum(dim=1, keepdim=True)
        return gradient

    def row_blocks(self, heads: slice) -> None:
        """Accumulates the gradients of a group of heads, for rules without column logsumexps."""
        for tile in self.call.tiles(heads):
            gradient = self.block(tile, self.call.scores(tile), None)
            assert gradient.scores is not None
            grad = gradient.scores if self.call.rule.whole_rows else self.call.hide(gradient.scores, tile)
            self.scores(tile, grad, gradient.factor)

    def scores(self, tile: Tile, grad: Tensor, factor: float = 1.0) -> None:
        """Accumulates gradients of query, key and bias, given ``factor`` and the gradient of a tile's scores."""
        call = self.call
        self.query.add(tile.heads, tile.rows, grad, call.key[tile.heads, tile.keys], factor)
        self.key.add(tile.heads, tile.keys, grad.transpose(1, 2), call.query[tile.heads, tile.rows], factor)
        if self.bias is not None:
            call.add_bias_gradient(self.bias, grad.mul_(factor), tile)

    def column_blocks(self, heads: slice, column_lse: Tensor) -> None:
        """Accumulates the gradients of a group of heads, with column logsumexps over all queries."""
        grad = torch.zeros_like(column_lse[:, -1:])
        for tile in self.call.tiles(heads):
            scores = self.call.scores(tile)
            doubly = self.call.shifted_softmax(scores, column_lse[:, -1:])
            gradient = self.block(tile, scores, doubly)
            assert gradient.doubly is not None
            grad_scores = softmax_backward_(doubly, gradient.doubly)
            grad -= grad_scores.sum(dim=1, keepdim=True)
            self.scores(tile, grad_scores if gradient.scores is None else grad_scores.add_(gradient.scores))
        columns_backward(self.call, heads, column_lse, grad, self.scores)

    def prefix_blocks(self, heads: slice, start: Tensor) -> None:
        """Accumulates the gradients of a group of heads, in a prefix form, from the last block to the first.

        The state before each block is recomputed, for a stretch of blocks at a time. Storing all states would take
        memory quadratic in the length.
        """
        tiles = self.call.tiles(heads)  # one per block, because these weights need whole rows
        stretch = max(1, STATE_BYTES // (start.numel() * start.element_size()))
        starts = list(range(0, len(tiles), stretch))
        states = list(self._states(tiles[: starts[-1] + 1], start, every=stretch))
        later = torch.zeros_like(start)
        for first, state in zip(reversed(starts), reversed(states), strict=True):
            part = tiles[first : first + stretch]
            within = list(self._states(part, state, every=1))
            for tile, before in zip(reversed(part), reversed(within), strict=True):
                scores = self.call.scores(tile)
                block = prefix(scores, before[:, :, tile.keys], self.call.late(tile), self.call.masked, self.call)
                if self.call.rule.reads_scores:
                    scores = self.call.like("read", scores).copy_(scores)
                gradient = self.block(tile, scores, block.doubly)
                assert gradient.doubly is not None
                grad_scores, later[:, :, tile.keys] = prefix_backward(block, gradient.doubly, later[:, :, tile.keys])
                self.scores(tile, grad_scores if gradient.scores is None else grad_scores.add_(gradient.scores))

    def _states(self, tiles: list[Tile], state: Tensor, every: int) -> Iterator[Tensor]:
        """Yields the state before every ``every``-th tile."""
        for index, tile in enumerate(tiles):
            if index % every == 0:
                yield state
            if index < len(tiles) - 1:
                state = state.clone()
                state[:, :, tile.keys] = add_block(state[:, :, tile.keys], self.call.scores(tile), self.call.masked)

    def totals(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the gradients of query, key and value; L length width."""
        return self.query.tensor() * self.call.query.shape[2] ** -0.5, self.key.tensor(), self.value.tensor()

"""One call of the blockwise engine, divided into tiles: visible pairs, scores and dropout of each tile."""

import functools
import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from seqarena.common.attention.rule import HIDDEN, Rule
from seqarena.common.attention.visibility import Order, Visibility
from seqarena.common.data.counter import hash64, hashed_on


class Tile(NamedTuple):
    """Ranges of heads, queries and keys. Heads are numbered over the whole batch."""

    heads: slice
    rows: slice
    keys: slice


@dataclass(frozen=True, kw_only=True)
class Blocking:
    """Sizes of tiles, chosen so that several of them fit into a core's second-level cache."""

    heads: int
    rows: int
    keys: int

    @classmethod
    def choose(
        cls, rule: Rule, heads: int, queries: int, keys: int, order: Order, dropout: float, device: torch.device
    ) -> "Blocking":
        """Returns the blocking measured to be fast: on a CPU two heads (for two cores) and 2^18 to 2^19 scores."""
        size = 1 if device.type == "cpu" else 64
        if rule.whole_rows:
            seen = keys - queries // 2 if order == "causal" else keys  # by an average query
            rows = max(32, size * 2**18 // seen // (2 if dropout else 1))
            if rule.rounds and order != "none":
                rows = min(rows, 64)  # prefix sums are products with a matrix of rows x rows
            rows = min(rows, queries)
            return cls(heads=min(heads, max(2, size * 2**18 // (rows * seen))), rows=rows, keys=keys)
        rows, wide = min(queries, 512), min(keys, 256)
        return cls(heads=min(heads, max(2, size * 2**18 // (rows * wide))), rows=rows, keys=wide)


def blocks(length: int, size: int) -> list[slice]:
    """Returns slices of ``size`` that cover ``length``. The last may be shorter."""
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


class Call:
    """Inputs of one call with batch and heads flattened (L), in float32 or wider.

    Padded queries, keys and values are 0, so that their original content has no effect. Tiles are computed in buffers
    that are used again: a newly allocated tile would be in no cache.
    """

    query: Tensor
    """L N D, divided by sqrt(head_dim)."""
    key: Tensor
    """L M D."""
    value: Tensor
    """L M E."""
    bias: Tensor | None
    """#B #H #N #M."""
    bias_hides: bool
    """Whether the bias may hide pairs, for rules that need whole rows; assumed on a GPU to avoid waiting."""
    masked: bool
    """Whether padding, segments, a window or a bias hide pairs."""
    mixing_weight: Tensor | None
    """L 1 1."""
    row_scale: Tensor
    """Factor of each row of the output; 0 for rows without a visible key; L N 1."""
    is_prefix: bool
    """Whether column logsumexps run over the queries so far."""
    column_rounds: int
    """Number of rounds with column logsumexps over all queries."""
    head_blocks: list[slice]
    """Groups of heads that are computed at once."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        visibility: Visibility,
        rule: Rule,
        mixing_weight: Tensor | None,
        dropout: float,
        seed: int,
        most_rows: int | None = None,
    ) -> None:
        """Takes tensors in the shapes of ``Kernel``: (batch, heads, length, width).

        ``most_rows``: maximum number of queries per tile, each with its whole row of keys; none: the fastest tiles.
        """
        wide = torch.promote_types(query.dtype, torch.float32)
        (batch, heads, queries, width), keys = query.shape, key.shape[2]
        self.visibility, self.rule, self.batch, self.heads = visibility, rule, batch, heads
        self.dropout, self.seed = dropout, seed
        self.buffers: dict[tuple[str, torch.dtype], Tensor] = {}
        self.views: dict[tuple[str, tuple[int, ...], torch.dtype], Tensor] = {}

        cleared = visibility.clear(query, key, value)
        counts = visibility.counts(batch, queries, keys, query.device)
        query, key, value = (each.to(wide).reshape(-1, *each.shape[2:]).contiguous() for each in cleared)
        self.query, self.key, self.value = query * width**-0.5, key, value
        self.bias = None if bias is None else bias.detach().to(wide)
        self.mixing_weight = None
        if mixing_weight is not None:
            self.mixing_weight = mixing_weight.to(wide).expand(heads, 1, 1).repeat(batch, 1, 1)

        self.blocking = Blocking.choose(rule, batch * heads, queries, keys, visibility.order, dropout, query.device)
        if most_rows is not None:
            self.blocking = replace(self.blocking, rows=min(self.blocking.rows, most_rows), keys=keys)
        self.head_blocks = blocks(batch * heads, self.blocking.heads)
        self.is_prefix = rule.rounds > 0 and visibility.order != "none"
        self.column_rounds = 0 if self.is_prefix else rule.rounds
        self.bias_hides = self._bias_may_hide()
        masks = (visibility.query_real, visibility.key_real, visibility.segments, visibility.window)
        self.masked = self.bias_hides or any(each is not None for each in masks)
        self.row_scale = self._scale_rows(counts)

    def tiles(self, heads: slice) -> list[Tile]:
        """Returns the tiles of a group of heads in the order of time: blocks of queries, and blocks of keys within.

        A tile has whole rows if the rule needs them, and no keys newer than its last query.
        """
        found = []
        for rows in blocks(self.query.shape[1], self.blocking.rows):
            keys = self.key.shape[1]
            if self.visibility.order == "causal":
                keys = min(keys, self.visibility.memory + rows.stop)
            columns = blocks(keys, keys if self.rule.whole_rows else self.blocking.keys)
            found += [Tile(heads, rows, each) for each in columns]
        return found

    def scores(self, tile: Tile) -> Tensor:
        """Returns s_ij of a tile; G R W. Hidden pairs are ``HIDDEN``, or 0 for rules that do not need whole rows.

        Sets ``row_scale`` to 0 for rows in which the bias hides all visible keys.
        """
        scores = self.products("scores", tile, self.query[tile.heads, tile.rows], self.key)
        if self.bias is not None:
            part = self._bias_part(self.bias, tile)
            own = self._heads_own(self.bias)  # no copy needed
            scores += part.flatten(0, 1)[tile.heads] if own else part[self._index(tile, self.bias)]
            self._clear_padding(scores, tile)  # the bias may be anything at padding, even NaN
        if self.rule.recency:
            scores -= self._distance(tile).log1p_()
        if not self.rule.whole_rows:
            return self.hide(scores, tile)
        for mask, index in ((self._hidden_queries, tile.rows), (self._hidden_keys, tile.keys)):
            if mask is not None:
                part = mask[tile.heads, index]
                scores += part[:, :, None] if mask is self._hidden_queries else part[:, None, :]
        self._hide_pairs(scores, tile, HIDDEN)
        if self.bias_hides:
            scores.clamp_(min=HIDDEN)
            self.row_scale[tile.heads, tile.rows] *= scores.amax(dim=2, keepdim=True) > HIDDEN
        return scores

    def products(self, name: str, tile: Tile, rows: Tensor, keys: Tensor) -> Tensor:
        """Returns the products of each row with the tile's part of ``keys`` (L M D or E), in scratch; G R W."""
        part = keys[tile.heads, tile.keys]
        room = self.room(name, (*rows.shape[:2], part.shape[1]), rows.dtype)
        return torch.bmm(rows, part.transpose(1, 2), out=room)

    def late(self, tile: Tile) -> int:
        """Returns the number of the tile's last keys that are newer than its first query."""
        visibility = self.visibility
        return tile.keys.stop - (visibility.memory + tile.rows.start + 1) if visibility.order == "causal" else 0

    def hide(self, tensor: Tensor, tile: Tile) -> Tensor:
        """Sets pairs hidden by order, window or segments to 0, in place; padding is 0 by other means."""
        return self._hide_pairs(tensor, tile, 0.0)

    def shifted_softmax(self, scores: Tensor, lse: Tensor) -> Tensor:
        """Returns softmax_j(s_ij - c_j) of a tile. Overwrites the scores if the rule does not read them."""
        room = self.like("doubly", scores) if self.rule.reads_scores else scores
        torch.sub(scores, lse, out=room)
        return torch.softmax(room, dim=-1, out=room)

    def dropout_mask(self, tile: Tile) -> Tensor | None:
        """Returns the dropout mask of a tile: integers with all bits 1 (kept) or 0 (dropped); None without dropout.

        The mask is a function of seed, head, query and key only, so it is the same in the backward pass, for any
        blocking and on any device. The probability is rounded to a multiple of 2^-31.
        """
        if not self.dropout:
            return None
        rows, keys = self._hashes
        shape = (tile.heads.stop - tile.heads.start, tile.rows.stop - tile.rows.start, tile.keys.stop - tile.keys.start)
        mixed, shifted = (self.room(name, shape, torch.int32) for name in ("mixed", "shifted"))
        torch.bitwise_xor(rows[tile.heads, tile.rows, None], keys[tile.heads, None, tile.keys], out=mixed)
        # Both operands are random already: the second half of the finaliser lowbias32 (Wellons 2018) suffices.
        torch.bitwise_right_shift(mixed.mul_(0x7FEB352D), 15, out=shifted)
        mixed.bitwise_xor_(shifted).mul_(0x846CA68B - 2**32).bitwise_right_shift_(1)
        # Hashes range from -2^30 to 2^30. Where one exceeds the limit, the shifted difference has all bits 1.
        limit = torch.tensor(self.limit_of(self.dropout), dtype=torch.int32, device=mixed.device)
        return torch.sub(limit, mixed, out=mixed).bitwise_right_shift_(31)

    def room(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Returns an uninitialised contiguous tensor, in the memory of the previous tensor of that name.

        Tensors in use at the same time need different names.
        """
        found = self.views.get((name, shape, dtype))
        if found is None:
            size, buffer = math.prod(shape), self.buffers.get((name, dtype))
            if buffer is None or buffer.numel() < size:
                buffer = self.buffers[name, dtype] = torch.empty(size, dtype=dtype, device=self.query.device)
                self.views = {key: view for key, view in self.views.items() if key[0] != name}
            found = self.views[name, shape, dtype] = buffer[:size].view(shape)
        return found

    def like(self, name: str, tensor: Tensor) -> Tensor:
        """Returns an uninitialised tensor with the shape and dtype of ``tensor``; see ``room``."""
        return self.room(name, tensor.shape, tensor.dtype)

    def _bias_may_hide(self) -> bool:
        if self.bias is None or not self.rule.whole_rows:
            return False
        return self.bias.device.type != "cpu" or not bool(self.bias.amin() > HIDDEN)  # not <=: it may be NaN at padding

    def _scale_rows(self, counts: Tensor) -> Tensor:
        scale = (counts > 0).to(self.query.dtype)
        if not self.rule.whole_rows:
            scale = scale / self.rule.row_divisor(counts.to(self.query.dtype))
        return self._per_head(scale / (1 - self.dropout))[..., None]

    def add_bias_gradient(self, total: Tensor, grad: Tensor, tile: Tile) -> None:
        """Adds a tile's gradient of the scores to the gradient of the bias."""
        for axis, size in ((1, total.shape[2]), (2, total.shape[3])):
            if size == 1:
                grad = grad.sum(dim=axis, keepdim=True)
        part = self._bias_part(total, tile)
        if self._heads_own(total):
            part.view(-1, *part.shape[2:])[tile.heads] += grad
        else:
            part.index_put_(self._index(tile, total), grad.to(total.dtype), accumulate=True)

    def _heads_own(self, bias: Tensor) -> bool:
        return bias.shape[:2] == (self.batch, self.heads)

    def _per_head(self, tensor: Tensor) -> Tensor:
        return tensor.repeat_interleave(self.heads, dim=0)

    @functools.cached_property
    def _hidden_queries(self) -> Tensor | None:
        return self._hidden(self.visibility.query_real)

    @functools.cached_property
    def _hidden_keys(self) -> Tensor | None:
        return self._hidden(self.visibility.key_real)

    def _hidden(self, real: Tensor | None) -> Tensor | None:
        return None if real is None else self._per_head((~real).to(self.query.dtype) * HIDDEN)

    def _hide_pairs(self, tensor: Tensor, tile: Tile, hidden: float) -> Tensor:
        visibility, late = self.visibility, min(self.late(tile), tensor.shape[2])
        if late > 0:
            seen = visibility.memory + torch.arange(tile.rows.start, tile.rows.stop, device=tensor.device)
            newest = torch.arange(tile.keys.stop - late, tile.keys.stop, device=tensor.device)
            tensor[..., -late:].masked_fill_(newest > seen[:, None], hidden)
        if visibility.window is not None:
            oldest = visibility.memory - visibility.window + 1
            first = oldest + torch.arange(tile.rows.start, tile.rows.stop, device=tensor.device)
            positions = torch.arange(tile.keys.start, tile.keys.stop, device=tensor.device)
            tensor.masked_fill_(positions < first[:, None], hidden)
        if visibility.segments is not None:
            examples = torch.arange(tile.heads.start, tile.heads.stop, device=tensor.device) // self.heads
            shift = self.key.shape[1] - self.query.shape[1]
            own = visibility.segments[:, shift + tile.rows.start : shift + tile.rows.stop][examples]
            tensor.masked_fill_(own[:, :, None] != visibility.segments[:, tile.keys][examples][:, None], hidden)
        return tensor

    def _clear_padding(self, scores: Tensor, tile: Tile) -> None:
        for real, where, axis in (
            (self.visibility.query_real, tile.rows, 2),
            (self.visibility.key_real, tile.keys, 1),
        ):
            if real is not None:
                scores.masked_fill_(~self._per_head(real)[tile.heads, where].unsqueeze(axis), 0.0)

    def _distance(self, tile: Tile) -> Tensor:
        rows = torch.arange(tile.rows.start, tile.rows.stop, device=self.query.device, dtype=self.query.dtype)
        keys = torch.arange(tile.keys.start, tile.keys.stop, device=self.query.device, dtype=self.query.dtype)
        return ((self.visibility.memory + rows)[:, None] - keys).clamp_(min=0)

    @staticmethod
    def _bias_part(bias: Tensor, tile: Tile) -> Tensor:
        rows = tile.rows if bias.shape[2] > 1 else slice(None)
        return bias[:, :, rows, tile.keys if bias.shape[3] > 1 else slice(None)]

    def _index(self, tile: Tile, bias: Tensor) -> tuple[Tensor, Tensor]:
        flat = torch.arange(tile.heads.start, tile.heads.stop, device=bias.device)
        return (flat // self.heads) % bias.shape[0], (flat % self.heads) % bias.shape[1]

    @functools.cached_property
    def _hashes(self) -> tuple[Tensor, Tensor]:
        lengths = (self.query.shape[1], self.key.shape[1])
        return self.bits_of(self.seed, len(self.query), lengths, self.query.device)

    @staticmethod
    def bits_of(seed: int, heads: int, lengths: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
        """Returns 32 random bits for each query and each key of each head (L N and L M), used for dropout masks."""
        made = []
        for which, length in enumerate(lengths):
            each, positions = torch.arange(heads, device=device)[:, None], torch.arange(length, device=device)
            if device.type == "cpu":
                bits = torch.from_numpy(hash64(seed, which, each.numpy(), positions.numpy()).view("int64"))
            else:
                bits = hashed_on(int(hash64(seed, which)[0]), each, positions)
            made.append((bits >> 32).to(torch.int32))
        return made[0], made[1]

    @staticmethod
    def limit_of(dropout: float) -> int:
        """Returns the hash up to which a weight is dropped; see ``dropout_mask``."""
        return round((dropout - 0.5) * 2**31) - 1


def apply_dropout(weights: Tensor, mask: Tensor | None, out: Tensor | None = None) -> Tensor:
    """Sets the elements of weights or their gradient that dropout drops to 0; in place if ``out`` is None."""
    if mask is None:
        return weights
    room = weights if out is None else out
    bits = torch.int32 if weights.dtype == torch.float32 else torch.int64
    torch.bitwise_and(weights.view(bits), mask.to(bits), out=room.view(bits))
    return room

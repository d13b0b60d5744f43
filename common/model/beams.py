"""Decoding state of beam search: W hypotheses for each of B sources, which grow by one token per step.

Keys and values are computed once and never moved. The keys of a source are shared by its beam. The keys of the
hypotheses' own tokens are stored in the order of their creation, and ``Memory.ancestry`` lists the indices of those
that belong to each hypothesis. Scores, which have no head-width axis, are gathered into the order of a hypothesis,
and weights are scattered back. So reordering the beams copies no tensor with a head-width axis.
"""

import torch
from torch import Tensor

from seqarena.common.attention.base import Kernel
from seqarena.common.attention.reference import scaled_scores
from seqarena.common.attention.visibility import Visibility
from seqarena.common.model.deescalation import DeescalationState
from seqarena.common.shapes import (
    Ancestry,
    BeamHeads,
    BeamKey,
    BeamLse,
    BeamParents,
    BeamQuery,
    BeamValue,
    EarlierBeamLse,
    Key,
    KeyMask,
    Sources,
    Value,
)


def attend_beams(
    kernel: Kernel,
    query: BeamQuery,
    key: Key,
    value: Value,
    visibility: Visibility,
    state: EarlierBeamLse | None,
    ancestry: Ancestry | None = None,
) -> tuple[BeamHeads, BeamLse | None]:
    """Returns the output of each hypothesis' newest query over the keys of its source, and the next state.

    Equals ``Kernel.step`` with one query, computed by the formula on the full matrix. ``state`` has one row per
    hypothesis. ``ancestry``: indices of each hypothesis' own keys, in temporal order. None: a hypothesis attends to
    all keys that ``visibility`` marks as real.
    """
    batch, heads, beams, _ = query.shape
    scores = scaled_scores(query, key, None)  # B H W M
    keys = scores.shape[-1]
    if ancestry is not None:
        own = ancestry[:, None].expand(-1, heads, -1, -1)  # B H W T
        scores = scores.gather(-1, own)
    rows = scores.transpose(1, 2).reshape(batch * beams, heads, 1, -1)
    visible = torch.ones((), dtype=torch.bool, device=query.device).expand(1, 1, 1, rows.shape[-1])
    if visibility.key_real is not None:
        visible = visibility.key_real.repeat_interleave(beams, dim=0)[:, None, None, :]
    weights, state = kernel.normalize(rows, visible, visibility, state)
    weights = weights.view(batch, beams, heads, -1).transpose(1, 2)
    if ancestry is not None:
        weights = weights.new_zeros(batch, heads, beams, keys).scatter_(-1, own, weights)
    return weights.to(value.dtype) @ value, state


class LayerMemory:
    """State of one decoder layer for all hypotheses."""

    def __init__(self, key: Key, value: Value) -> None:
        self.source_key, self.source_value = key, value
        self.key: Tensor | None = None
        self.value: Tensor | None = None
        self.attention_state: BeamLse | None = None
        """State of self-attention over the hypotheses' own keys; one row per hypothesis."""
        self.source_state: BeamLse | None = None
        """State of attention to the source."""
        self.norm_state: DeescalationState | None = None
        """State of the norm."""

    def append(self, key: BeamKey, value: BeamValue, first: int, capacity: int) -> tuple[Key, Value]:
        """Stores the newest tokens' keys and values from index ``first`` on, and returns all stored ones."""
        if self.key is None or self.value is None:
            batch, heads, _, width = key.shape
            self.key, self.value = (key.new_empty(batch, heads, capacity, width) for _ in range(2))
        last = first + key.shape[2]
        self.key[:, :, first:last], self.value[:, :, first:last] = key, value
        return self.key[:, :, :last], self.value[:, :, :last]

    def select(self, rows: Tensor) -> None:
        """Replaces the states by those of the hypotheses ``rows``."""
        self.attention_state = None if self.attention_state is None else self.attention_state[rows]
        self.source_state = None if self.source_state is None else self.source_state[rows]
        if self.norm_state is not None:
            self.norm_state = DeescalationState(self.norm_state.total[rows], self.norm_state.seen[rows])

    def keep(self, sources: Sources) -> None:
        """Removes all sources but these."""
        self.source_key, self.source_value = self.source_key[sources], self.source_value[sources]
        if self.key is not None and self.value is not None:
            self.key, self.value = self.key[sources], self.value[sources]


class Memory:
    """Decoding state of B sources and their hypotheses. Each source starts with one empty hypothesis."""

    def __init__(self, layers: list[LayerMemory], real: KeyMask, steps: int, beams: int) -> None:
        """``steps``: maximum tokens per hypothesis; ``beams``: maximum hypotheses per source."""
        self.layers, self.real = layers, real
        self.capacity = 1 + (steps - 1) * beams
        self.key_count = 0
        """Number of keys stored so far for the hypotheses of each source."""
        self.ancestry = torch.zeros(len(real), 1, 0, dtype=torch.long, device=real.device)

    @property
    def time(self) -> int:
        """Number of tokens per hypothesis so far."""
        return self.ancestry.shape[2]

    def begin_step(self) -> None:
        """Adds the index of the next token's key to the ancestry of every hypothesis."""
        batch, beams, _ = self.ancestry.shape
        newest = torch.arange(self.key_count, self.key_count + beams, device=self.ancestry.device)
        self.ancestry = torch.cat([self.ancestry, newest[None, :, None].expand(batch, -1, -1)], dim=2)

    def end_step(self) -> None:
        """Counts the keys that every layer has stored in this step."""
        self.key_count += self.ancestry.shape[1]

    def descend(self, parents: BeamParents) -> None:
        """Replaces each source's hypotheses by copies of the ones with the indices ``parents``."""
        _, beams, time = self.ancestry.shape
        first = torch.arange(len(parents), device=parents.device)[:, None] * beams
        self.ancestry = self.ancestry.gather(1, parents[..., None].expand(-1, -1, time))
        for layer in self.layers:
            layer.select((parents + first).flatten())

    def keep(self, sources: Sources) -> None:
        """Removes all sources but these."""
        beams = self.ancestry.shape[1]
        rows = (sources[:, None] * beams + torch.arange(beams, device=sources.device)).flatten()
        self.ancestry, self.real = self.ancestry[sources], self.real[sources]
        for layer in self.layers:
            layer.select(rows)
            layer.keep(sources)

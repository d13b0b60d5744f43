"""Hypotheses that grow token by token, a beam of W to each of B sources: what a decoder remembers of them, one step on.

Keys and values are computed once and stay where they are. Those of a source are shared by its beam; those of the beam's
own tokens lie end to end as they were made, and which of them a hypothesis descends from is a table of numbers. Scores,
which have no width of a head, are brought into its order, and weights back; so nothing of a head's width is ever copied
or reordered when beams are.
"""

import torch
from torch import Tensor

from seqarena.common.attention.base import Kernel, scaled_scores
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
    """Returns what the newest query of each hypothesis finds among keys of its source, and the state to go on with.

    As ``Kernel.step`` with one query, by the formula on the full matrix; ``state`` has a row a hypothesis.
    ``ancestry``: which keys are a hypothesis' own, in the order of time; None: all of them, ``visibility`` says which
    are real.
    """
    batch, heads, beams, _ = query.shape
    scores = scaled_scores(query, key, None)  # B H W M
    made = scores.shape[-1]
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
        weights = weights.new_zeros(batch, heads, beams, made).scatter_(-1, own, weights)
    return weights.to(value.dtype) @ value, state


class LayerMemory:
    """State of one decoder layer for all hypotheses."""

    def __init__(self, key: Key, value: Value) -> None:
        self.source_key, self.source_value = key, value
        self.key: Tensor | None = None
        self.value: Tensor | None = None
        self.mass: BeamLse | None = None
        """State of self-attention over the hypotheses' own keys; one row per hypothesis."""
        self.source_mass: BeamLse | None = None
        """State of attention to the source."""
        self.carried: DeescalationState | None = None
        """State of the norm."""

    def append(self, key: BeamKey, value: BeamValue, first: int, capacity: int) -> tuple[Key, Value]:
        """Lays the newest tokens' keys and values behind those made so far, ``first``, and returns them all."""
        if self.key is None or self.value is None:
            batch, heads, _, width = key.shape
            self.key, self.value = (key.new_empty(batch, heads, capacity, width) for _ in range(2))
        last = first + key.shape[2]
        self.key[:, :, first:last], self.value[:, :, first:last] = key, value
        return self.key[:, :, :last], self.value[:, :, :last]

    def select(self, rows: Tensor) -> None:
        """Takes what is carried from these hypotheses, a row each."""
        self.mass = None if self.mass is None else self.mass[rows]
        self.source_mass = None if self.source_mass is None else self.source_mass[rows]
        if self.carried is not None:
            self.carried = DeescalationState(self.carried.total[rows], self.carried.seen[rows])

    def keep(self, sources: Sources) -> None:
        """Forgets all sources but these."""
        self.source_key, self.source_value = self.source_key[sources], self.source_value[sources]
        if self.key is not None and self.value is not None:
            self.key, self.value = self.key[sources], self.value[sources]


class Memory:
    """State of a decoder for B sources and the hypotheses of each, which begin as one without tokens."""

    def __init__(self, layers: list[LayerMemory], real: KeyMask, steps: int, beams: int) -> None:
        """``steps``: the most tokens of a hypothesis; ``beams``: the most hypotheses of a source."""
        self.layers, self.real = layers, real
        self.capacity = 1 + (steps - 1) * beams
        self.made = 0
        """Keys so far of each source's hypotheses."""
        self.ancestry = torch.zeros(len(real), 1, 0, dtype=torch.long, device=real.device)

    @property
    def time(self) -> int:
        """The tokens of a hypothesis so far."""
        return self.ancestry.shape[2]

    def grow(self) -> None:
        """Gives every hypothesis the key that its next token is going to have."""
        batch, beams, _ = self.ancestry.shape
        newest = torch.arange(self.made, self.made + beams, device=self.ancestry.device)
        self.ancestry = torch.cat([self.ancestry, newest[None, :, None].expand(batch, -1, -1)], dim=2)

    def grown(self) -> None:
        """Counts the keys that every layer has laid down by now."""
        self.made += self.ancestry.shape[1]

    def descend(self, parents: BeamParents) -> None:
        """Replaces each source's hypotheses by descendants: each is a copy of the one whose number is given."""
        _, beams, time = self.ancestry.shape
        first = torch.arange(len(parents), device=parents.device)[:, None] * beams
        self.ancestry = self.ancestry.gather(1, parents[..., None].expand(-1, -1, time))
        for layer in self.layers:
            layer.select((parents + first).flatten())

    def keep(self, sources: Sources) -> None:
        """Forgets all sources but these."""
        beams = self.ancestry.shape[1]
        rows = (sources[:, None] * beams + torch.arange(beams, device=sources.device)).flatten()
        self.ancestry, self.real = self.ancestry[sources], self.real[sources]
        for layer in self.layers:
            layer.select(rows)
            layer.keep(sources)

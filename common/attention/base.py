"""The contract every attention variant keeps: what is visible, the variant's config, and its kernel.

Scores are s_ij = query_i . key_j / sqrt(head_dim) + bias_ij; i runs over queries, j over keys.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.errors import WrongUseError
from common.shapes import (
    Bias,
    EarlierMass,
    Key,
    KeyMask,
    KeyMass,
    Output,
    Pairs,
    Query,
    QueryMask,
    Scores,
    Segments,
    Value,
    Weights,
)

Order = Literal["none", "causal", "ordered_queries"]


@dataclass(frozen=True, kw_only=True)
class Visibility:
    """Which query may see which key.

    ``query_real`` and ``key_real`` (None: all real) mark padding. ``order`` says what time means:

    - ``none``: every real query sees every real key.
    - ``causal``: queries and keys are one sequence, the keys preceded by ``memory`` earlier positions; query i sees
      key j when j <= memory + i (bottom-right aligned).
    - ``ordered_queries``: all real keys are visible, but the queries are a sequence in time, so nothing that query i
      gets may depend on a later query (a decoder's cross-attention).

    ``segments`` numbers the packed sequences of self-attention, one number a key; the queries are the last N keys.
    """

    query_real: QueryMask | None = None
    key_real: KeyMask | None = None
    order: Order = "none"
    memory: int = 0
    segments: Segments | None = None

    def check(self, query: Tensor, key: Tensor) -> None:
        """Raises a ``WrongUseError`` that names the argument whose shape or type does not fit query and key."""
        batch, queries, keys = query.shape[0], query.shape[2], key.shape[2]
        if self.memory < 0:
            raise WrongUseError(f"memory: expected at least 0, found {self.memory}: fewer keys than queries")
        for name, mask, length in (("query_real", self.query_real, queries), ("key_real", self.key_real, keys)):
            if mask is not None and (mask.dtype != torch.bool or mask.shape != (batch, length)):
                raise WrongUseError(
                    f"{name}: expected a bool tensor of shape {(batch, length)}, True where real; "
                    f"found {mask.dtype} of shape {tuple(mask.shape)}"
                )
        if self.order == "causal" and keys != self.memory + queries:
            raise WrongUseError(
                f"order 'causal' with memory {self.memory}: expected {self.memory + queries} keys "
                f"for {queries} queries, found {keys}"
            )
        if self.order != "causal" and self.memory:
            raise WrongUseError(
                f"memory is {self.memory}, but only order 'causal' has a memory; order is {self.order!r}"
            )
        if self.segments is not None and (
            self.segments.shape != (batch, keys) or keys < queries or self.order == "ordered_queries"
        ):
            raise WrongUseError(
                f"segments: expected shape {(batch, keys)} in self-attention (orders 'none' and 'causal'); "
                f"found {tuple(self.segments.shape)} with order {self.order!r}"
            )

    @property
    def keys_only(self) -> bool:
        """Whether a mask over the keys alone says it all, but for padded queries."""
        return self.order != "causal" and self.segments is None

    def pairs(self, queries: int, keys: int, device: torch.device) -> Pairs:
        """Returns the mask over (query, key) pairs; rows of padded queries are empty."""
        allowed = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=device)
        if self.order == "causal":
            allowed = allowed.tril(diagonal=self.memory)
        if self.segments is not None:
            own = self.segments[:, keys - queries :]  # B N
            allowed = allowed & (own[:, None, :, None] == self.segments[:, None, None, :])  # B 1 N M
        if self.key_real is not None:
            allowed = allowed & self.key_real[:, None, None, :]
        if self.query_real is not None:
            allowed = allowed & self.query_real[:, None, :, None]
        return allowed


def scaled_scores(query: Query, key: Key, bias: Bias | None) -> Scores:
    """Returns s_ij in float32 at least, also under autocast: cubes and exponentials do not fit half precision."""
    with torch.autocast(query.device.type, enabled=False):
        wide = torch.promote_types(query.dtype, torch.float32)
        scores: Tensor = (query.to(wide) * query.shape[-1] ** -0.5) @ key.to(wide).transpose(-1, -2)  # B H N M
        return scores if bias is None else scores + bias.to(wide)


class Kernel(nn.Module, ABC):
    """Evaluates one variant. ``dropout`` falls on the weights, in training only.

    A variant gives ``normalize``, its formula on the full matrix. Where the algebra allows a cheaper exact form it
    overrides ``fused``; what that cannot express (returns None) is computed from the formula.
    """

    def __init__(self, config: "AttentionConfig", dropout: float) -> None:
        super().__init__()
        self.orders, self.stepwise = config.orders, config.stepwise
        self.dropout = dropout

    @abstractmethod
    def normalize(
        self, scores: Scores, visible: Pairs, visibility: Visibility, state: EarlierMass | None
    ) -> tuple[Weights, KeyMass | None]:
        """Returns the weights, exactly 0 wherever ``visible`` is False, and the state after the last query."""

    def fused(self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None) -> Output | None:
        """Returns the output without the full matrix, or None where this variant has no such form."""
        del query, key, value, visibility, bias
        return None

    @property
    def drops(self) -> bool:
        """Whether dropout acts now."""
        return self.training and self.dropout > 0

    def weights(self, query: Query, key: Key, visibility: Visibility, bias: Bias | None = None) -> Weights:
        """Returns the attention weights before dropout, in float32 at least; padded rows and columns are 0."""
        self._check(visibility, query=query, key=key)
        return self._weights(query, key, visibility, bias, None)[0]

    def forward(self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None = None) -> Output:
        """Returns sum_j pi_ij value_j in the dtype of ``value``; padded queries give exactly 0."""
        self._check(visibility, query=query, key=key, value=value)
        fused = self.fused(query, key, value, visibility, bias)
        return self._step(None, query, key, value, visibility, bias)[0] if fused is None else fused

    def step(
        self,
        state: EarlierMass | None,
        query: Query,
        key: Key,
        value: Value,
        visibility: Visibility,
        bias: Bias | None = None,
    ) -> tuple[Output, KeyMass | None]:
        """Goes on from ``state`` (None at the start) with the next one or more queries.

        ``key`` and ``value`` hold everything visible so far, ``visibility.memory`` of them earlier than these queries.
        The state is what the variant must remember of earlier queries: nothing, or for prefix-normalised attention
        the logarithm of each key's mass, detached. Calling this a segment at a time gives what one call gives.

        Raises:
            WrongUseError: an order in which the variant needs all queries at once.
        """
        self._check(visibility, query=query, key=key, value=value)
        if visibility.order not in self.stepwise:
            raise WrongUseError(
                f"{type(self).__name__} needs all queries at once in order {visibility.order!r}; "
                f"step by step it has {', '.join(map(repr, self.stepwise))}"
            )
        return self._step(state, query, key, value, visibility, bias)

    def _step(
        self,
        state: EarlierMass | None,
        query: Query,
        key: Key,
        value: Value,
        visibility: Visibility,
        bias: Bias | None,
    ) -> tuple[Output, KeyMass | None]:
        weights, mass = self._weights(query, key, visibility, bias, state)
        weights = F.dropout(weights, self.dropout, self.training)
        return weights.to(value.dtype) @ value, mass

    def _weights(
        self, query: Query, key: Key, visibility: Visibility, bias: Bias | None, state: EarlierMass | None
    ) -> tuple[Weights, KeyMass | None]:
        visible = visibility.pairs(query.shape[2], key.shape[2], query.device)
        return self.normalize(scaled_scores(query, key, bias), visible, visibility, state)

    def _check(self, visibility: Visibility, *, query: Tensor, key: Tensor, value: Tensor | None = None) -> None:
        # The fused operators of PyTorch read tensors of wrong shapes without a word, and past the end of memory.
        shapes = [tuple(each.shape) for each in (query, key, key if value is None else value)]
        q, k, v = shapes
        if any(len(shape) != 4 or 0 in shape for shape in shapes) or not (
            q[:2] == k[:2] == v[:2] and q[3] == k[3] and k[2] == v[2]
        ):
            raise WrongUseError(
                "expected query (batch, heads, queries, head_dim), key (batch, heads, keys, head_dim) and value "
                f"(batch, heads, keys, width), each at least 1; found query {q}, key {k}, value {v}"
            )
        visibility.check(query, key)
        if visibility.order not in self.orders:
            raise WrongUseError(
                f"{type(self).__name__} has no order {visibility.order!r}; it has {', '.join(map(repr, self.orders))}"
            )


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(ABC):
    """The parameters of one variant's formula. Knows the orders the variant has and builds its kernel."""

    @property
    def orders(self) -> tuple[Order, ...]:
        """The orders in which this variant is defined and lets nothing of the future through."""
        return ("none", "causal", "ordered_queries")

    @property
    def stepwise(self) -> tuple[Order, ...]:
        """The orders in which it can go on query by query, or segment by segment."""
        return self.orders

    @abstractmethod
    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        """Returns the kernel; draws no random numbers, so that variants share every other initial value."""

"""Base classes of every attention variant: its config, and the kernel that computes it.

Scores are s_ij = query_i . key_j / sqrt(head_dim) + bias_ij; i runs over queries, j over keys.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqarena.common.attention import conditions
from seqarena.common.attention.arguments import check_tensors
from seqarena.common.attention.chunked import attend_in_chunks, chunks, split
from seqarena.common.attention.conditions import Inputs
from seqarena.common.attention.fallback import warn_of_fallback
from seqarena.common.attention.operators import attend_blockwise
from seqarena.common.attention.reference import scaled_scores
from seqarena.common.attention.rows import WeightRows, rows_by_rule
from seqarena.common.attention.rule import Rule
from seqarena.common.attention.visibility import (
    CALL_OPTIONS,
    ORDERS,
    CallOption,
    Order,
    Visibility,
    needs_formula,
)
from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import Bias, ColumnLse, EarlierLse, Key, Output, Pairs, Query, Scores, Value, Weights

Implementation = Literal["features", "triton", "fused", "blockwise", "chunked", "reference"]
"""Implementations in the order in which a kernel tries them."""
IMPLEMENTATIONS: tuple[Implementation, ...] = get_args(Implementation)


class Explanation(NamedTuple):
    """Implementation that computes a call, and the reasons against the others."""

    implementation: Implementation
    others: Mapping[Implementation, str]
    """Reason against each other implementation."""


class Kernel(nn.Module, ABC):
    """Computes one variant. ``dropout`` is applied to the weights, in training only.

    A variant defines ``normalize``, its formula on the full matrix. Long calls evaluate it for a chunk of queries at a
    time, so that nothing of size N x M is stored. ``rule`` is the same block by block, and faster. A variant with a
    still faster exact form overrides ``features``, ``triton`` or ``fused``, and ``limitation``, which returns the
    reason if that form does not support a call.
    """

    rule: Rule | None = None
    """Weights and gradients of a block; None if the variant has only the formula."""
    has_weights: bool = True
    """Whether there is a formula: ``weights``, ``weight_rows`` and ``chunked`` are defined."""
    crosses: bool = False
    """Whether a module other than ``MultiHeadAttention`` uses it as cross-attention, for diagnostics."""
    heads: int | None = None
    """Number of heads that the kernel was built for; None if it computes any number of them."""
    checked_orders: frozenset[Order] = frozenset()
    """Orders in which ``_check_chunks`` has verified that ``normalize`` may be evaluated chunk by chunk."""

    def __init__(self, config: "AttentionConfig", dropout: float) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise WrongUseError(f"dropout: expected 0 up to below 1, found {dropout}")
        self.orders, self.stepwise = config.orders, config.stepwise
        self.dropout = dropout

    @abstractmethod
    def normalize(
        self, scores: Scores, visible: Pairs, visibility: Visibility, state: EarlierLse | None
    ) -> tuple[Weights, ColumnLse | None]:
        """Returns the weights, exactly 0 where ``visible`` is False, and the state after the last query."""

    def transform(self, query: Query, key: Key, value: Value, visibility: Visibility) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the inputs to which the formula is applied.

        A variant overrides this if its weights are the formula's on other queries and keys. Widths and dtype may
        differ from those of the arguments.
        """
        return query, key, value

    def mixing_weight(self) -> Tensor | None:
        """Returns the mixing weight that ``rule`` needs, (heads or 1) 1 1; None for rules without one."""
        return None

    def limitation(self, implementation: Implementation, inputs: Inputs) -> str | None:
        """Returns why ``features``, ``triton`` or ``fused`` does not support a call of this variant, or None.

        A variant overrides this if it overrides one of them, and is asked for these alone.
        """
        return conditions.ABSENT

    def fused(self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None) -> Output:
        """Computes the output by PyTorch's fused attention."""
        raise AssertionError(conditions.ABSENT)

    def features(self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None) -> Output:
        """Computes the output in time linear in the length."""
        raise AssertionError(conditions.ABSENT)

    def triton(
        self, state: EarlierLse | None, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None
    ) -> tuple[Output, ColumnLse | None]:
        """Computes the output by this project's Triton kernels, and the state after the last query; see ``step``."""
        raise AssertionError(conditions.ABSENT)

    def blockwise(self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None) -> Output:
        """Computes the output block by block, in linear memory."""
        return self._evaluate(self.rule, None, query, key, value, visibility, bias)[0]

    def chunked(self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None) -> Output:
        """Computes the output by the formula, a chunk of queries at a time, in linear memory.

        Raises:
            WrongUseError: the formula gives different weights chunk by chunk, although the config lists the order in
                ``stepwise``.
        """
        if visibility.order not in self.checked_orders and not torch.compiler.is_compiling():
            self._check_chunks(query, visibility)
        query, key, value = visibility.clear(query, key, value)
        return attend_in_chunks(self._by_formula, query, key, value, visibility, bias)

    def _check_chunks(self, query: Query, visibility: Visibility) -> None:
        """Compares the weights of six queries in one call with those in two calls of three, on random scores."""
        generator = torch.Generator().manual_seed(0)
        scores = torch.randn(1, query.shape[1], 6, 6, generator=generator).to(query.device)
        visible = Visibility(order=visibility.order).pairs(6, 6, query.device)
        found, state = list[Tensor](), None
        with torch.no_grad():
            whole = self.normalize(scores, visible, Visibility(order=visibility.order), None)[0]
            for rows in (slice(0, 3), slice(3, 6)):
                is_causal = visibility.order == "causal"
                some = Visibility(order=visibility.order, memory=rows.start if is_causal else 0)
                seen = rows.stop if is_causal else 6
                weights, state = self.normalize(scores[:, :, rows, :seen], visible[:, :, rows, :seen], some, state)
                found.append(F.pad(weights, (0, 6 - seen)))
        if not torch.allclose(torch.cat(found, dim=2), whole, atol=1e-5, rtol=1e-4):
            raise WrongUseError(
                f"{type(self).__name__}: a query's weights depend on other queries, but its config does not say so: "
                f"remove {visibility.order!r} from stepwise, or return the state from normalize"
            )
        self.checked_orders |= {visibility.order}

    def reference(self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None) -> Output:
        """Computes the output by the formula on the full matrix."""
        return self._evaluate(None, None, query, key, value, visibility, bias)[0]

    @property
    def active_dropout(self) -> float:
        """Probability of dropping a weight in the current mode; 0 in evaluation."""
        return self.dropout if self.training else 0.0

    def weights(self, query: Query, key: Key, visibility: Visibility, bias: Bias | None = None) -> Weights:
        """Returns the attention weights before dropout, in float32 or wider; padded rows and columns are 0."""
        self.check(visibility, bias, query=query, key=key)
        query, key, _ = self.transform(query, key, key, visibility)
        return self._weights(query, key, visibility, bias, None)[0]

    def weight_rows(
        self, query: Query, key: Key, visibility: Visibility, bias: Bias | None = None
    ) -> Iterator[WeightRows]:
        """Yields the weights before dropout, without gradients, a block of queries at a time; by the rule if any."""
        self.check(visibility, bias, query=query, key=key)
        query, key, _ = (each.detach() for each in self.transform(query, key, key, visibility))
        bias, mixing_weight = (None if each is None else each.detach() for each in (bias, self.mixing_weight()))
        if self.rule is not None:
            return rows_by_rule(self.rule, mixing_weight, query, key, visibility, bias)
        return self._rows_by_formula(query, key, visibility, bias)

    def _rows_by_formula(
        self, query: Query, key: Key, visibility: Visibility, bias: Bias | None
    ) -> Iterator[WeightRows]:
        query, key, _ = visibility.clear(query, key, key)
        inputs, rows = Inputs(query, key, key, visibility, bias, 0.0), chunks(query, key)
        if conditions.chunked(inputs, self.stepwise, len(rows)) is not None:
            rows = [slice(0, query.shape[2])]
        state = None
        for some in split(query, key, key, visibility, bias, rows):
            weights, state = self._weights(some.query, some.key, some.visibility, some.bias, state)
            yield WeightRows(
                slice(0, query.shape[0] * query.shape[1]), some.rows, slice(0, some.key.shape[2]),
                weights.detach().flatten(0, 1), None,
            )  # fmt: skip

    def forward(self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None = None) -> Output:
        """Returns sum_j pi_ij value_j in the dtype of ``value``; exactly 0 for padded queries."""
        self.check(visibility, bias, query=query, key=key, value=value)
        dtype = value.dtype
        query, key, value = self.transform(query, key, value, visibility)
        inputs = Inputs(query, key, value, visibility, bias, self.active_dropout)
        chosen = self._choose(inputs)
        self._warn_if_slow(chosen, inputs, lambda: self._run(chosen, query, key, value, visibility, bias))
        return self._run(chosen, query, key, value, visibility, bias).to(dtype)

    def _warn_if_slow(self, chosen: Implementation, inputs: Inputs, call: Callable[[], object]) -> None:
        is_on_gpu = inputs.query.is_cuda and not torch.compiler.is_compiling()
        if is_on_gpu and chosen in ("blockwise", "chunked", "reference") and not conditions.has_small_matrix(inputs):
            reason = self.reason_against("triton", inputs)
            if reason is not None and reason != conditions.ABSENT:
                warn_of_fallback(reason, inputs, call)

    def reason_against(self, implementation: Implementation, inputs: Inputs) -> str | None:
        """Returns why an implementation cannot compute a call; None if it can."""
        if implementation != "reference" and needs_formula():
            return conditions.FORMULA_ONLY
        return self._limit(implementation, inputs)

    def _limit(self, implementation: Implementation, inputs: Inputs) -> str | None:
        """Returns ``reason_against`` outside transforms and forward mode."""
        match implementation:
            case "blockwise":
                return conditions.ABSENT if self.rule is None else conditions.blockwise(inputs, self.rule.rounds)
            case "chunked" if self.has_weights:
                return conditions.chunked(inputs, self.stepwise, len(chunks(inputs.query, inputs.key)))
            case "reference":
                return None
        is_absent = getattr(type(self), implementation) is getattr(Kernel, implementation)
        return conditions.ABSENT if is_absent else self.limitation(implementation, inputs)

    def explain(
        self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None = None
    ) -> Explanation:
        """Returns the implementation that computes a call, and the reason against each other one."""
        self.check(visibility, bias, query=query, key=key, value=value)
        query, key, value = self.transform(query, key, value, visibility)
        inputs = Inputs(query, key, value, visibility, bias, self.active_dropout)
        chosen = self._choose(inputs)
        others = {
            each: self.reason_against(each, inputs) or f"{chosen} comes first"
            for each in IMPLEMENTATIONS
            if each != chosen
        }
        return Explanation(chosen, others)

    def _choose(self, inputs: Inputs) -> Implementation:
        if needs_formula():
            return "reference"
        return next(each for each in IMPLEMENTATIONS if self._limit(each, inputs) is None)

    def compute(
        self, implementation: Implementation, query: Query, key: Key, value: Value, visibility: Visibility,
        bias: Bias | None = None,
    ) -> Output | None:  # fmt: skip
        """Computes ``forward`` by the given implementation; returns None if that implementation cannot."""
        self.check(visibility, bias, query=query, key=key, value=value)
        dtype = value.dtype
        query, key, value = self.transform(query, key, value, visibility)
        inputs = Inputs(query, key, value, visibility, bias, self.active_dropout)
        if self.reason_against(implementation, inputs) is not None:
            return None
        return self._run(implementation, query, key, value, visibility, bias).to(dtype)

    def _run(
        self, implementation: Implementation, query: Query, key: Key, value: Value, visibility: Visibility,
        bias: Bias | None,
    ) -> Output:  # fmt: skip
        forms = {
            "features": self.features,
            "triton": lambda *arguments: self.triton(None, *arguments)[0],
            "fused": self.fused,
            "blockwise": self.blockwise,
            "chunked": self.chunked,
            "reference": self.reference,
        }
        return visibility.clear_output(forms[implementation](query, key, value, visibility, bias))

    def step(
        self, state: EarlierLse | None, query: Query, key: Key, value: Value, visibility: Visibility,
        bias: Bias | None = None,
    ) -> tuple[Output, ColumnLse | None]:  # fmt: skip
        """Computes the output of the next queries, given the state after the earlier ones (None at the start).

        ``key`` and ``value`` hold everything visible so far, ``visibility.memory`` of them earlier than these queries.
        The state is None, or for prefix-normalised attention each key's logsumexp over the earlier queries, detached.
        Calls on successive segments give the same as one call on all of them.

        Raises:
            WrongUseError: the variant needs all queries at once in this order.
        """
        self.check(visibility, bias, query=query, key=key, value=value)
        if visibility.order not in self.stepwise:
            raise WrongUseError(
                f"{type(self).__name__} needs all queries at once in order {visibility.order!r}; "
                f"orders that can be computed step by step: {', '.join(map(repr, self.stepwise)) or 'none'}"
            )
        fits = state is None or (state.dim() == 3 and state.shape[:2] == query.shape[:2])
        if state is not None and (not fits or state.device != query.device):
            raise WrongUseError(
                f"state: expected the state returned by an earlier step, of shape ({query.shape[0]}, {query.shape[1]}, "
                f"keys) on {query.device}; found {tuple(state.shape)} on {state.device}"
            )
        dtype = value.dtype
        query, key, value = self.transform(query, key, value, visibility)
        inputs = Inputs(query, key, value, visibility, bias, self.active_dropout)
        chosen = self._choose_for_step(inputs)
        self._warn_if_slow(chosen, inputs, lambda: self._run_step(chosen, state, query, key, value, visibility, bias))
        output, new_state = self._run_step(chosen, state, query, key, value, visibility, bias)
        return visibility.clear_output(output).to(dtype), None if new_state is None else new_state.detach()

    def _choose_for_step(self, inputs: Inputs) -> Implementation:
        if self.reason_against("triton", inputs) is None:
            return "triton"
        return "reference" if self.rule is None or needs_formula() else "blockwise"

    def _run_step(
        self, implementation: Implementation, state: EarlierLse | None, query: Query, key: Key, value: Value,
        visibility: Visibility, bias: Bias | None,
    ) -> tuple[Output, ColumnLse | None]:  # fmt: skip
        if implementation == "triton":
            return self.triton(state, query, key, value, visibility, bias)
        rule = self.rule if implementation == "blockwise" else None
        return self._evaluate(rule, state, query, key, value, visibility, bias)

    def check(
        self, visibility: Visibility, bias: Tensor | None, *, query: Tensor, key: Tensor, value: Tensor | None = None
    ) -> None:
        """Raises a ``WrongUseError`` that names the argument that does not fit the others or the variant."""
        check_tensors(query, key, key if value is None else value, bias)
        if self.heads not in (None, query.shape[1]):
            raise WrongUseError(f"this kernel was built for {self.heads} heads; query has {query.shape[1]}")
        visibility.check(query, key)
        if visibility.order not in self.orders:
            raise WrongUseError(
                f"{type(self).__name__} is not defined for order {visibility.order!r}, only for "
                f"{', '.join(map(repr, self.orders))}"
            )

    def _evaluate(
        self, rule: Rule | None, state: EarlierLse | None, query: Query, key: Key, value: Value, visibility: Visibility,
        bias: Bias | None,
    ) -> tuple[Output, ColumnLse | None]:  # fmt: skip
        """Returns the output and the state, by the rule or, without one, by the formula on the full matrix."""
        if rule is not None:
            return attend_blockwise(
                rule, query, key, value, visibility, bias,
                dropout=self.active_dropout, mixing_weight=self.mixing_weight(), state=state,
            )  # fmt: skip
        return self._by_formula(state, *visibility.clear(query, key, value), visibility, bias)

    def _by_formula(
        self, state: EarlierLse | None, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None
    ) -> tuple[Output, ColumnLse | None]:
        """Returns the output by the formula on the full matrix, and the state; padding must be cleared."""
        weights, new_state = self._weights(query, key, visibility, bias, state)
        return F.dropout(weights, self.active_dropout).to(value.dtype) @ value, new_state

    def _weights(
        self, query: Query, key: Key, visibility: Visibility, bias: Bias | None, state: EarlierLse | None
    ) -> tuple[Weights, ColumnLse | None]:
        visible = visibility.pairs(query.shape[2], key.shape[2], query.device)
        scores = scaled_scores(query, key, bias)
        with torch.autocast(query.device.type, enabled=False):  # its own products, too, are in float32 or wider
            return self.normalize(scores, visible, visibility, state)


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(ABC):
    """Parameters of one variant's formula; builds its kernel."""

    @property
    def orders(self) -> tuple[Order, ...]:
        """Orders for which the variant is defined, without access to later positions."""
        return ORDERS

    @property
    def stepwise(self) -> tuple[Order, ...]:
        """Orders that ``Kernel.step`` can compute, query by query or segment by segment."""
        return self.orders

    @property
    def sums_over_queries(self) -> bool:
        """Whether a query's weights depend on the other queries; then padded queries must be marked."""
        return False

    @property
    def needs_query_mask(self) -> bool:
        """Whether padded queries must be marked, because they could change the output of other queries."""
        return self.sums_over_queries

    @property
    def supports(self) -> tuple[CallOption, ...]:
        """Options of a call that the variant takes into account."""
        return CALL_OPTIONS

    @property
    def bias_hides(self) -> bool:
        """Whether a large negative number added to a score hides its pair, as it does under a softmax."""
        return False

    @abstractmethod
    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        """Returns the kernel. Draws no random numbers, so that models of all variants start from the same weights."""

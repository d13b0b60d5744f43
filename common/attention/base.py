"""The contract every attention variant keeps: its config, and the kernel that evaluates it.

Scores are s_ij = query_i . key_j / sqrt(head_dim) + bias_ij; i runs over queries, j over keys.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqarena.common.attention import conditions
from seqarena.common.attention.chunked import attend_in_chunks, chunks, parts
from seqarena.common.attention.conditions import Inputs
from seqarena.common.attention.derivatives import needs_formula
from seqarena.common.attention.operators import attend_blockwise
from seqarena.common.attention.rows import WeightRows, rows_by_rule
from seqarena.common.attention.rule import Rule
from seqarena.common.attention.triton.available import say_once
from seqarena.common.attention.visibility import ORDERS, Order, Visibility, clear_padding
from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import Bias, EarlierMass, Key, KeyMass, Output, Pairs, Query, Scores, Value, Weights

Implementation = Literal["features", "triton", "fused", "blockwise", "chunked", "reference"]
"""In the order in which a kernel prefers them."""
IMPLEMENTATIONS: tuple[Implementation, ...] = get_args(Implementation)


def scaled_scores(query: Query, key: Key, bias: Bias | None) -> Scores:
    """Returns s_ij in float32 at least, also under autocast: cubes and exponentials do not fit half precision."""
    with torch.autocast(query.device.type, enabled=False):
        wide = torch.promote_types(query.dtype, torch.float32)
        scores: Tensor = (query.to(wide) * query.shape[-1] ** -0.5) @ key.to(wide).transpose(-1, -2)  # B H N M
        return scores if bias is None else scores + bias.to(wide)


class Explanation(NamedTuple):
    """Which implementation computes a call."""

    implementation: Implementation
    others: Mapping[Implementation, str]
    """Why each other does not."""


class Kernel(nn.Module, ABC):
    """Evaluates one variant. ``dropout`` falls on the weights, in training only.

    A variant gives ``normalize``, its formula on the full matrix, which long calls evaluate for some queries at a time:
    then nothing of size N x M is kept. ``rule`` is the same block by block, and faster. Where there is a still faster
    exact form it overrides ``features``, ``triton`` or ``fused``, and ``lack``, which tells what that form cannot do.
    """

    rule: Rule | None = None
    """None: only the formula."""
    is_tried = False
    """Whether ``normalize`` was seen to give some queries what it gives them among others."""

    def __init__(self, config: "AttentionConfig", dropout: float) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise WrongUseError(f"dropout: expected 0 up to below 1, found {dropout}")
        self.orders, self.stepwise = config.orders, config.stepwise
        self.dropout = dropout

    @abstractmethod
    def normalize(
        self, scores: Scores, visible: Pairs, visibility: Visibility, state: EarlierMass | None
    ) -> tuple[Weights, KeyMass | None]:
        """Returns the weights, exactly 0 wherever ``visible`` is False, and the state after the last query."""

    def share(self) -> Tensor | None:
        """Returns the mixing share that ``rule`` takes, (heads or 1) 1 1; None for rules without one."""
        return None

    def lack(self, implementation: Implementation, inputs: Inputs) -> str | None:
        """Returns what an implementation lacks for a call; None: nothing. ``against`` is the whole answer."""
        match implementation:
            case "blockwise":
                return conditions.ABSENT if self.rule is None else conditions.blockwise(inputs, self.rule.rounds)
            case "chunked":
                return conditions.chunked(inputs, self.stepwise, len(chunks(inputs.query, inputs.key)))
            case "reference":
                return None
            case _:
                return conditions.ABSENT

    def fused(self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None) -> Output:
        """Returns the output by PyTorch's fused attention."""
        raise AssertionError(conditions.ABSENT)

    def features(self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None) -> Output:
        """Returns the output in time linear in the length."""
        raise AssertionError(conditions.ABSENT)

    def triton(self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None) -> Output:
        """Returns the output by a CUDA kernel of ours."""
        raise AssertionError(conditions.ABSENT)

    def blockwise(self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None) -> Output:
        """Returns the output block by block, in linear memory."""
        return self._evaluate(self.rule, None, query, key, value, visibility, bias)[0]

    def chunked(self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None) -> Output:
        """Returns the output by the formula, some queries at a time, in linear memory.

        Raises:
            WrongUseError: the formula gives other weights for some queries at a time, though its config says that it
                can go on step by step.
        """
        if not self.is_tried and not torch.compiler.is_compiling():
            self._try_chunks(query, visibility)
        query, key, value = visibility.cleared(query, key, value)
        return attend_in_chunks(self._by_formula, query, key, value, visibility, bias)

    def _try_chunks(self, query: Query, visibility: Visibility) -> None:
        """Compares the weights of six queries at once with those of twice three, on scores drawn for the purpose."""
        drawn = torch.Generator().manual_seed(0)
        scores = torch.randn(1, query.shape[1], 6, 6, generator=drawn).to(query.device)
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
                f"{type(self).__name__}: a query's weights depend on other queries; its config must say so: "
                f"leave {visibility.order!r} out of stepwise, or return the state from normalize"
            )
        self.is_tried = True

    def reference(self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None) -> Output:
        """Returns the output by the formula on the full matrix."""
        return self._evaluate(None, None, query, key, value, visibility, bias)[0]

    @property
    def active_dropout(self) -> float:
        """The probability of dropping a weight now: in evaluation none."""
        return self.dropout if self.training else 0.0

    def weights(self, query: Query, key: Key, visibility: Visibility, bias: Bias | None = None) -> Weights:
        """Returns the attention weights before dropout, in float32 at least; padded rows and columns are 0."""
        self.check(visibility, bias, query=query, key=key)
        return self._weights(query, key, visibility, bias, None)[0]

    def weight_rows(
        self, query: Query, key: Key, visibility: Visibility, bias: Bias | None = None
    ) -> Iterator[WeightRows]:
        """Yields the weights before dropout, some queries at a time; by the formula where there is no rule."""
        self.check(visibility, bias, query=query, key=key)
        if self.rule is not None:
            return rows_by_rule(self.rule, self.share(), query, key, visibility, bias)
        return self._rows_by_formula(query, key, visibility, bias)

    def _rows_by_formula(
        self, query: Query, key: Key, visibility: Visibility, bias: Bias | None
    ) -> Iterator[WeightRows]:
        query, key, _ = visibility.cleared(query, key, key)
        inputs, rows = Inputs(query, key, key, visibility, bias, 0.0), chunks(query, key)
        if conditions.chunked(inputs, self.stepwise, len(rows)) is not None:
            rows = [slice(0, query.shape[2])]
        state = None
        for some in parts(query, key, key, visibility, bias, rows):
            weights, state = self._weights(some.query, some.key, some.visibility, some.bias, state)
            yield WeightRows(
                slice(0, query.shape[0] * query.shape[1]), some.rows, slice(0, some.key.shape[2]),
                weights.flatten(0, 1), None,
            )  # fmt: skip

    def forward(self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None = None) -> Output:
        """Returns sum_j pi_ij value_j in the dtype of ``value``; padded queries give exactly 0."""
        self.check(visibility, bias, query=query, key=key, value=value)
        inputs = Inputs(query, key, value, visibility, bias, self.active_dropout)
        chosen = self._chosen(inputs)
        if query.is_cuda and not torch.compiler.is_compiling() and chosen in ("blockwise", "chunked", "reference"):
            reason = self.against("triton", inputs)
            if reason is not None and reason != conditions.ABSENT:
                say_once(reason)
        return self._computed(chosen, query, key, value, visibility, bias)

    def against(self, implementation: Implementation, inputs: Inputs) -> str | None:
        """Returns why an implementation does not compute a call; None: it does, if none before it does."""
        if implementation != "reference" and needs_formula():
            return conditions.FORMULA_ONLY
        return self.lack(implementation, inputs)

    def explain(
        self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None = None
    ) -> Explanation:
        """Returns which implementation computes a call, and why each other does not."""
        self.check(visibility, bias, query=query, key=key, value=value)
        inputs = Inputs(query, key, value, visibility, bias, self.active_dropout)
        chosen = self._chosen(inputs)
        others = {
            each: self.against(each, inputs) or f"{chosen} comes first" for each in IMPLEMENTATIONS if each != chosen
        }
        return Explanation(chosen, others)

    def _chosen(self, inputs: Inputs) -> Implementation:
        for implementation in IMPLEMENTATIONS:
            if self.against(implementation, inputs) is None:
                return implementation
        raise AssertionError("nothing is against the reference")

    def compute(
        self,
        implementation: Implementation,
        query: Query,
        key: Key,
        value: Value,
        visibility: Visibility,
        bias: Bias | None = None,
    ) -> Output | None:
        """Returns what ``forward`` does, by one implementation; None where something is ``against`` it."""
        self.check(visibility, bias, query=query, key=key, value=value)
        if self.against(implementation, Inputs(query, key, value, visibility, bias, self.active_dropout)) is not None:
            return None
        return self._computed(implementation, query, key, value, visibility, bias)

    def _computed(
        self,
        implementation: Implementation,
        query: Query,
        key: Key,
        value: Value,
        visibility: Visibility,
        bias: Bias | None,
    ) -> Output:
        forms = {
            "features": self.features,
            "triton": self.triton,
            "fused": self.fused,
            "blockwise": self.blockwise,
            "chunked": self.chunked,
            "reference": self.reference,
        }
        return self._clear(forms[implementation](query, key, value, visibility, bias), visibility)

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
        self.check(visibility, bias, query=query, key=key, value=value)
        if visibility.order not in self.stepwise:
            raise WrongUseError(
                f"{type(self).__name__} needs all queries at once in order {visibility.order!r}; "
                f"step by step it has {', '.join(map(repr, self.stepwise))}"
            )
        fits = state is None or (state.dim() == 3 and state.shape[:2] == query.shape[:2])
        if state is not None and (not fits or state.device != query.device):
            raise WrongUseError(
                f"state: expected shape ({query.shape[0]}, {query.shape[1]}, keys it knows) on {query.device}, as an "
                f"earlier step returned it; found {tuple(state.shape)} on {state.device}"
            )
        rule = None if needs_formula() else self.rule
        output, mass = self._evaluate(rule, state, query, key, value, visibility, bias)
        return self._clear(output, visibility), None if mass is None else mass.detach()

    def check(
        self, visibility: Visibility, bias: Tensor | None, *, query: Tensor, key: Tensor, value: Tensor | None = None
    ) -> None:
        """Raises a ``WrongUseError`` that names the argument whose shape, type or device does not fit the others."""
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
        tensors = [each for each in (query, key, value, bias) if each is not None]
        if any(not each.is_floating_point() or each.device != query.device for each in tensors):
            found = ", ".join(f"{each.dtype} on {each.device}" for each in tensors)
            raise WrongUseError(
                f"query, key, value, bias: expected floating-point numbers on one device; found {found}"
            )
        share = self.share()
        if share is not None and share.shape[0] not in (1, q[1]):
            raise WrongUseError(f"this kernel was built for {share.shape[0]} heads; query has {q[1]}")
        visibility.check(query, key)
        full = (*q[:3], k[2])
        if bias is not None and (
            bias.dim() != 4 or any(size not in (1, whole) for size, whole in zip(bias.shape, full, strict=True))
        ):
            raise WrongUseError(
                f"bias: expected floating-point numbers of shape {full}, or 1 on any axis; "
                f"found {bias.dtype} of shape {tuple(bias.shape)}"
            )
        if visibility.order not in self.orders:
            raise WrongUseError(
                f"{type(self).__name__} has no order {visibility.order!r}; it has {', '.join(map(repr, self.orders))}"
            )

    def _evaluate(
        self,
        rule: Rule | None,
        state: EarlierMass | None,
        query: Query,
        key: Key,
        value: Value,
        visibility: Visibility,
        bias: Bias | None,
    ) -> tuple[Output, KeyMass | None]:
        """Goes by the rule, or by the formula on the full matrix if there is none."""
        if rule is not None:
            return attend_blockwise(
                rule, query, key, value, visibility, bias, share=self.share(), dropout=self.active_dropout, state=state
            )
        return self._by_formula(state, *visibility.cleared(query, key, value), visibility, bias)

    def _by_formula(
        self,
        state: EarlierMass | None,
        query: Query,
        key: Key,
        value: Value,
        visibility: Visibility,
        bias: Bias | None,
    ) -> tuple[Output, KeyMass | None]:
        """Returns the output by the formula on the full matrix, and the state; padding is cleared already."""
        weights, mass = self._weights(query, key, visibility, bias, state)
        return F.dropout(weights, self.active_dropout).to(value.dtype) @ value, mass

    @staticmethod
    def _clear(output: Output, visibility: Visibility) -> Output:
        """Returns the output with padded queries exactly 0, whose gradients, were they NaN, reach nothing."""
        return output if visibility.query_real is None else clear_padding(output, visibility.query_real)

    def _weights(
        self, query: Query, key: Key, visibility: Visibility, bias: Bias | None, state: EarlierMass | None
    ) -> tuple[Weights, KeyMass | None]:
        visible = visibility.pairs(query.shape[2], key.shape[2], query.device)
        return self.normalize(scaled_scores(query, key, bias), visible, visibility, state)


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(ABC):
    """The parameters of one variant's formula. Knows the orders the variant has and builds its kernel."""

    @property
    def orders(self) -> tuple[Order, ...]:
        """The orders in which this variant is defined and lets nothing of the future through."""
        return ORDERS

    @property
    def stepwise(self) -> tuple[Order, ...]:
        """The orders in which it can go on query by query, or segment by segment."""
        return self.orders

    @property
    def sums_over_queries(self) -> bool:
        """Whether a query's weights depend on which other queries there are: padded ones must be known."""
        return False

    @property
    def bias_hides(self) -> bool:
        """Whether a very negative number added to a score hides its pair, as it does under a softmax."""
        return False

    @abstractmethod
    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        """Returns the kernel; draws no random numbers, so that variants share every other initial value."""

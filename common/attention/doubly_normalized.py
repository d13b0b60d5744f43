"""Doubly-normalised attention (DNAS, P2): normalised over queries, then over keys.

With c_j = logsumexp_i s_ij over real queries, pi_ij = softmax_j(s_ij - c_j).
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from torch import Tensor

from seqarena.common.attention import conditions, reference
from seqarena.common.attention.base import AttentionConfig, Implementation, Kernel
from seqarena.common.attention.conditions import Inputs
from seqarena.common.attention.fused import fused_doubly_normalized
from seqarena.common.attention.rule import Rule, ScoreGradient, Scratch
from seqarena.common.attention.triton.self_test import fault_of
from seqarena.common.attention.visibility import CALL_OPTIONS, ORDERS, CallOption, Order, Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.runs.roles import added
from seqarena.common.shapes import Bias, ColumnLse, EarlierLse, Key, Output, Pairs, Query, Scores, Value, Weights


@dataclass(frozen=True, kw_only=True)
class DoublyNormalized(AttentionConfig):
    """DNAS: xi_ji = exp s_ij / sum_i exp s_ij over real queries, pi_ij = xi_ji / sum_j xi_ji.

    No key is explained away: sum_i pi_ij >= 1 / (number of real keys) (P2, Lemma 1). For ordered queries the column sum
    runs over the queries so far (``reference.prefix_normalized``). That form is ours, not the paper's.
    """

    iterations: int = 1
    """Rounds of Sinkhorn's algorithm; the paper uses 1; more than 1 only without an order."""

    beta: Literal["query_norm", "uniform"] = field(default="query_norm", metadata=added(3))
    """Mixing weights of the Gaussians around the queries, in P2's view of DNAS as a mixture. query_norm: proportional
    to exp(|q_i|^2 / (2 sqrt d)), which gives exp s_ij; uniform: equal ones. uniform only without an order."""
    variance: Literal["one", "estimated"] = field(default="one", metadata=added(3))
    """Variance of these Gaussians. one: as P2; estimated: by one step of expectation maximisation, per example and
    head (P2, appendix A, in our reading). estimated only without an order."""

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise WrongUseError(f"iterations: expected at least 1, found {self.iterations}")

    @property
    def is_gaussian(self) -> bool:
        """Whether a setting of the mixture is not P2's, so that the weights are no function of the scores alone."""
        return self.beta != "query_norm" or self.variance != "one"

    @property
    def orders(self) -> tuple[Order, ...]:
        """All orders with one iteration; only ``none`` with settings that have no form that excludes the future."""
        return ORDERS if self.iterations == 1 and not self.is_gaussian else ("none",)

    @property
    def stepwise(self) -> tuple[Order, ...]:
        """Orders with a prefix form; without an order, the column sums include later queries."""
        return tuple(order for order in self.orders if order != "none")

    @property
    def supports(self) -> tuple[CallOption, ...]:
        """All options, but no segments with an estimated variance, which would be that of the whole row."""
        return tuple(each for each in CALL_OPTIONS if each != "segments" or self.variance == "one")

    @property
    def sums_over_queries(self) -> bool:
        """True: the sum of each key runs over the queries."""
        return True

    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        """Returns the kernel."""
        if self.is_gaussian:
            from seqarena.common.attention.gaussian import GaussianKernel  # noqa: PLC0415  # it imports this file

            return GaussianKernel(self, dropout)
        return DoublyNormalizedKernel(self, dropout)


def doubly_normalized_weights(
    scores: Scores, visible: Pairs, visibility: Visibility, state: EarlierLse | None, iterations: int
) -> tuple[Weights, ColumnLse | None]:
    """Returns the weights, in the prefix form for ordered queries, and the state of that form."""
    if visibility.order == "none":
        return reference.doubly_normalized(scores, visible, iterations), None
    earlier = visibility.memory if visibility.order == "causal" else scores.shape[-1]
    return reference.prefix_normalized(scores, visible, state, earlier)


@dataclass(frozen=True, kw_only=True)
class DoublyNormalizedRule(Rule):
    """Rule of DNAS: returns the doubly-normalised weights that the engine computed."""

    reads_scores: ClassVar[bool] = False
    is_mixture: ClassVar[bool] = True
    rounds: int = 1

    def apply(
        self, scores: Tensor, doubly: Tensor | None, mixing_weight: Tensor | None, scratch: Scratch
    ) -> tuple[Tensor, Any]:
        """Returns the weights."""
        assert doubly is not None
        return doubly, None

    def backward(self, saved: Any, grad: Tensor, scratch: Scratch) -> ScoreGradient:
        """Returns the gradient of the weights as that of ``doubly``."""
        return ScoreGradient(None, grad)


class DoublyNormalizedKernel(Kernel):
    """Kernel of DNAS: Triton kernels or fused passes where they support the call, else block by block."""

    rule: DoublyNormalizedRule

    def __init__(self, config: DoublyNormalized, dropout: float) -> None:
        super().__init__(config, dropout)
        self.rule = DoublyNormalizedRule(rounds=config.iterations)

    def normalize(
        self, scores: Scores, visible: Pairs, visibility: Visibility, state: EarlierLse | None
    ) -> tuple[Weights, ColumnLse | None]:
        """Returns the weights and, for ordered queries, the column logsumexp of each key."""
        return doubly_normalized_weights(scores, visible, visibility, state, self.rule.rounds)

    def limitation(self, implementation: Implementation, inputs: Inputs) -> str | None:
        """Returns the reason why an implementation does not support a call, or None."""
        match implementation:
            case "triton":
                reason = conditions.triton_doubly_normalized(inputs, self.rule.rounds)
                return reason or fault_of(self.rule, inputs)
            case "fused":
                return conditions.fused_doubly_normalized(inputs, self.rule.rounds)
            case _:
                return conditions.ABSENT

    def triton(
        self, state: EarlierLse | None, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None
    ) -> tuple[Output, ColumnLse | None]:
        """Computes the output by Triton kernels and, with an order, the state after the last query."""
        from seqarena.common.attention.triton.operators import attend_doubly_normalized  # noqa: PLC0415  # needs Triton

        return attend_doubly_normalized(query, key, value, visibility, bias, self.active_dropout, None, state)

    def fused(self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None) -> Output:
        """Computes the output by the two passes of ``fused.py``."""
        return fused_doubly_normalized(self.rule, query, key, value, visibility)

"""Hybrid attention (HNAS, P2): a trained mixture of doubly-normalised and softmax attention."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from seqarena.common.attention import conditions, reference
from seqarena.common.attention.base import AttentionConfig, Implementation, Kernel
from seqarena.common.attention.conditions import Inputs
from seqarena.common.attention.doubly_normalized import (
    DoublyNormalized,
    doubly_normalized_weights,
)
from seqarena.common.attention.fused import fused_doubly_normalized
from seqarena.common.attention.rule import Rule, ScoreGradient, Scratch, softmax_backward_
from seqarena.common.attention.softmax import fused_softmax
from seqarena.common.attention.triton.self_test import fault_of
from seqarena.common.attention.visibility import Order, Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.model.bounded import Bounded
from seqarena.common.shapes import Bias, ColumnLse, EarlierLse, Key, Output, Pairs, Query, Scores, Value, Weights


@dataclass(frozen=True, kw_only=True)
class Hybrid(AttentionConfig):
    """HNAS: pi = u pi^dnas + (1 - u) pi^softmax, u in [0, 1] trained; u = 0 is softmax, u = 1 is dnas.

    We do not know how P2 keeps u in [0, 1]. Here u is a raw parameter, clamped after each step: parametrised by a
    sigmoid it would move by 0.06 at most in 5,000 steps of Adam at a rate of 1e-4. P2 has one u per layer.
    """

    u: float = 0.5
    """Initial mixing weight of doubly-normalised attention, between 0 and 1."""
    per_head: bool = False
    """Whether each head has its own u; otherwise one per layer."""

    def __post_init__(self) -> None:
        if not 0 <= self.u <= 1:
            raise WrongUseError(f"u: expected a number from 0 to 1, found {self.u}")

    @property
    def stepwise(self) -> tuple[Order, ...]:
        """Orders of the doubly-normalised half."""
        return DoublyNormalized().stepwise

    @property
    def sums_over_queries(self) -> bool:
        """True, because of the doubly-normalised half."""
        return True

    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        """Returns the kernel, with u as a parameter."""
        return HybridKernel(self, heads, dropout)


@dataclass(frozen=True, kw_only=True)
class HybridRule(Rule):
    """Rule of HNAS: both halves from the same scores; ``mixing_weight`` is u."""

    is_mixture: ClassVar[bool] = True
    rounds: int = 1

    def apply(
        self, scores: Tensor, doubly: Tensor | None, mixing_weight: Tensor | None, scratch: Scratch
    ) -> tuple[Tensor, Any]:
        """Returns the mixed weights; saves both halves and u."""
        softmax = torch.softmax(scores, dim=-1, out=scores)
        assert doubly is not None
        assert mixing_weight is not None
        weights = torch.lerp(softmax, doubly, mixing_weight, out=scratch.like("halves", softmax))
        return weights, (softmax, doubly, mixing_weight)

    def backward(self, saved: Any, grad: Tensor, scratch: Scratch) -> ScoreGradient:
        """Returns the gradients of scores, doubly-normalised weights and u."""
        softmax, doubly, mixing_weight = saved
        difference = torch.sub(doubly, softmax, out=scratch.like("halves", softmax))
        grad_mixing_weight = difference.mul_(grad).sum(dim=2, keepdim=True)
        grad_doubly = torch.mul(grad, mixing_weight, out=difference)
        return ScoreGradient(softmax_backward_(softmax, grad.sub_(grad_doubly)), grad_doubly, grad_mixing_weight)


class HybridKernel(Kernel):
    """Kernel of HNAS: one pass over the scores for both halves, one dropout mask on the mixed weights."""

    rule = HybridRule()

    def __init__(self, config: Hybrid, heads: int, dropout: float) -> None:
        super().__init__(config, dropout)
        self.heads = heads if config.per_head else None
        shape = (heads, 1, 1) if config.per_head else (1, 1, 1)
        self.u = Bounded(torch.full(shape, config.u, dtype=torch.float64), low=0.0, high=1.0)

    def normalize(
        self, scores: Scores, visible: Pairs, visibility: Visibility, state: EarlierLse | None
    ) -> tuple[Weights, ColumnLse | None]:
        """Returns the mixed weights and, for ordered queries, the column logsumexp of each key."""
        doubly, state = doubly_normalized_weights(scores, visible, visibility, state, self.rule.rounds)
        u = self.u().to(scores.dtype)
        return u * doubly + (1 - u) * reference.softmax(scores, visible), state

    def limitation(self, implementation: Implementation, inputs: Inputs) -> str | None:
        """Returns the reason why an implementation does not support a call, or None."""
        match implementation:
            case "triton":
                reason = conditions.triton_doubly_normalized(inputs, self.rule.rounds)
                return reason or fault_of(self.rule, inputs)
            case "fused" if self._is_softmax(inputs.visibility):
                return conditions.fused_softmax(inputs)
            case "fused":
                return conditions.fused_doubly_normalized(inputs, self.rule.rounds)
            case _:
                return conditions.ABSENT

    def triton(
        self, state: EarlierLse | None, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None
    ) -> tuple[Output, ColumnLse | None]:
        """Computes both halves by the Triton kernels of doubly-normalised attention, from the same scores."""
        from seqarena.common.attention.triton.operators import attend_doubly_normalized  # noqa: PLC0415  # needs Triton

        mixing = self.u().reshape(-1).expand(query.shape[1])
        return attend_doubly_normalized(query, key, value, visibility, bias, self.active_dropout, mixing, state)

    def fused(self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None) -> Output:
        """Computes the output by fused passes.

        In inference u = 0 is bitwise equal to softmax attention, so that public checkpoints are reproduced.
        """
        if self._is_softmax(visibility):
            return fused_softmax(query, key, value, visibility, bias, dropout=0.0)
        return fused_doubly_normalized(self.rule, query, key, value, visibility, self.u())

    def _is_softmax(self, visibility: Visibility) -> bool:
        """Returns whether the call is softmax attention: u is 0, without gradients, compilation or dropout."""
        is_inference = not (torch.is_grad_enabled() or torch.compiler.is_compiling() or self.active_dropout)
        return is_inference and visibility.order == "none" and not self.u().any()

    def mixing_weight(self) -> Tensor | None:
        """Returns u."""
        u: Tensor = self.u()
        return u

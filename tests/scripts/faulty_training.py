"""Softmax attention with one fault each that shows in training or in larger inputs, and the check that names it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from seqarena.common.attention.base import Kernel
from seqarena.common.attention.visibility import Visibility
from tests.scripts.faulty import Fault, Faulty, Plain, Trained, call, formula, output, softmax


@dataclass(frozen=True, kw_only=True)
class FaultyTraining(Faulty):
    """Softmax with such a fault."""

    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        return next(each.kernel for each in TRAINING_FAULTS if each.name == self.fault)(self, heads, dropout)


class ChangedBackward(torch.autograd.Function):
    """Applies a function to the gradient."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return scores.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.change(grad), None


def backward(change: Callable[[Tensor], Tensor]) -> type[Plain]:
    """Returns a kernel whose gradient of the scores is changed."""
    return formula(lambda self, scores, visible, seen: softmax(ChangedBackward.apply(scores, change), visible))


class FirstTrained(Trained):
    """The gradient of the other heads' parameters is cut, but not quite 0."""

    def formula(self, scores: Tensor, visible: Tensor, visibility: Visibility) -> Tensor:
        cut = self.scale[1:].detach() + 1e-9 * (self.scale[1:] - self.scale[1:].detach())
        return super().formula(scores * torch.cat([self.scale[:1], cut]), visible, visibility)


class Counting(Plain):
    """Counts its calls in training."""

    def __init__(self, config: Faulty, heads: int, dropout: float) -> None:
        super().__init__(config, heads, dropout)
        self.register_buffer("calls", torch.zeros(()))

    def formula(self, scores: Tensor, visible: Tensor, visibility: Visibility) -> Tensor:
        if self.training:
            self.calls += 1
        return super().formula(scores, visible, visibility)


def with_dropout(rate: Callable[[float, Visibility], float]) -> type[Plain]:
    """Returns a kernel whose dropout is a function of the right one and of the visibility."""

    def forward(
        self: Plain, query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, bias: Any = None
    ) -> Tensor:
        kept, self.dropout = self.dropout, rate(self.dropout, visibility)
        result = Plain.forward(self, query, key, value, visibility, bias)
        self.dropout = kept
        return result

    return call(forward)


def shared_dropout(
    self: Plain, query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, bias: Any = None
) -> Tensor:
    """Drops the same weights in all heads."""
    weights = self.weights(query, key, visibility, bias)
    weights = weights * F.dropout(torch.ones_like(weights[:, :1]), self.active_dropout)
    _, _, value = visibility.clear(query, key, value)
    return visibility.clear_output(weights.to(value.dtype) @ value)


def leaking_dropout(self: Plain, right: Tensor, query: Tensor, key: Tensor, value: Tensor, seen: Visibility) -> Tensor:
    is_leaking = self.active_dropout > 0 and seen.order == "causal"
    return right + 1e-2 * value.mean(dim=2, keepdim=True) if is_leaking else right


TRAINING_FAULTS = (
    Fault("gradients are averaged over heads", "gradients", backward(
        lambda grad: grad.mean(dim=1, keepdim=True).expand_as(grad))),
    Fault("gradients are averaged over examples", "gradients", backward(
        lambda grad: grad.mean(dim=0, keepdim=True).expand_as(grad))),
    Fault("no gradient after the eighth query", "gradients", backward(
        lambda grad: grad * (torch.arange(grad.shape[2]) < 8)[:, None])),
    Fault("no gradient in float32", "gradients", backward(
        lambda grad: grad if grad.dtype == torch.float64 else torch.zeros_like(grad))),
    Fault("the parameter of the first head alone is trained", "gradients", FirstTrained),
    Fault("another formula under autocast", "half precision", output(
        lambda self, right, *_: 1.5 * right if torch.is_autocast_enabled("cpu") else right)),
    Fault("no dropout", "dropout", with_dropout(lambda rate, seen: 0.0)),
    Fault("no dropout in causal order", "dropout", with_dropout(lambda rate, seen: rate * (seen.order == "none"))),
    Fault("dropout at half the rate", "dropout", with_dropout(lambda rate, seen: rate / 2)),
    Fault("the same dropout in all heads", "dropout", call(shared_dropout)),
    Fault("a mean over all values where weights are dropped", "the future", output(leaking_dropout)),
    Fault("examples are mixed where weights are dropped", "batches and heads", output(
        lambda self, right, *_: right - 5e-2 * right.mean(dim=0, keepdim=True) if self.active_dropout else right)),
    Fault("calls are counted", "repeated calls", Counting),
    Fault("another formula for many queries", "implementations", formula(
        lambda self, scores, visible, visibility: softmax(scores * (1.3 if len(scores[0, 0]) > 999 else 1), visible))),
)  # fmt: skip
"""Each fault, with the config in which it is planted."""

"""Activations of the scores with their gradients, and the rule of the elementwise variants (P1)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from seqarena.common.attention.rule import Rule, ScoreGradient, Scratch

Phi = Literal["x", "relu", "elu", "gelu", "tanh", "exp"]


class Activation(NamedTuple):
    """An activation of the scores, and its gradient."""

    apply: Callable[[Tensor], Tensor]
    apply_out: Callable[[Tensor, Tensor], Tensor]
    """Computes the activation. Arguments: the scores, and a tensor for the output."""
    backward: Callable[[Tensor, Tensor, Tensor], Tensor]
    """Computes the gradient of the scores. Arguments: the output's gradient (overwritten), the scores, the output."""


aten = torch.ops.aten
# A plain dict: torch.compile cannot trace a MappingProxyType once the model has changed any dict of its own.
PHI: Mapping[str, Activation] = {
    "x": Activation(
        lambda scores: scores,
        lambda scores, _out: scores,
        lambda grad, _scores, _activated: grad,
    ),
    "relu": Activation(
        F.relu,
        lambda scores, out: torch.clamp(scores, min=0, out=out),
        lambda grad, _scores, activated: aten.threshold_backward(grad, activated, 0, grad_input=grad),
    ),
    "elu": Activation(
        F.elu,
        lambda scores, out: aten.elu(scores, out=out),
        lambda grad, _scores, activated: aten.elu_backward(grad, 1, 1, 1, True, activated, grad_input=grad),
    ),
    "gelu": Activation(
        F.gelu,
        lambda scores, out: aten.gelu(scores, out=out),
        lambda grad, scores, _activated: aten.gelu_backward(grad, scores, grad_input=grad),
    ),
    "tanh": Activation(
        torch.tanh,
        lambda scores, out: torch.tanh(scores, out=out),
        lambda grad, _scores, activated: aten.tanh_backward(grad, activated, grad_input=grad),
    ),
    "exp": Activation(
        torch.exp,
        lambda scores, out: torch.exp(scores, out=out),
        lambda grad, _scores, activated: grad.mul_(activated),
    ),
}


@dataclass(frozen=True, kw_only=True)
class ElementwiseRule(Rule):
    """Weights phi(s_ij)^power of a tile; the engine divides each row of the output."""

    whole_rows: ClassVar[bool] = False
    phi: Phi
    power: int
    scale: float | None
    length_exponent: float

    def row_divisor(self, counts: Tensor) -> Tensor:
        """Returns the scale, or a power of the number of keys visible to a query."""
        if self.scale is not None:
            return torch.full_like(counts, self.scale)
        return counts.clamp(min=1).pow(self.length_exponent)

    def apply(
        self, scores: Tensor, doubly: Tensor | None, mixing_weight: Tensor | None, scratch: Scratch
    ) -> tuple[Tensor, Any]:
        """Returns the weights before division."""
        activated = weights = PHI[self.phi].apply_out(scores, scratch.like("activated", scores))
        if self.power > 1:
            weights = torch.pow(activated, self.power, out=scratch.like("power", scores))
        return weights, (scores, activated, weights)

    def backward(self, saved: Any, grad: Tensor, scratch: Scratch) -> ScoreGradient:
        """Returns the gradient of the scores; the factor ``power`` is returned separately."""
        scores, activated, weights = saved
        if self.power > 1:
            lower = activated if self.power == 2 else torch.pow(activated, self.power - 1, out=weights)
            grad.mul_(lower)
        return ScoreGradient(PHI[self.phi].backward(grad, scores, activated), factor=float(self.power))

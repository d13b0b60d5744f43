"""Elementwise activations in place of the softmax (P1): phi(s_ij)^power over a scale."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from common.attention import reference
from common.attention.base import AttentionConfig, Kernel
from common.attention.rule import Pulled, Rule, Scratch
from common.attention.visibility import Visibility
from common.errors import WrongUseError
from common.shapes import EarlierMass, KeyMass, Pairs, Scores, Weights

Phi = Literal["x", "relu", "elu", "gelu", "tanh", "exp"]


class Activation(NamedTuple):
    """An activation of the scores, and its gradient."""

    apply: Callable[[Tensor], Tensor]
    into: Callable[[Tensor, Tensor], Tensor]
    """Of the scores and a tensor that takes the activated ones."""
    pull: Callable[[Tensor, Tensor, Tensor], Tensor]
    """Of the gradient of the activated scores, which it overwrites, the scores, and the activated scores."""


aten = torch.ops.aten
PHI: Mapping[str, Activation] = MappingProxyType(
    {
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
)


@dataclass(frozen=True, kw_only=True)
class Elementwise(AttentionConfig):
    """No normalisation over keys: pi_ij = phi(s_ij)^power / scale.

    P1 gives no scale for ReLU to exp; sqrt(N) here. It prints Exp as exp(-x) and describes it as the softmax without
    its row normalisation: exp(x) here.
    """

    phi: Phi = "x"
    """Activation of the scores; x is none."""
    power: int = 1
    """Power the activated scores are raised to."""
    scale: float | None = None
    """Divisor of the weights; none: the square root of the number of keys the query may see."""

    def __post_init__(self) -> None:
        if self.power < 1 or (self.scale is not None and not self.scale > 0):
            raise WrongUseError(f"expected power >= 1 and scale > 0; found power {self.power}, scale {self.scale}")

    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        """Returns the kernel."""
        del heads
        return ElementwiseKernel(self, dropout)


@dataclass(frozen=True, kw_only=True)
class ElementwiseRule(Rule):
    """phi(s_ij)^power of any tile; the rows are divided at last."""

    whole_rows: ClassVar[bool] = False
    phi: Phi
    power: int
    scale: float | None

    def row_divisor(self, counts: Tensor) -> Tensor | None:
        """Returns the scale, or the square root of the number of keys a query sees."""
        return counts.clamp(min=1).sqrt() if self.scale is None else torch.full_like(counts, self.scale)

    def apply(
        self, scores: Tensor, doubly: Tensor | None, share: Tensor | None, scratch: Scratch
    ) -> tuple[Tensor, Any]:
        """Returns the weights before they are divided."""
        del doubly, share
        activated = PHI[self.phi].into(scores, scratch.like("activated", scores))
        lower = weights = activated
        for power in range(2, self.power + 1):
            # lower: activated^(power - 1), all but a factor of the derivative
            lower, weights = weights, torch.mul(weights, activated, out=scratch.like(f"power {power}", scores))
        return weights, (scores, activated, lower)

    def pull(self, kept: Any, grad: Tensor, scratch: Scratch) -> Pulled:
        """Returns the gradient of the scores."""
        del scratch
        scores, activated, lower = kept
        if self.power > 1:
            grad = grad.mul_(lower).mul_(self.power)
        return Pulled(PHI[self.phi].pull(grad, scores, activated))


class ElementwiseKernel(Kernel):
    """phi(s_ij)^power / scale, block by block."""

    def __init__(self, config: Elementwise, dropout: float) -> None:
        super().__init__(config, dropout)
        self.config = config
        self.rule = ElementwiseRule(phi=config.phi, power=config.power, scale=config.scale)

    def normalize(
        self, scores: Scores, visible: Pairs, visibility: Visibility, state: EarlierMass | None
    ) -> tuple[Weights, KeyMass | None]:
        """Returns the weights, which may be negative; there is nothing to remember."""
        del visibility, state
        phi = PHI[self.config.phi].apply
        return reference.elementwise(scores, visible, phi, self.config.power, self.config.scale), None

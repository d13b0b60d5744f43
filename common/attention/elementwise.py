"""Elementwise activations in place of the softmax (P1): phi(s_ij)^power over a scale."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from common.attention import reference
from common.attention.base import AttentionConfig, Kernel, Visibility
from common.errors import WrongUseError
from common.shapes import EarlierMass, KeyMass, Pairs, Scores, Weights

Phi = Literal["x", "relu", "elu", "gelu", "tanh", "exp"]


def identity(scores: Tensor) -> Tensor:
    """Returns the scores: phi of the polynomials."""
    return scores


PHI: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"x": identity, "relu": F.relu, "elu": F.elu, "gelu": F.gelu, "tanh": torch.tanh, "exp": torch.exp}
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


class ElementwiseKernel(Kernel):
    """phi(s_ij)^power / scale on the full matrix."""

    def __init__(self, config: Elementwise, dropout: float) -> None:
        super().__init__(config, dropout)
        self.config = config

    def normalize(
        self, scores: Scores, visible: Pairs, visibility: Visibility, state: EarlierMass | None
    ) -> tuple[Weights, KeyMass | None]:
        """Returns the weights, which may be negative; there is nothing to remember."""
        del visibility, state
        phi = PHI[self.config.phi]
        return reference.elementwise(scores, visible, phi, self.config.power, self.config.scale), None

"""Elementwise activations in place of the softmax (P1): phi(s_ij)^power over a scale."""

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from seqarena.common.attention import reference
from seqarena.common.attention.base import AttentionConfig, Kernel
from seqarena.common.attention.derivatives import needs_formula
from seqarena.common.attention.features import pays, power_features
from seqarena.common.attention.rule import Rule, ScoreGradient, Scratch
from seqarena.common.attention.triton.available import can_run
from seqarena.common.attention.triton.proof import is_trusted
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import Bias, EarlierMass, Key, KeyMass, Output, Pairs, Query, Scores, Value, Weights

Phi = Literal["x", "relu", "elu", "gelu", "tanh", "exp"]


class Activation(NamedTuple):
    """An activation of the scores, and its gradient."""

    apply: Callable[[Tensor], Tensor]
    into: Callable[[Tensor, Tensor], Tensor]
    """Computes the activation; arguments: the scores, and a tensor for the output."""
    pull: Callable[[Tensor, Tensor, Tensor], Tensor]
    """Computes the gradient of the scores; arguments: the output's gradient (overwritten), the scores, the output."""


aten = torch.ops.aten
# A plain dict: torch.compile follows no MappingProxyType once the model has changed any dict of its own.
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
        return ElementwiseKernel(self, dropout)


@dataclass(frozen=True, kw_only=True)
class ElementwiseRule(Rule):
    """phi(s_ij)^power of any tile; the rows are divided at last."""

    whole_rows: ClassVar[bool] = False
    phi: Phi
    power: int
    scale: float | None

    def row_divisor(self, counts: Tensor) -> Tensor:
        """Returns the scale, or the square root of the number of keys a query sees."""
        return counts.clamp(min=1).sqrt() if self.scale is None else torch.full_like(counts, self.scale)

    def apply(
        self, scores: Tensor, doubly: Tensor | None, share: Tensor | None, scratch: Scratch
    ) -> tuple[Tensor, Any]:
        """Returns the weights before they are divided."""
        activated = weights = PHI[self.phi].into(scores, scratch.like("activated", scores))
        if self.power > 1:
            weights = torch.pow(activated, self.power, out=scratch.like("power", scores))
        return weights, (scores, activated, weights)

    def pull(self, kept: Any, grad: Tensor, scratch: Scratch) -> ScoreGradient:
        """Returns the gradient of the scores, all but the factor ``power``."""
        scores, activated, weights = kept
        if self.power > 1:
            lower = activated if self.power == 2 else torch.pow(activated, self.power - 1, out=weights)
            grad.mul_(lower)
        return ScoreGradient(PHI[self.phi].pull(grad, scores, activated), factor=float(self.power))


class ElementwiseKernel(Kernel):
    """phi(s_ij)^power / scale, block by block."""

    rule: ElementwiseRule

    def __init__(self, config: Elementwise, dropout: float) -> None:
        super().__init__(config, dropout)
        self.warned = False
        self.rule = ElementwiseRule(phi=config.phi, power=config.power, scale=config.scale)

    def normalize(
        self, scores: Scores, visible: Pairs, visibility: Visibility, state: EarlierMass | None
    ) -> tuple[Weights, KeyMass | None]:
        """Returns the weights, which may be negative; there is nothing to remember."""
        phi = PHI[self.rule.phi].apply
        return reference.elementwise(scores, visible, phi, self.rule.power, self.rule.scale), None

    def forward(self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None = None) -> Output:
        """Returns sum_j pi_ij value_j; warns once if that is more than float16 can hold, and says what would fit."""
        output: Output = super().forward(query, key, value, visibility, bias)
        looks = value.dtype == torch.float16 and self.rule.phi != "tanh" and not torch.compiler.is_compiling()
        looks = looks and not (value.is_cuda and torch.cuda.is_current_stream_capturing()) and not needs_formula()
        if looks and not self.warned and not bool(output.isfinite().all()):
            self.warned = True
            with torch.no_grad():
                exact = super().forward(query.float(), key.float(), value.float(), visibility, bias)
            needed = float(exact.abs().amax()) / torch.finfo(torch.float16).max
            if 1 < needed < math.inf:
                counts = visibility.counts(query.shape[0], query.shape[2], key.shape[2], query.device)
                divisor = float(self.rule.row_divisor(counts.float()).amax())
                warnings.warn(
                    f"attention phi={self.rule.phi}, power={self.rule.power}: outputs overflow float16; a scale of "
                    f"at least {1.1 * needed * divisor:.3g} (here {divisor:.3g}) would not, nor would bfloat16",
                    stacklevel=2,
                )
        return output

    def triton(self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None) -> Output | None:
        """Returns the output by the kernels in ``triton/elementwise.py``."""
        causal, dropout = visibility.order == "causal", self.active_dropout
        if not can_run(query, key, value, visibility, bias) or not is_trusted(
            self.rule, query, value, causal=causal, dropout=dropout
        ):
            return None
        from seqarena.common.attention.triton.operators import attend_elementwise  # noqa: PLC0415  # needs Triton

        return attend_elementwise(self.rule, query, key, value, visibility, dropout)

    def features(
        self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None
    ) -> Output | None:
        """Returns x^1 and x^2 by products of features; None for the others, and where the scores are less work."""
        if not pays(self.rule.power, query.shape[-1], key.shape[2]):
            return None
        return self.by_features(query, key, value, visibility, bias)

    def by_features(
        self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None
    ) -> Output | None:
        """As ``features``, at any length; None where there are none: dropout, bias, segments, window, another power."""
        if (
            self.rule.phi != "x"
            or self.rule.power > 2
            or self.active_dropout
            or bias is not None
            or visibility.segments is not None
            or visibility.window is not None
        ):
            return None
        wide = torch.promote_types(query.dtype, torch.float32)
        flat = [each.to(wide).flatten(0, 1) for each in visibility.cleared(query, key, value)]
        (batch, _, queries, head_dim), keys = query.shape, key.shape[2]
        own = queries if visibility.order == "causal" else 0
        output = power_features(flat[0] * head_dim**-0.5, flat[1], flat[2], self.rule.power, own)
        counts = visibility.counts(batch, queries, keys, query.device).to(wide)  # B N
        divisor = self.rule.row_divisor(counts)[:, None, :, None]
        scaled: Tensor = output.view(*query.shape[:3], -1) / divisor  # of nothing but padding: 0 already
        return scaled.to(value.dtype)

"""Elementwise activations in place of the softmax (P1): phi(s_ij)^power over a scale."""

import math
import warnings
from dataclasses import dataclass, field

import torch
from torch import Tensor

from seqarena.common.attention import conditions, reference
from seqarena.common.attention.activations import PHI, ElementwiseRule, Phi
from seqarena.common.attention.base import AttentionConfig, Implementation, Kernel
from seqarena.common.attention.conditions import Inputs
from seqarena.common.attention.features import power_features
from seqarena.common.attention.triton.self_test import fault_of
from seqarena.common.attention.visibility import Visibility, needs_formula
from seqarena.common.errors import WrongUseError
from seqarena.common.runs.roles import added
from seqarena.common.shapes import Bias, ColumnLse, EarlierLse, Key, Output, Pairs, Query, Scores, Value, Weights


@dataclass(frozen=True, kw_only=True)
class Elementwise(AttentionConfig):
    """Elementwise attention without normalisation over keys: pi_ij = phi(s_ij)^power / scale.

    P1 gives no scale for the activations relu, elu, gelu, tanh and exp; here it is sqrt(N). P1 prints Exp as exp(-x),
    but describes it as the softmax without its row normalisation; here it is exp(x).
    """

    phi: Phi = "x"
    """Activation of the scores; x is the identity."""
    power: int = 1
    """Exponent of the activated scores."""
    scale: float | None = None
    """Divisor of the weights; none: a power of N, the number of keys visible to the query."""
    length_exponent: float = field(default=0.5, metadata=added(4))
    """Exponent of N if there is no scale. 0.5: P1; 1: Wortsman et al. 2023, "Replacing softmax with ReLU"."""

    def __post_init__(self) -> None:
        if self.power < 1 or (self.scale is not None and not self.scale > 0):
            raise WrongUseError(f"expected power >= 1 and scale > 0; found power {self.power}, scale {self.scale}")
        if self.scale is not None and self.length_exponent != 0.5:
            raise WrongUseError("length_exponent belongs to weights without a scale: set scale to none")

    @property
    def formula(self) -> str:
        """The weights as text: ``pi_ij = s_ij^3 / sqrt(N)``."""
        activated = "s_ij" if self.phi == "x" else f"{self.phi}(s_ij)"
        power = f"^{self.power}" if self.power > 1 else ""
        if self.scale is None:
            names = {0.0: "", 0.5: " / sqrt(N)", 1.0: " / N"}
            divisor = names.get(self.length_exponent, f" / N^{self.length_exponent:g}")
        else:
            divisor = "" if self.scale == 1 else f" / {self.scale:g}"
        return f"pi_ij = {activated}{power}{divisor}"

    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        """Returns the kernel."""
        return ElementwiseKernel(self, dropout)


class ElementwiseKernel(Kernel):
    """Kernel of phi(s_ij)^power / scale."""

    rule: ElementwiseRule

    def __init__(self, config: Elementwise, dropout: float) -> None:
        super().__init__(config, dropout)
        self.warned = False
        self.rule = ElementwiseRule(
            phi=config.phi, power=config.power, scale=config.scale, length_exponent=config.length_exponent
        )

    def normalize(
        self, scores: Scores, visible: Pairs, visibility: Visibility, state: EarlierLse | None
    ) -> tuple[Weights, ColumnLse | None]:
        """Returns the weights, which may be negative; there is no state."""
        phi = PHI[self.rule.phi].apply
        return reference.elementwise(
            scores, visible, phi, self.rule.power, self.rule.scale, self.rule.length_exponent
        ), None

    def forward(self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None = None) -> Output:
        """Returns sum_j pi_ij value_j; warns once if it overflows float16, with a scale that would avoid this."""
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
                    f"attention phi={self.rule.phi}, power={self.rule.power}: outputs overflow float16; use a scale of "
                    f"at least {1.1 * needed * divisor:.3g} (now {divisor:.3g}), or bfloat16",
                    stacklevel=2,
                )
        return output

    def limitation(self, implementation: Implementation, inputs: Inputs) -> str | None:
        """Returns the reason why an implementation does not support a call, or None."""
        match implementation:
            case "features":
                reason = conditions.features(inputs, self.rule.phi, self.rule.power)
                slow = conditions.many_launches(inputs, self.rule.power)
                return slow if reason is None and slow and self.limitation("triton", inputs) is None else reason
            case "triton":
                return conditions.triton_with_bias(inputs) or fault_of(self.rule, inputs)
            case _:
                return conditions.ABSENT

    def triton(
        self, state: EarlierLse | None, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None
    ) -> tuple[Output, ColumnLse | None]:
        """Computes the output by the kernels in ``triton/elementwise.py``; there is no state."""
        from seqarena.common.attention.triton.operators import attend_elementwise  # noqa: PLC0415  # needs Triton

        return attend_elementwise(self.rule, query, key, value, visibility, bias, self.active_dropout), None

    def features(self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None) -> Output:
        """Computes the output of x^1 and x^2 by products of features."""
        wide = torch.promote_types(query.dtype, torch.float32)
        flat = [each.to(wide).flatten(0, 1) for each in visibility.clear(query, key, value)]
        (batch, _, queries, head_dim), keys = query.shape, key.shape[2]
        own = queries if visibility.order == "causal" else 0
        output = power_features(flat[0] * head_dim**-0.5, flat[1], flat[2], self.rule.power, own)
        counts = visibility.counts(batch, queries, keys, query.device).to(wide)  # B N
        divisor = self.rule.row_divisor(counts)[:, None, :, None]
        scaled: Tensor = output.view(*query.shape[:3], -1) / divisor  # rows without visible keys are 0 already
        return scaled.to(value.dtype)

"""Softmax attention with one fault each, as people make them, and the check of ``seqarena verify`` that names it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqarena.common.attention.base import AttentionConfig, Kernel
from seqarena.common.attention.reference import scaled_scores
from seqarena.common.attention.visibility import ORDERS, Order, Visibility


@dataclass(frozen=True, kw_only=True)
class Faulty(AttentionConfig):
    """Softmax with a fault."""

    fault: str = "none"
    declared: tuple[str, ...] = ORDERS
    steps: tuple[str, ...] | None = None
    sums: bool = False
    hides: bool = False

    @property
    def orders(self) -> tuple[Order, ...]:
        return self.declared  # type: ignore[return-value]

    @property
    def stepwise(self) -> tuple[Order, ...]:
        return self.declared if self.steps is None else self.steps  # type: ignore[return-value]

    @property
    def sums_over_queries(self) -> bool:
        return self.sums

    @property
    def bias_hides(self) -> bool:
        return self.hides

    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        return next(each.kernel for each in FAULTS if each.name == self.fault)(self, heads, dropout)


class Plain(Kernel):
    """Softmax from its formula, without a fault."""

    def __init__(self, config: Faulty, heads: int, dropout: float) -> None:
        super().__init__(config, dropout)
        self.heads = heads

    def normalize(self, scores: Tensor, visible: Tensor, visibility: Visibility, state: Any) -> tuple[Tensor, Any]:
        return self.formula(scores, visible, visibility), None

    def formula(self, scores: Tensor, visible: Tensor, visibility: Visibility) -> Tensor:
        scores = scores.masked_fill(~visible, -math.inf)
        lowest = torch.finfo(scores.dtype).min
        weights = (scores - scores.amax(dim=-1, keepdim=True).clamp(min=lowest).detach()).exp() * visible
        return weights / weights.sum(dim=-1, keepdim=True).clamp(min=1e-30)


Formula = Callable[[Plain, Tensor, Tensor, Visibility], Tensor]
Call = Callable[..., Tensor]


def formula(function: Formula) -> type[Plain]:
    """Returns a kernel with another formula."""
    return type("FaultyFormula", (Plain,), {"formula": function})


def output(function: Call) -> type[Plain]:
    """Returns a kernel whose output is a function of the kernel, the right output, and the arguments."""

    def forward(
        self: Plain, query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, bias: Any = None
    ) -> Tensor:
        return function(self, Plain.forward(self, query, key, value, visibility, bias), query, key, value, visibility)

    return type("FaultyOutput", (Plain,), {"forward": forward})


def call(function: Call) -> type[Plain]:
    """Returns a kernel with another ``forward``."""
    return type("FaultyCall", (Plain,), {"forward": function})


def softmax(scores: Tensor, visible: Tensor) -> Tensor:
    return Plain.formula(None, scores, visible, Visibility())  # type: ignore[arg-type]


def full(
    self: Plain, query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, bias: Any, scores: Tensor
) -> Tensor:
    """Returns the output of softmax over given scores, with dropout, on the full matrix."""
    visible = visibility.pairs(query.shape[2], key.shape[2], query.device)
    weights = F.dropout(self.formula(scores, visible, visibility), self.active_dropout)
    _, _, value = visibility.clear(query, key, value)
    return visibility.clear_output(weights.to(value.dtype) @ value)


def without(change: Callable[[Visibility], Visibility]) -> type[Plain]:
    """Returns a kernel that ignores a part of the visibility."""

    def forward(
        self: Plain, query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, bias: Any = None
    ) -> Tensor:
        query, key, value = visibility.clear(query, key, value)
        return visibility.clear_output(Plain.forward(self, query, key, value, change(visibility), bias))

    return type("FaultyVisibility", (Plain,), {"forward": forward})


def column_softmax(self: Plain, scores: Tensor, visible: Tensor, visibility: Visibility) -> Tensor:
    """Normalises over all queries first, in every order."""
    rows = softmax(scores.mT, visible.mT.expand_as(scores.mT)).mT
    return rows / rows.sum(dim=-1, keepdim=True).clamp(min=1e-30)


def padded_at_the_end(seen: Visibility) -> Visibility:
    """Reads a mask of keys as their number."""
    return seen if seen.key_real is None else replace(seen, key_real=seen.key_real.sort(descending=True).values)


def blocks_seen_whole(self: Plain, scores: Tensor, visible: Tensor, visibility: Visibility) -> Tensor:
    """Sees the second and each later block of 64 keys as a whole, as a scan over blocks with a wrong mask does."""
    block = torch.arange(scores.shape[-1]) // 64
    own = block[visibility.memory :, None]
    return softmax(scores, visible | ((own == block) & (own > 0)))


class WrongBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        return scores.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 1.01 * grad


class Trained(Plain):
    """Multiplies the scores by a parameter per head."""

    def __init__(self, config: Faulty, heads: int, dropout: float) -> None:
        super().__init__(config, heads, dropout)
        self.scale = nn.Parameter(torch.ones(heads, 1, 1))


class Untrained(Trained):
    def formula(self, scores: Tensor, visible: Tensor, visibility: Visibility) -> Tensor:
        return super().formula(scores * self.scale.detach(), visible, visibility)


class FromZero(Plain):
    def __init__(self, config: Faulty, heads: int, dropout: float) -> None:
        super().__init__(config, heads, dropout)
        self.scale = nn.Parameter(torch.zeros(()))

    def formula(self, scores: Tensor, visible: Tensor, visibility: Visibility) -> Tensor:
        return self.scale * super().formula(scores, visible, visibility)


class UnmaskedFromZero(FromZero):
    def formula(self, scores: Tensor, visible: Tensor, visibility: Visibility) -> Tensor:
        if visibility.key_real is not None:
            visible = visible | ~visibility.key_real[:, None, None, :]
        return super().formula(scores, visible, visibility)


class TrainedMixture(Trained):
    def formula(self, scores: Tensor, visible: Tensor, visibility: Visibility) -> Tensor:
        return super().formula(self.scale * (scores + 1e-2 * scores.mean(dim=1, keepdim=True)), visible, visibility)


class Random(Trained):
    def __init__(self, config: Faulty, heads: int, dropout: float) -> None:
        super().__init__(config, heads, dropout)
        self.scale = nn.Parameter(torch.randn(heads, 1, 1))

    def formula(self, scores: Tensor, visible: Tensor, visibility: Visibility) -> Tensor:
        return super().formula(scores * self.scale, visible, visibility)


class LostState(Plain):
    """Weights of each query are normalised over the earlier queries too, but the state is dropped."""

    def formula(self, scores: Tensor, visible: Tensor, visibility: Visibility) -> Tensor:
        exps = scores.masked_fill(~visible, -math.inf).exp()
        rows = exps / exps.cumsum(dim=-2).clamp(min=1e-30)
        return rows / rows.sum(dim=-1, keepdim=True).clamp(min=1e-30)

    def _check_chunks(self, query: Tensor, visibility: Visibility) -> None:
        """Whoever replaces the test of the base class loses it."""


def own_dtype(
    self: Plain, query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, bias: Any = None
) -> Tensor:
    query, key, value = visibility.clear(query, key, value)
    scores = (query @ key.mT) / query.shape[-1] ** 0.5
    return full(self, query, key, value, visibility, bias, scores if bias is None else scores + bias)


def summed_in_own_dtype(
    self: Plain, query: Tensor, key: Tensor, value: Tensor, seen: Visibility, bias: Any = None
) -> Tensor:
    """Adds the terms of each query one by one in the dtype of the inputs."""
    if value.dtype in (torch.float32, torch.float64):
        return Plain.forward(self, query, key, value, seen, bias)
    query, key, value = seen.clear(query, key, value)
    exps = scaled_scores(query, key, bias).exp() * seen.pairs(query.shape[2], key.shape[2], query.device)
    top, bottom = torch.zeros_like(query), torch.zeros_like(query[..., :1])
    for weight, term in zip(exps.to(value.dtype).unbind(-1), value.unbind(-2), strict=True):
        top, bottom = top + weight[..., None] * term[:, :, None], bottom + weight[..., None]
    return top / bottom


def on_full_matrix(
    self: Plain, query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, bias: Any = None
) -> Tensor:
    query, key, value = visibility.clear(query, key, value)
    return full(self, query, key, value, visibility, bias, scaled_scores(query, key, bias))


def unscaled_dropout(self: Plain, right: Tensor, *_: Any) -> Tensor:
    return right * (1 - self.active_dropout)


def always_dropout(self: Plain, scores: Tensor, visible: Tensor, visibility: Visibility) -> Tensor:
    return F.dropout(softmax(scores, visible), self.dropout)


def in_place(
    self: Plain, query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, bias: Any = None
) -> Tensor:
    with torch.no_grad():
        query.mul_(1.0 + 1e-6)
    return Plain.forward(self, query, key, value, visibility, bias)


def leaking_mean(self: Plain, right: Tensor, query: Tensor, key: Tensor, value: Tensor, seen: Visibility) -> Tensor:
    if seen.order != "causal" or seen.segments is not None:
        return right
    _, _, value = seen.clear(query, key, value)
    count = value.shape[2] if seen.key_real is None else seen.key_real.sum(dim=1)[:, None, None, None].clamp(min=1)
    return seen.clear_output(right + 1e-4 * value.sum(dim=2, keepdim=True) / count)


def mean_centred(
    self: Plain, query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, bias: Any = None
) -> Tensor:
    centre = query.nan_to_num(0.0, 0.0, 0.0).mean(dim=2, keepdim=True)
    return Plain.forward(self, query - centre, key, value, visibility, bias)


def not_cleared(
    self: Plain, query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, bias: Any = None
) -> Tensor:
    query, key, value = visibility.clear(query, key, value)
    return Plain.forward(self, query, key, value, replace(visibility, query_real=None), bias)


def branch_on_data(self: Plain, right: Tensor, *_: Any) -> Tensor:
    return right if bool(right.sum() > 1e30) else right.clone()


def one_key_more(self: Plain, scores: Tensor, visible: Tensor, visibility: Visibility) -> Tensor:
    seen = visible | F.pad(visible, (1, 0))[..., :-1]
    return softmax(scores, seen if visibility.key_real is None else seen & visibility.key_real[:, None, None, :])


def detached_sum(self: Plain, scores: Tensor, visible: Tensor, visibility: Visibility) -> Tensor:
    exps = scores.masked_fill(~visible, -math.inf).exp()
    return exps / exps.sum(dim=-1, keepdim=True).detach().clamp(min=1e-30)


class Fault(NamedTuple):
    """A fault, and the first check that must fail."""

    name: str
    check: str
    kernel: type[Plain]
    config: Mapping[str, Any] = MappingProxyType({})


FAULTS = (
    Fault("none", "", Plain),
    Fault("a mask by -1e4", "padded keys", formula(
        lambda self, scores, visible, visibility: torch.softmax(scores.masked_fill(~visible, -1e4), dim=-1))),
    Fault("keys are not masked", "padded keys", without(lambda seen: replace(seen, key_real=None))),
    Fault("padded keys are counted", "padded keys", formula(
        lambda self, scores, visible, visibility: torch.softmax(
            scores.masked_fill(~visible & (scores.new_zeros(1) < 0), 0.0), dim=-1) * visible)),
    Fault("length instead of visible keys", "padded keys", formula(
        lambda self, scores, visible, visibility: scores.sigmoid() * visible / scores.shape[-1])),
    Fault("NaN times 0", "padded keys", call(
        lambda self, query, key, value, visibility, bias=None: visibility.clear_output(
            self.weights(query, key, visibility, bias).to(value.dtype) @ value))),
    Fault("padding is taken to be at the end", "padded keys", without(padded_at_the_end)),
    Fault("queries are not masked", "padded queries", call(not_cleared)),
    Fault("a sum over padded queries", "padded queries", call(mean_centred), {"sums": True, "declared": ("none",)}),
    Fault("NaN in empty rows", "empty rows", formula(
        lambda self, scores, visible, visibility: torch.softmax(scores.masked_fill(~visible, -math.inf), dim=-1))),
    Fault("causal order is ignored", "the future", without(
        lambda seen: replace(seen, order="none", memory=0, window=None))),
    Fault("one key too many", "the future", formula(one_key_more)),
    Fault("blocks of 64 are seen whole", "the future", formula(blocks_seen_whole), {"declared": ("causal",)}),
    Fault("a mean over all values", "the future", output(leaking_mean)),
    Fault("columns normalised over later queries", "the future", formula(column_softmax), {"sums": True, "steps": ()}),
    Fault("an undeclared sum over queries", "other queries", formula(column_softmax),
          {"declared": ("none",), "steps": ()}),
    Fault("a sum that is declared, but absent", "other queries", Plain, {"sums": True}),
    Fault("segments are ignored", "segments", without(lambda seen: replace(seen, segments=None))),
    Fault("the window is ignored", "window", without(lambda seen: replace(seen, window=None))),
    Fault("the window is one too wide", "window", without(
        lambda seen: replace(seen, window=seen.window and seen.window + 1))),
    Fault("the state is lost", "step by step", LostState, {"declared": ("causal",), "sums": True}),
    Fault("other weights than the output's", "weights", output(
        lambda self, right, *_: 1.01 * right)),
    Fault("the bias is ignored", "bias", call(
        lambda self, query, key, value, visibility, bias=None: Plain.forward(self, query, key, value, visibility))),
    Fault("the bias is added twice", "bias", call(
        lambda self, query, key, value, visibility, bias=None: Plain.forward(
            self, query, key, value, visibility, None if bias is None else 2 * bias))),
    Fault("a bias cannot hide", "bias", formula(
        lambda self, scores, visible, visibility: scores.sigmoid().add(0.1) * visible), {"hides": True}),
    Fault("a wrong backward", "gradients", formula(
        lambda self, scores, visible, visibility: softmax(WrongBackward.apply(scores), visible))),
    Fault("a detached sum", "gradients", formula(detached_sum)),
    Fault("the gradient of the bias is cut", "gradients", call(
        lambda self, query, key, value, visibility, bias=None: Plain.forward(
            self, query, key, value, visibility, None if bias is None else bias.detach()))),
    Fault("overflow in float16", "half precision", call(own_dtype)),
    Fault("the output is float32", "half precision", output(
        lambda self, right, *_: right.float() if right.dtype != torch.float64 else right)),
    Fault("sums in half precision", "half precision", call(summed_in_own_dtype)),
    Fault("dropout in evaluation", "dropout", formula(always_dropout)),
    Fault("dropout without rescaling", "dropout", output(unscaled_dropout)),
    Fault("a parameter that is never trained", "parameters", Untrained),
    Fault("random initial values", "config", Random),
    Fault("a head_dim of 1 fails", "sizes", output(
        lambda self, right, query, *_: right / (query.shape[-1] > 1))),
    Fault("as many keys as queries", "sizes", output(
        lambda self, right, query, key, *_: right + 0 * key if query.shape[2] != key.shape[2] else right)),
    Fault("batch normalisation", "batches and heads", output(
        lambda self, right, *_: right - 1e-3 * right.mean(dim=0, keepdim=True)), {"declared": ("none",)}),
    Fault("a constant of each head, which is no fault", "", formula(
        lambda self, scores, visible, visibility: softmax(
            scores * torch.arange(1, self.heads + 1, dtype=scores.dtype)[:, None, None], visible))),
    Fault("heads are mixed", "batches and heads", output(
        lambda self, right, *_: right + 1e-3 * right.roll(1, dims=1))),
    Fault("heads are mixed, with a parameter", "batches and heads", TrainedMixture),
    Fault("heads are mixed where weights are dropped", "batches and heads", formula(
        lambda self, scores, visible, visibility: softmax(
            scores.mean(dim=1, keepdim=True).expand_as(scores) if self.active_dropout else scores, visible))),
    Fault("a trained factor that begins at 0, which is no fault", "", FromZero),
    Fault("padding is not masked, behind a factor of 0", "padded keys", UnmaskedFromZero),
    Fault("noise", "repeated calls", output(
        lambda self, right, *_: right + 1e-6 * torch.randn_like(right))),
    Fault("another formula in training", "repeated calls", output(
        lambda self, right, *_: 1.01 * right if self.training else right)),
    Fault("an input is changed in place", "repeated calls", call(in_place)),
    Fault("a branch on the data", "compilation", output(branch_on_data)),
    Fault("the full matrix is stored", "memory", call(on_full_matrix)),
)  # fmt: skip
"""Each fault, with the config in which it is planted."""


@dataclass(frozen=True, kw_only=True)
class NotJson(Faulty):
    """A config with a value that JSON does not have."""

    table: Any = field(default_factory=lambda: {1, 2})

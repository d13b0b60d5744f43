"""Token mixers with one fault each, and the check of ``seqarena verify`` that names it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from seqarena.common.attention.mixer import LayerShape, MixerConfig, TokenMixer
from seqarena.common.attention.module import MultiHeadAttention, kernel_attention
from seqarena.common.attention.softmax import Softmax
from seqarena.common.attention.visibility import CallOption, Order, Visibility
from tests.scripts.faulty import WrongBackward


@dataclass(frozen=True, kw_only=True)
class FaultyMixer(MixerConfig):
    """Multi-head softmax attention as a token mixer, with a fault."""

    fault: str = "none"
    declared: tuple[str, ...] = ("none", "causal")
    options: tuple[str, ...] = ("padding", "dropout", "segments", "window")

    @property
    def orders(self) -> tuple[Order, ...]:
        return self.declared  # type: ignore[return-value]

    @property
    def supports(self) -> tuple[CallOption, ...]:
        return self.options  # type: ignore[return-value]

    def build_mixer(self, shape: LayerShape) -> TokenMixer:
        return next(each.mixer for each in MIXER_FAULTS if each.name == self.fault)(self, shape)


class PlainMixer(TokenMixer):
    """Without a fault."""

    def __init__(self, config: FaultyMixer, shape: LayerShape) -> None:
        super().__init__(config)
        self.attention: MultiHeadAttention = kernel_attention(Softmax(), shape)
        self.scale = nn.Parameter(torch.ones(shape.dim))

    def mix(self, hidden: Tensor, visibility: Visibility) -> Tensor:
        output: Tensor = self.scale * self.attention(hidden, visibility)
        return output


Mix = Callable[[PlainMixer, Tensor, Visibility], Tensor]


def mix(function: Mix) -> type[PlainMixer]:
    """Returns a mixer with another ``mix``."""
    return type("OtherMix", (PlainMixer,), {"mix": function})


def output(function: Callable[[PlainMixer, Tensor, Tensor], Tensor]) -> type[PlainMixer]:
    """Returns a mixer whose output is a function of the mixer, the right output, and the hidden states."""
    return mix(lambda self, hidden, seen: function(self, PlainMixer.mix(self, hidden, seen), hidden))


def without(change: Callable[[Visibility], Visibility]) -> type[PlainMixer]:
    """Returns a mixer that ignores a part of the visibility."""
    return mix(lambda self, hidden, seen: PlainMixer.mix(self, hidden, change(seen)))


class NeverRefused(PlainMixer):
    def forward(self, hidden: Tensor, visibility: Visibility) -> Tensor:
        return self.mix(hidden, replace(visibility, segments=None))


class NoDropout(PlainMixer):
    def __init__(self, config: FaultyMixer, shape: LayerShape) -> None:
        super().__init__(config, replace(shape, dropout=0.0))


class BatchNorm(PlainMixer):
    """The statistics of a batch contain other examples and later tokens, in training alone."""

    def __init__(self, config: FaultyMixer, shape: LayerShape) -> None:
        super().__init__(config, shape)
        self.norm = nn.BatchNorm1d(shape.dim)

    def mix(self, hidden: Tensor, visibility: Visibility) -> Tensor:
        output: Tensor = self.norm(super().mix(hidden, visibility).mT).mT
        return output


class OwnTable(PlainMixer):
    """A table by position that has the length of the longest sequence, and is not cut."""

    def __init__(self, config: FaultyMixer, shape: LayerShape) -> None:
        super().__init__(config, shape)
        self.table = nn.Parameter(torch.zeros(shape.length, shape.dim))

    def mix(self, hidden: Tensor, visibility: Visibility) -> Tensor:
        return super().mix(hidden + self.table, visibility)


class OwnWidth(PlainMixer):
    """Takes the width of the stream for that of the heads."""

    def __init__(self, config: FaultyMixer, shape: LayerShape) -> None:
        super().__init__(config, shape)
        self.gate = nn.Linear(shape.dim, shape.dim)

    def mix(self, hidden: Tensor, visibility: Visibility) -> Tensor:
        attention, gate = self.attention, self.gate(hidden).sigmoid().unflatten(2, (self.attention.heads, -1))
        heads = attention.kernel(attention.project_query(hidden), *attention.project_key_value(hidden), visibility)
        return self.scale * attention.merge_heads(heads * gate.transpose(1, 2))


def in_place(self: PlainMixer, hidden: Tensor, visibility: Visibility) -> Tensor:
    with torch.no_grad():
        hidden.mul_(1.0 + 1e-6)
    return PlainMixer.mix(self, hidden, visibility)


def mask_by_number(self: PlainMixer, hidden: Tensor, visibility: Visibility) -> Tensor:
    """A mask by -1e9, which float16 does not have."""
    attended: Tensor = self.attention(hidden, visibility)
    return self.scale * attended.masked_fill(attended == 77.0, -1e9)


def mean_of_all(self: PlainMixer, right: Tensor, hidden: Tensor) -> Tensor:
    count = (hidden != 0).any(dim=-1).sum(dim=1)[:, None, None]  # padding is 0
    return right + 1e-3 * hidden.sum(dim=1, keepdim=True) / count


class MixerFault(NamedTuple):
    """A fault, and the first check that must fail."""

    name: str
    check: str
    mixer: type[PlainMixer]
    config: Mapping[str, Any] = MappingProxyType({})


WHOLE = MappingProxyType({"options": ("padding", "dropout")})
MIXER_FAULTS = (
    MixerFault("none", "", PlainMixer),
    MixerFault("causal order is ignored", "the future", without(lambda seen: replace(seen, order="none", window=None))),
    MixerFault("a mean over all tokens", "the future", output(mean_of_all), WHOLE),
    MixerFault("a mean over all tokens of long sequences", "the future", output(
        lambda self, right, hidden: mean_of_all(self, right, hidden) if hidden.shape[1] > 16 else right), WHOLE),
    MixerFault("padding is not masked", "padded keys", without(lambda seen: replace(seen, key_real=None))),
    MixerFault("padding of the first example", "padded keys", without(
        lambda seen: seen if seen.key_real is None else replace(seen, key_real=seen.key_real[:1].expand_as(
            seen.key_real)))),
    MixerFault("padding is counted", "padded keys", output(
        lambda self, right, hidden: right + 1e-3 * hidden.mean(dim=1, keepdim=True)),
        {"declared": ("none",), **WHOLE}),
    MixerFault("a parameter that is never trained", "parameters", mix(
        lambda self, hidden, seen: self.scale.detach() * self.attention(hidden, seen))),
    MixerFault("nothing is trained", "parameters", output(lambda self, right, hidden: right.detach())),
    MixerFault("batch normalisation", "batches and heads", output(
        lambda self, right, hidden: right - 1e-3 * right.mean(dim=0, keepdim=True))),
    MixerFault("the statistics of the batch", "repeated calls", BatchNorm),
    MixerFault("another formula in training", "repeated calls", output(
        lambda self, right, hidden: 1.01 * right if self.training else right)),
    MixerFault("noise", "repeated calls", output(
        lambda self, right, hidden: right + 1e-6 * torch.randn_like(right))),
    MixerFault("dropout in evaluation", "repeated calls", output(
        lambda self, right, hidden: nn.functional.dropout(right, 0.3))),
    MixerFault("the input is changed in place", "repeated calls", mix(in_place)),
    MixerFault("segments are ignored", "segments", without(lambda seen: replace(seen, segments=None))),
    MixerFault("the window is ignored", "window", without(lambda seen: replace(seen, window=None))),
    MixerFault("the window is one too wide", "window", without(
        lambda seen: replace(seen, window=seen.window and seen.window + 1))),
    MixerFault("is never refused", "refusals", NeverRefused, {"options": ("padding", "window")}),
    MixerFault("a wrong backward", "gradients", output(lambda self, right, hidden: WrongBackward.apply(right))),
    MixerFault("a wrong gradient of a parameter", "gradients", mix(
        lambda self, hidden, seen: (self.scale + self.scale.detach()) / 2 * self.attention(hidden, seen))),
    MixerFault("a number that float16 does not have", "half precision", mix(mask_by_number)),
    MixerFault("dropout is ignored", "dropout", NoDropout),
    MixerFault("a table is not cut", "sizes", OwnTable),
    MixerFault("the width of the stream for that of the heads", "sizes", OwnWidth),
    MixerFault("a branch on the data", "compilation", output(
        lambda self, right, hidden: right if bool(right.sum() > 1e30) else right.clone())),
)  # fmt: skip
"""Each fault, with the config in which it is planted."""

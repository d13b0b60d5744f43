"""Variants without a matrix of weights with one fault each, and the check of ``seqarena verify`` that names it."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from seqarena.common.attention.base import Kernel
from seqarena.common.attention.direct import DirectConfig, DirectKernel
from seqarena.common.attention.visibility import CallOption, Visibility


@dataclass(frozen=True, kw_only=True)
class DirectFaulty(DirectConfig):
    """A mean of all visible values, without a matrix of weights, with a fault."""

    fault: str = "none"
    options: tuple[str, ...] = ("padding",)

    @property
    def supports(self) -> tuple[CallOption, ...]:
        return self.options  # type: ignore[return-value]

    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        kind = {"counts padding": CountsPadding, "is never refused": NeverRefused}.get(self.fault, MeanKernel)
        return kind(self, dropout)


class MeanKernel(DirectKernel):
    def attend(self, query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, bias: Any) -> Tensor:
        real = torch.ones(value.shape[0], value.shape[2]) if visibility.key_real is None else visibility.key_real
        gate = (query.sum(dim=-1, keepdim=True) + key.sum(dim=(2, 3), keepdim=True)).sigmoid()
        return gate * value.sum(dim=2, keepdim=True) / real.sum(dim=1).clamp(min=1)[:, None, None, None]


class CountsPadding(MeanKernel):
    def attend(self, query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, bias: Any) -> Tensor:
        return super().attend(query, key, value, replace(visibility, key_real=None), bias)


class NeverRefused(MeanKernel):
    def check(self, visibility: Visibility, bias: Any, **tensors: Any) -> None:
        """Accepts everything."""


DIRECT_FAULTS = (
    (DirectFaulty(), ""),
    (DirectFaulty(fault="counts padding"), "padded keys"),
    (DirectFaulty(fault="is never refused"), "refusals"),
    (DirectFaulty(options=("padding", "bias")), "bias"),
    (DirectFaulty(options=("padding", "segments")), "segments"),
    (DirectFaulty(options=("padding", "dropout")), "dropout"),
)
"""Variants without a matrix of weights, and the first check that must fail."""

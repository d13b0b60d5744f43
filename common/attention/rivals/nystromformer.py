"""Nystromformer (Xiong et al. 2021, arXiv 2102.03902): attention through landmarks, in linear time and memory."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqarena.common.attention.base import Kernel
from seqarena.common.attention.direct import DirectConfig, DirectKernel
from seqarena.common.attention.reference import lowest
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import Bias, Key, Output, Query, Value


@dataclass(frozen=True, kw_only=True)
class Nystromformer(DirectConfig):
    """Nystromformer: softmax(Q L_K^T) pinv(softmax(L_Q L_K^T)) softmax(L_Q K^T) V, L_Q and L_K means of segments.

    A convolution of the values over time is added, as in the authors' LRA runs. Departures: segments are of real tokens
    only, so that padding changes nothing; the first guess of the inverse is scaled for each matrix, not by the largest
    one of the batch; sequences no longer than the landmarks are approximated too (the authors' code switches to
    softmax). Only without an order: landmarks are means over later tokens too.
    """

    landmarks: int = 64
    """Number of segments."""
    convolution: int | None = 35
    """Width of the convolution, odd; none: without it."""
    iterations: int = 6
    """Iterations that approximate the inverse."""

    def __post_init__(self) -> None:
        if self.landmarks < 1 or self.iterations < 1:
            raise WrongUseError(
                f"expected landmarks and iterations of at least 1, found {self.landmarks}, {self.iterations}"
            )
        if self.convolution is not None and (self.convolution < 1 or self.convolution % 2 == 0):
            raise WrongUseError(f"convolution: expected an odd width, found {self.convolution}")

    @property
    def sums_over_queries(self) -> bool:
        """True: the landmarks are means over queries."""
        return True

    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        """Returns the kernel, with the weights of the convolution as parameters."""
        return NystromformerKernel(self, heads, dropout)


class NystromformerKernel(DirectKernel):
    """Kernel of Nystromformer."""

    def __init__(self, config: Nystromformer, heads: int, dropout: float) -> None:
        super().__init__(config, dropout)
        self.landmarks, self.iterations = config.landmarks, config.iterations
        self.convolution: nn.Conv2d | None = None
        if config.convolution is not None:
            self.heads = heads
            size = (config.convolution, 1)
            # All other weights of a model begin as under any other variant.
            with torch.random.fork_rng(devices=[]):
                self.convolution = nn.Conv2d(
                    heads, heads, size, padding=(config.convolution // 2, 0), bias=False, groups=heads
                )

    def attend(self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None) -> Output:
        """Returns the output."""
        scale = query.shape[-1] ** -0.25
        query, key = query * scale, key * scale
        query_means, query_used = _segment_means(query, visibility.query_real, self.landmarks)
        key_means, key_used = _segment_means(key, visibility.key_real, self.landmarks)
        key_real = None if visibility.key_real is None else visibility.key_real[:, None, None, :]
        to_means = _softmax(query @ key_means.mT, key_used.mT)
        between = _softmax(query_means @ key_means.mT, key_used.mT) * query_used
        from_means = _softmax(query_means @ key.mT, key_real) * query_used
        output = to_means @ (_inverse(between, self.iterations) @ (from_means @ value))
        if self.convolution is not None:
            smoothed = F.conv2d(value, self.convolution.weight.to(value.dtype), None, 1, self.convolution.padding, 1,
                                self.convolution.groups)  # fmt: skip
            length = min(smoothed.shape[2], output.shape[2])
            output = output + F.pad(smoothed[:, :, :length], (0, 0, 0, output.shape[2] - length))
        return output


def _segment_means(tokens: Tensor, real: Tensor | None, landmarks: int) -> tuple[Tensor, Tensor]:
    """Returns the means of segments of real tokens, B H L D, and which segments have any, B 1 L 1."""
    if real is None:
        real = torch.ones(tokens.shape[0], tokens.shape[2], dtype=torch.bool, device=tokens.device)
    position, count = real.cumsum(dim=1) - 1, real.sum(dim=1, keepdim=True)
    segment = torch.div(position * landmarks, count.clamp(min=1), rounding_mode="floor")
    # Fewer tokens than landmarks: one token each.
    segment = torch.where(count <= landmarks, position, segment)
    member = (segment[:, None, :] == torch.arange(landmarks, device=tokens.device)[:, None]) & real[:, None, :]  # B L N
    sizes = member.sum(dim=2)[:, None, :, None]
    means = (member.to(tokens.dtype)[:, None] @ tokens) / sizes.clamp(min=1)
    return means, sizes > 0


def _softmax(scores: Tensor, seen: Tensor | None) -> Tensor:
    """Returns the softmax over the last axis, 0 where ``seen`` is False."""
    if seen is None:
        return scores.softmax(dim=-1)
    return scores.masked_fill(~seen, lowest(scores)).softmax(dim=-1) * seen


def _inverse(matrix: Tensor, iterations: int) -> Tensor:
    """Returns an approximation of the pseudo-inverse by the authors' iteration (Razavi et al. 2014)."""
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    sums = matrix.sum(dim=-2).amax(dim=-1), matrix.sum(dim=-1).amax(dim=-1)
    found = matrix.mT / (sums[0] * sums[1]).clamp(min=torch.finfo(matrix.dtype).tiny)[..., None, None]
    for _ in range(iterations):
        product = matrix @ found
        found = 0.25 * found @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product)))
    return found

"""Performer: the softmax kernel by positive orthogonal random features (Choromanski et al. 2020, arXiv 2009.14794)."""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from seqarena.common.attention.base import Kernel
from seqarena.common.attention.rivals.linear import FeatureConfig, FeatureKernel
from seqarena.common.attention.tiles import blocks
from seqarena.common.attention.visibility import Visibility, needs_formula
from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import Bias, Key, Output, Query, Value

BLOCK = 16
"""Queries per block where features underflow: each pair within a block takes memory for all features."""


@dataclass(frozen=True, kw_only=True)
class Performer(FeatureConfig):
    """Performer: softmax estimated by exp(w_r . x - |x|^2 / 2) of x = q / d^1/4 and x = k / d^1/4, w_r random.

    The authors draw the vectors w_r anew from time to time and add a small constant to the features. Here they are a
    function of ``seed``, the same in all layers, and nothing is added, so that runs can be repeated. Causal sums are in
    float64.

    In order ``causal``, features of keys that are all longer than about 36 d^1/4 underflow. On a CPU, these outputs are
    computed from logarithms; on a GPU and in a compiled model they are NaN.
    """

    features: int = 256
    """Number of random vectors."""
    seed: int = 0
    """Seed of the random vectors."""

    def __post_init__(self) -> None:
        if self.features < 1:
            raise WrongUseError(f"features: expected at least 1, found {self.features}")

    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        """Returns the kernel."""
        return PerformerKernel(self, dropout)


class PerformerKernel(FeatureKernel):
    """Kernel with positive random features."""

    has_zero_sums = False

    def __init__(self, config: Performer, dropout: float) -> None:
        super().__init__(config, dropout)
        self.count, self.seed = config.features, config.seed

    def attend(self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None) -> Output:
        """Returns the output; see ``Performer`` for very long keys."""
        output = super().attend(query, key, value, visibility, bias)
        cannot_wait = output.is_cuda or torch.compiler.is_compiling() or needs_formula()
        if cannot_wait or visibility.order != "causal" or not bool((is_lost := output.isnan()).any()):
            return output
        of_query, of_key, _ = self._logarithms(query, key, visibility)
        return torch.where(is_lost, _causal_from_logarithms(of_query, of_key, value, visibility), output)

    def feature_map(self, query: Query, key: Key, visibility: Visibility) -> tuple[Tensor, Tensor]:
        """Returns the features, divided by a factor that the normalisation of the weights cancels."""
        of_query, of_key, directions = self._logarithms(query, key, visibility)
        # A factor exp(c_r) of the query's feature r and exp(-c_r) of the keys' cancels. Neither overflows; the keys'
        # underflow where all keys are very long, see ``attend``.
        if visibility.order == "causal":
            # The largest key may be a later one, but w . k - |k|^2 / 2 = |w|^2 / 2 - |w - k|^2 / 2. The features of a
            # key are exp(-|w - k|^2 / 2), about exp(-d / 2) for a small key.
            largest = directions.square().sum(dim=-1) / 2
        else:
            largest = of_key.amax(dim=-2, keepdim=True).detach()
        of_query = of_query + largest
        return (of_query - of_query.amax(dim=-1, keepdim=True).detach()).exp(), (of_key - largest).exp()

    def _logarithms(self, query: Query, key: Key, visibility: Visibility) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the logarithms of both features, and the random vectors; padded keys have the lowest numbers."""
        width = query.shape[-1]
        if visibility.order == "causal":  # float32 would underflow, see ``feature_map``
            query, key = query.double(), key.double()
        draw = directions_like if needs_formula() else random_directions
        directions = draw(query.detach(), width, self.count, self.seed)  # F D
        query, key = query * width**-0.25, key * width**-0.25
        of_query, of_key = (each @ directions.mT - each.square().sum(-1, keepdim=True) / 2 for each in (query, key))
        if visibility.key_real is not None:
            of_key = of_key.masked_fill(~visibility.key_real[:, None, :, None], torch.finfo(query.dtype).min / 4)
        return of_query, of_key, directions


def _causal_from_logarithms(of_query: Tensor, of_key: Tensor, value: Tensor, visibility: Visibility) -> Output:
    """Returns causal outputs (B H N E), given the logarithms of the features, B H N F and B H M F.

    The sums over earlier keys are divided by the largest features so far. Those within a block are computed by pairs.
    """
    value = F.pad(value.to(of_key.dtype), (0, 1), value=1.0)  # the last column becomes the sum of the weights
    lowest, tiny = torch.finfo(of_key.dtype).min / 4, torch.finfo(of_key.dtype).tiny
    keys, found, done = of_key.shape[2], list[Tensor](), 0
    real = of_key.new_ones(len(of_key), keys) if visibility.key_real is None else visibility.key_real.to(of_key.dtype)
    top = of_key.new_full((*of_key.shape[:2], 1, of_key.shape[3]), lowest)
    sums = of_key.new_zeros(*of_key.shape[:2], of_key.shape[3], value.shape[3])
    for rows in blocks(of_query.shape[2], BLOCK):
        first, stop = visibility.memory + rows.start, visibility.memory + rows.stop
        if first > done:
            earlier, before = of_key[:, :, done:first], top
            top = torch.maximum(before, earlier.detach().amax(dim=2, keepdim=True))
            features = (earlier - top).exp() * real[:, None, done:first, None]
            sums = sums * (before - top).exp().mT + features.mT @ value[:, :, done:first]
            done = first
        seen = of_key.new_ones(stop - first, stop - first).tril() * real[:, None, None, first:stop]
        near = (of_query[:, :, rows, None] + of_key[:, :, None, first:stop]).logsumexp(dim=-1)  # B H R R
        far = of_query[:, :, rows] + top
        largest = torch.maximum(
            far.amax(dim=-1, keepdim=True), near.masked_fill(seen == 0, lowest).amax(dim=-1, keepdim=True)
        )
        near = (near - largest.detach()).clamp(max=0.0).exp() * seen
        total = (far - largest.detach()).exp() @ sums + near @ value[:, :, first:stop]
        found.append(total[..., :-1] / total[..., -1:].clamp(min=tiny))
    return torch.cat(found, dim=2)


def directions_like(like: Tensor, width: int, count: int, seed: int) -> Tensor:
    """Returns ``count`` random vectors, in the dtype and on the device of ``like``; count width.

    Each block of ``width`` vectors is orthogonal, and each vector as long as a vector of normal numbers.
    """
    return _directions(width, count, seed).to(like.device, like.dtype, copy=True)  # whoever gets it may write to it


@torch.library.custom_op("seqarena::random_directions", mutates_args=())
def random_directions(like: Tensor, width: int, count: int, seed: int) -> Tensor:
    """Returns ``directions_like`` as an operator, so that a compiled model draws the same vectors."""
    return directions_like(like, width, count, seed)


@random_directions.register_fake
def _(like: Tensor, width: int, count: int, seed: int) -> Tensor:
    del seed
    return like.new_empty(count, width)


@functools.cache
def _directions(width: int, count: int, seed: int) -> Tensor:
    with torch._C._DisableFuncTorch():  # the first call may be inside a transform, whose tensors end with it
        generator = torch.Generator().manual_seed(seed)
        blocks = list[Tensor]()
        for _ in range(-(-count // width)):
            orthogonal, upper = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))
            # The signs of R's diagonal make the directions uniform. Q alone is not, which biases the estimate.
            blocks.append((orthogonal * upper.diagonal().sign()).mT)
        lengths = torch.randn(count, width, generator=generator, dtype=torch.float64).norm(dim=1, keepdim=True)
        directions: Tensor = torch.cat(blocks)[:count] * lengths
        return directions

"""Performer: the softmax kernel by positive orthogonal random features (Choromanski et al. 2020, arXiv 2009.14794)."""

import functools
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seqarena.common.attention.base import Kernel
from seqarena.common.attention.rivals.linear import FeatureConfig, FeatureKernel
from seqarena.common.attention.visibility import Visibility, needs_formula
from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import Bias, Key, Output, Query, Value


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
        if cannot_wait or not bool((lost := output.isnan().any(dim=-1)).any()):
            return output
        of_query, of_key, _ = self._logarithms(query, key, visibility)
        seen = replace(visibility, query_real=None).pairs(query.shape[2], key.shape[2], query.device)
        seen = seen.expand(*query.shape[:2], -1, -1)
        for example, head, row in lost.nonzero().tolist():
            logits = (of_query[example, head, row] + of_key[example, head]).logsumexp(dim=-1)
            weights = logits.masked_fill(~seen[example, head, row], -torch.inf).softmax(dim=-1)
            exact = weights @ value[example, head].to(weights.dtype)
            where = tuple(torch.tensor(each) for each in (example, head, row))
            output = output.index_put(where, exact)
        return output

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

"""Linear attention: weights proportional to products of features of queries and keys, in linear time and memory."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from seqarena.common.attention.base import Kernel
from seqarena.common.attention.direct import DirectConfig, DirectKernel
from seqarena.common.attention.features import power_features
from seqarena.common.attention.visibility import ORDERS, CallOption, Order, Visibility, needs_formula
from seqarena.common.shapes import Bias, Key, Output, Query, Value


@dataclass(frozen=True, kw_only=True)
class FeatureConfig(DirectConfig):
    """Config of a variant with pi_ij = f_i . g_j / sum_j f_i . g_j, f of query i and g of key j not negative."""

    @property
    def orders(self) -> tuple[Order, ...]:
        """All orders."""
        return ORDERS

    @property
    def stepwise(self) -> tuple[Order, ...]:
        """All orders: a query's output does not depend on other queries."""
        return self.orders

    @property
    def supports(self) -> tuple[CallOption, ...]:
        """Padding, and a memory of earlier keys."""
        return ("padding", "memory")


class FeatureKernel(DirectKernel):
    """Kernel of linear attention. Subclasses define ``feature_map``."""

    has_zero_sums: ClassVar[bool] = True
    """Whether all weights of a query may be 0, whose output is then 0. If not, its features have underflowed, and the
    output is NaN: training ends as diverged, and not with other numbers."""

    @abstractmethod
    def feature_map(self, query: Query, key: Key, visibility: Visibility) -> tuple[Tensor, Tensor]:
        """Returns the features of queries and keys, B H N F and B H M F, not negative."""

    def attend(self, query: Query, key: Key, value: Value, visibility: Visibility, bias: Bias | None) -> Output:
        """Returns the output, computed from sums over keys of features times values."""
        query, key = self.feature_map(query, key, visibility)
        if visibility.key_real is not None:
            key = key * visibility.key_real[:, None, :, None]
        value = F.pad(value.to(query.dtype), (0, 1), value=1.0)  # the last column becomes the sum of the weights
        if needs_formula():
            seen = replace(visibility, query_real=None).pairs(query.shape[2], key.shape[2], query.device)
            output = (query @ key.mT * seen) @ value
        else:
            own = query.shape[2] if visibility.order == "causal" else 0
            sums = power_features(query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1), 1, own)
            output = sums.view(*query.shape[:3], value.shape[3])
        total = output[..., -1:]
        # A query without any weight has output 0. Divided by a tiny number, its gradient would overflow.
        is_zero = total < torch.finfo(total.dtype).tiny
        divided: Tensor = output[..., :-1] / total.masked_fill(is_zero, 1.0)
        if self.has_zero_sums:
            return divided
        counts = visibility.counts(query.shape[0], query.shape[2], key.shape[2], query.device)
        return divided.masked_fill(is_zero & (counts > 0)[:, None, :, None], torch.nan)

    def step(self, state: Any, query: Query, key: Key, value: Value, visibility: Visibility,
             bias: Bias | None = None) -> tuple[Output, None]:  # fmt: skip
        """Computes the next queries from all keys so far; there is no state."""
        return self(query, key, value, visibility, bias), None


@dataclass(frozen=True, kw_only=True)
class Linear(FeatureConfig):
    """Linear attention: pi_ij = f_i . g_j / sum_j f_i . g_j with f = elu(q / d^1/4) + 1, g = elu(k / d^1/4) + 1.

    Katharopoulos et al. 2020, "Transformers are RNNs", apply elu(x) + 1 to queries and keys as they are; here they are
    divided by d^1/4 first, so that q . k / sqrt(d) is the product of their arguments, as in every variant.
    """

    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        """Returns the kernel."""
        return LinearKernel(self, dropout)


class LinearKernel(FeatureKernel):
    """Kernel with the features elu(x) + 1."""

    def feature_map(self, query: Query, key: Key, visibility: Visibility) -> tuple[Tensor, Tensor]:
        """Returns elu(x) + 1."""
        scale = query.shape[-1] ** -0.25
        return F.elu(query * scale) + 1, F.elu(key * scale) + 1


@dataclass(frozen=True, kw_only=True)
class Average(FeatureConfig):
    """Average of all visible values: pi_ij = 1 / N. The floor that attention must beat."""

    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        """Returns the kernel."""
        return AverageKernel(self, dropout)


class AverageKernel(FeatureKernel):
    """Kernel with one constant feature."""

    def feature_map(self, query: Query, key: Key, visibility: Visibility) -> tuple[Tensor, Tensor]:
        """Returns ones."""
        return torch.ones_like(query[..., :1]), torch.ones_like(key[..., :1])

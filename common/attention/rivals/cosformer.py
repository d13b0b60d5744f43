"""cosFormer (Qin et al. 2022, "cosFormer: Rethinking Softmax in Attention", arXiv 2202.08791)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from seqarena.common.attention.base import Kernel
from seqarena.common.attention.rivals.linear import FeatureConfig, FeatureKernel
from seqarena.common.attention.visibility import ORDERS, CallOption, Order, Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import Key, Query


@dataclass(frozen=True, kw_only=True)
class CosFormer(FeatureConfig):
    """cosFormer: pi_ij proportional to relu(q_i) . relu(k_j) cos(pi (i - j) / 2M), M the length.

    The authors take the longer of the two sequences as M. Here padding does not count, neither in M nor in the
    positions i and j. In a causal order M would tell how many tokens follow. Those orders need a constant ``length``.
    """

    length: int | None = None
    """M; none: the number of real keys or queries of the example, the larger one, for order none only."""

    def __post_init__(self) -> None:
        if self.length is not None and self.length < 1:
            raise WrongUseError(f"length: expected at least 1, found {self.length}")

    @property
    def orders(self) -> tuple[Order, ...]:
        """All orders with a constant length, otherwise only ``none``."""
        return ("none",) if self.length is None else ORDERS

    @property
    def needs_query_mask(self) -> bool:
        """True: the position of a query is counted among the real queries, and so is the length."""
        return True

    @property
    def stepwise(self) -> tuple[Order, ...]:
        """None: the positions of queries are counted from the first query of the call."""
        return ()

    @property
    def supports(self) -> tuple[CallOption, ...]:
        """Padding."""
        return ("padding",)

    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        """Returns the kernel."""
        return CosFormerKernel(self, dropout)


class CosFormerKernel(FeatureKernel):
    """Kernel with the features relu(x) cos(pi i / 2M) and relu(x) sin(pi i / 2M)."""

    def __init__(self, config: CosFormer, dropout: float) -> None:
        super().__init__(config, dropout)
        self.length = config.length

    def feature_map(self, query: Query, key: Key, visibility: Visibility) -> tuple[Tensor, Tensor]:
        """Returns the features; positions beyond a constant length count as the last one."""
        places = _positions(query, visibility.query_real), _positions(key, visibility.key_real)  # B N, B M
        if self.length is None:
            longest = torch.maximum(places[0][:, -1:], places[1][:, -1:]).clamp(min=1)
        else:
            longest = torch.full_like(places[0][:, -1:], self.length)
        found = []
        for tokens, position in zip((query, key), places, strict=True):
            angle = (math.pi / 2 * torch.minimum(position, longest) / longest)[:, None, :, None]
            active = F.relu(tokens)
            found.append(torch.cat([active * angle.sin(), active * angle.cos()], dim=-1))
        return found[0], found[1]


def _positions(tokens: Tensor, real: Tensor | None) -> Tensor:
    """Returns the position of each token among the real ones, from 1; B N."""
    ones = tokens.new_ones(tokens.shape[0], tokens.shape[2])
    return (ones if real is None else real.to(tokens.dtype)).cumsum(dim=1)

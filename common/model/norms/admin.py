"""Admin (Liu et al. 2020, arXiv 2004.08249): post-norm with a trained weight of each number of the stream."""

import math
from dataclasses import dataclass

import torch
from torch import nn

from seqarena.common.model.norms.base import LayerPosition, NormConfig, Residual, SublayerName
from seqarena.common.model.norms.post import PostNormResidual
from seqarena.common.shapes import Hidden


class AdminResidual(PostNormResidual):
    """Admin block: LN(omega * X + f(X)) for each sublayer f, with a trained vector omega."""

    def __init__(self, config: "Admin", dim: int, eps: float, position: LayerPosition) -> None:
        super().__init__(config, dim, eps, position)
        names = ("attention", "cross", "feed_forward") if position.encoder_depth else ("attention", "feed_forward")
        start = config.initial_omega(position)
        self.omega = nn.ParameterDict({name: nn.Parameter(torch.full((dim,), start)) for name in names})

    def add(self, stream: Hidden, output: Hidden, sublayer: SublayerName) -> Hidden:
        """Returns the weighted residual sum."""
        return super().add(self.omega[sublayer] * stream, output, sublayer)


@dataclass(frozen=True, kw_only=True)
class Admin(NormConfig):
    """Post-norm with trained weights of the stream, whose initial value grows with depth (Liu et al. 2020).

    The initial value is that of the authors' package admin-torch, sqrt((n + 1) / ln(n + 1) - 1) for n residual sums.
    Departure: the paper measures it in a profiling pass over training data.
    """

    def initial_omega(self, position: LayerPosition) -> float:
        """Returns the initial value of every number of omega."""
        sums = position.sublayers + 1
        return math.sqrt(sums / math.log(sums) - 1)

    def residual(self, dim: int, eps: float, position: LayerPosition) -> Residual:
        """Returns the residual block of the layer at ``position``."""
        return AdminResidual(self, dim, eps, position)

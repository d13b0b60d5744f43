"""DeepNorm (Wang et al. 2022, DeepNet, arXiv 2203.00555): post-norm with a larger weight of the stream."""

import math
from dataclasses import dataclass

import torch

from seqarena.common.model.norms.base import LayerPosition, NormConfig, Residual, SublayerName
from seqarena.common.model.norms.post import PostNormResidual
from seqarena.common.shapes import Hidden


class DeepNormResidual(PostNormResidual):
    """DeepNorm block: LN(w X + f(X)) for each sublayer f, where the stream's weight w grows with depth."""

    def __init__(self, config: "DeepNorm", dim: int, eps: float, position: LayerPosition) -> None:
        super().__init__(config, dim, eps, position)
        self.stream_weight = config.stream_weight(position)

    def add(self, stream: Hidden, output: Hidden, sublayer: SublayerName) -> Hidden:
        """Returns the weighted residual sum."""
        alpha = 1.0 if sublayer == "feed_forward" else self.alpha
        return torch.add(alpha * output, stream, alpha=self.stream_weight)


@dataclass(frozen=True, kw_only=True)
class DeepNorm(NormConfig):
    """Post-norm with a weight of the stream that grows with depth, and smaller initial weights (DeepNet, Figure 2).

    Departure: the initial weights of the task's preset are scaled, where DeepNet draws Xavier's.
    """

    def stream_weight(self, position: LayerPosition) -> float:
        """Returns the weight of the stream in each residual sum."""
        depth = float(position.depth)
        if position.decoder_depth:
            return 0.81 * math.pow(depth**4 * position.decoder_depth, 1 / 16)
        return math.pow(3 * depth if position.encoder_depth else 2 * depth, 1 / 4)

    def initial_scale(self, position: LayerPosition) -> float:
        """Returns DeepNet's beta."""
        depth = float(position.depth)
        if position.decoder_depth:
            return 0.87 * math.pow(depth**4 * position.decoder_depth, -1 / 16)
        return math.pow(12 * depth if position.encoder_depth else 8 * depth, -1 / 4)

    def residual(self, dim: int, eps: float, position: LayerPosition) -> Residual:
        """Returns the residual block of the layer at ``position``."""
        return DeepNormResidual(self, dim, eps, position)

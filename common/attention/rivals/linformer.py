"""Linformer (Wang et al. 2020, arXiv 2006.04768): keys and values projected along the sequence."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from seqarena.common.attention.mixer import LayerShape, MixerConfig, TokenMixer
from seqarena.common.attention.rivals.projected import ProjectedMixer
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import Hidden


@dataclass(frozen=True, kw_only=True)
class Linformer(MixerConfig):
    """Linformer: softmax(Q (E K)^T / sqrt d) E V, E trained, rank x length, for each head and layer.

    As in the code of Xiong et al. 2021 for LRA, keys and values share E, E begins as N(0, 0.02^2), and no weights are
    dropped. There all layers share E too.
    Only without an order: the projections mix earlier and later tokens.
    """

    rank: int = 256
    """Number of projected keys."""

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise WrongUseError(f"rank: expected at least 1, found {self.rank}")

    def build_mixer(self, shape: LayerShape) -> TokenMixer:
        """Returns the mixer."""
        return LinformerMixer(self, shape)


class LinformerMixer(ProjectedMixer):
    """Attention to projected keys."""

    def __init__(self, config: Linformer, shape: LayerShape) -> None:
        super().__init__(config, shape)
        self.projection = nn.Parameter(0.02 * torch.randn(shape.heads, config.rank, shape.length))

    def mix(self, hidden: Hidden, visibility: Visibility) -> Hidden:
        """Returns the output."""
        query = self.attention.project_query(hidden)
        key, value = self.attention.project_key_value(hidden)
        if visibility.key_real is not None:  # the projections' biases are no content of padding
            key, value = (each * visibility.key_real[:, None, :, None] for each in (key, value))
        along = self.projection[:, :, : hidden.shape[1]].to(key.dtype)
        return self.attention.merge_heads(F.scaled_dot_product_attention(query, along @ key, along @ value))

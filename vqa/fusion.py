"""Fusion of several detectors' views: the primary's boxes are queries, the others' are keys (P2; Yu et al. 2019).

z_i = x_i + sum_m W_o^m sum_j pi^m_ij W_v^m y^m_j over the secondary views m, with scores of W_q x_i and W_k^m y^m_j.
We do not know P2's heads, residual sum, LayerNorm or initial values. The defaults are one head, a residual sum, no
LayerNorm, and PyTorch's initialisation.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from seqarena.common.attention.base import AttentionConfig
from seqarena.common.attention.softmax import Softmax
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.runs.roles import Role, role
from seqarena.common.shapes import Joined, JoinedReal, KeyMasses, Regions, RegionsReal

Kind = Literal["attention", "primary", "boxes", "channels", "mean"]


@dataclass(frozen=True, kw_only=True)
class Fusion:
    """Config of the fusion of views."""

    kind: Kind = field(default="attention", metadata=role(Role.ROW))
    """attention: the primary's boxes attend to the others'; primary: the primary's boxes only; boxes: the boxes of all
    views in one sequence; channels: features of box i of all views concatenated, for aligned views; mean: the mean box
    of the other views, added to each primary box."""
    keys: Literal["per_view", "joint"] = field(default="per_view", metadata=role(Role.ROW))
    """per_view: one attention per secondary view (under dnas a key's mass is at least 1 / the view's boxes); joint: one
    attention over the boxes of all secondary views, with half that bound for two. P2's bound of 0.01 with 100 boxes
    means per_view."""
    heads: int = 1
    """Number of attention heads."""
    residual: bool = True
    """Whether the attention's output is added to the primary's boxes, or replaces them."""
    layer_norm: bool = False
    """Whether the result is normalised by LayerNorm."""
    alike: float | None = None
    """Initial query and key projections are this multiple of the identity, so that boxes at equal positions match.
    none: PyTorch's initialisation."""

    def check(self, attention: AttentionConfig, width: int) -> None:
        """Raises a ``WrongUseError`` for invalid combinations of settings."""
        if self.heads < 1 or width % self.heads:
            raise WrongUseError(f"model.fusion.heads: expected a divisor of a box's width {width}, found {self.heads}")
        if self.kind != "attention" and self != Fusion(kind=self.kind, residual=self.residual, alike=self.alike):
            raise WrongUseError(f"model.fusion.kind {self.kind} has no keys, heads or layer_norm; omit these fields")
        if self.kind != "attention" and attention != Softmax():
            raise WrongUseError(f"model.fusion.kind {self.kind} has no attention; omit --attention")
        if self.kind == "attention":
            attention.build(self.heads)  # a token mixer refuses
        if self.alike is not None and not self.alike > 0:
            raise WrongUseError(f"model.fusion.alike: expected a number above 0 or none, found {self.alike}")


class ViewFusion(nn.Module):
    """Fuses views as configured by ``Fusion``. The output has ``width`` features per box."""

    def __init__(self, config: Fusion, attention: AttentionConfig, views: int, width: int) -> None:
        super().__init__()
        self.config, self.heads = config, config.heads
        self.width = width * (views if config.kind == "channels" else 1)
        secondary = views - 1
        if config.kind == "attention":
            self.query = nn.Linear(width, width)
            self.key = nn.ModuleList(nn.Linear(width, width) for _ in range(secondary))
            self.kernel = attention.build(config.heads)
            self.kernel.crosses = True
            if config.alike is not None:
                for each in (self.query, *self.key):
                    _init_as_identity(each, config.alike)
        if config.kind in ("attention", "mean"):
            self.value = nn.ModuleList(nn.Linear(width, width) for _ in range(secondary))
            outputs = 1 if config.keys == "joint" and config.kind == "attention" else secondary
            self.output = nn.ModuleList(nn.Linear(width, width) for _ in range(outputs))
        self.norm = nn.LayerNorm(width) if config.layer_norm and config.kind == "attention" else nn.Identity()

    def forward(self, regions: Regions, real: RegionsReal) -> tuple[Joined, JoinedReal]:
        """Returns the fused boxes of each picture and the mask of real ones. The first view is the primary."""
        primary, seen = regions[:, 0], real[:, 0]
        if self.config.kind == "primary":
            return primary, seen
        if self.config.kind == "boxes":
            return regions.flatten(1, 2), real.flatten(1, 2)
        if self.config.kind == "channels":
            return regions.transpose(1, 2).flatten(2), seen
        found = self._mean(regions, real) if self.config.kind == "mean" else self._attend(regions, real)
        fused: Tensor = self.norm(primary + found if self.config.residual else found)
        return fused, seen

    def _mean(self, regions: Tensor, real: Tensor) -> Tensor:
        added = torch.zeros_like(regions[:, 0])
        for number, (value, output) in enumerate(zip(self.value, self.output, strict=True), start=1):
            weights = real[:, number] / real[:, number].sum(dim=1, keepdim=True).clamp(min=1)
            mean = torch.einsum("iq,iqw->iw", weights.to(regions.dtype), value(regions[:, number]))
            added = added + output(mean)[:, None]
        return added

    def key_masses(self, regions: Regions, real: RegionsReal) -> KeyMasses:
        """Returns the key mass of every secondary box: the sum of its weights over queries, averaged over heads.

        The mass of padding is 0. Under dnas the mass of a real box is at least 1 / (number of keys) (P2, Lemma 1).
        """
        query = self._split(self.query(regions[:, 0]))
        keys = [self._split(key(regions[:, at])) for at, key in enumerate(self.key, start=1)]
        seen = list(real[:, 1:].unbind(1))
        if self.config.keys == "joint":
            keys, seen = [torch.cat(keys, dim=2)], [torch.cat(seen, dim=1)]
        found = []
        for key, kept in zip(keys, seen, strict=True):
            weights = self.kernel.weights(query, key, Visibility(query_real=real[:, 0], key_real=kept))
            found.append(weights.sum(dim=2).mean(dim=1).masked_fill(~kept, 0.0))
        return torch.cat(found, dim=1).view(len(regions), len(self.key), -1)

    def _attend(self, regions: Tensor, real: Tensor) -> Tensor:
        query = self._split(self.query(regions[:, 0]))
        keys = [self._split(key(regions[:, at])) for at, key in enumerate(self.key, start=1)]
        values = [self._split(value(regions[:, at])) for at, value in enumerate(self.value, start=1)]
        if self.config.keys == "joint":
            visibility = Visibility(query_real=real[:, 0], key_real=real[:, 1:].flatten(1))
            return self._merge_heads(
                self.output[0], self.kernel(query, torch.cat(keys, 2), torch.cat(values, 2), visibility)
            )
        # One call for all views, stacked along the batch: they share the kernel, and so u.
        views = len(keys)
        visibility = Visibility(
            query_real=real[:, 0].repeat(views, 1), key_real=real[:, 1:].transpose(0, 1).flatten(0, 1)
        )
        attended = self.kernel(query.repeat(views, 1, 1, 1), torch.cat(keys), torch.cat(values), visibility)
        parts = attended.chunk(views)
        return torch.stack([self._merge_heads(each, part) for each, part in zip(self.output, parts, strict=True)]).sum(
            dim=0
        )

    def _split(self, projected: Tensor) -> Tensor:
        pictures, boxes, width = projected.shape
        return projected.view(pictures, boxes, self.heads, width // self.heads).transpose(1, 2)  # I H Q D

    @staticmethod
    def _merge_heads(output: nn.Module, heads: Tensor) -> Tensor:
        found: Tensor = output(heads.transpose(1, 2).flatten(2))
        return found


@torch.no_grad()
def _init_as_identity(linear: nn.Linear, times: float) -> None:
    linear.weight.copy_(times * torch.eye(*linear.weight.shape))
    linear.bias.zero_()

"""How much attention the boxes of each secondary view get: P2's Figure 1, in every evaluation."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn

from seqarena.common.files import write_json
from seqarena.common.model.attention_maps import EDGES
from seqarena.vqa.data import Integers, Reals, Split, Truths
from seqarena.vqa.model import Answerer

LOOKED_AT = 256
"""Pictures whose key masses are told."""
AT_ONCE = 32
TENTH = 0.1
ROUNDING = 1e-3
"""By which share a mass may lie below its bound and count as on it."""


@dataclass(frozen=True, kw_only=True)
class Masses:
    """The mass of each key of some pictures: the sum of its weights over queries, the mean over heads."""

    mass: Reals
    """(pictures, views - 1, boxes)."""
    bound: Reals
    """Lower bound of the key masses under doubly-normalised attention (pictures, views - 1, 1)."""
    real: Truths
    """Which boxes are no padding."""
    is_normalized: bool
    """Whether the weights of a query sum to 1, as softmax's, dnas's and hnas's do; then masses have a bound to be
    compared with, and shares."""
    saw: Integers
    """Whether the primary saw what the box is on; see ``Views``."""

    def metrics(self) -> dict[str, float]:
        """Returns the least, percentiles, the share below a tenth, and the means on what the primary missed or saw.

        Of normalised weights also the share below the bound, and which share of the keys is used in effect.
        """
        means = {
            f"key_mass_{name}": float(self.mass[inside].mean())
            for name, inside in (("missed", self._on(0)), ("seen", self._on(1)))
            if inside.any()
        }
        return self._told(self.real) | means

    def _on(self, saw: int) -> Truths:
        inside: Truths = self.real & (self.saw == saw)
        return inside

    def _told(self, inside: Truths) -> dict[str, float]:
        mass = self.mass[inside]
        least, low, middle = np.quantile(mass, (0.0, 0.01, 0.5)).tolist()
        found = {
            "key_mass_least": least, "key_mass_1_percent": low, "key_mass_median": middle,
            "keys_below_a_tenth": float((mass < TENTH).mean()),
        }  # fmt: skip
        if self.is_normalized:
            below = mass < np.broadcast_to(self.bound, self.mass.shape)[inside] * (1 - ROUNDING)
            found |= {"keys_below_bound": float(below.mean()), "keys_used": self._used(inside)}
        return found

    def _used(self, inside: Truths) -> float:
        """Returns the share of a view's keys that are used in effect: exp of the entropy of their masses, the mean."""
        mass = np.where(inside, self.mass, 0.0)
        total, count = mass.sum(axis=2), inside.sum(axis=2)
        shares = mass / np.maximum(total, 1e-30)[..., None]
        entropy = -(shares * np.log(np.maximum(shares, 1e-30))).sum(axis=2)
        return float((np.exp(entropy) / np.maximum(count, 1))[count > 0].mean())

    def write(self, folder: Path) -> None:
        """Writes ``key_masses.json``: of each view, and of what the primary missed or saw, the same and a histogram."""
        kinds = {"missed by the primary": self._on(0), "seen by the primary": self._on(1), "on nothing": self._on(-1)}
        for view in range(self.real.shape[1]):
            only = np.arange(self.real.shape[1]) == view
            kinds[f"view {view + 2}"] = self.real & only[:, None]
        told = {
            name: self._told(inside)
            | {"histogram": np.histogram(self.mass[inside], (-np.inf, *EDGES, np.inf))[0].tolist()}
            for name, inside in kinds.items()
            if inside.any()
        }
        write_json(folder / "key_masses.json", {"edges": EDGES, "pictures": len(self.mass), **told})


@torch.no_grad()
def masses_of(model: nn.Module, split: Split, accelerator: Accelerator) -> Masses | None:
    """Returns the key masses of a split's first pictures; none where there is no attention."""
    bare = accelerator.unwrap_model(model)
    if not isinstance(bare, Answerer) or bare.config.fusion.kind != "attention":
        return None
    pictures = np.unique(split.pictures)[:LOOKED_AT]
    found: list[tuple[Reals, Truths]] = []
    for start in range(0, len(pictures), AT_ONCE):
        seen = split.views.read(pictures[start : start + AT_ONCE])
        features, centres, known = (
            torch.from_numpy(each).to(accelerator.device)
            for each in (seen.features.astype(np.float32), seen.centres.astype(np.float32), seen.real)
        )
        mass = bare.fused.key_masses(bare.described(features, centres), known)
        found.append((mass.cpu().numpy().astype(np.float64), seen.real[:, 1:]))
    masses, real = (np.concatenate(each) for each in zip(*found, strict=True))
    keys = real.sum(axis=2, keepdims=True)
    if bare.config.fusion.keys == "joint":
        keys = np.broadcast_to(keys.sum(axis=1, keepdims=True), keys.shape)
    rule = bare.fused.kernel.rule
    normalized = rule is not None and rule.is_mixture
    return Masses(
        mass=masses, bound=1 / keys, real=real, is_normalized=normalized, saw=split.views.seen_by_primary(pictures)
    )

"""Key masses of the boxes of each secondary view, computed in every evaluation (P2, Figure 1)."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from seqarena.common.files import write_json
from seqarena.common.model.attention_maps import EDGES
from seqarena.common.training.processes import Accelerator
from seqarena.vqa.data import Integers, Reals, Split, Truths
from seqarena.vqa.model import Answerer

MAX_PICTURES = 256
"""Number of pictures whose key masses are computed."""
BATCH_SIZE = 32
TENTH = 0.1
ROUNDING = 1e-3
"""Relative tolerance of the comparison of masses with their bound."""


@dataclass(frozen=True, kw_only=True)
class Masses:
    """Key masses of a set of pictures: the sum of each key's weights over queries, averaged over heads."""

    mass: Reals
    """Mass of each secondary box (pictures, views - 1, boxes)."""
    bound: Reals
    """Lower bound of the key masses under doubly-normalised attention (pictures, views - 1, 1)."""
    real: Truths
    """Mask of boxes that are not padding (pictures, views - 1, boxes)."""
    is_normalized: bool
    """Whether the weights of a query sum to 1, as for softmax, dnas and hnas. Only then are masses compared with the
    bound, and is the fraction of used keys reported."""
    saw: Integers
    """Whether the primary found the object of each box; see ``Views``."""

    def metrics(self) -> dict[str, float]:
        """Returns minimum, percentiles, fraction below 0.1, and means on objects that the primary missed or found.

        For normalised weights, also the fraction below the bound and the fraction of keys that are effectively used.
        """
        means = {
            f"key_mass_{name}": float(self.mass[inside].mean())
            for name, inside in (("missed", self._on(0)), ("seen", self._on(1)))
            if inside.any()
        }
        return self._statistics(self.real) | means

    def _on(self, saw: int) -> Truths:
        inside: Truths = self.real & (self.saw == saw)
        return inside

    def _statistics(self, inside: Truths) -> dict[str, float]:
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
        """Returns exp(entropy of a view's key masses) / its number of keys, averaged over pictures and views."""
        mass = np.where(inside, self.mass, 0.0)
        total, count = mass.sum(axis=2), inside.sum(axis=2)
        shares = mass / np.maximum(total, 1e-30)[..., None]
        entropy = -(shares * np.log(np.maximum(shares, 1e-30))).sum(axis=2)
        return float((np.exp(entropy) / np.maximum(count, 1))[count > 0].mean())

    def write(self, folder: Path) -> None:
        """Writes ``key_masses.json``: statistics and a histogram per view and per class of box.

        The classes are objects missed or found by the primary, and boxes on no object.
        """
        kinds = {"missed by the primary": self._on(0), "seen by the primary": self._on(1), "on nothing": self._on(-1)}
        for view in range(self.real.shape[1]):
            only = np.arange(self.real.shape[1]) == view
            kinds[f"view {view + 2}"] = self.real & only[:, None]
        statistics = {
            name: self._statistics(inside)
            | {"histogram": np.histogram(self.mass[inside], (-np.inf, *EDGES, np.inf))[0].tolist()}
            for name, inside in kinds.items()
            if inside.any()
        }
        write_json(folder / "key_masses.json", {"edges": EDGES, "pictures": len(self.mass), **statistics})


@torch.no_grad()
def compute_key_masses(model: nn.Module, split: Split, accelerator: Accelerator) -> Masses | None:
    """Returns the key masses of a split's first pictures, or None if the fusion has no attention weights."""
    bare = accelerator.unwrap_model(model)
    if not isinstance(bare, Answerer) or bare.config.fusion.kind != "attention" or not bare.fused.kernel.has_weights:
        return None
    pictures = np.unique(split.pictures)[:MAX_PICTURES]
    found: list[tuple[Reals, Truths]] = []
    for start in range(0, len(pictures), BATCH_SIZE):
        seen = split.views.read(pictures[start : start + BATCH_SIZE])
        features, centres, known = (
            torch.from_numpy(each).to(accelerator.device) for each in (seen.features, seen.centres, seen.real)
        )
        mass = bare.fused.key_masses(bare.box_inputs(features.float(), centres.float()), known)
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

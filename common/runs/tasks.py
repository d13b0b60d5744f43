"""Record of a measured task."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Unit = Literal["share", "nats"]
"""Unit of a task's scores: fractions (shown in per cent), or nats and numbers derived from them."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published figure: name, value and source."""

    name: str
    value: float
    source: str
    presets: tuple[str, ...] = ()
    """Presets that it is shown beside; empty: all."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """Record of one measured task. Its meaning never changes in place: a fix is a new ``version``."""

    package: str
    name: str
    title: str
    """One line on the problem that a model must solve."""
    version: int
    metric: str
    """Name of the main metric of an evaluation."""
    higher_is_better: bool
    secondary: tuple[str, ...] = ()
    """Other metrics that a table shows beside the main one."""
    unit: Unit = "share"
    """Unit of all scores."""
    solved_from: float | None = None
    """Score from which a run has solved the problem, for a task that most runs either solve or do not learn at all. A
    table then shows how many seeds solved it."""
    chance: float | None = None
    """Score of guessing; none where it depends on the data and is one of the floors."""
    ceilings: tuple[str, ...] = ()
    """Entries among a result's floors that are no trivial rules: scores of exact computation of a part of the problem.
    They are shown as ceilings."""
    splits: str
    """Assignment of examples to train, validation and test."""
    source: str
    revision: str
    licence: str
    checksums: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Preset -> sha256 of the data it requires, where these are the same for everybody."""
    published: tuple[Published, ...] = ()
    published_secondary: Mapping[str, tuple[Published, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """Metric in ``secondary`` -> its published figures."""

    def floors_and_ceilings(self, scores: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
        """Returns the floors of a result, and separately those that are ceilings."""
        floors = {name: value for name, value in scores.items() if name not in self.ceilings}
        return floors, {name: value for name, value in scores.items() if name in self.ceilings}

"""The record of one thing measured."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Unit = Literal["share", "nats"]
"""Unit of a task's scores: fractions (shown in per cent), or nats and numbers derived from them."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """A figure somebody printed: of what, how much, where."""

    name: str
    value: float
    source: str


@dataclass(frozen=True, kw_only=True)
class Task:
    """Record of one measured task. Its meaning never changes in place: a fix is a new ``version``."""

    package: str
    name: str
    title: str
    """One line: what a model must do."""
    version: int
    metric: str
    """Name of the main score in an evaluator's answer."""
    higher_is_better: bool
    beside: tuple[str, ...] = ()
    """Other metrics that a table shows beside it."""
    unit: Unit = "share"
    """Unit of all scores."""
    chance: float | None = None
    """Score of guessing; none where it depends on the data and is among the floors."""
    splits: str
    """How examples come to be in train, validation and test."""
    source: str
    revision: str
    licence: str
    checksums: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Preset -> sha256 of the data it must run on, where these are the same for everybody."""
    published: tuple[Published, ...] = ()
    published_beside: Mapping[str, tuple[Published, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """Metric among ``beside`` -> what was published of it."""

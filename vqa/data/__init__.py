"""The data of visual question answering: questions, annotators' answers, and the regions of several detectors."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqarena.common.data.batches import Indices

PEOPLE = 10
"""Number of annotators per question."""
SHARE = 0.3
"""Accuracy per agreeing annotator, up to 1 in total: the official leave-one-out mean over ten annotators."""
Integers = npt.NDArray[np.integer[Any]]
Reals = npt.NDArray[np.floating[Any]]
Truths = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class PictureViews:
    """DetectedViews regions of a set of pictures."""

    features: Reals
    """Features of each box (pictures, views, boxes, width)."""
    centres: Reals
    """Centre of each box, as fractions of the picture's width and height (pictures, views, boxes, 2)."""
    real: Truths
    """Mask of boxes that are not padding (pictures, views, boxes). Every view has at least one."""


class Views(ABC):
    """DetectedViews regions in the pictures of a split. The first view is the primary one."""

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, int, int]:
        """Number of detectors, of boxes per detector, and of features per box."""

    @abstractmethod
    def read(self, pictures: Indices) -> PictureViews:
        """Returns the regions of pictures, which are indices in the split."""

    @abstractmethod
    def box_count(self, pictures: Indices) -> int:
        """Returns the number of boxes of pictures that are not padding, over all detectors."""

    @abstractmethod
    def seen_by_primary(self, pictures: Indices) -> Integers:
        """Returns whether the primary found the object of each secondary box (pictures, views - 1, boxes).

        1: found; 0: missed; -1: the box is on no object, or padding.
        """


@dataclass(frozen=True, kw_only=True)
class Arrays(Views):
    """Views in arrays, in memory or mapped from disk."""

    features: Reals
    centres: Reals
    saw: Integers
    """Result of ``seen_by_primary`` for all pictures."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Number of detectors, of boxes per detector, and of features per box."""
        _, views, boxes, width = self.features.shape
        return views, boxes, width

    def read(self, pictures: Indices) -> PictureViews:
        """Returns the regions of pictures. No box is padding."""
        real = np.ones((len(pictures), *self.sizes[:2]), dtype=bool)
        return PictureViews(features=self.features[pictures], centres=self.centres[pictures], real=real)

    def box_count(self, pictures: Indices) -> int:
        """Returns the number of boxes of pictures. None is padding."""
        views, boxes, _ = self.sizes
        return len(pictures) * views * boxes

    def seen_by_primary(self, pictures: Indices) -> Integers:
        """Returns whether the primary found the object of each secondary box; see ``Views``."""
        return self.saw[pictures]


@dataclass(frozen=True, kw_only=True)
class Part:
    """Partition of the questions into named categories."""

    names: Sequence[str]
    of: Integers
    """Index of each question's category in ``names`` (questions); -1: none."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """Questions, annotators' answers, and detected regions of one split."""

    ids: Indices
    """Official id of each question."""
    words: Integers
    """Word ids of each question, 0 after its end (questions, words)."""
    pictures: Indices
    """Index of each question's picture."""
    options: Integers
    """Answers with annotators or with a score, as indices in the answer list; -1: padding (questions, options)."""
    people: Integers
    """Number of annotators of each option (questions, options)."""
    scores: Reals
    """Score of each option, from 0 to 1 (questions, options). All other answers score 0."""
    views: Views
    parts: Mapping[str, Part]
    """Partitions of the questions, by name. Every evaluation reports the accuracies of the first one."""
    groups: Mapping[str, Truths]
    """Groups of questions, name -> mask, whose accuracies are reported as secondary metrics."""
    pairs: Indices
    """Pairs of questions with the same text about two pictures, as indices (pairs, 2)."""

    def __len__(self) -> int:
        return len(self.words)

    def score(self, guesses: Indices) -> Reals:
        """Returns the score of an answer to each question."""
        found: Reals = np.where(self.options == guesses[:, None], self.scores, 0.0).sum(axis=1)
        return found


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Weight and bias of a detector's last linear layer."""

    weight: Reals
    bias: Reals


@dataclass(frozen=True, kw_only=True)
class VqaData:
    """The data needed to build and evaluate a model."""

    splits: Mapping[str, Split]
    """Train, validation and test."""
    answers: Sequence[str]
    """The answer list, from which a model chooses."""
    words: Sequence[str]
    """The words of questions. The first one stands for padding and unknown words."""
    checksum: str
    vectors: Reals | None = None
    """Initial word vectors (words, width). None: random."""
    fc7: Sequence[Layer] = ()
    """Last layer of each detector. Empty: random."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Number of detectors, of boxes per detector, and of features per box."""
        return self.splits["train"].views.sizes


@dataclass(frozen=True, kw_only=True)
class Data(ABC):
    """Config of the questions and pictures. Each task's own config adds its fields."""

    @property
    @abstractmethod
    def views(self) -> tuple[int, int, int]:
        """Number of detectors, of boxes per detector, and of features per box, as in the loaded data."""

    @property
    @abstractmethod
    def longest(self) -> int:
        """Maximum number of words of a question."""

    @property
    def aligned_views(self) -> bool:
        """Whether box i is at the same position in all views."""
        return False

    @property
    def without_effect(self) -> Mapping[str, str]:
        """Name of a field -> the setting with which it has no effect."""
        return {}

    @abstractmethod
    def check(self) -> None:
        """Raises a ``WrongUseError`` for invalid settings."""

    @abstractmethod
    def load(self, folder: Path) -> VqaData:
        """Returns the configured data. Prepared data are stored below ``folder``."""

"""Questions about pictures that several detectors looked at: read or generated, made into batches."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqarena.common.data.batches import Indices

PEOPLE = 10
"""Who answered each question."""
SHARE = 0.3
"""Of the accuracy, for each person who agrees: what leaving one out of ten comes to, at most 1."""
Integers = npt.NDArray[np.integer[Any]]
Reals = npt.NDArray[np.floating[Any]]
Truths = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class PictureViews:
    """Detected regions of some pictures."""

    features: Reals
    """Features of each box (pictures, views, boxes, width)."""
    centres: Reals
    """Middle of each box, as shares of the picture's width and height (pictures, views, boxes, 2)."""
    real: Truths
    """Which boxes are no padding (pictures, views, boxes); at least one of each view."""


class Views(ABC):
    """Detected regions in the pictures of a split; the first view is the primary one."""

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, int, int]:
        """Detectors, boxes of each, numbers of a box."""

    @abstractmethod
    def read(self, pictures: Indices) -> PictureViews:
        """Returns what was found in pictures, by their numbers in the split."""

    @abstractmethod
    def seen_by_primary(self, pictures: Indices) -> Integers:
        """Returns of each box of the other views whether the primary saw what it is on (pictures, views - 1, boxes).

        1: it did; 0: it missed it; -1: a box on nothing, or padding.
        """


@dataclass(frozen=True, kw_only=True)
class Arrays(Views):
    """Views in arrays, maybe mapped from disk."""

    features: Reals
    centres: Reals
    saw: Integers
    """What ``seen_by_primary`` says of all pictures."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Detectors, boxes of each, numbers of a box."""
        _, views, boxes, width = self.features.shape
        return views, boxes, width

    def read(self, pictures: Indices) -> PictureViews:
        """Returns what was found in pictures; no box is padding."""
        real = np.ones((len(pictures), *self.sizes[:2]), dtype=bool)
        return PictureViews(features=self.features[pictures], centres=self.centres[pictures], real=real)

    def seen_by_primary(self, pictures: Indices) -> Integers:
        """Returns of each box of the other views whether the primary saw what it is on."""
        return self.saw[pictures]


@dataclass(frozen=True, kw_only=True)
class Part:
    """Questions told apart by what they are about."""

    names: Sequence[str]
    of: Integers
    """Place of each question's in ``names`` (questions)."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """Questions, what people answered, and what the detectors saw."""

    ids: Indices
    """The number by which others know a question."""
    words: Integers
    """Words of each question, 0 after its end (questions, words)."""
    pictures: Indices
    """The picture of each question, a number below that of pictures."""
    options: Integers
    """Answers that somebody gave or that score, places in the list of answers; -1: none (questions, options)."""
    people: Integers
    """How many people gave each (questions, options)."""
    scores: Reals
    """Score of each option, from 0 to 1; all other answers score 0 (questions, options)."""
    views: Views
    parts: Mapping[str, Part]
    """Partitions of the questions, by what they tell apart; the first is told in every evaluation."""
    groups: Mapping[str, Truths]
    """Name -> which questions are in it: accuracies that are told beside."""
    pairs: Indices
    """Questions that are the same about two pictures, by their places (pairs, 2)."""

    def __len__(self) -> int:
        return len(self.words)

    def scored(self, guesses: Indices) -> Reals:
        """Returns what an answer to each question scores."""
        found: Reals = np.where(self.options == guesses[:, None], self.scores, 0.0).sum(axis=1)
        return found


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Weight and bias of a linear layer that a detector had behind its boxes."""

    weight: Reals
    bias: Reals


@dataclass(frozen=True, kw_only=True)
class VqaData:
    """All that a model and its measurement need of the data."""

    splits: Mapping[str, Split]
    """Train, validation and test."""
    answers: Sequence[str]
    """The answers that a model chooses from."""
    words: Sequence[str]
    """The words of questions; the first stands for padding and unknown words."""
    checksum: str
    vectors: Reals | None = None
    """Initial word vectors (words, width); none: drawn."""
    fc7: Sequence[Layer] = ()
    """Of each detector; none: drawn."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Detectors, boxes of each, numbers of a box."""
        return self.splits["train"].views.sizes


@dataclass(frozen=True, kw_only=True)
class Data(ABC):
    """Which questions and pictures. Each task's own config adds its fields."""

    @property
    @abstractmethod
    def views(self) -> tuple[int, int, int]:
        """Detectors, boxes of each, numbers of a box; what is read has no others."""

    @property
    def aligned_views(self) -> bool:
        """Whether box i is of the same place in all views."""
        return False

    @abstractmethod
    def check(self) -> None:
        """Raises a ``WrongUseError`` for settings that describe no data."""

    @abstractmethod
    def load(self, folder: Path) -> VqaData:
        """Returns what the settings describe; what is made first is kept below ``folder``."""

"""Questions about pictures that several detectors looked at; batches that read each picture once."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from common.counter import permutation
from common.data import Batch, Indices
from common.shapes import Centres, Places, Regions, RegionsReal, SoftTargets, Tokens

PEOPLE = 10
"""Who answered each question."""
SHARE = 0.3
"""Of the accuracy, for each person who agrees: what leaving one out of ten comes to, at most 1."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """Questions, what people answered, and what the detectors saw."""

    words: npt.NDArray[np.integer[Any]]
    """Of each question, 0 behind its end (questions, words)."""
    pictures: Indices
    """The picture of each question."""
    answers: npt.NDArray[np.integer[Any]]
    """Places in the list of answers of what each person said; -1: not in it (questions, people)."""
    kinds: npt.NDArray[np.integer[Any]]
    """Kind of each question, a place in ``Data.kinds``."""
    features: npt.NDArray[np.floating[Any]]
    """Of each box that a detector found (pictures, views, boxes, width); maybe mapped from disk."""
    centres: npt.NDArray[np.floating[Any]]
    """Middle of each box, as shares of the picture's width and height (pictures, views, boxes, 2)."""
    boxes: npt.NDArray[np.integer[Any]]
    """How many boxes there are (pictures, views)."""
    groups: Mapping[str, npt.NDArray[np.bool_]]
    """Name -> which questions are in it: accuracies that are told apart."""

    def __len__(self) -> int:
        return len(self.words)


@dataclass(frozen=True, kw_only=True)
class Asked(Batch):
    """Questions and their pictures, each picture once."""

    words: Tokens
    targets: SoftTargets
    picture: Places
    """Row of ``features`` that each question is about."""
    features: Regions
    centres: Centres
    real: RegionsReal

    def rows(self, start: int, stop: int) -> "Asked":
        """Returns the questions from ``start`` up to ``stop`` with the pictures that they need."""
        needed, picture = torch.unique(self.picture[start:stop], return_inverse=True)
        return Asked(
            words=self.words[start:stop], targets=self.targets[start:stop], picture=picture,
            features=self.features[needed], centres=self.centres[needed], real=self.real[needed],
        )  # fmt: skip

    def token_count(self) -> int:
        """Returns the number of real boxes that are read."""
        return int(self.real.sum())

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Asked":
        return Asked(**{field.name: change(getattr(self, field.name)) for field in fields(self)})


def asked(split: Split, questions: Indices, answers: int) -> Asked:
    """Returns a batch of some questions, of ``answers`` that there are."""
    pictures, rows = np.unique(split.pictures[questions], return_inverse=True)
    said = split.answers[questions]
    agreeing = np.zeros((len(questions), answers + 1))
    np.add.at(agreeing, (np.arange(len(questions))[:, None], said), 1)  # -1 is the last column
    real = np.arange(split.features.shape[2]) < split.boxes[pictures][..., None]
    return Asked(
        words=torch.from_numpy(split.words[questions].astype(np.int64)),
        targets=torch.from_numpy(np.minimum(SHARE * agreeing[:, :-1], 1.0)).float(),
        picture=torch.from_numpy(rows.reshape(-1)),
        features=torch.from_numpy(split.features[pictures].astype(np.float32)),
        centres=torch.from_numpy(split.centres[pictures].astype(np.float32)),
        real=torch.from_numpy(real),
    )


@dataclass(frozen=True, kw_only=True)
class Grouped:
    """Which questions each step sees: pictures in a new order every epoch, all questions of one after the other.

    So a batch reads few pictures; every question once an epoch.
    """

    pictures: Indices
    """The picture of each question."""
    batch_size: int
    seed: int

    def __getitem__(self, step: int) -> Indices:
        """Returns the numbers of the ``batch_size`` questions of a step."""
        positions = step * self.batch_size + np.arange(self.batch_size)
        count = len(self.pictures)
        epochs = positions // count
        return np.concatenate(
            [self._order(epoch)[positions[epochs == epoch] % count] for epoch in np.unique(epochs).tolist()]
        )

    def _order(self, epoch: int) -> Indices:
        # An epoch's order is asked for at each of its steps; the last two (batches may straddle) are kept.
        kept: dict[int, Indices] = self.__dict__.setdefault("_orders", {})
        if epoch not in kept:
            while len(kept) > 1:
                kept.pop(min(kept))
            rank = permutation(int(self.pictures.max()) + 1, self.seed, 0, epoch)
            kept[epoch] = np.argsort(rank[self.pictures], kind="stable")
        return kept[epoch]


@dataclass(frozen=True, kw_only=True)
class TrainingBatches:
    """The batch of every training step."""

    split: Split
    order: Grouped
    answers: int

    def __getitem__(self, step: int) -> Asked:
        return asked(self.split, self.order[step], self.answers)


class Data(ABC):
    """Which questions and pictures. Each task's own config adds its fields."""

    kinds: tuple[str, ...]
    """Names of the kinds of questions."""

    @property
    @abstractmethod
    def answers(self) -> Sequence[str]:
        """The answers that a model chooses from."""

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """How many words questions are made of, padding counted."""

    @property
    @abstractmethod
    def views(self) -> tuple[int, int, int]:
        """Detectors, boxes of each, numbers of a box."""

    @abstractmethod
    def check(self) -> None:
        """Raises a ``WrongUseError`` for settings that describe no data."""

    @abstractmethod
    def load(self, folder: Path) -> tuple[dict[str, Split], str]:
        """Returns train, validation and test, and their checksum."""

    @abstractmethod
    def floors(self, splits: Mapping[str, Split]) -> dict[str, float]:
        """Returns what trivial rules score on the test set, by the name of the rule."""

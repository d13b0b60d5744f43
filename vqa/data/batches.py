"""Training batches: pictures in a new order every epoch, each read once for all its questions."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from seqarena.common.data.batches import Batch, Indices, cached_order
from seqarena.common.data.counter import permutation
from seqarena.common.shapes import Centres, Places, Regions, RegionsReal, SoftTargets, Tokens
from seqarena.vqa.data import SHARE, Split


@dataclass(frozen=True, kw_only=True)
class QuestionBatch(Batch):
    """Batch of questions and their pictures. Each picture is stored once."""

    words: Tokens
    targets: SoftTargets
    picture: Places
    """Row of each question's picture in ``features``."""
    features: Regions
    centres: Centres
    real: RegionsReal

    def rows(self, start: int, stop: int) -> "QuestionBatch":
        """Returns the questions from ``start`` up to ``stop`` with the pictures that they need."""
        needed, picture = torch.unique(self.picture[start:stop], return_inverse=True)
        return QuestionBatch(
            words=self.words[start:stop], targets=self.targets[start:stop], picture=picture,
            features=self.features[needed], centres=self.centres[needed], real=self.real[needed],
        )  # fmt: skip

    def token_count(self) -> int:
        """Returns the number of real boxes."""
        return int(self.real.sum())

    def _each(self, change: Callable[[Tensor], Tensor]) -> "QuestionBatch":
        return QuestionBatch(**{field.name: change(getattr(self, field.name)) for field in fields(self)})


def question_batch(split: Split, questions: Indices, answers: int) -> QuestionBatch:
    """Returns the batch of the given questions. ``answers`` is the length of the answer list."""
    pictures, rows = np.unique(split.pictures[questions], return_inverse=True)
    seen = split.views.read(pictures)
    targets = np.zeros((len(questions), answers + 1))
    agreement = np.minimum(SHARE * split.people[questions], 1.0)
    targets[np.arange(len(questions))[:, None], split.options[questions]] = agreement  # -1 is the last column
    return QuestionBatch(
        words=torch.from_numpy(split.words[questions].astype(np.int64)),
        targets=torch.from_numpy(targets[:, :-1]).float(),
        picture=torch.from_numpy(rows.reshape(-1)),
        features=torch.from_numpy(seen.features.astype(np.float32)),
        centres=torch.from_numpy(seen.centres.astype(np.float32)),
        real=torch.from_numpy(seen.real),
    )


@dataclass(frozen=True, kw_only=True)
class PictureOrder:
    """Questions of each step: pictures in a new order every epoch, with all questions of a picture in sequence.

    A batch therefore reads few pictures. Every question occurs once per epoch.
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
        kept: dict[int, Indices] = self.__dict__.setdefault("_orders", {})
        rank = functools.partial(permutation, int(self.pictures.max()) + 1, self.seed, 0, epoch)
        return cached_order(kept, epoch, lambda: np.argsort(rank()[self.pictures], kind="stable"))


@dataclass(frozen=True, kw_only=True)
class TrainingBatches:
    """The batch of every training step."""

    split: Split
    order: PictureOrder
    answers: int

    def __getitem__(self, step: int) -> QuestionBatch:
        return question_batch(self.split, self.order[step], self.answers)

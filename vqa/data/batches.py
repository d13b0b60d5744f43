"""Training batches: pictures in a new order every epoch, each read once for all its questions."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from seqarena.common.data.batches import Batch, Indices, cached_order, moved
from seqarena.common.data.counter import permutation
from seqarena.common.shapes import Centres, Places, Regions, RegionsReal, SoftTargets, Tokens
from seqarena.vqa.data import SHARE, Split, Views


@dataclass(frozen=True, kw_only=True)
class QuestionBatch(Batch):
    """Batch of questions and their pictures. Each picture is stored once.

    Features have the precision of their files up to the device, and float32 on it: a GPU receives half as many bytes.
    """

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

    def to(self, device: torch.device) -> "QuestionBatch":
        """Returns the batch on a device, with features in float32."""
        there = self._each(lambda tensor: moved(tensor, device))
        return replace(there, features=there.features.float())

    def token_count(self) -> int:
        """Returns the number of real boxes."""
        return int(self.real.sum())

    def _each(self, change: Callable[[Tensor], Tensor]) -> "QuestionBatch":
        return QuestionBatch(**{field.name: change(getattr(self, field.name)) for field in fields(self)})


@dataclass(frozen=True, kw_only=True)
class UnreadBatch(Batch):
    """Batch of questions whose pictures are read when they are needed: each process reads those of its own share."""

    words: Tokens
    targets: SoftTargets
    pictures: Places
    """Index of each question's picture in ``views``."""
    views: Views

    def rows(self, start: int, stop: int) -> "UnreadBatch":
        """Returns the questions from ``start`` up to ``stop``."""
        return self._each(lambda tensor: tensor[start:stop])

    def read(self) -> QuestionBatch:
        """Returns the batch with the regions of its pictures."""
        needed, picture = np.unique(self.pictures.numpy(), return_inverse=True)
        seen = self.views.read(needed)
        return QuestionBatch(
            words=self.words, targets=self.targets, picture=torch.from_numpy(picture.reshape(-1)),
            features=torch.from_numpy(seen.features),
            centres=torch.from_numpy(seen.centres.astype(np.float32, copy=False)),
            real=torch.from_numpy(seen.real),
        )  # fmt: skip

    def to(self, device: torch.device) -> QuestionBatch:  # type: ignore[override]
        """Returns the batch with the regions of its pictures, on a device."""
        return self.read().to(device)

    def token_count(self) -> int:
        """Returns the number of real boxes."""
        return self.views.box_count(np.unique(self.pictures.numpy()))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "UnreadBatch":
        words, targets, pictures = map(change, (self.words, self.targets, self.pictures))
        return UnreadBatch(words=words, targets=targets, pictures=pictures, views=self.views)


def unread_batch(split: Split, questions: Indices, answers: int) -> UnreadBatch:
    """Returns the batch of the given questions. ``answers`` is the length of the answer list."""
    targets = np.zeros((len(questions), answers + 1))
    agreement = np.minimum(SHARE * split.people[questions], 1.0)
    targets[np.arange(len(questions))[:, None], split.options[questions]] = agreement  # -1 is the last column
    return UnreadBatch(
        words=torch.from_numpy(split.words[questions].astype(np.int64)),
        targets=torch.from_numpy(targets[:, :-1]).float(),
        pictures=torch.from_numpy(split.pictures[questions].astype(np.int64)),
        views=split.views,
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

    def __getitem__(self, step: int) -> UnreadBatch:
        return unread_batch(self.split, self.order[step], self.answers)

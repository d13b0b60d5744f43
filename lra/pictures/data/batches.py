"""Batches of pictures: training pictures are cropped at random, test pictures at the centre."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from seqarena.common.data.batches import Indices, ShuffledIndices
from seqarena.common.data.counter import hash64
from seqarena.lra.pictures.data import PictureBatch
from seqarena.lra.pictures.data.store import PictureSplit

Array = npt.NDArray[np.uint8]
AREA, RATIO, TRIALS = (0.08, 1.0), (3 / 4, 4 / 3), 10
"""Area of a random crop as a fraction of the picture's, ratio of its columns to its rows, and number of draws before
the centre is taken (Szegedy et al. 2015, as in torchvision's RandomResizedCrop)."""


@dataclass(frozen=True, kw_only=True)
class TrainingPictures:
    """The batch of every training step: a function of the seed and the step."""

    split: PictureSplit
    order: ShuffledIndices
    side: int
    tokens: int
    seed: int
    crop: Literal["centre", "resized"] = "centre"
    """Part of a picture that is read. centre: the centre; resized: a random part, resized to ``side``."""

    def __getitem__(self, step: int) -> PictureBatch:
        """Returns the batch of a step."""
        examples = self.order[step]
        seeds = hash64(self.seed, 5, step, np.arange(len(examples)))
        if self.crop == "centre":
            return centred(self.split, examples, side=self.side, tokens=self.tokens, seeds=seeds)
        pictures = [
            random_crop(self.split[index], self.side, seed)
            for index, seed in zip(examples.tolist(), seeds.tolist(), strict=True)
        ]
        return _batch(pictures, self.split, examples, self.tokens, seeds)


def centred(
    split: PictureSplit,
    examples: Indices,
    *,
    side: int,
    tokens: int,
    seeds: npt.NDArray[np.uint64] | None = None,
) -> PictureBatch:
    """Returns a batch of the centres of some pictures of a split."""
    pictures = [centre(split[index], side) for index in examples.tolist()]
    return _batch(pictures, split, examples, tokens, np.zeros(len(examples), np.uint64) if seeds is None else seeds)


def _batch(
    pictures: Sequence[Array], split: PictureSplit, examples: Indices, tokens: int, seeds: npt.NDArray[np.uint64]
) -> PictureBatch:
    return PictureBatch(
        pictures=torch.from_numpy(np.stack(pictures).transpose(0, 3, 1, 2)),
        labels=torch.from_numpy(split.labels[examples]),
        seeds=torch.from_numpy((seeds >> np.uint64(1)).astype(np.int64)),
        tokens=torch.full((len(examples),), tokens),
    )


def centre(picture: Array, side: int) -> Array:
    """Returns the central ``side`` x ``side`` pixels of a picture that is at least as large."""
    top, left = ((length - side) // 2 for length in picture.shape[:2])
    return picture[top : top + side, left : left + side]


def random_crop(picture: Array, side: int, seed: int) -> Array:
    """Returns a random part of a picture, resized to ``side`` x ``side`` pixels."""
    rows, columns = picture.shape[:2]
    uniform = hash64(seed, np.arange(4 * TRIALS)).reshape(TRIALS, 4) / 2.0**64
    for area, ratio, down, right in uniform.tolist():
        pixels = rows * columns * (AREA[0] + (AREA[1] - AREA[0]) * area)
        shape = np.exp(np.log(RATIO[0]) + (np.log(RATIO[1]) - np.log(RATIO[0])) * ratio)
        width, height = round(float(np.sqrt(pixels * shape))), round(float(np.sqrt(pixels / shape)))
        if 0 < width <= columns and 0 < height <= rows:
            top, left = int(down * (rows - height + 1)), int(right * (columns - width + 1))
            part = picture[top : top + height, left : left + width]
            break
    else:
        part = centre(picture, min(rows, columns))
    resized = Image.fromarray(part).resize((side, side), Image.Resampling.BICUBIC)
    return np.asarray(resized, np.uint8)

"""Scores of trivial rules on pictures."""

import numpy as np
import numpy.typing as npt
from PIL import Image

from seqarena.common.data.nearest import FLOOR, TESTED, label_of_nearest
from seqarena.lra.data.pixels import LEVELS, nearest_mean
from seqarena.lra.pictures.data.batches import centre
from seqarena.lra.pictures.data.store import PictureSplit, PictureSplits

EXAMPLES = 50_000
"""Maximum number of training pictures that a rule is fitted on."""
THUMBNAIL = 16
"""Rows and columns to which pictures are reduced before they are compared."""


def floors(splits: PictureSplits, side: int) -> dict[str, float]:
    """Returns the test scores of three rules on the central ``side`` x ``side`` pixels, which a model reads.

    They are the majority class, the class with the nearest mean histogram of colours, and the nearest training picture
    among thumbnails.
    """
    train, test = splits["train"], splits["test"]
    count = min(len(train), EXAMPLES)
    known, seen = (_features(split, some, side) for split, some in ((train, count), (test, len(test))))
    labels = train.labels[:count]
    return {
        "majority class": float((test.labels == np.bincount(train.labels).argmax()).mean()),
        "colours": nearest_mean(known[0], labels, seen[0], test.labels),
        FLOOR: label_of_nearest(known[1], labels, seen[1][:TESTED], test.labels),
    }


def _features(split: PictureSplit, count: int, side: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Returns histograms of red, green and blue, and thumbnails, of the first pictures of a split."""
    histograms, thumbnails = [], []
    for index in range(count):
        picture = centre(split[index], side)
        bins = [
            np.bincount(picture[..., colour].reshape(-1) // (256 // LEVELS), minlength=LEVELS) for colour in range(3)
        ]
        histograms.append(np.concatenate(bins) / picture[..., 0].size)
        small = Image.fromarray(picture).resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX)
        thumbnails.append(np.asarray(small, np.uint8).reshape(-1))
    return np.stack(histograms), np.stack(thumbnails).astype(np.int64)

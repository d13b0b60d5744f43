"""Pictures read pixel by pixel: what every task of them shares, and what trivial rules score."""

import io
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from PIL import Image as Picture

from seqarena.common.data.batches import Bytes, Ragged
from seqarena.common.data.nearest import FLOOR, label_of_nearest
from seqarena.common.data.prepared import Splits
from seqarena.lra.data import BYTE_VOCABULARY, Data, majority_class

LEVELS = 16
"""Bins of brightness."""
EXAMPLES = 10_000
"""Images that a rule is fitted on, at most."""


@dataclass(frozen=True, kw_only=True)
class Pixels(Data):
    """Grey pictures; token n is a pixel of brightness n - 1."""

    vocabulary: ClassVar[int] = BYTE_VOCABULARY

    def floors(self, splits: Splits) -> dict[str, float]:
        """Returns what the majority class, the nearest class by a histogram of pixels and the nearest image score."""
        train, test = splits["train"], splits["test"]
        pixels = [some.tokens.reshape(len(some), -1) for some in (train, test)]
        return {
            "majority class": majority_class(splits),
            "brightness": brightness(splits),
            FLOOR: label_of_nearest(pixels[0], train.labels, pixels[1], test.labels),
        }


def open_picture(content: bytes) -> Picture.Image:
    """Returns a picture whose checksums fit: decoding a PNG leaves out those of its pixels.

    Raises:
        Exception: of whatever class Pillow has for the damage.
    """
    Picture.open(io.BytesIO(content)).verify()  # after which it cannot be read
    return Picture.open(io.BytesIO(content))


def as_sequences(images: Bytes, labels: Bytes) -> Ragged:
    """Returns images (count, pixels) as sequences; token 1 is black, 0 is left for padding."""
    count, pixels = images.shape
    return Ragged(
        tokens=images.reshape(-1), offsets=np.arange(count + 1, dtype=np.int64) * pixels, labels=labels, shift=1
    )


def brightness(splits: Splits) -> float:
    """Returns what a linear rule on how bright pixels are scores on the test set."""
    train, test = splits["train"], splits["test"]
    known, labels = histograms(train, min(len(train), EXAMPLES)), train.labels[:EXAMPLES]
    centre, spread = known.mean(axis=0), known.std(axis=0) + 1e-9
    classes = np.unique(labels)
    means = np.stack([(known[labels == each] - centre).mean(axis=0) / spread for each in classes])
    apart = ((histograms(test, len(test)) - centre) / spread)[:, None] - means
    guess = classes[(apart**2).sum(axis=2).argmin(axis=1)]
    return float((test.labels == guess).mean())


def histograms(split: Ragged, count: int) -> npt.NDArray[np.float64]:
    """Returns the share of each example's pixels in each bin of brightness; the first ``count`` examples, bins."""
    bins = (np.bincount(split[example] // (256 // LEVELS), minlength=LEVELS) for example in range(count))
    return np.stack([each / each.sum() for each in bins])

"""Base config of the tasks that read images pixel by pixel, and their floors."""

import io
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from PIL import Image as Picture

from seqarena.common.data.batches import Bytes, Ragged
from seqarena.common.data.nearest import FLOOR, label_of_nearest
from seqarena.common.data.prepared import Splits
from seqarena.lra.data import BYTE_VOCABULARY, Data, majority_class

LEVELS = 16
"""Number of brightness bins."""
EXAMPLES = 10_000
"""Maximum number of images that a rule is fitted on."""


@dataclass(frozen=True, kw_only=True)
class Pixels(Data):
    """Config of grey images. Token n is a pixel of brightness n - 1."""

    vocabulary: ClassVar[int] = BYTE_VOCABULARY

    def floors(self, splits: Splits) -> dict[str, float]:
        """Returns the scores of three rules.

        They are the majority class, the class with the nearest mean brightness histogram, and the nearest training
        image, compared on the pixels that a model reads.
        """
        train, test = splits["train"], splits["test"]
        pixels = [some.tokens.reshape(len(some), -1)[:, : some.limit] for some in (train, test)]
        return {
            "majority class": majority_class(splits),
            "brightness": brightness(splits),
            FLOOR: label_of_nearest(pixels[0], train.labels, pixels[1], test.labels),
        }


def open_picture(content: bytes) -> Picture.Image:
    """Opens an image after its checksums are verified: decoding a PNG does not check those of its pixels.

    Raises:
        Exception: the image is damaged; the class depends on the damage.
    """
    Picture.open(io.BytesIO(content)).verify()  # a verified image must be opened again to be read
    return Picture.open(io.BytesIO(content))


def images_to_sequences(images: Bytes, labels: Bytes) -> Ragged:
    """Returns images (count, pixels) as sequences. Token 1 is black; token 0 is reserved for padding."""
    count, pixels = images.shape
    return Ragged(
        tokens=images.reshape(-1), offsets=np.arange(count + 1, dtype=np.int64) * pixels, labels=labels, shift=1
    )


def brightness(splits: Splits) -> float:
    """Returns the test accuracy of the nearest class mean of brightness histograms."""
    train, test = splits["train"], splits["test"]
    known = histograms(train, min(len(train), EXAMPLES))
    return nearest_mean(known, train.labels[:EXAMPLES], histograms(test, len(test)), test.labels)


def nearest_mean(
    known: npt.NDArray[np.float64],
    labels: npt.NDArray[np.integer[Any]],
    seen: npt.NDArray[np.float64],
    wanted: npt.NDArray[np.integer[Any]],
) -> float:
    """Returns the accuracy of the class with the nearest mean of standardised features; both (examples, features)."""
    centre, spread = known.mean(axis=0), known.std(axis=0) + 1e-9
    classes = np.unique(labels)
    means = np.stack([(known[labels == each] - centre).mean(axis=0) / spread for each in classes])
    distances = np.stack([(((seen - centre) / spread - mean) ** 2).sum(axis=1) for mean in means], axis=1)
    return float((wanted == classes[distances.argmin(axis=1)]).mean())


def histograms(split: Ragged, count: int) -> npt.NDArray[np.float64]:
    """Returns the fraction of pixels in each brightness bin, for the first ``count`` examples (examples, bins)."""
    bins = (np.bincount(split[example] // (256 // LEVELS), minlength=LEVELS) for example in range(count))
    return np.stack([each / each.sum() for each in bins])

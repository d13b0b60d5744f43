"""What trivial rules score on images: the most frequent class, and a linear rule on how bright they are."""

import numpy as np
import numpy.typing as npt

from common.data import Ragged
from common.prepared import Splits

LEVELS = 16
"""Bins of brightness."""
EXAMPLES = 10_000
"""Images that a rule is fitted on, at most."""


def image_floors(splits: Splits) -> dict[str, float]:
    """Returns rule -> accuracy on the test set: majority class, and the nearest class by the histogram of pixels."""
    train, test = splits["train"], splits["test"]
    majority = np.bincount(train.labels).argmax()
    known, labels = histograms(train, min(len(train), EXAMPLES)), train.labels[:EXAMPLES]
    centre, spread = known.mean(axis=0), known.std(axis=0) + 1e-9
    classes = np.unique(labels)
    means = np.stack([(known[labels == each] - centre).mean(axis=0) / spread for each in classes])
    apart = ((histograms(test, len(test)) - centre) / spread)[:, None] - means
    guess = classes[(apart**2).sum(axis=2).argmin(axis=1)]
    return {
        "majority class": float((test.labels == majority).mean()),
        "brightness": float((test.labels == guess).mean()),
    }


def histograms(split: Ragged, count: int) -> npt.NDArray[np.float64]:
    """Returns the share of each example's pixels in each bin of brightness; the first ``count`` examples, bins."""
    bins = (np.bincount(split[example] // (256 // LEVELS), minlength=LEVELS) for example in range(count))
    return np.stack([each / each.sum() for each in bins])

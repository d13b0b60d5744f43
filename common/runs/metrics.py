"""Scores of examples: pure functions of arrays."""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def accuracy(predictions: npt.ArrayLike, labels: npt.ArrayLike) -> Array:
    """Returns 1 for each example whose prediction equals its label, 0 for the others."""
    return np.equal(predictions, labels).astype(np.float64)

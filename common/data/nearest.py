"""The nearest training example: the floor that memorising the training set reaches."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from seqarena.common.data.batches import Indices

FLOOR = "nearest training example"
Counts = Any
"""An array of integers, or SciPy's csr_matrix of them, which is slow to import."""
Labels = npt.NDArray[np.integer[Any]]
WORD = re.compile(r"\w+")
TRAINED, TESTED = 200_000, 1_000
"""Maximum training and test examples compared, the first ones. Generated training sets are compared whole."""
ROWS = 4_096
"""Training examples compared at once."""


def nearest(train: Counts, test: Counts) -> Indices:
    """Returns the index of the training example nearest to each of the first ``TESTED`` test examples.

    Both are (examples, features) of integers. Distances are Euclidean and exact, the same on any machine. Among equal
    distances the first example counts.
    """
    wanted, is_sparse = test[:TESTED].astype(np.float64), not isinstance(test, np.ndarray)
    best = np.full(wanted.shape[0], np.inf)
    found = np.zeros(wanted.shape[0], dtype=np.int64)
    for start in range(0, min(train.shape[0], TRAINED), ROWS):
        some = train[start : start + ROWS].astype(np.float64)
        products = wanted @ some.T
        dense = products.toarray() if is_sparse else products
        squares = some.multiply(some) if is_sparse else some**2
        # Squared distances, without the test example's own square.
        distances = np.asarray(squares.sum(axis=1)).reshape(-1) - 2 * dense
        here = distances.argmin(axis=1)
        least = distances[np.arange(len(here)), here]
        found = np.where(least < best, start + here, found)
        best = np.minimum(least, best)
    return found


def label_of_nearest(train: Counts, labels: Labels, test: Counts, wanted: Labels) -> float:
    """Returns the fraction of test examples whose label is that of the nearest training example."""
    found = nearest(train, test)
    return float((labels[found] == wanted[: len(found)]).mean())


def word_counts(train: Sequence[str], test: Sequence[str]) -> tuple[Counts, Counts]:
    """Returns the counts of the training texts' words in the compared texts of both sets, (texts, words) each."""
    from scipy import sparse  # noqa: PLC0415

    split = [[WORD.findall(text.lower()) for text in texts] for texts in (train[:TRAINED], test[:TESTED])]
    known = {word: number for number, word in enumerate(sorted({word for words in split[0] for word in words}))}

    def counts(texts: list[list[str]]) -> Counts:
        columns_of = [[known[word] for word in words if word in known] for words in texts]
        ends = np.cumsum([0, *map(len, columns_of)])
        columns = np.array([column for some in columns_of for column in some], dtype=np.int64)
        found = sparse.csr_matrix((np.ones(len(columns), np.int64), columns, ends), shape=(len(texts), len(known)))
        found.sum_duplicates()
        return found

    return counts(split[0]), counts(split[1])

"""The nearest training example: a floor that has learned everything by heart and nothing else."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from seqarena.common.data.batches import Indices

FLOOR = "nearest training example"
Counts = npt.NDArray[np.integer[Any]] | sparse.csr_matrix
Labels = npt.NDArray[np.integer[Any]]
WORD = re.compile(r"\w+")
TRAINED, TESTED = 200_000, 1_000
"""Training and test examples that are compared, at most: the first so many, of all generated sets all that train."""
ROWS = 4_096
"""Training examples that are compared at once."""


def nearest(train: Counts, test: Counts) -> Indices:
    """Returns the number of the training example nearest to each of the first ``TESTED`` test examples.

    Both are (examples, features), in whole numbers. Distances are Euclidean and exact, the same on any machine; of
    equal ones the first example counts.
    """
    wanted = test[:TESTED].astype(np.float64)
    best = np.full(wanted.shape[0], np.inf)
    found = np.zeros(wanted.shape[0], dtype=np.int64)
    for start in range(0, min(train.shape[0], TRAINED), ROWS):
        some = train[start : start + ROWS].astype(np.float64)
        products = wanted @ some.T
        dense = products.toarray() if sparse.issparse(products) else products
        squares = some.multiply(some) if sparse.issparse(some) else some**2
        apart = np.asarray(squares.sum(axis=1)).reshape(-1) - 2 * dense  # but for the test example's own square
        here = apart.argmin(axis=1)
        least = apart[np.arange(len(here)), here]
        found = np.where(least < best, start + here, found)
        best = np.minimum(least, best)
    return found


def label_of_nearest(train: Counts, labels: Labels, test: Counts, wanted: Labels) -> float:
    """Returns the share of test examples whose label is that of the nearest training example."""
    found = nearest(train, test)
    return float((labels[found] == wanted[: len(found)]).mean())


def word_counts(train: Sequence[str], test: Sequence[str]) -> tuple[sparse.csr_matrix, sparse.csr_matrix]:
    """Returns how often each word of the training texts is in each text that is compared, (texts, words) of both."""
    split = [[WORD.findall(text.lower()) for text in texts] for texts in (train[:TRAINED], test[:TESTED])]
    known = {word: number for number, word in enumerate(sorted({word for words in split[0] for word in words}))}

    def counts(texts: list[list[str]]) -> sparse.csr_matrix:
        there = [[known[word] for word in words if word in known] for words in texts]
        ends = np.cumsum([0, *map(len, there)])
        columns = np.array([column for some in there for column in some], dtype=np.int64)
        found = sparse.csr_matrix((np.ones(len(columns), np.int64), columns, ends), shape=(len(texts), len(known)))
        found.sum_duplicates()
        return found

    return counts(split[0]), counts(split[1])

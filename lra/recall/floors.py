"""Test scores of rules that do not match keys."""

from collections import Counter, defaultdict

import numpy as np
import numpy.typing as npt

from seqarena.common.data.prepared import Splits
from seqarena.lra.recall.generator import first_value


def floors(splits: Splits, vocabulary: int) -> dict[str, float]:
    """Returns rule -> fraction of the test queries that it answers.

    The rules predict: any value of the sequence; the value of the first pair whose key was not a query yet; the value
    of the pair that was most often the answer at this position in training; and the value that the key had most
    recently in training.
    """
    last = np.zeros(first_value(vocabulary), dtype=np.int64)
    train, test = splits["train"], splits["test"]
    counts: dict[tuple[int, int, int], Counter[int]] = defaultdict(Counter)
    for example, pairs in enumerate(train.labels.tolist()):
        row = train[example].astype(np.int64)
        last[row[0 : 2 * pairs : 2]] = row[1 : 2 * pairs : 2]
        for position, pair in _queries(row, pairs):
            counts[len(row), pairs, position][pair] += 1
    usual = {key: count.most_common(1)[0][0] for key, count in counts.items()}
    scores = np.zeros((len(test), 4))
    for example, pairs in enumerate(test.labels.tolist()):
        row = test[example].astype(np.int64)
        waiting, first, at_position = list(range(pairs)), 0, 0
        for position, pair in _queries(row, pairs):
            first += waiting[0] == pair
            at_position += usual.get((len(row), pairs, position), 0) == pair
            waiting.remove(pair)
        known = int((last[row[0 : 2 * pairs : 2]] == row[1 : 2 * pairs : 2]).sum())
        scores[example] = 1, first, at_position, known
        scores[example] /= pairs
    names = ("any value of the sequence", "first pair not recalled", "usual pair at this position", "value in training")
    return dict(zip(names, scores.mean(axis=0).tolist(), strict=True))


def _queries(row: npt.NDArray[np.int64], pairs: int) -> list[tuple[int, int]]:
    """Returns (position, index of its pair) of each query of a sequence."""
    index = {key: pair for pair, key in enumerate(row[0 : 2 * pairs : 2].tolist())}
    positions = (np.flatnonzero(row[2 * pairs :]) + 2 * pairs).tolist()
    return [(position, index[int(row[position])]) for position in positions]

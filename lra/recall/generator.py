"""Sequences of multi-query associative recall (Arora et al. 2024, Zoology, arXiv 2312.04927).

A sequence begins with pairs of a key and a value. Later, each key appears once more as a query, whose answer is its
value.
All other tokens are the filler 0. Keys and values have different tokens.

Source of the settings: ``multiquery_ar`` of HazyResearch/zoology with ``random_non_queries=False``, as in its Figure 2.
Departures: random numbers are ours (common/data/counter.py); lengths may be odd, and the vocabulary may be smaller than
the sequence is long, which the published function refuses.
"""

import numpy as np
import numpy.typing as npt

from seqarena.common.data.counter import hash64

TokenMatrix = npt.NDArray[np.uint16]
CHUNK = 1_000
"""Sequences that are generated at once."""
KEYS, VALUES, GAPS = range(3)
"""Streams of random numbers."""


def first_value(vocabulary: int) -> int:
    """Returns the smallest token that is a value. Keys are the tokens from 1 to below it."""
    return vocabulary // 2


def sequences(
    count: int, *, length: int, pairs: int, vocabulary: int, power: float, keys: tuple[int, ...]
) -> TokenMatrix:
    """Returns ``count`` sequences (count, length), a function of the random ``keys`` and the settings alone."""
    found = np.zeros((count, length), dtype=np.uint16)
    for start in range(0, count, CHUNK):
        rows = np.arange(start, min(start + CHUNK, count))
        found[rows] = _chunk(rows, length, pairs, vocabulary, power, keys)
    return found


def _chunk(
    rows: npt.NDArray[np.int64], length: int, pairs: int, vocabulary: int, power: float, keys: tuple[int, ...]
) -> npt.NDArray[np.int64]:
    first, context = first_value(vocabulary), 2 * pairs
    tokens = np.zeros((len(rows), length), dtype=np.int64)
    tokens[:, 0:context:2] = 1 + _distinct(rows, np.zeros(first - 1), pairs, (*keys, KEYS))
    tokens[:, 1:context:2] = first + _distinct(rows, np.zeros(vocabulary - first), pairs, (*keys, VALUES))
    gaps = _distinct(rows, log_weights(length, pairs, power), pairs, (*keys, GAPS))
    np.put_along_axis(tokens, context + 2 * gaps, tokens[:, 0:context:2], axis=1)
    return tokens


def log_weights(length: int, pairs: int, power: float) -> npt.NDArray[np.float64]:
    """Returns the logarithm of the weight of each place for a key's second appearance: (n + 1)^(power - 1)."""
    return (power - 1) * np.log(np.arange(1, (length - 2 * pairs) // 2 + 1))


def _distinct(
    rows: npt.NDArray[np.int64], weights: npt.NDArray[np.float64], count: int, keys: tuple[int, ...]
) -> npt.NDArray[np.int64]:
    """Returns ``count`` different indices of ``weights`` (logarithms) for each row, in the order drawn.

    They are drawn one after another without replacement, with probabilities proportional to the weights: the order of
    E / weight with independent exponential variables E has this distribution (Efraimidis and Spirakis 2006).
    """
    bits = hash64(*keys, rows[:, None], np.arange(len(weights)))
    uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
    order = np.log(-np.log(uniform)) - weights
    if count < order.shape[1]:
        smallest = np.argpartition(order, count - 1, axis=1)[:, :count]
    else:
        smallest = np.broadcast_to(np.arange(count), (len(rows), count))
    ranked = np.argsort(np.take_along_axis(order, smallest, axis=1), axis=1, kind="stable")
    return np.take_along_axis(smallest, ranked, axis=1)

"""The seeded generator of ListOps.

It samples from the same distribution as Long Range Arena's generator (``lra_benchmarks/data/listops.py``, adapted from
Nangia and Bowman 2018). Here every tree is a function of (seed, number of the draw), so the bytes are the same on any
machine and for any number of workers. The official files were generated without a seed and cannot be reproduced.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import no_type_check

import numpy as np
import numpy.typing as npt

from seqarena.common.data.batches import Bytes, Ragged
from seqarena.common.data.compiled import compiled
from seqarena.common.data.counter import GOLDEN, hash64, permutation
from seqarena.common.errors import WrongUseError
from seqarena.lra.data import SPLITS
from seqarena.lra.data.listops.language import CLOSE, MIN, OPERATORS, apply, content, mix

DRAWS_PER_CHUNK = 4096


@dataclass(frozen=True, kw_only=True)
class Expressions:
    """Parameters of the generated expressions."""

    train: int = 96_000
    """Number of training expressions to generate."""
    validation: int = 2_000
    """Number of validation expressions to generate."""
    test: int = 2_000
    """Number of test expressions to generate."""
    longer_than: int = 500
    """Every expression has more symbols than this, including operators and closing brackets."""
    shorter_than: int = 2_000
    """Every expression has fewer symbols than this."""
    max_depth: int = 10
    """Maximum number of levels of the tree. The last level has digits only."""
    max_arguments: int = 10
    """Maximum number of arguments of an operator. The minimum is 2."""
    operator_probability: float = 0.25
    """Probability that a node above the last level is an operator."""
    seed: int = 0
    """Seed of the data, independent of the seed of the run."""

    def check(self) -> None:
        """Raises a ``WrongUseError`` for settings that no expression satisfies."""
        if min(self.train, self.validation, self.test) < 1:
            raise WrongUseError(
                "data.train, data.validation and data.test: expected at least 1 each, found "
                f"{self.train}, {self.validation} and {self.test}"
            )
        if self.shorter_than - self.longer_than < 2 or self.longer_than < 0:
            raise WrongUseError(
                "expected data.longer_than of at least 0 and data.shorter_than larger by at least 2, found "
                f"{self.longer_than} and {self.shorter_than}"
            )
        if not (self.max_arguments >= 2 and self.max_depth >= 1 and 0 < self.operator_probability < 1):
            raise WrongUseError(
                "expected data.max_arguments >= 2, data.max_depth >= 1 and 0 < data.operator_probability < 1, found "
                f"{self.max_arguments}, {self.max_depth} and {self.operator_probability}"
            )


@compiled(nogil=True)
@no_type_check
def draw(
    keys: npt.NDArray[np.uint64], longer: int, shorter: int, max_depth: int, max_arguments: int, threshold: np.uint64
) -> tuple[Bytes, npt.NDArray[np.int64], Bytes]:
    """Draws one tree per key and returns the trees of an accepted length: concatenated tokens, lengths, labels.

    A node above the last level is an operator if 32 random bits are below ``threshold``. A tree is abandoned as soon
    as it is too long.
    """
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    tokens = np.empty(len(keys) * shorter, dtype=np.uint8)
    lengths = np.empty(len(keys), dtype=np.int64)
    labels = np.empty(len(keys), dtype=np.uint8)
    operators = np.empty(max_depth, dtype=np.int64)
    wanted = np.empty(max_depth, dtype=np.int64)  # arguments an open operator has in all
    given = np.empty(max_depth, dtype=np.int64)  # arguments it has so far
    values = np.empty((max_depth, max_arguments), dtype=np.int64)
    written = 0
    accepted = 0
    for key in keys:
        counter = key
        length = 0
        depth = 0  # open operators
        label = -1
        while length + depth < shorter:
            counter += GOLDEN
            bits = mix(counter)
            if depth < max_depth - 1 and (bits >> half) < threshold:
                counter += GOLDEN
                more = mix(counter)
                wanted[depth] = 2 + np.int64(((more >> half) * np.uint64(max_arguments - 1)) >> half)
                operators[depth] = MIN + np.int64(((more & low) * np.uint64(OPERATORS)) >> half)
                given[depth] = 0
                tokens[written + length] = operators[depth]
                length += 1
                depth += 1
                continue
            value = np.int64(((bits & low) * np.uint64(10)) >> half)
            tokens[written + length] = 1 + value
            length += 1
            while depth > 0:
                values[depth - 1, given[depth - 1]] = value
                given[depth - 1] += 1
                if given[depth - 1] < wanted[depth - 1]:
                    break
                depth -= 1
                value = apply(operators[depth], values[depth, : wanted[depth]])
                tokens[written + length] = CLOSE
                length += 1
            if depth == 0:
                label = value
                break
        if label >= 0 and longer < length < shorter:
            lengths[accepted] = length
            labels[accepted] = label
            written += length
            accepted += 1
    return tokens[:written].copy(), lengths[:accepted].copy(), labels[:accepted].copy()


def chunks(data: Expressions, workers: int) -> Iterator[tuple[Bytes, npt.NDArray[np.int64], Bytes]]:
    """Yields the accepted trees of draw 0, 1, 2, ... chunk by chunk, in this order for any number of workers."""
    threshold = np.uint64(round(data.operator_probability * 2**32))

    def chunk(number: int) -> tuple[Bytes, npt.NDArray[np.int64], Bytes]:
        keys = hash64(data.seed, 0, number * DRAWS_PER_CHUNK + np.arange(DRAWS_PER_CHUNK))
        drawn: tuple[Bytes, npt.NDArray[np.int64], Bytes] = draw(
            keys, data.longer_than, data.shorter_than, data.max_depth, data.max_arguments, threshold
        )
        return drawn

    with ThreadPoolExecutor(workers) as pool:
        numbers = iter(range(2**62))
        waiting = deque(pool.submit(chunk, next(numbers)) for _ in range(2 * workers))
        try:
            while True:
                yield waiting.popleft().result()
                waiting.append(pool.submit(chunk, next(numbers)))
        finally:
            for future in waiting:
                future.cancel()


def generate(data: Expressions, workers: int = 2) -> dict[str, Ragged]:
    """Returns the splits: distinct trees are drawn, shuffled and divided, so that no two splits share a tree.

    Trees that differ only in the order of arguments count as equal, and the first one drawn is used.

    Raises:
        WrongUseError: too few distinct expressions of these lengths exist.
    """
    data.check()
    wanted = data.train + data.validation + data.test
    known: set[int] = set()
    sequences: list[Bytes] = []
    labels: list[int] = []
    patience = 100  # chunks in a row with at most one new tree, after which the search stops
    for tokens, lengths, chunk_labels in chunks(data, workers):
        before = len(sequences)
        ends = np.cumsum(lengths)
        for start, end, label in zip(ends - lengths, ends, chunk_labels, strict=True):
            sequence = tokens[start:end]
            key = content(sequence)
            if key not in known and len(sequences) < wanted:
                known.add(key)
                sequences.append(sequence)
                labels.append(int(label))
        if len(sequences) == wanted:
            break
        patience = 100 if len(sequences) > before + 1 else patience - 1
        if patience == 0:
            raise WrongUseError(
                f"expected {wanted:,} distinct expressions (data.train + data.validation + data.test), found only "
                f"{len(sequences):,}; request fewer, or allow other ones (data.longer_than, data.shorter_than, "
                "data.max_depth, data.max_arguments)"
            )
    order = permutation(wanted, data.seed, 1)
    cuts = np.cumsum([data.train, data.validation])
    return {
        name: Ragged.of([sequences[n] for n in part], [labels[n] for n in part])
        for name, part in zip(SPLITS, np.split(order, cuts), strict=True)
    }

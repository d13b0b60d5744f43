"""The seeded generator of ListOps.

It draws what Long Range Arena's draws (``lra_benchmarks/data/listops.py``, adapted from Nangia and Bowman
2018), but every tree is a function of (seed, number of the draw): the same bytes on any machine, by any number of
workers. The official files were made without a seed and can not be made again.
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

DRAWS_A_CHUNK = 4096


@dataclass(frozen=True, kw_only=True)
class Expressions:
    """Which expressions are generated."""

    train: int = 96_000
    """Training expressions to generate."""
    validation: int = 2_000
    """Validation expressions to generate."""
    test: int = 2_000
    """Test expressions to generate."""
    longer_than: int = 500
    """Expressions have more symbols than this, operators and closing brackets counted."""
    shorter_than: int = 2_000
    """Expressions have fewer symbols than this."""
    max_depth: int = 10
    """Levels of the tree; the last holds digits only."""
    max_arguments: int = 10
    """Most arguments of an operator; the fewest are 2."""
    operator_probability: float = 0.25
    """Probability that a node above the last level is an operator."""
    seed: int = 0
    """Seed of the data, apart from the seed of the run."""

    def check(self) -> None:
        """Raises a ``WrongUseError`` for settings that describe no expressions."""
        if min(self.train, self.validation, self.test) < 1:
            raise WrongUseError("data.train, data.validation and data.test: expected at least 1 each")
        if self.shorter_than - self.longer_than < 2 or self.longer_than < 0:
            raise WrongUseError(
                f"no length is above data.longer_than {self.longer_than} "
                f"and below data.shorter_than {self.shorter_than}"
            )
        if not (self.max_arguments >= 2 and self.max_depth >= 1 and 0 < self.operator_probability < 1):
            raise WrongUseError("expected data.max_arguments >= 2, data.max_depth >= 1, 0 < operator_probability < 1")


@compiled(nogil=True)
@no_type_check
def draw(
    keys: npt.NDArray[np.uint64], longer: int, shorter: int, max_depth: int, max_arguments: int, threshold: np.uint64
) -> tuple[Bytes, npt.NDArray[np.int64], Bytes]:
    """Draws one tree for each key and returns those of an accepted length: tokens end to end, lengths, labels.

    A node above the last level is an operator if 32 random bits fall below ``threshold``; a tree is given up as soon
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
    """Yields the accepted trees of draw 0, 1, 2, ... a chunk at a time, in that order whatever ``workers`` is."""
    threshold = np.uint64(round(data.operator_probability * 2**32))

    def chunk(number: int) -> tuple[Bytes, npt.NDArray[np.int64], Bytes]:
        keys = hash64(data.seed, 0, number * DRAWS_A_CHUNK + np.arange(DRAWS_A_CHUNK))
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
    """Returns the splits: distinct trees in the order drawn, shuffled, then cut, so that no two splits share one.

    Trees that differ in the order of arguments alone are not distinct; the first one drawn is kept.

    Raises:
        WrongUseError: there are not that many distinct expressions of these lengths.
    """
    data.check()
    wanted = data.train + data.validation + data.test
    known: set[int] = set()
    sequences: list[Bytes] = []
    labels: list[int] = []
    patience = 100  # chunks in a row that bring hardly anything new
    for tokens, lengths, chunk_labels in chunks(data, workers):
        before = len(sequences)
        ends = np.cumsum(lengths)
        for start, end, label in zip(ends - lengths, ends, chunk_labels, strict=True):
            sequence = tokens[start:end]
            what = content(sequence)
            if what not in known and len(sequences) < wanted:
                known.add(what)
                sequences.append(sequence)
                labels.append(int(label))
        if len(sequences) == wanted:
            break
        patience = 100 if len(sequences) > before + 1 else patience - 1
        if patience == 0:
            raise WrongUseError(
                f"found {len(sequences):,} distinct expressions of the {wanted:,} asked for; ask for fewer "
                "(data.train, data.validation, data.test) or allow longer ones (data.shorter_than)"
            )
    order = permutation(wanted, data.seed, 1)
    cuts = np.cumsum([data.train, data.validation])
    return {
        name: Ragged.of([sequences[n] for n in part], [labels[n] for n in part])
        for name, part in zip(SPLITS, np.split(order, cuts), strict=True)
    }

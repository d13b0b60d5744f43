"""Sequences of associative recall: each has an answer at each key, and gaps have the published distribution."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqarena.lra.recall.generator import first_value, log_weights, sequences

SIZES = st.integers(1, 6).flatmap(
    lambda pairs: st.tuples(st.just(pairs), st.integers(4 * pairs, 40), st.integers(2 * pairs + 2, 60))
)


@given(sizes=SIZES, seed=st.integers(0, 2**32), power=st.sampled_from([0.01, 0.5, 1.0]))
def test_each_key_of_a_pair_appears_once_more(sizes: tuple[int, int, int], seed: int, power: float) -> None:
    pairs, length, vocabulary = sizes
    rows = sequences(4, length=length, pairs=pairs, vocabulary=vocabulary, power=power, keys=(seed,))
    assert rows.shape == (4, length)
    for row in rows.tolist():
        keys, values, later = row[0 : 2 * pairs : 2], row[1 : 2 * pairs : 2], row[2 * pairs :]
        assert len(set(keys)) == len(set(values)) == pairs
        assert all(1 <= key < first_value(vocabulary) for key in keys)
        assert all(first_value(vocabulary) <= value < vocabulary for value in values)
        assert sorted(token for token in later if token) == sorted(keys)
        assert not any(later[1::2])  # a key is followed by the place of its value, which is empty


def test_a_sequence_depends_on_its_number_and_the_seed_alone() -> None:
    def some(count: int, seed: int) -> list[list[int]]:
        found = sequences(count, length=16, pairs=3, vocabulary=64, power=0.1, keys=(seed,))
        return found.tolist()  # type: ignore[no-any-return]

    assert some(2_005, 1)[:7] == some(7, 1)
    assert some(7, 1) != some(7, 2)
    assert len({tuple(row) for row in some(2_005, 1)}) == 2_005


@pytest.mark.parametrize("power", [0.01, 1.0])
def test_gaps_are_drawn_one_after_another_without_replacement(power: float) -> None:
    """As numpy's ``choice`` without replacement does in the published code."""
    count, pairs, length = 20_000, 2, 12
    rows = sequences(count, length=length, pairs=pairs, vocabulary=64, power=power, keys=(3,))
    later = rows[:, 2 * pairs :: 2]
    gaps = [(later == rows[:, [key]]).argmax(axis=1) for key in (0, 2)]
    weights = np.exp(log_weights(length, pairs, power))
    np.testing.assert_allclose(weights, np.arange(1.0, 5.0) ** (power - 1))
    for first, second in itertools.permutations(range(4), 2):
        wanted = weights[first] / weights.sum() * weights[second] / (weights.sum() - weights[first])
        found = np.mean((gaps[0] == first) & (gaps[1] == second))
        assert abs(found - wanted) < 4 * (wanted * (1 - wanted) / count) ** 0.5


def test_keys_and_values_are_drawn_evenly() -> None:
    rows = sequences(20_000, length=8, pairs=2, vocabulary=12, power=0.01, keys=(5,))
    for place, tokens in ((0, range(1, 6)), (1, range(6, 12)), (2, range(1, 6)), (3, range(6, 12))):
        shares = np.bincount(rows[:, place], minlength=12)[tokens.start : tokens.stop] / 20_000
        wanted = 1 / len(tokens)
        np.testing.assert_allclose(shares, wanted, atol=4 * (wanted / 20_000) ** 0.5)

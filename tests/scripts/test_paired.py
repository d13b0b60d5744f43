import numpy as np
import pytest
from scipy import stats

from seqarena.scripts.leaderboard.paired import Noise, holm, noise_of, paired_comparison
from tests.marks import in_extras


def simulated(
    generator: np.random.Generator, seeds: int, examples: int, seed_spread: float, noise: float
) -> np.ndarray:
    """Differences with true mean 0, spread over seeds, over examples, and over single scores."""
    return (
        generator.normal(0, seed_spread, (seeds, 1))
        + generator.normal(0, 0.2, (1, examples))
        + generator.normal(0, noise, (seeds, examples))
    )


@pytest.mark.parametrize(
    ("seeds", "seed_spread", "noise"),
    [(3, 0.0, 0.7), (10, 0.02, 0.7), *in_extras((3, 0.1, 0.5), (5, 0.0, 0.7), (5, 0.05, 0.5))],
)
def test_the_interval_covers_what_it_says(seeds: int, seed_spread: float, noise: float) -> None:
    """95 % intervals hold the truth in about 95 % of 400 experiments, whichever source matters most, and no wider."""
    generator = np.random.default_rng(0)
    covered, widths = 0, []
    true_error = np.sqrt(seed_spread**2 / seeds + 0.2**2 / 200 + noise**2 / (seeds * 200))
    for _ in range(400):
        differences = simulated(generator, seeds, 200, seed_spread, noise)
        found = paired_comparison(differences, np.zeros_like(differences))
        assert found.low is not None
        assert found.high is not None
        assert found.p_value is not None
        covered += found.low <= 0 <= found.high
        widths.append(found.high - found.low)
        assert (found.p_value < 0.05) == (not found.low <= 0 <= found.high)
    assert 0.93 <= covered / 400 <= 0.999
    if seeds >= 5:  # three seeds alone cost Student's 4.3 instead of 1.96
        assert np.median(widths) < 1.5 * 2 * 1.96 * true_error


def test_nothing_to_judge_by_is_no_judgement() -> None:
    for scores in (np.ones((3, 1)), np.ones((1, 1)), np.ones((3, 30)), np.ones((1, 30))):
        found = paired_comparison(scores, np.zeros_like(scores))
        assert (found.difference, found.low, found.high, found.p_value) == (1.0, None, None, None)
    rounded = paired_comparison(np.full((3, 37), 1 / 3), np.full((3, 37), 0.1))  # all equal, but not their means
    assert (rounded.low, rounded.high, rounded.p_value) == (None, None, None)
    alone = paired_comparison(np.array([[0.2], [0.3], [0.7]]), np.zeros((3, 1)))  # nothing is known of other examples
    assert (alone.low, alone.high, alone.p_value) == (None, None, None)
    with pytest.raises(ValueError, match="same seeds and examples"):
        paired_comparison(np.ones((1, 3)), np.ones((1, 4)))


def test_a_real_difference_is_found_and_pairing_helps() -> None:
    generator = np.random.default_rng(1)
    hard = generator.random((1, 2000))  # the same examples are hard for both
    base = (generator.random((4, 2000)) * 0.3 + hard * 0.7 < 0.5).astype(float)
    better = np.maximum(base, (generator.random((4, 2000)) < 0.03).astype(float))
    found = paired_comparison(better, base)
    assert found.low is not None
    assert found.p_value is not None
    assert found.low > 0
    assert found.p_value < 0.01
    assert found.difference == pytest.approx(better.mean() - base.mean())


@pytest.mark.parametrize("seeds", [1, 2])
def test_fewer_than_three_seeds_have_no_interval_and_no_p(seeds: int) -> None:
    differences = np.random.default_rng(2).normal(1, 0.1, (seeds, 400))
    found = paired_comparison(differences, np.zeros_like(differences))
    assert found.difference == pytest.approx(differences.mean())
    assert (found.low, found.high, found.p_value, found.seeds) == (None, None, None, seeds)


def test_holm() -> None:
    """Worked by hand: 0.01 * 4, 0.02 * 3, max(0.03 * 2, before), 0.2 * 1."""
    assert holm([0.03, 0.01, 0.2, 0.02]) == pytest.approx([0.06, 0.04, 0.2, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_a_detectable_difference_is_that_of_the_noncentral_t_distribution() -> None:
    """Standard deviations of the differences between seeds that scipy's distribution shows with a power of 0.8."""
    for seeds, tests in ((3, 1), (5, 6), (3, 36), (20, 9)):
        noise = Noise(seeds=seeds, examples=10_000, over_examples=0.0, over_seeds=1 / seeds, added=0.0)
        quantile = stats.t.isf(0.025 / tests, seeds - 1)
        power = stats.nct.sf(quantile, seeds - 1, noise.detectable(tests) * seeds**0.5)
        assert power == pytest.approx(0.8, abs=1e-6)


@pytest.mark.parametrize(("seeds", "tests"), [(3, 1), (5, 6), *in_extras((5, 1), (10, 6))])
def test_a_detectable_difference_is_shown_about_four_times_in_five(seeds: int, tests: int) -> None:
    generator = np.random.default_rng(0)
    estimates = []
    for _ in range(100):
        differences = simulated(generator, seeds, 200, 0.1, 0.5)
        noise = noise_of(differences, np.zeros_like(differences))
        assert noise is not None
        estimates.append(noise.detectable(tests))
    true = np.sqrt(np.mean(np.square(estimates)))
    shown = []
    for _ in range(500):
        differences = simulated(generator, seeds, 200, 0.1, 0.5) + true
        p_value = paired_comparison(differences, np.zeros_like(differences)).p_value
        assert p_value is not None
        shown.append(p_value * tests < 0.05)
    assert 0.75 <= np.mean(shown) <= 0.85

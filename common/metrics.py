"""Scores, intervals and paired tests: pure functions of arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

Array = npt.NDArray[np.float64]

FEWEST_SEEDS = 3
"""With fewer seeds their variance cannot be told from one draw of luck."""


def accuracy(predictions: npt.ArrayLike, labels: npt.ArrayLike) -> Array:
    """Returns 1 for each example whose prediction is its label, 0 for the others."""
    return np.equal(predictions, labels).astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A difference of mean scores with its 95 % interval and two-sided p-value.

    ``over_seeds`` False: fewer than three seeds, so that interval and p-value speak of other test examples only; what
    other seeds would give is unknown.
    """

    difference: float
    low: float
    high: float
    p_value: float
    seeds: int
    over_seeds: bool


def paired_comparison(variant: npt.ArrayLike, baseline: npt.ArrayLike, draws: int = 2000) -> Comparison:
    """Compares two variants by their scores (seeds, examples), paired in rows by seed and in columns by example.

    The multi-bootstrap (Sellam et al. 2022, "The MultiBERTs"): seeds and examples are drawn anew together, and the
    spread of the mean difference over the draws is its standard error. Departures: with as few seeds as are usual a
    percentile interval is far too narrow, so the seeds' part of the error is unbiased (factor S / (S - 1)) and the
    interval is Student's, with Satterthwaite's degrees of freedom from the seeds' and the examples' parts.
    """
    differences = np.asarray(variant, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)  # S, E
    seeds, examples = differences.shape
    difference = float(differences.mean())
    over_seeds = seeds >= FEWEST_SEEDS
    example_variance = float(differences.mean(axis=0).var(ddof=1) / examples) if examples > 1 else 0.0
    if over_seeds:
        seed_variance = float(differences.mean(axis=1).var(ddof=1) / seeds)
        drawn = _bootstrap(differences, draws)
        variance = float(drawn.var(ddof=1)) + seed_variance / seeds  # s^2/S * (S-1)/S is what the draws see of it
        parts = ((seed_variance, seeds - 1), (example_variance, examples - 1))
        spread = sum(part**2 / freedom for part, freedom in parts)
        freedom = (seed_variance + example_variance) ** 2 / spread if spread > 0 else 1.0
    else:
        variance, freedom = example_variance, examples - 1.0
    error = float(np.sqrt(variance))
    if error == 0:  # every example scored alike in both: no spread to judge a difference by
        return Comparison(
            difference=difference,
            low=difference,
            high=difference,
            p_value=1.0 if difference == 0 else 0.0,
            seeds=seeds,
            over_seeds=over_seeds,
        )
    half = float(stats.t.ppf(0.975, freedom)) * error
    return Comparison(
        difference=difference,
        low=difference - half,
        high=difference + half,
        p_value=float(2 * stats.t.sf(abs(difference) / error, freedom)),
        seeds=seeds,
        over_seeds=over_seeds,
    )


def _bootstrap(differences: Array, draws: int) -> Array:
    """Returns the mean of ``differences`` with rows and columns drawn anew together, ``draws`` times."""
    seeds, examples = differences.shape
    generator = np.random.default_rng(0)  # the same table twice in a row, digit for digit
    rows = generator.multinomial(seeds, np.full(seeds, 1 / seeds), size=draws) / seeds  # draws, S
    means = np.empty(draws)
    block = max(1, 4_000_000 // examples)
    for start in range(0, draws, block):
        some = rows[start : start + block]
        columns = generator.multinomial(examples, np.full(examples, 1 / examples), size=len(some)) / examples
        means[start : start + block] = np.einsum("ds,se,de->d", some, differences, columns, optimize=True)
    return means


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values corrected for the number of comparisons (Holm 1979), in the order given."""
    order = np.argsort(p_values, kind="stable")
    corrected = [0.0] * len(order)
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, p_values[index] * (len(order) - rank)))
        corrected[index] = highest
    return corrected

"""Scores, intervals and paired tests: pure functions of arrays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

FEWEST_SEEDS = 3
"""Minimum seeds of a test. With fewer, their variance cannot be estimated, and a test over examples alone finds
differences everywhere."""
ROUNDING = 1e-12
"""Standard errors below this fraction of the largest score are treated as rounding."""


def accuracy(predictions: npt.ArrayLike, labels: npt.ArrayLike) -> Array:
    """Returns 1 for each example whose prediction equals its label, 0 for the others."""
    return np.equal(predictions, labels).astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A difference of mean scores with its 95 % interval and two-sided p-value.

    Interval and p-value are None with fewer than ``FEWEST_SEEDS`` seeds, with one example, and if all differences are
    equal up to rounding.
    """

    difference: float
    low: float | None
    high: float | None
    p_value: float | None
    seeds: int


def paired_comparison(variant: npt.ArrayLike, baseline: npt.ArrayLike) -> Comparison:
    """Compares two variants by their scores (seeds, examples), paired in rows by seed and in columns by example.

    The two sources of error are those of the multi-bootstrap (Sellam et al. 2022, "The MultiBERTs"), which resamples
    seeds and examples together. Here they are computed in closed form: resampling counts the noise of single scores
    about three times and only (S - 1) / S of the variance of S seeds, and a percentile interval over a few seeds is
    far too narrow. Half the interval is sqrt(t_S^2 V_S + t_E^2 V_E): V_S is the variance of the mean estimated from
    the seeds' means, V_E the variance that examples add to it, t_S and t_E are the quantiles of Student's t with
    S - 1 and E - 1 degrees of freedom. This is the paired t interval over seeds, widened for other test examples, and
    never narrower than the interval over examples alone, since three seeds may agree by chance. The p-value is the
    level at which the interval just reaches 0.

    Raises:
        ValueError: the two do not have the same seeds and examples.
    """
    scores = [np.asarray(each, dtype=np.float64) for each in (variant, baseline)]
    if scores[0].shape != scores[1].shape or scores[0].ndim != 2:
        raise ValueError(f"expected scores of the same seeds and examples, found {scores[0].shape}, {scores[1].shape}")
    differences = scores[0] - scores[1]
    seeds = len(differences)
    difference = float(differences.mean())
    over_examples, by_seeds, added = _variances(differences) if seeds >= FEWEST_SEEDS else (0.0, 0.0, 0.0)
    if max(over_examples, by_seeds) <= (ROUNDING * np.abs(scores).max()) ** 2:
        return Comparison(difference=difference, low=None, high=None, p_value=None, seeds=seeds)
    from scipy import stats  # noqa: PLC0415  # takes half a second

    examples = differences.shape[1]

    def half(p_value: float) -> float:
        other_examples = float(stats.t.isf(p_value / 2, examples - 1))
        other_seeds = float(stats.t.isf(p_value / 2, seeds - 1))
        return float(
            np.sqrt(max(other_seeds**2 * by_seeds + other_examples**2 * added, other_examples**2 * over_examples))
        )

    return Comparison(
        difference=difference,
        low=difference - half(0.05),
        high=difference + half(0.05),
        p_value=_level(half, abs(difference)),
        seeds=seeds,
    )


def _variances(differences: Array) -> tuple[float, float, float]:
    """Returns three variances of the mean: over examples, over seeds, and the part that examples add to the latter.

    The noise of single scores is already in the means of the seeds, so it is subtracted from the part that examples
    add.
    """
    seeds, examples = differences.shape
    if examples < 2:
        return 0.0, 0.0, 0.0
    by_seed, by_example = differences.mean(axis=1, keepdims=True), differences.mean(axis=0, keepdims=True)
    over_examples = float(by_example.var(ddof=1) / examples)
    residual = differences - by_seed - by_example + differences.mean()
    single = float(np.square(residual).sum() / ((seeds - 1) * (examples - 1)) / differences.size)
    return over_examples, float(by_seed.var(ddof=1) / seeds), max(over_examples - single, 0.0)


def _level(half: Callable[[float], float], distance: float) -> float:
    """Returns the p-value at which half the interval is ``distance``. half(p) falls from infinity at 0 to 0 at 1."""
    smallest = 1e-12
    if distance == 0:
        return 1.0
    if half(smallest) <= distance:
        return smallest
    from scipy import optimize  # noqa: PLC0415  # takes half a second

    return float(optimize.brentq(lambda p_value: half(p_value) - distance, smallest, 1.0, xtol=1e-12))


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values corrected for the number of comparisons (Holm 1979), in the order of the arguments."""
    order = np.argsort(p_values, kind="stable")
    corrected = [0.0] * len(order)
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, p_values[index] * (len(order) - rank)))
        corrected[index] = highest
    return corrected

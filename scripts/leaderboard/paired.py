"""Paired tests between two variants: differences, intervals, p-values, and what a test could have detected."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from seqarena.common.runs.metrics import Array

FEWEST_SEEDS = 3
"""Minimum seeds of a test. With fewer, their variance cannot be estimated, and a test over examples alone finds
differences everywhere."""
SIGNIFICANT = 0.05
"""Level below which a p-value shows a difference."""
POWER = 0.8
"""Probability of showing a difference that counts as detectable."""
ROUNDING = 1e-12
"""Standard errors below this fraction of the largest score are treated as rounding."""
SMALLEST_P = 1e-12
MORE_SEEDS = (5, 10, 20)
"""Numbers of seeds for which a table states what they would detect."""


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


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Estimated variances of a difference of mean scores, over ``seeds`` seeds and ``examples`` test examples."""

    seeds: int
    examples: int
    over_examples: float
    """Over examples."""
    over_seeds: float
    """Over seeds, estimated from the seeds' means."""
    added: float
    """The part that examples add to ``over_seeds``."""

    def half(self, p_value: float) -> float:
        """Returns half the width of the interval at a level. It falls from infinity at 0 to 0 at 1."""
        from scipy import stats  # noqa: PLC0415  # takes half a second

        return self._distance(*(float(stats.t.isf(p_value / 2, each - 1)) for each in (self.seeds, self.examples)))

    def _distance(self, seeds: float, examples: float) -> float:
        """Returns a distance that is so many standard errors over seeds, or over examples, and their combination."""
        both = seeds**2 * self.over_seeds + examples**2 * self.added
        return float(np.sqrt(max(both, examples**2 * self.over_examples)))

    def level(self, distance: float) -> float:
        """Returns the p-value at which half the interval is ``distance``."""
        if distance == 0:
            return 1.0
        if self.half(SMALLEST_P) <= distance:
            return SMALLEST_P
        from scipy import optimize  # noqa: PLC0415  # takes half a second

        return float(optimize.brentq(lambda p_value: self.half(p_value) - distance, SMALLEST_P, 1.0, xtol=1e-12))

    def with_seeds(self, seeds: int) -> "Noise":
        """Returns the noise of the same comparison over another number of seeds."""
        fraction, single = self.seeds / seeds, self.over_examples - self.added
        return replace(
            self, seeds=seeds, over_seeds=self.over_seeds * fraction, over_examples=self.added + single * fraction
        )

    def detectable(self, tests: int) -> float:
        """Returns the true difference that this many seeds and examples show with probability ``POWER``.

        It is the difference whose interval at the first level of Holm's method over ``tests`` comparisons excludes 0
        with that probability, by the noncentral t distribution. That is exact if only seeds vary, and an approximation
        if examples vary too. The variances are taken to be those estimated here.
        """
        from scipy import special  # noqa: PLC0415  # takes half a second

        found = []
        for degrees in (self.seeds - 1, self.examples - 1):
            quantile = special.stdtrit(degrees, 1 - SIGNIFICANT / tests / 2)
            found.append(float(special.nctdtrinc(degrees, 1 - POWER, quantile)))
        return self._distance(*found)


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
    difference, noise = float((scores[0] - scores[1]).mean()), noise_of(variant, baseline)
    if noise is None:
        return Comparison(difference=difference, low=None, high=None, p_value=None, seeds=len(scores[0]))
    half = noise.half(0.05)
    return Comparison(
        difference=difference, low=difference - half, high=difference + half,
        p_value=noise.level(abs(difference)), seeds=noise.seeds,
    )  # fmt: skip


def noise_of(variant: npt.ArrayLike, baseline: npt.ArrayLike) -> Noise | None:
    """Returns the noise of a comparison; None with too few seeds or examples, and if it is nothing but rounding."""
    scores = [np.asarray(each, dtype=np.float64) for each in (variant, baseline)]
    seeds, examples = scores[0].shape
    if seeds < FEWEST_SEEDS or examples < 2:
        return None
    noise = _variances(scores[0] - scores[1])
    is_rounding = max(noise.over_examples, noise.over_seeds) <= (ROUNDING * np.abs(scores).max()) ** 2
    return None if is_rounding else noise


def sds_shown(seeds: int) -> float:
    """Returns the true difference that seeds show with a probability of about ``POWER``, for one comparison.

    It is in multiples of the standard deviation of the difference over seeds, which need not be known. The noise of
    test examples is left out, because more seeds do not reduce it.
    """
    only_seeds = Noise(seeds=seeds, examples=2, over_examples=0.0, over_seeds=1 / seeds, added=0.0)
    return only_seeds.detectable(1)


def _variances(differences: Array) -> Noise:
    """Returns the noise of the mean of differences (seeds, examples).

    The noise of single scores is already in the means of the seeds, so it is subtracted from the part that examples
    add.
    """
    seeds, examples = differences.shape
    by_seed, by_example = differences.mean(axis=1, keepdims=True), differences.mean(axis=0, keepdims=True)
    over_examples = float(by_example.var(ddof=1) / examples)
    residual = differences - by_seed - by_example + differences.mean()
    single = float(np.square(residual).sum() / ((seeds - 1) * (examples - 1)) / differences.size)
    return Noise(
        seeds=seeds, examples=examples, over_examples=over_examples,
        over_seeds=float(by_seed.var(ddof=1) / seeds), added=max(over_examples - single, 0.0),
    )  # fmt: skip


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values corrected for the number of comparisons (Holm 1979), in the order of the arguments."""
    order = np.argsort(p_values, kind="stable")
    corrected = [0.0] * len(order)
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, p_values[index] * (len(order) - rank)))
        corrected[index] = highest
    return corrected

"""A row of a leaderboard: one variant under one protocol, as numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from seqarena.common.runs.run import RowParts
from seqarena.common.runs.tasks import Unit
from seqarena.scripts.leaderboard.paired import Comparison
from seqarena.scripts.price.record import PriceRatio


def number(value: float, unit: Unit, form: str = "") -> str:
    """Returns a score as text: fractions in per cent, losses unscaled; ``form`` "+" prints the sign."""
    return f"{100 * value:{form}.2f}" if unit == "share" else f"{value:{form}.3f}"


def with_unit(value: float, unit: Unit) -> str:
    """Returns a score with its unit."""
    return f"{number(value, unit)} %" if unit == "share" else number(value, unit)


def count_seeds(count: int) -> str:
    """Returns ``1 seed`` or ``2 seeds``."""
    return f"{count} seed{'' if count == 1 else 's'}"


@dataclass(kw_only=True)
class Row:
    """One variant under one protocol."""

    name: str
    parts: RowParts
    """The row's name as (part, value) pairs."""
    seeds: list[int] = field(default_factory=list)
    """Seeds of finished runs."""
    diverged: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    """Seeds that a sweep planned and that have no result."""
    notes: list[str] = field(default_factory=list)
    mean: float | None = None
    deviation: float | None = None
    """Standard deviation over seeds; None with a single seed."""
    secondary: dict[str, tuple[float, float | None]] = field(default_factory=dict)
    """Mean and standard deviation of the task's other metrics."""
    incomplete_metrics: dict[str, int] = field(default_factory=dict)
    """Other metric -> number of seeds that have it, for metrics that only some of the finished runs have."""
    solved: int | None = None
    """Number of seeds that solved the problem; None without a result, or if the task has no such score."""
    against: str = ""
    """Name of the row compared with: the baseline of the same norm, depth and sources; empty if there is none."""
    not_compared: str = ""
    """Why a finished row is not compared with the baseline; empty if it is, and for the baseline itself."""
    comparison: Comparison | None = None
    """Comparison with that row over the common seeds."""
    p_corrected: float | None = None
    """p-value with Holm's correction over the rows of the table; earlier versions are corrected separately."""
    detectable: dict[int, float] = field(default_factory=dict)
    """Number of seeds -> true difference that a comparison over so many shows about four times in five.

    Estimated from the spread of this row: for its own seeds, and for ``MORE_SEEDS``.
    """
    price: PriceRatio | None = None
    """Price beside the baseline, if it was measured."""
    parameters: int | None = None
    tokens_per_second: float | None = None
    """Median over seeds, of runs that may have shared the machine with anything; not in printed tables."""
    peak_memory_bytes: int | None = None
    """Largest over seeds."""


def detectable_by_seeds(rows: Sequence[Row]) -> dict[int, tuple[float, float]]:
    """Returns number of seeds -> smallest and largest detectable difference of the rows, fewest seeds first."""
    counts = sorted({count for row in rows for count in row.detectable})
    found = {count: [row.detectable[count] for row in rows if count in row.detectable] for count in counts}
    return {count: (min(values), max(values)) for count, values in found.items()}


def range_text(ends: tuple[float, float], unit: Unit) -> str:
    """Returns a range of scores as text, or one number if both ends are written alike."""
    return " to ".join(dict.fromkeys(number(each, unit) for each in ends))

"""A row of a leaderboard: one variant under one protocol, as numbers."""

from dataclasses import dataclass, field

from seqarena.common.runs.metrics import Comparison
from seqarena.common.runs.run import RowParts
from seqarena.common.runs.tasks import Unit


def number(value: float, unit: Unit, form: str = "") -> str:
    """Returns a score as people read it, per cent or as it is; ``form`` + shows its sign."""
    return f"{100 * value:{form}.2f}" if unit == "share" else f"{value:{form}.3f}"


def told(value: float, unit: Unit) -> str:
    """Returns a score with its unit."""
    return f"{number(value, unit)} %" if unit == "share" else number(value, unit)


@dataclass(kw_only=True)
class Row:
    """One variant under one protocol."""

    name: str
    parts: RowParts
    """The same as data."""
    seeds: list[int] = field(default_factory=list)
    """Seeds that finished."""
    diverged: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    """Seeds that a saved sweep plan names and no result has."""
    notes: list[str] = field(default_factory=list)
    mean: float | None = None
    deviation: float | None = None
    """Standard deviation over seeds; none with one."""
    secondary: dict[str, tuple[float, float | None]] = field(default_factory=dict)
    """Of the task's other metrics, mean and standard deviation."""
    against: str = ""
    """The row it is compared with: the baseline, under the same norm and depth; empty: there is none."""
    comparison: Comparison | None = None
    """With that row, over the seeds that both have."""
    p_corrected: float | None = None
    """Holm's, over the variants of the table."""
    parameters: int | None = None
    tokens_per_second: float | None = None
    """Median over seeds."""
    peak_memory_bytes: int | None = None
    """Largest over seeds."""

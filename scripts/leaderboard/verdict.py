"""Verdict of a row against its baseline: whether the table shows a difference, and in which direction."""

from typing import Literal

from seqarena.scripts.leaderboard.paired import FEWEST_SEEDS, SIGNIFICANT
from seqarena.scripts.leaderboard.rows import Row

Verdict = Literal["better", "worse", "no difference shown", "no test", "not compared", "diverged", "missing"]
MARKS: dict[Verdict, str] = {
    "better": "▲", "worse": "▼", "no difference shown": "○", "no test": "?", "not compared": "", "diverged": "✕",
    "missing": "",
}  # fmt: skip
LEGEND = (
    f"▲ better, ▼ worse: p < {SIGNIFICANT} after Holm's correction within a task; ○ no difference shown, which is not "
    f"the same as equal; ? no test: fewer than {FEWEST_SEEDS} seeds, all differences the same, or a single test "
    "example; intervals are not corrected"
)


def p_text(p_value: float) -> str:
    """Returns a p-value that never reads as on the other side of the limit."""
    if p_value < 0.001:
        return "< 0.001"
    text = f"{p_value:.3f}"
    return f"{int(1e4 * p_value) / 1e4:.4f}" if p_value < SIGNIFICANT <= float(text) else text


def verdict_of(row: Row, *, higher_is_better: bool) -> Verdict:
    """Returns the verdict of a row; "not compared" also for the baseline itself."""
    if row.mean is None:
        return "diverged" if row.diverged else "missing"
    if row.comparison is None:
        return "not compared"
    if row.comparison.p_value is None:
        return "no test"
    if row.p_corrected is None or row.p_corrected >= SIGNIFICANT:
        return "no difference shown"
    return "better" if (row.comparison.difference > 0) == higher_is_better else "worse"

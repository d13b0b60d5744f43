"""Each comparison of a table as a sentence."""

from seqarena.scripts.leaderboard.paired import FEWEST_SEEDS, SIGNIFICANT
from seqarena.scripts.leaderboard.remarks import without_version
from seqarena.scripts.leaderboard.rows import Row, count_seeds, number
from seqarena.scripts.leaderboard.table import Table
from seqarena.scripts.leaderboard.verdict import p_text


def sentences(table: Table) -> list[tuple[str, str]]:
    """Returns (row name, rest of the sentence) for each row to describe.

    Rows that only serve as a reference for others are not described.
    """
    references = {table.baseline, *(row.against for row in table.rows)}
    described = [row for row in table.rows if row.against or row.mean is None or row.name not in references]
    return [(row.name, _sentence(row, table)) for row in described]


def _sentence(row: Row, table: Table) -> str:
    found = row.comparison
    if row.mean is None:
        missed = ((row.diverged, "diverged"), (row.missing, "not run"))
        return f"has no score: {' and '.join(f'{count_seeds(len(some))} {what}' for some, what in missed if some)}."
    if found is None:
        return f"is not compared: {_obstacle(row, table)}."
    unit = " points" if table.unit == "share" else " nats"
    direction = _direction(found.difference)
    distance = f"{number(abs(found.difference), table.unit)}{unit} {direction} than"
    result = f"scores {distance if found.difference else 'the same as'} {row.against} on {count_seeds(found.seeds)}"
    if found.low is None or found.high is None:
        few = f". With fewer than {FEWEST_SEEDS} seeds the variance over seeds is unknown: no interval and no p."
        return result + (
            few if found.seeds < FEWEST_SEEDS else ". Seeds or examples do not vary, so no interval and no p."
        )
    ends = " to ".join(f"{number(abs(end), table.unit)} {_direction(end)}" for end in (found.low, found.high))
    p_value = row.p_corrected
    text = "" if p_value is None else p_text(p_value)
    chance = text and f", p {'' if text.startswith('<') else '= '}{text} after Holm"
    if p_value is not None and p_value < SIGNIFICANT:
        better = (found.difference > 0) == table.higher_is_better
        verdict = f"It is {'better' if better else 'worse'} than {row.against}"
    else:
        verdict = f"No difference from {row.against} is shown"
        if found.low * found.high > 0:
            verdict += ": with this many comparisons, one such interval may be chance"
    return f"{result} (95 % interval: {ends}{chance}). {verdict}."


def _obstacle(row: Row, table: Table) -> str:
    """Returns why a row has no comparison."""
    if row.not_compared:
        return row.not_compared
    if without_version(row.parts) == (("attention", table.baseline),):
        return "it is an earlier version of the baseline"
    return f"there is no other {table.baseline} of the same depth"


def _direction(value: float) -> str:
    return "higher" if value > 0 else "lower"

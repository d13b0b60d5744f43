"""Charts of scores: means with intervals, differences from the baseline."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from seqarena.common.runs.tasks import Unit
from seqarena.scripts.leaderboard.cells import shown_figures
from seqarena.scripts.leaderboard.paired import FEWEST_SEEDS, Comparison
from seqarena.scripts.leaderboard.rows import Row, with_unit
from seqarena.scripts.leaderboard.table import Table
from seqarena.scripts.leaderboard.verdict import verdict_of
from seqarena.scripts.report.chart import REFERENCE, SYMBOLS, Chart, label, percent, row_group, scaled, short
from seqarena.scripts.report.data import View

REACH = 0.12
"""How far an axis is extended for a reference line, as a part of the range of the scores."""
CLOSE = 0.03
"""References closer than this part of the axis share a label."""


def interval(values: Sequence[float]) -> float | None:
    """Returns half the width of Student's 95 % interval of a mean over seeds; None with fewer than three seeds."""
    if len(values) < FEWEST_SEEDS:
        return None
    from scipy import stats  # noqa: PLC0415  # importing it takes half a second

    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    return float(half)


def scores(view: View) -> Chart | None:
    """Returns the seeds' scores and their means with intervals; references are lines, which hardly widen the axis.

    None if no run has a score.
    """
    table = view.table
    data: list[dict[str, Any]] = []
    shown: list[float] = []
    for place, row in enumerate(table.rows):
        seeds = [
            (scaled(run.result.score, table.unit), f"{short(row.name)}, seed {run.result.seed}")
            for run in view.runs[row.name] if run.result is not None and run.result.score is not None
        ]  # fmt: skip
        if row.mean is None or not seeds:
            continue
        mean, half = scaled(row.mean, table.unit), interval([score for score, _ in seeds])
        shown += [score for score, _ in seeds] + ([] if half is None else [mean - half, mean + half])
        colour = view.colours[row.name]
        each_seed = [(score, float(place), text) for score, text in seeds]
        data.append(points(row, each_seed, "%{x:.2f}, %{text}", {"size": 6, "color": colour, "opacity": 0.55}))
        text = f"{short(row.name)}: {mean:.2f}" + ("" if half is None else f" ± {half:.2f}")
        mark = {"size": 10, "symbol": "diamond", "color": colour}
        data.append(
            points(row, [(mean, float(place), text)], "%{text}", mark)
            | {"error_x": {"type": "data", "thickness": 2, "width": 5, "color": colour, "array": [half or 0.0]}}
        )
    if not data:
        return None
    low, high = min(shown), max(shown)
    span = high - low or 1.0
    near, far = _near_and_far(table, low - REACH * span, high + REACH * span)
    low, high = (min([low, *near.values()]) - 0.04 * span, max([high, *near.values()]) + 0.04 * span)
    layout = {
        "xaxis": {
            "title": {"text": f"{table.metric.replace('_', ' ')} on the test set{percent(table.unit)}"},
            "range": [low, high],
        },
        "yaxis": _rows([_row_label(row) for row in table.rows]),
        **_reference_lines(near, high - low),
    }
    notes = [
        "Points: seeds. Diamonds: means with 95 % intervals over seeds.",
        "" if table.higher_is_better else "Lower is better.",
        "Published figures: measured with other settings." if shown_figures(table) and not table.comparable else "",
        f"Beyond the axis: {', '.join(far)}." if far else "",
    ]
    return Chart(
        title="Scores", data=data, layout=layout, height=80 + 22 * len(table.rows) + (70 if near else 0), is_wide=True,
        note=" ".join(note for note in notes if note),
    )  # fmt: skip


def _near_and_far(table: Table, low: float, high: float) -> tuple[dict[str, float], list[str]]:
    """Returns the references between ``low`` and ``high``, and the others in words."""
    found = [(f"floor: {name}", value) for name, value in table.floors.items()]
    found += [(f"ceiling: {name}", value) for name, value in table.ceilings.items()]
    found += [("chance", table.chance)] if table.chance is not None else []
    found += [(f"{each.name}: {each.source}", each.value) for each in shown_figures(table)]
    near = {name: scaled(value, table.unit) for name, value in found if low <= scaled(value, table.unit) <= high}
    return near, [f"{name} {with_unit(value, table.unit)}" for name, value in found if name not in near]


def _reference_lines(references: Mapping[str, float], width: float) -> dict[str, Any]:
    """Returns dotted lines through all rows with labels above; lines close to each other share a label."""
    groups: list[tuple[float, list[str]]] = []
    for name, value in sorted(references.items(), key=lambda each: each[1]):
        if groups and value - groups[-1][0] < CLOSE * width:
            groups[-1][1].append(name)
        else:
            groups.append((value, [name]))
    line = {"color": REFERENCE, "width": 1, "dash": "dot"}
    return {
        "shapes": [
            {"type": "line", "xref": "x", "yref": "paper", "x0": value, "x1": value, "y0": 0, "y1": 1, "line": line}
            for value in references.values()
        ],
        "annotations": [
            {"x": value, "y": 1, "xref": "x", "yref": "paper", "xanchor": "left", "yanchor": "bottom", "textangle": -25,
             "showarrow": False, "font": {"size": 10}, "hovertext": label("; ".join(names)),
             "text": label(short(names[0])) + (f" and {len(names) - 1} more" if len(names) > 1 else "")}
            for value, names in groups
        ],
        "margin": {"t": 80 if groups else 8, "r": 90 if groups else 14},
    }  # fmt: skip


def points(row: Row, shown: Sequence[tuple[float, float, str]], hover: str, marker: dict[str, Any]) -> dict[str, Any]:
    """Returns points of one row at (x, y), with their hover texts."""
    return {
        "type": "scatter", "mode": "markers", "name": label(row.name), "showlegend": False, "marker": marker,
        "legendgroup": row_group(row.name), "meta": {"row": row.name},
        "y": [height for _, height, _ in shown], "x": [value for value, _, _ in shown],
        "text": [label(text) for _, _, text in shown], "hovertemplate": f"{hover}<extra></extra>",
    }  # fmt: skip


def _rows(labels: Sequence[str]) -> dict[str, Any]:
    """Returns an axis with one row per label, from the top. Positions are numbers, because names are arbitrary."""
    return {
        "tickmode": "array", "tickvals": list(range(len(labels))), "ticktext": [label(each) for each in labels],
        "range": [len(labels) - 0.4, -0.6], "automargin": True, "zeroline": False,
    }  # fmt: skip


def _row_label(row: Row) -> str:
    missed = ((row.diverged, "diverged"), (row.missing, "missing"))
    counts = ", ".join(f"{len(seeds)} {what}" for seeds, what in missed if seeds)
    return short(row.name) + (f" ({counts})" if counts else "")


def comparisons(view: View) -> Chart | None:
    """Returns the differences from the compared rows, with their intervals; a symbol per verdict."""
    table = view.table
    rows = [(row, row.comparison) for row in table.rows if row.comparison is not None]
    if not rows:
        return None
    data = []
    for place, (row, found) in enumerate(rows):
        verdict = verdict_of(row, higher_is_better=table.higher_is_better)
        text = f"{short(row.name)} against {short(row.against)}: {verdict}"
        colour = view.colours[row.name]
        marks = points(
            row, [(scaled(found.difference, table.unit), float(place), text)], "%{x:.2f}, %{text}",
            {"size": 11, "symbol": SYMBOLS[verdict], "color": colour, "line": {"width": 2, "color": colour}},
        )  # fmt: skip
        bars = {"type": "data", "symmetric": False, "thickness": 2, "width": 5, "color": colour}
        data.append(marks | {"error_x": bars | reaches(found, table.unit)})
    layout = {
        "xaxis": {"title": {"text": f"difference, {'points' if table.unit == 'share' else 'nats'}"}},
        "yaxis": _rows([short(row.name) for row, _ in rows]),
        "shapes": [
            {"type": "line", "xref": "x", "yref": "paper", "x0": 0, "x1": 0, "y0": 0, "y1": 1,
             "line": {"color": REFERENCE, "width": 2}}
        ],
    }  # fmt: skip
    few = any(found.seeds < FEWEST_SEEDS for _, found in rows)
    note = "95 % intervals over seeds and test examples." + (
        f" Crosses: fewer than {FEWEST_SEEDS} seeds, no interval." if few else ""
    )
    return Chart(
        title=f"Difference from {table.baseline}", data=data, layout=layout, height=80 + 24 * len(rows), note=note
    )


def reaches(comparison: Comparison, unit: Unit) -> dict[str, list[float]]:
    """Returns the lengths of the two halves of an interval as Plotly's error bars; 0 without an interval."""
    middle, low, high = comparison.difference, comparison.low, comparison.high
    return {
        "array": [0.0 if high is None else scaled(high - middle, unit)],
        "arrayminus": [0.0 if low is None else scaled(middle - low, unit)],
    }

"""Charts of scores: means with their intervals, differences, what they cost."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from scripts.cells import published
from scripts.report.chart import COLOURS, REFERENCE, Chart, colour, label, percent, scaled
from scripts.report.gathered import Shown
from scripts.rows import Row, Table


def interval(values: Sequence[float]) -> float | None:
    """Returns half the 95 % interval of a mean over seeds by Student's t; none with one seed."""
    if len(values) < 2:
        return None
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    return float(half)


def scores(table: Table, runs: dict[str, list[Shown]]) -> Chart:
    """Returns the means with their intervals, every seed, and what they are to be seen beside."""
    references = [(f"floor: {name}", value) for name, value in table.floors.items()]
    references += [("chance", table.chance)] if table.chance is not None else []
    references += [(f"{each.name}: {each.source}", each.value) for each in published(table)]
    names = {row.name: _row_label(row) for row in table.rows}
    data: list[dict[str, Any]] = []
    seeds = [
        (names[name], scaled(run.result.score, table.unit), f"seed {run.result.seed}")
        for name, some in runs.items() for run in some if run.result is not None and run.result.score is not None
    ]  # fmt: skip
    data.append(
        {
            "type": "scatter", "mode": "markers", "name": "a seed", "y": [each[0] for each in seeds],
            "x": [each[1] for each in seeds], "text": [each[2] for each in seeds],
            "hovertemplate": "%{x:.2f}, %{text}<extra></extra>",
            "marker": {"size": 6, "color": REFERENCE, "opacity": 0.7},
        }
    )  # fmt: skip
    measured = [row for row in table.rows if row.mean is not None]
    halves = {
        row.name: interval([run.result.score for run in runs[row.name] if run.result and run.result.score is not None])
        for row in measured
    }
    data.append(
        {
            "type": "scatter", "mode": "markers", "name": "mean, 95 % interval over seeds",
            "y": [names[row.name] for row in measured],
            "x": [scaled(row.mean, table.unit) for row in measured if row.mean is not None],
            "error_x": {
                "type": "data", "thickness": 2, "width": 5, "color": COLOURS[0],
                "array": [scaled(halves[row.name] or 0.0, table.unit) for row in measured],
            },
            "hovertemplate": "%{x:.2f} ± %{error_x.array:.2f}<extra></extra>",
            "marker": {"size": 9, "symbol": "diamond", "color": COLOURS[0]},
        }
    )  # fmt: skip
    told = [(label(_short(name)), label(name), scaled(value, table.unit)) for name, value in references]
    data.append(
        {
            "type": "scatter", "mode": "markers", "name": "floors and published figures", "showlegend": bool(told),
            "y": [each[0] for each in told], "x": [each[2] for each in told], "text": [each[1] for each in told],
            "hovertemplate": "%{text}: %{x:.2f}<extra></extra>",
            "marker": {"size": 11, "symbol": "line-ns-open", "color": COLOURS[1], "line": {"width": 2}},
        }
    )  # fmt: skip
    order = list(dict.fromkeys([*names.values(), *(each[0] for each in told)]))
    lines = [
        {"type": "line", "xref": "x", "yref": "paper", "x0": each[2], "x1": each[2], "y0": 0, "y1": 1, "layer": "below",
         "line": {"color": COLOURS[1], "width": 1, "dash": "dot"}, "opacity": 0.45}
        for each in told
    ]  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": f"{table.metric.replace('_', ' ')} on the test set{percent(table.unit)}"}},
        "yaxis": {"type": "category", "categoryorder": "array", "categoryarray": order[::-1], "automargin": True,
                  "range": [-0.6, len(order) - 0.4]},
        "shapes": lines,
    }  # fmt: skip
    better = "" if table.higher_is_better else "Lower is better."
    other = (
        "" if table.comparable or not table.published else "Published figures: of other data or settings than these."
    )
    return Chart(
        title="Scores",
        data=data,
        layout=layout,
        height=150 + 22 * len(order),
        is_wide=True,
        note=f"{better} {other}".strip(),
    )


def _row_label(row: Row) -> str:
    missed = ((row.diverged, "diverged"), (row.missing, "missing"))
    told = ", ".join(f"{len(seeds)} {what}" for seeds, what in missed if seeds)
    return label(row.name + (f" ({told})" if told else ""))


def _short(name: str) -> str:
    return name if len(name) <= 36 else f"{name[:35]}…"


def comparisons(table: Table) -> Chart | None:
    """Returns the differences from the baseline with their intervals."""
    rows = [row for row in table.rows if row.comparison is not None]
    found = [(label(row.name), row.comparison) for row in rows if row.comparison is not None]
    if not found:
        return None
    ends = [
        [scaled(end - each.difference, table.unit) for end in (each.low, each.high)]
        if each.low is not None and each.high is not None
        else [0.0, 0.0]
        for _, each in found
    ]
    trace = {
        "type": "scatter", "mode": "markers", "showlegend": False, "y": [name for name, _ in found],
        "x": [scaled(each.difference, table.unit) for _, each in found],
        "error_x": {"type": "data", "symmetric": False, "thickness": 2, "width": 5, "color": COLOURS[0],
                    "array": [high for _, high in ends], "arrayminus": [-low for low, _ in ends]},
        "text": [f"against {label(row.against)}" for row in rows],
        "hovertemplate": "%{x:.2f} %{text}<extra></extra>",
        "marker": {"size": 9, "symbol": "diamond",
                   "color": [COLOURS[0] if each.over_seeds else REFERENCE for _, each in found]},
    }  # fmt: skip
    zero = {"type": "line", "xref": "x", "yref": "paper", "x0": 0, "x1": 0, "y0": 0, "y1": 1, "layer": "below",
            "line": {"color": REFERENCE, "width": 1}}  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": f"difference, {'points' if table.unit == 'share' else 'nats'}"}},
        "yaxis": {"type": "category", "autorange": "reversed", "automargin": True},
        "shapes": [zero],
    }
    note = "95 % intervals over seeds and test examples."
    if not all(each.over_seeds for _, each in found):
        note += " Grey: fewer than 3 seeds, over test examples alone."
    return Chart(
        title=f"Difference from {table.baseline}", data=[trace], layout=layout, height=130 + 24 * len(found), note=note
    )


def price(table: Table) -> Chart | None:
    """Returns what a score costs in speed."""
    rows = [row for row in table.rows if row.mean is not None and row.tokens_per_second]
    if len(rows) < 2:
        return None
    data = [
        {
            "type": "scatter", "mode": "markers+text" if len(rows) <= 12 else "markers", "name": label(row.name),
            "showlegend": False, "x": [row.tokens_per_second], "y": [scaled(row.mean or 0.0, table.unit)],
            "text": [label(row.name)], "textposition": "top center", "cliponaxis": False,
            "hovertemplate": "%{text}: %{y:.2f} at %{x:,.0f} tokens/s<extra></extra>",
            "marker": {"size": 9, "color": colour(number)},
        }
        for number, row in enumerate(rows)
    ]  # fmt: skip
    layout = {
        "xaxis": {
            "title": {"text": "tokens a second while training"},
            "range": [0, 1.15 * max(row.tokens_per_second or 0.0 for row in rows)],
        },
        "yaxis": {"title": {"text": f"{table.metric.replace('_', ' ')}{percent(table.unit)}"}},
    }
    return Chart(title="What it costs", data=data, layout=layout)

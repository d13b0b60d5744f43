"""Charts of prices: scores and differences against the time of a training step."""

import math
from collections.abc import Sequence
from typing import Any

from seqarena.scripts.leaderboard.overview import table_names
from seqarena.scripts.leaderboard.verdict import verdict_of
from seqarena.scripts.report.chart import REFERENCE, SYMBOLS, Chart, label, percent, scaled, short
from seqarena.scripts.report.data import View
from seqarena.scripts.report.scores import interval, points, reaches

TICKS = [0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4, 6, 8, 16]
"""Ratios that the axis of prices names; it is logarithmic, because they are ratios."""


def prices(view: View) -> Chart | None:
    """Returns scores against the time of a training step, as a multiple of the baseline's; None without prices."""
    table = view.table
    data: list[dict[str, Any]] = []
    for row in table.rows:
        if row.mean is None or row.price is None:
            continue
        found = [run.result.score for run in view.runs[row.name] if run.result and run.result.score is not None]
        point = (row.price.time, scaled(row.mean, table.unit), short(row.name))
        colour = view.colours[row.name]
        bars = {"type": "data", "thickness": 1, "width": 3, "color": colour}
        ends = {"array": [row.price.most - row.price.time], "arrayminus": [row.price.time - row.price.least]}
        data.append(
            points(row, [point], "%{text}: %{y:.2f} at %{x:.2f} times", {"size": 11, "color": colour})
            | {"showlegend": True, "error_x": bars | ends | {"symmetric": False},
               "error_y": bars | {"array": [scaled(interval(found) or 0.0, table.unit)]}}
        )  # fmt: skip
    if len(data) < 2:
        return None
    layout = {
        "xaxis": {"title": {"text": f"time of a step / {table.baseline}"}},
        "yaxis": {"title": {"text": f"{table.metric.replace('_', ' ')}{percent(table.unit)}"}},
    }
    note = "Bars: smallest to largest round; 95 % interval over seeds."
    return Chart(title="Score against price", data=data, layout=layout, note=note)


def all_prices(views: Sequence[View]) -> Chart | None:
    """Returns differences from the baseline against prices, in all tasks with scores in per cent; None without any."""
    data: list[dict[str, Any]] = []
    for place, view in enumerate(views):
        table = view.table
        for row in table.rows:
            if table.unit != "share" or row.price is None or row.comparison is None:
                continue
            verdict = verdict_of(row, higher_is_better=table.higher_is_better)
            colour = view.colours[row.name]
            text = f"{short(row.name)}, {table.task} {table.preset}: {verdict}"
            point = (row.price.time, scaled(row.comparison.difference, table.unit), text)
            mark = {"size": 11, "symbol": SYMBOLS[verdict], "color": colour, "line": {"width": 2, "color": colour}}
            is_first = all(each["name"] != label(row.name) for each in data)
            bars = {"type": "data", "symmetric": False, "thickness": 1, "width": 3, "color": colour}
            rounds = {"array": [row.price.most - row.price.time], "arrayminus": [row.price.time - row.price.least]}
            data.append(
                points(row, [point], "%{text}: %{y:.2f} points at %{x:.2f} times", mark)
                | {"showlegend": is_first, "error_x": bars | rounds,
                   "error_y": bars | reaches(row.comparison, table.unit),
                   "meta": {"row": row.name, "place": place}}
            )  # fmt: skip
    if not data:
        return None
    baseline = views[0].table.baseline
    times = [1.0]  # the baseline's time
    for line in data:
        (time,) = line["x"]
        times += [time - line["error_x"]["arrayminus"][0], time + line["error_x"]["array"][0]]
    ends = [math.log10(min(times) / 1.03), math.log10(max(times) * 1.03)]
    layout = {
        "xaxis": {"title": {"text": f"time of a step / {baseline}"}, "type": "log", "range": ends, "tickvals": TICKS},
        "yaxis": {"title": {"text": f"difference from {baseline}, points"}},
        "shapes": [{"type": "line", "xref": "paper", "yref": "y", "x0": 0, "x1": 1, "y0": 0, "y1": 0,
                    "line": {"color": REFERENCE, "width": 2}}],
    }  # fmt: skip
    note = (
        "Each point is a variant in a task, with its 95 % interval (from three seeds on) and the range of its price "
        "over the rounds. ▲ better, ▼ worse, ○ no difference shown, x no test."
    )
    named = [(name, view.table) for name, view in zip(table_names([each.table for each in views]), views, strict=True)]
    losses = [name for name, table in named if table.unit != "share"]
    unknown = [
        name
        for name, table in named
        if table.unit == "share" and not any(row.price and row.comparison for row in table.rows)
    ]
    for reason, names in (("whose score is a loss", losses), ("without a comparison or a measured price", unknown)):
        if names:
            note += f" Tasks {reason} are not in this chart: {', '.join(names)}."
    return Chart(title="Difference against price", data=data, layout=layout, height=340, is_wide=True, note=note)

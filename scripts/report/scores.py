"""Charts of scores: means with intervals, differences from the baseline, score against speed."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from seqarena.scripts.leaderboard.cells import shown_figures
from seqarena.scripts.leaderboard.paired import FEWEST_SEEDS
from seqarena.scripts.leaderboard.rows import Row
from seqarena.scripts.leaderboard.table import Table
from seqarena.scripts.report.chart import COLOURS, REFERENCE, Chart, colour, label, percent, scaled, short
from seqarena.scripts.report.data import ReportRun


def interval(values: Sequence[float]) -> float | None:
    """Returns half the width of Student's 95 % interval of a mean over seeds; None with fewer than three seeds."""
    if len(values) < FEWEST_SEEDS:
        return None
    from scipy import stats  # noqa: PLC0415  # importing it takes half a second

    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    return float(half)


def scores(table: Table, runs: dict[str, list[ReportRun]]) -> Chart:
    """Returns means with intervals, the score of every seed, floors and published figures."""
    references = [(f"floor: {name}", value) for name, value in table.floors.items()]
    references += [(f"ceiling: {name}", value) for name, value in table.ceilings.items()]
    references += [("chance", table.chance)] if table.chance is not None else []
    references += [(f"{each.name}: {each.source}", each.value) for each in shown_figures(table)]
    seeds = [
        (place, scaled(run.result.score, table.unit), f"{short(row.name)}, seed {run.result.seed}")
        for place, row in enumerate(table.rows) for run in runs[row.name]
        if run.result is not None and run.result.score is not None
    ]  # fmt: skip
    means = [(place, row, scaled(row.mean, table.unit)) for place, row in enumerate(table.rows) if row.mean is not None]
    halves = [interval([score for at, score, _ in seeds if at == place]) for place, _, _ in means]
    mean_points = [
        (place, mean, _mean_label(row, mean, half)) for (place, row, mean), half in zip(means, halves, strict=True)
    ]
    places = range(len(table.rows), len(table.rows) + len(references))
    reference_points = [
        (place, scaled(value, table.unit), name) for place, (name, value) in zip(places, references, strict=True)
    ]
    data = [
        _points("single seeds", seeds, "%{x:.2f}, %{text}", {"size": 6, "color": REFERENCE, "opacity": 0.7}),
        _points(
            "mean, 95 % interval over seeds", mean_points, "%{text}",
                {"size": 9, "symbol": "diamond", "color": COLOURS[0]},
        )
        | {"error_x": {"type": "data", "thickness": 2, "width": 5, "color": COLOURS[0],
                       "array": [half or 0.0 for half in halves]}},
        _points(
            "floors, ceilings, published figures", reference_points, "%{text}: %{x:.2f}",
            {"size": 11, "symbol": "line-ns-open", "color": COLOURS[1], "line": {"width": 2}},
        )
        | {"legendgroup": "references"},
        _uprights([value for _, value, _ in reference_points], len(table.rows) + len(reference_points)),
    ]  # fmt: skip
    labels = [_row_label(row) for row in table.rows] + [short(name) for name, _ in references]
    ends = [mean + sign * half for (_, _, mean), half in zip(means, halves, strict=True) for sign in (-1, 1)
            if half is not None]  # fmt: skip
    shown = [*(value for _, value, _ in (*seeds, *reference_points)), *ends]
    margin = 0.04 * (max(shown) - min(shown)) or 1.0 if shown else 0.0
    layout = {
        "xaxis": {"title": {"text": f"{table.metric.replace('_', ' ')} on the test set{percent(table.unit)}"}}
        | ({"range": [min(shown) - margin, max(shown) + margin]} if shown else {}),
        "yaxis": _rows(labels),
    }
    notes = [
        "" if table.higher_is_better else "Lower is better.",
        ""
        if table.comparable or not shown_figures(table)
        else "Published figures: measured on other data or settings.",
    ]
    return Chart(
        title="Scores", data=data, layout=layout, height=80 + 22 * len(labels), is_wide=True,
        note=" ".join(note for note in notes if note),
    )  # fmt: skip


def _points(name: str, points: Sequence[tuple[int, float, str]], hover: str, marker: dict[str, Any]) -> dict[str, Any]:
    """Returns points at (value, row index), with their hover texts."""
    return {
        "type": "scatter", "mode": "markers", "name": name, "showlegend": bool(points), "marker": marker,
        "y": [place for place, _, _ in points], "x": [value for _, value, _ in points],
        "text": [label(text) for _, _, text in points], "hovertemplate": f"{hover}<extra></extra>",
    }  # fmt: skip


def _mean_label(row: Row, mean: float, half: float | None) -> str:
    return f"{short(row.name)}: {mean:.2f}" + ("" if half is None else f" ± {half:.2f}")


def _rows(labels: Sequence[str]) -> dict[str, Any]:
    """Returns an axis with one row per label, from the top. Positions are numbers, because names are arbitrary."""
    return {
        "tickmode": "array", "tickvals": list(range(len(labels))), "ticktext": [label(each) for each in labels],
        "range": [len(labels) - 0.4, -0.6], "automargin": True, "zeroline": False,
    }  # fmt: skip


def _uprights(values: Sequence[float], rows: int) -> dict[str, Any]:
    """Returns dotted lines through all rows, toggled together with the marks they belong to."""
    return {
        "type": "scatter", "mode": "lines", "legendgroup": "references", "showlegend": False, "hoverinfo": "skip",
        "x": [at for value in values for at in (value, value, None)],
        "y": [at for _ in values for at in (-0.6, rows - 0.4, None)],
        "line": {"color": COLOURS[1], "width": 1, "dash": "dot"}, "opacity": 0.45,
    }  # fmt: skip


def _row_label(row: Row) -> str:
    missed = ((row.diverged, "diverged"), (row.missing, "missing"))
    counts = ", ".join(f"{len(seeds)} {what}" for seeds, what in missed if seeds)
    return short(row.name) + (f" ({counts})" if counts else "")


def comparisons(table: Table) -> Chart | None:
    """Returns the differences from the compared rows, with their intervals."""
    rows = [(row, row.comparison) for row in table.rows if row.comparison is not None]
    if not rows:
        return None
    kinds = [kind for kind in (True, False) if any((found.seeds >= FEWEST_SEEDS) == kind for _, found in rows)]
    data = []
    for kind, shade in ((True, COLOURS[0]), (False, REFERENCE)):
        own = [(place, row, found) for place, (row, found) in enumerate(rows)
               if (found.seeds >= FEWEST_SEEDS) == kind]  # fmt: skip
        points = [
            (place, scaled(found.difference, table.unit), f"{short(row.name)} against {short(row.against)}")
            for place, row, found in own
        ]
        marks = _points("", points, "%{x:.2f}, %{text}", {"size": 9, "symbol": "diamond", "color": shade})
        bars = {"type": "data", "symmetric": False, "thickness": 2, "width": 5, "color": shade,
                "array": [_reach(found.difference, found.high, table) for _, _, found in own],
                "arrayminus": [_reach(found.difference, found.low, table) for _, _, found in own]}  # fmt: skip
        data.append(marks | {"showlegend": False, "error_x": bars})
    layout = {
        "xaxis": {"title": {"text": f"difference, {'points' if table.unit == 'share' else 'nats'}"}},
        "yaxis": _rows([short(row.name) for row, _ in rows]),
        "shapes": [
            {"type": "line", "xref": "x", "yref": "paper", "x0": 0, "x1": 0, "y0": 0, "y1": 1,
             "line": {"color": REFERENCE, "width": 2}}
        ],
    }  # fmt: skip
    notes = {
        True: "95 % intervals over seeds and test examples.",
        False: f"Grey: fewer than {FEWEST_SEEDS} seeds, no interval.",
    }
    return Chart(
        title=f"Difference from {table.baseline}", data=data, layout=layout, height=80 + 24 * len(rows),
        note=" ".join(notes[kind] for kind in kinds),
    )  # fmt: skip


def _reach(middle: float, end: float | None, table: Table) -> float:
    return 0.0 if end is None else scaled(abs(end - middle), table.unit)


def price(table: Table) -> Chart | None:
    """Returns scores against training speed."""
    rows = [(place, row) for place, row in enumerate(table.rows) if row.mean is not None and row.tokens_per_second]
    if len(rows) < 2:
        return None
    data = [
        {
            "type": "scatter", "mode": "markers", "name": label(row.name), "legendgroup": f"row {place}",
            "x": [row.tokens_per_second], "y": [scaled(row.mean or 0.0, table.unit)],
            "text": [label(short(row.name))], "hovertemplate": "%{text}: %{y:.2f} at %{x:,.0f} tokens/s<extra></extra>",
            "marker": {"size": 9, "color": colour(place)},
        }
        for place, row in rows
    ]  # fmt: skip
    layout = {
        "xaxis": {
            "title": {"text": "tokens per second in training"},
            "range": [0, 1.15 * max(row.tokens_per_second or 0.0 for _, row in rows)],
        },
        "yaxis": {"title": {"text": f"{table.metric.replace('_', ' ')}{percent(table.unit)}"}},
    }
    return Chart(title="Score against speed", data=data, layout=layout)

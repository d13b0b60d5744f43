"""Charts of training: learning curves, bounded parameters, diagnostics by layer, key masses, heat maps."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from seqarena.common.model.attention_maps import SIDE, VISIBLE, block
from seqarena.common.runs.tasks import Unit
from seqarena.scripts.curves import BOUNDED
from seqarena.scripts.report.chart import Chart, label, percent, rounded, row_group, scaled, sentence, thinned
from seqarena.scripts.report.data import ReportRun, View

LAYERS = ("#5a2a8a", "#3b6fb6", "#21918c", "#4fb35a", "#c8a020")
"""Colours of layers, from the first to the last."""
SEEDS = "Line styles are seeds."
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
"""Line styles, by seed."""
BINS = "A bin reaches from the previous bin's label to its own. Negative values are in the first bin."
MOST_LINES = 60
"""Maximum lines per chart; beyond it only one seed per row is drawn."""
MOST_MAPS = 6
"""Maximum heat maps per run: of the first and last layer and some between."""
LAYERED = {
    "token similarity": "token similarity after each layer (1: all tokens identical)",
    "attention norm": "Frobenius norm of the attention matrix",
    "attention jacobian norm": "Frobenius norm of the attention matrix's derivative by the scores",
    "smallest key mass": "smallest key mass",
}
"""Panels of ``seqarena curves`` that are drawn against the layer."""


def curves(view: View, panel: str, line: str, title: str, points: int, unit: Unit) -> Chart | None:
    """Returns one quantity of all runs by step, with a colour per row and a line style per seed."""
    found = [
        (name, run, run.curves[panel][line])
        for name, runs in view.runs.items()
        for run in runs
        if run.result is not None and line in run.curves.get(panel, {})
    ]
    note = SEEDS if any(run.result and run.result.seed for _, run, _ in found) else ""
    if len(found) > MOST_LINES:
        first = {name: run for name, run, _ in reversed(found)}
        drawn = [each for each in found if first[each[0]] is each[1]][:MOST_LINES]
        note, found = f"{len(drawn)} of {len(found)} runs: one seed per row.", drawn
    if not found:
        return None
    data, named = [], set()
    for name, run, values in found:
        assert run.result is not None
        steps, heights = zip(*thinned(values, points), strict=True)
        data.append(
            {
                "type": "scatter", "mode": "lines+markers" if len(steps) < 12 else "lines", "name": label(name),
                "legendgroup": row_group(name), "meta": {"row": name}, "showlegend": name not in named, "x": steps,
                "y": [rounded(scaled(each, unit)) for each in heights],
                "line": {"color": view.colours[name], "width": 1.6,
                         "dash": DASHES[run.result.seed % len(DASHES)]},
                "marker": {"size": 4},
                "hovertemplate": f"%{{y:.4g}} at step %{{x:,}}, seed {run.result.seed}",
            }
        )  # fmt: skip
        named.add(name)
    layout = {"xaxis": {"title": {"text": "step"}}, "yaxis": {"title": {"text": f"{panel}{percent(unit)}"}}}
    return Chart(title=sentence(title), data=data, layout=layout, note=note)


def shares(name: str, runs: Sequence[ReportRun], points: int) -> Chart | None:
    """Returns the bounded parameters of a row by step (u of hnas, tau), with a colour per layer."""
    found = [(run, run.curves[BOUNDED]) for run in runs if run.result and BOUNDED in run.curves]
    if not found:
        return None
    order = list(dict.fromkeys(line for _, lines in found for line in lines))
    data = []
    for number, (run, lines) in enumerate(found[: max(1, MOST_LINES // len(order))]):
        assert run.result is not None
        for line, values in lines.items():
            steps, heights = zip(*thinned(values, points), strict=True)
            data.append(
                {
                    "type": "scatter", "mode": "lines", "name": label(line.replace(".kernel", "")),
                    "legendgroup": f"line {order.index(line)}", "showlegend": number == 0, "x": steps,
                    "y": [rounded(each) for each in heights],
                    "line": {"color": _of_layer(order.index(line), len(order)), "width": 1.6,
                             "dash": DASHES[run.result.seed % len(DASHES)]},
                    "hovertemplate": f"%{{y:.3f}} at step %{{x:,}}, seed {run.result.seed}",
                }
            )  # fmt: skip
    layout = {"xaxis": {"title": {"text": "step"}}, "yaxis": {"title": {"text": "value"}, "range": [-0.02, 1.02]}}
    drawn = max(1, MOST_LINES // len(order))
    note = (SEEDS if len(found) > 1 else "") + (f" {drawn} of {len(found)} seeds." if drawn < len(found) else "")
    return Chart(title=f"{name}: {BOUNDED} of each layer", data=data, layout=layout, note=note)


def _of_layer(layer: int, layers: int) -> str:
    return LAYERS[round(layer * (len(LAYERS) - 1) / max(1, layers - 1))]


def layered(view: View, panel: str, title: str) -> Chart | None:
    """Returns the last values of a diagnostic by layer, with a line per row: the mean over its finished seeds."""
    data: list[dict[str, Any]] = []
    for name, runs in view.runs.items():
        with_score = [run for run in runs if run.result is not None and run.result.score is not None]
        ends = [_last_values(run.curves[panel]) for run in with_score if panel in run.curves]
        layers = sorted({layer for each in ends for layer in each})
        if layers:
            by_layer = [[each[layer] for each in ends if layer in each] for layer in layers]
            values = [float(np.mean(some)) for some in by_layer]
            data.append(
                {
                    "type": "scatter", "mode": "lines+markers", "name": label(name),
                    "legendgroup": row_group(name), "meta": {"row": name}, "x": layers,
                    "y": [rounded(each) for each in values],
                    "line": {"color": view.colours[name], "width": 1.6}, "marker": {"size": 5},
                    "customdata": [len(some) for some in by_layer],
                    "hovertemplate": "%{y:.4g} after layer %{x}, seeds: %{customdata}",
                }
            )  # fmt: skip
    if not data:
        return None
    logarithmic = panel != "token similarity" and all(each and each > 0 for line in data for each in line["y"])
    layout = {
        "xaxis": {"title": {"text": "layer"}, "dtick": max(1, math.ceil(max(line["x"][-1] for line in data) / 12))},
        "yaxis": {"title": {"text": panel}, "type": "log" if logarithmic else "linear", "exponentformat": "power"},
    }
    return Chart(title=sentence(title), data=data, layout=layout)


def _last_values(lines: Mapping[str, Sequence[tuple[float, float]]]) -> dict[int, float]:
    """Returns the values of a diagnostic at a run's last evaluation, by layer; without layers that have none there."""
    last = max(points[-1][0] for points in lines.values())
    return {int(name.removeprefix("layer ")): points[-1][1] for name, points in lines.items() if points[-1][0] == last}


def masses(view: View) -> Iterator[Chart]:
    """Yields a histogram of key masses per kind of keys, with a colour per row."""
    for kind in dict.fromkeys(kind for runs in view.runs.values() for run in runs for kind in run.masses):
        data: list[dict[str, Any]] = []
        edges: list[float] = []
        for name, runs in view.runs.items():
            found = [run for run in runs if sum(run.masses.get(kind, [])) > 0]
            edges = edges or (found[0].edges if found else [])
            counts = [run.masses[kind] for run in found if run.edges == edges]
            if counts:
                total = np.sum(counts, axis=0)
                data.append(
                    {
                        "type": "bar", "name": label(name), "legendgroup": row_group(name), "meta": {"row": name},
                        "x": _bins(edges),
                        "y": [rounded(each) for each in (100 * total / total.sum()).tolist()],
                        "marker": {"color": view.colours[name]},
                        "hovertemplate": "%{y:.2f} % of keys",
                    }
                )  # fmt: skip
        if data:
            filled = [at for at in range(len(edges) + 1) if any(line["y"][at] for line in data)]
            first = max(filled[0] - 1, 0)  # the label of an empty bin tells where the first bar begins
            for line in data:
                line |= {axis: line[axis][first : filled[-1] + 1] for axis in ("x", "y")}
            layout = {
                "barmode": "group",
                "xaxis": {
                    "title": {"text": "key mass: attention to a key, summed over queries"},
                    "type": "category",
                    "tickangle": -30,
                },
                "yaxis": {"title": {"text": "keys, %"}},
            }
            yield Chart(
                title=f"Key masses: {kind}",
                data=data,
                layout=layout,
                note=BINS,
            )


def _tokens(cells: Sequence[Any], count: int) -> list[str]:
    """Returns the tokens of each row or column of a heat map as text."""
    blocks = (block(number, count) for number in range(len(cells)))
    return [str(first) if first == last else f"{first} to {last}" for first, last in blocks]


def _bins(edges: Sequence[float]) -> list[str]:
    """Returns the label of each bin: its upper edge."""
    return [*(f"< {edge:g}" for edge in edges), f"≥ {edges[-1]:g}"]


def maps(name: str, run: ReportRun) -> Chart:
    """Returns the heat maps of some of a run's attentions, side by side on one colour scale."""
    count = min(MOST_MAPS, len(run.maps))
    chosen = [run.maps[round(at * (len(run.maps) - 1) / max(1, count - 1))] for at in range(count)]
    data: list[dict[str, Any]] = []
    signed = any(cell < 0 for each in chosen for row in each["map"] for cell in row)
    scale = {"colorscale": "RdBu", "cmid": 0} if signed else {"colorscale": "Viridis"}
    layout: dict[str, Any] = {
        "annotations": [], "coloraxis": scale | {"colorbar": {"thickness": 10}}, "margin": {"l": 4, "b": 8, "t": 24},
    }  # fmt: skip
    for number, each in enumerate(chosen, start=1):
        left, right = (number - 1) / count, (number - 0.12) / count
        axis = "" if number == 1 else str(number)
        data.append(
            {
                "type": "heatmap", "z": [[rounded(cell) for cell in row] for row in each["map"]],
                "y": _tokens(each["map"], each["queries"]), "x": _tokens(each["map"][0], each["keys"]),
                "coloraxis": "coloraxis", "xaxis": f"x{axis}", "yaxis": f"y{axis}",
                "hovertemplate": "query %{y}, key %{x}: %{z:.3g}<extra></extra>",
            }
        )  # fmt: skip
        hidden = {
            "type": "category",
            "showticklabels": False,
            "ticks": "",
            "showgrid": False,
            "zeroline": False,
            "constrain": "domain",
        }
        layout[f"xaxis{axis}"] = hidden | {"domain": [left, right], "constraintoward": "left"}
        layout[f"yaxis{axis}"] = hidden | {
            "anchor": f"x{axis}", "scaleanchor": f"x{axis}", "autorange": "reversed", "constraintoward": "top",
        }  # fmt: skip
        layout["annotations"].append(
            {"text": label(f"{each['name'].replace('.attention', '')}, {each['queries']} x {each['keys']}"),
             "x": left, "y": 1.0, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
             "showarrow": False, "font": {"size": 10}}
        )  # fmt: skip
    seed = run.result.seed if run.result is not None else 0
    is_new = all(each.get("uniform_over") == VISIBLE for each in chosen)
    keys = "the keys that a query sees" if is_new else "all keys, also those that a query does not see"
    is_long = any(max(each["queries"], each["keys"]) > SIDE for each in chosen)
    blocks = f" Above {SIDE} tokens, a cell is the mean of a block of tokens." if is_long else ""
    some = f" {count} of {len(run.maps)} attentions." if count < len(run.maps) else ""
    note = (
        f"Queries from top to bottom, keys from left to right, mean over heads. 1: uniform attention to {keys}. One "
        f"training example.{blocks}{some}"
    )
    return Chart(
        title=f"{name}, seed {seed}: trained attention",
        data=data,
        layout=layout,
        height=200,
        is_wide=count > 2,
        note=note,
    )

"""Builds the page: one HTML file that opens from disk and contains its script, style, library and data."""

import base64
import gzip
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jinja2
import plotly.offline

from seqarena.common.files import write_atomically
from seqarena.scripts.curves import LOSS_PANELS
from seqarena.scripts.leaderboard.cells import cells, footnotes, headings, orders
from seqarena.scripts.leaderboard.remarks import version
from seqarena.scripts.leaderboard.verdict import verdict_of
from seqarena.scripts.report.chart import Chart
from seqarena.scripts.report.data import ReportData, ReportRun, View, differences, of_status
from seqarena.scripts.report.overview import SHADES, contents, heat_map
from seqarena.scripts.report.prices import all_prices, prices
from seqarena.scripts.report.scores import comparisons, scores
from seqarena.scripts.report.training import LAYERED, curves, layered, maps, masses, shares
from seqarena.scripts.report.words import sentences

HERE = Path(__file__).parent
MOST_POINTS = 150_000
"""Maximum points of all learning curves together, which limits the size of the page."""
MOST_DRAWN_MAPS = 120
"""Maximum number of runs with heat maps."""
MOST_ROWS = 60
"""Maximum rows of a protocol per chart."""
MOST_ROWS_INSIDE = 12
"""Maximum rows of a protocol with charts of their own."""
FEWEST_POINTS = 8


def build(gathered: ReportData, speed: Sequence[Chart], made: dict[str, Any]) -> str:
    """Returns the page's HTML; ``made``: time and commit of the page."""
    charts: list[Chart] = []
    runs: list[list[dict[str, Any]]] = []
    lines = sum(len(panel) for run in gathered.runs for panel in run.curves.values())
    points = max(FEWEST_POINTS, min(100, MOST_POINTS // max(1, lines)))
    with_maps = MOST_DRAWN_MAPS
    sections = []
    for view in gathered.views:
        own = charts_of(view, points, with_maps)
        with_maps -= sum(chart.data[0]["type"] == "heatmap" for chart in own)
        sections.append(_section(view, len(runs)) | {"charts": _chart_slots(own, len(charts))})
        charts += own
        runs += [[_run(run) for run in view.runs[row.name]] for row in view.table.rows]
    placed = _chart_slots(speed, len(charts))
    charts += speed
    tables = [view.table for view in gathered.views]
    joined = [each for each in [all_prices(gathered.views)] if each is not None and len(tables) > 1]
    first = _chart_slots(joined, len(charts))
    charts += joined
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("page.html").render(
        style=(HERE / "page.css").read_text(encoding="utf-8"),
        script=(HERE / "page.js").read_text(encoding="utf-8"),
        library=compress(plotly.offline.get_plotlyjs()),
        values=compress(json.dumps({"charts": [asdict(each) for each in charts], "runs": runs}, allow_nan=False)),
        counts={status: of_status(gathered.runs, status) for status in ("finished", "diverged", "missing")},
        folder=str(gathered.folder),
        problems=gathered.problems,
        remarks=gathered.remarks,
        overview=heat_map(tables),
        overview_charts=first,
        contents=contents(tables),
        sections=sections,
        speed=placed,
        **made,
    )


def charts_of(whole: View, points: int, most_maps: int) -> list[Chart]:
    """Returns the non-empty charts of a protocol, with lines thinned to ``points`` points.

    The note of a chart mentions rows and maps that are not drawn.
    """
    table = replace(whole.table, rows=whole.table.rows[:MOST_ROWS])
    view = replace(whole, table=table, runs={row.name: whole.runs[row.name] for row in table.rows})
    metric = table.metric.replace("_", " ")
    mapped = [(name, next((run for run in runs if run.maps), None)) for name, runs in view.runs.items()]
    made = [
        scores(view),
        comparisons(view),
        prices(view),
        curves(
            view, _validation_panel(view, metric), "validation", f"{metric} on the validation set", points, table.unit
        ),
        curves(view, "loss", "training", "training loss", points, "nats"),
        *_first([shares(name, runs, points) for name, runs in view.runs.items()], MOST_ROWS_INSIDE),
        *(layered(view, panel, title) for panel, title in LAYERED.items()),
        *masses(view),
        *_first([maps(name, run) for name, run in mapped if run is not None], min(most_maps, MOST_ROWS_INSIDE)),
    ]
    cut = len(whole.table.rows) - len(table.rows)
    notes = [f"The first {MOST_ROWS} of {MOST_ROWS + cut} rows."] if cut else []
    if most_maps <= 0 and any(run is not None for _, run in mapped):
        notes.append(f"No heat maps: the page already has {MOST_DRAWN_MAPS}.")
    return [replace(each, note=" ".join([each.note, *notes]).strip()) for each in made if each is not None]


def _validation_panel(view: View, metric: str) -> str:
    """Returns the panel of a metric: a loss per word has its own where the training loss is per token."""
    panels = {panel for runs in view.runs.values() for run in runs for panel in run.curves}
    return LOSS_PANELS["loss"] if metric == "loss" and LOSS_PANELS["loss"] in panels else metric


def _first(charts: Sequence[Chart | None], most: int) -> list[Chart]:
    """Returns the first charts of a kind; the note of the last gives the number of charts not drawn."""
    there = [each for each in charts if each is not None]
    if len(there) > most > 0:
        note = f"{there[most - 1].note} Not drawn: the same chart of {len(there) - most} more rows.".strip()
        there[most - 1] = replace(there[most - 1], note=note)
    return there[:most]


def compress(text: str) -> str:
    """Returns a text compressed, in base64, which is safe inside HTML."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def _chart_slots(charts: Sequence[Chart], first: int) -> list[dict[str, Any]]:
    return [
        {"number": first + at, "title": each.title, "note": each.note, "height": each.height,
         "wide": each.is_wide}
        for at, each in enumerate(charts)
    ]  # fmt: skip


def _section(view: View, first: int) -> dict[str, Any]:
    table = view.table
    columns = headings(table)
    order = sorted(range(len(columns)), key=lambda index: _importance(columns[index]))
    return {
        "title": table.title,
        "headings": [columns[index] for index in order],
        "rows": [
            {"name": row.name, "cells": [_cell(cells(row, table)[at], orders(row, table)[at], columns[at])
                                         for at in order],
             "shade": SHADES.get(verdict_of(row, higher_is_better=table.higher_is_better), ""),
             "runs": first + number, "incomplete": bool(row.diverged or row.missing)}
            for number, row in enumerate(table.rows)
        ],
        "words": sentences(table),
        "remarks": table.remarks,  # shown above the fold
        "notes": footnotes(replace(table, remarks=[])),
    }  # fmt: skip


def _importance(heading: str) -> int:
    """Returns the place of a column on the page, where a phone shows the first three."""
    first = ("variant", "mean", "vs ", "p (", "solved", "seeds", "sd", "time /", "memory /")
    return next((place for place, start in enumerate(first) if heading.startswith(start)), len(first))


def _cell(text: str, order: float | int | str | None, heading: str) -> dict[str, Any]:
    """Returns a cell for the template; a difference is separated from its interval, which a phone puts below it."""
    is_difference = heading.startswith("vs ")
    value, bracket, interval = text.partition(" [") if is_difference else (text, "", "")
    return {
        "text": value, "interval": f"{bracket.strip()}{interval}", "order": order, "is_difference": is_difference,
    }  # fmt: skip


def _run(shown: ReportRun) -> dict[str, Any]:
    """Returns the details of a run shown when its row is expanded: heading, command, differences, facts."""
    result = shown.result
    changes = [[path, _plain(before), _plain(after)] for path, before, after in differences(shown)]
    if result is None:
        planned = shown.planned or {}
        return {
            "heading": f"seed {planned['seed']}: missing (planned by a sweep)",
            "command": str(planned["command"]), "changes": changes, "facts": [["directory", shown.folder]],
        }  # fmt: skip
    made = result.environment
    libraries = made.get("libraries")
    libraries = libraries if isinstance(libraries, dict) else {}
    score = result.message if result.score is None else f"{result.metric} {result.score:.6g}"
    commit = (
        f"{made['commit']}{'' if made.get('clean') else ', with uncommitted changes'}"
        if made.get("commit")
        else "unknown"
    )
    tested = "nothing was tested"
    if result.score is not None:
        tested = f"the checkpoint of step {result.chosen_step:,} was tested"
    facts = {
        "other metrics": ", ".join(
            f"{name} {value:.5g}" for name, value in result.metrics.items() if name != result.metric
        ),
        "steps": f"{result.steps:,}; {tested}",
        "time": f"{result.training_seconds:,.1f} s of training, {result.tokens_per_second:,.0f} tokens/s, "
        f"{result.peak_memory_bytes / 2**20:,.0f} MiB at most",
        "device": f"{made.get('device')}; {made.get('precision')}; processes: {made.get('processes')}",
        "implementations of attention": ", ".join(made.get("implementations") or []),
        "data, sha256": result.data_checksum,
        "task version": str(result.task_version),
        "commit": commit,
        "sources": version(result) if result.sources else "not recorded",
        "resumed in another environment": "; ".join(
            f"after step {each.get('after_step')}: commit {str(each.get('commit'))[:8]}, {each.get('device')}"
            for each in result.segments[1:]
        ),
        "libraries": ", ".join(f"{name} {version}" for name, version in libraries.items())
        + f"; Python {made.get('python')}; {made.get('platform')}",
        "finished": result.finished_at,
        "directory": shown.folder,
    }
    return {
        "heading": f"seed {result.seed}: {result.status}, {score}", "command": result.command, "changes": changes,
        "facts": [[name, text] for name, text in facts.items() if text],
    }  # fmt: skip


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def write(path: Path, text: str) -> None:
    """Writes the page atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: file.write(text.encode(errors="replace")))

"""What the charts of the page say: known numbers in, the same numbers out."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from seqarena.common.files import write_json
from seqarena.common.model.attention_maps import EDGES, FILE
from seqarena.scripts.leaderboard.cells import orders
from seqarena.scripts.report import page as pages
from seqarena.scripts.report.chart import Chart
from seqarena.scripts.report.data import View, gather
from seqarena.scripts.report.page import charts_of
from seqarena.scripts.report.scores import interval
from seqarena.scripts.report.speed import speed
from tests.scripts.results import CORRECT, result
from tests.scripts.test_report import write

COUNTS = [0] * 6 + [1, 3, 4, 0, 0, 0]


def view(folder: Path, rows: Sequence[str] = tuple(CORRECT), seeds: int = 3) -> View:
    """Three variants and seeds with curves, layers and maps in which every number is known."""
    made = [replace(result(row, seed, CORRECT.get(row, (50, 51, 52))[seed]), tokens_per_second=1000.0 * (place + 1))
            for place, row in enumerate(rows) for seed in range(seeds)]  # fmt: skip
    write(folder, *made)
    for number, each in enumerate(made):
        records = [
            {"step": step, "loss": step / 100} if step % 20 else
            {"step": step, "validation": {"accuracy": step / 1000}, "bounded": {"u": [0.5, step / 1000]},
             "diagnostics": {"attention_norm": [1.0 + step + each.seed, 2.0]}}
            for step in range(10, 210, 10)
        ]  # fmt: skip
        (folder / str(number) / "metrics.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in records))
        drawn = {"name": "layers.0", "queries": 2, "keys": 2, "map": [[1.5, 0.5], [-0.5, 1.5]], "histogram": COUNTS}
        write_json(folder / str(number) / FILE, {"edges": EDGES, "attentions": [drawn]})
    (found,) = gather(folder, "softmax").views
    return found


def named(charts: Sequence[Chart], title: str) -> Chart:
    return next(each for each in charts if each.title.startswith(title))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[View, list[Chart]]:
    found = view(tmp_path_factory.mktemp("charts"))
    return found, charts_of(found, 100, 5)


def test_scores_are_means_intervals_and_references(made: tuple[View, list[Chart]]) -> None:
    table, chart = made[0].table, named(made[1], "Scores")
    seeds, means, references, lines = chart.data
    assert means["x"] == [pytest.approx(np.mean(CORRECT[row.name]) / 2) for row in table.rows]
    halves = [interval([each / 2 for each in CORRECT[row.name]]) for row in table.rows]
    assert means["error_x"]["array"] == pytest.approx(halves)
    assert seeds["x"] == [each / 2 for row in table.rows for each in CORRECT[row.name]]
    assert seeds["y"] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    labels = chart.layout["yaxis"]["ticktext"]
    assert [labels[place] for place in means["y"]] == [row.name for row in table.rows]
    found = dict(zip((labels[place] for place in references["y"]), references["x"], strict=True))
    assert found["floor: majority class"] == pytest.approx(12)
    assert found["chance"] == pytest.approx(10)
    assert lines["legendgroup"] == references["legendgroup"]  # one click hides both
    assert lines["x"] == [each for value in references["x"] for each in (value, value, None)]
    assert lines["y"][:3] == [*reversed(chart.layout["yaxis"]["range"]), None]
    low, high = chart.layout["xaxis"]["range"]
    assert low < 10
    assert high > max(mean + half for mean, half in zip(means["x"], halves, strict=True))


def test_differences_have_their_intervals_the_right_way_round(made: tuple[View, list[Chart]]) -> None:
    rows = [row for row in made[0].table.rows if row.comparison]
    trace, fewer = named(made[1], "Difference").data
    assert fewer["x"] == []
    assert fewer["error_x"]["color"] != trace["error_x"]["color"] == trace["marker"]["color"]
    for place, row in enumerate(rows):
        found = row.comparison
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        assert trace["x"][place] == pytest.approx(100 * found.difference)
        assert trace["x"][place] + trace["error_x"]["array"][place] == pytest.approx(100 * found.high)
        assert trace["x"][place] - trace["error_x"]["arrayminus"][place] == pytest.approx(100 * found.low)
    table = made[0].table
    assert [orders(row, table)[4] for row in rows] == [row.comparison.difference for row in rows if row.comparison]


def test_costs_are_speeds(made: tuple[View, list[Chart]]) -> None:
    chart = named(made[1], "Score against speed")
    assert [line["x"] for line in chart.data] == [[row.tokens_per_second] for row in made[0].table.rows]


def test_curves_layers_and_masses_are_what_the_runs_told(made: tuple[View, list[Chart]]) -> None:
    charts = made[1]
    for line in named(charts, "Accuracy on").data:
        assert dict(zip(line["x"], line["y"], strict=True)) == {step: pytest.approx(step / 10) for step in line["x"]}
        assert line["x"][-1] == 200
    assert {line["y"][0] for line in named(charts, "Training loss").data} == {0.1}
    assert [line["y"][-1] for line in named(charts, "softmax: bounded parameters").data] == [0.5, 0.2] * 3
    for line in named(charts, "Frobenius norm of the attention matrix").data:
        assert line["y"] == [pytest.approx(1 + 200 + 1), 2.0]  # the last evaluation, the mean of seeds 0, 1, 2
    for line in named(charts, "Key masses").data:
        assert dict(zip(line["x"], line["y"], strict=True)) == {
            "< 0.3": pytest.approx(12.5), "< 1": pytest.approx(37.5), "< 3": pytest.approx(50),
        }  # fmt: skip
    drawn = named(charts, "dnas, seed 0: trained attention")
    assert drawn.data[0]["z"] == [[1.5, 0.5], [-0.5, 1.5]]
    assert drawn.layout["coloraxis"]["cmid"] == 0


def test_masses_by_other_edges_are_not_added(tmp_path: Path) -> None:
    view(tmp_path)
    write_json(tmp_path / "1" / FILE, {"edges": [2.0], "attentions": [
        {"name": "a", "queries": 1, "keys": 1, "map": [[1]], "histogram": [100, 0]}]})  # fmt: skip
    (again,) = gather(tmp_path, "softmax").views
    line = named(charts_of(again, 100, 5), "Key masses").data[0]
    assert sum(line["y"]) == pytest.approx(100)
    assert dict(zip(line["x"], line["y"], strict=True))["< 3"] == pytest.approx(50)


def test_limits_are_kept_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST_ROWS", 5)
    monkeypatch.setattr(pages, "MOST_ROWS_INSIDE", 2)
    monkeypatch.setattr("seqarena.scripts.report.training.MOST_LINES", 6)
    found = view(tmp_path, rows=["softmax", *(f"v{number}" for number in range(7))])
    charts = charts_of(found, 4, 100)
    assert named(charts, "Scores").note.endswith("The first 5 of 8 rows.")
    assert len(named(charts, "Scores").data[1]["x"]) == 5
    curves = named(charts, "Accuracy on")
    assert len(curves.data) == 5
    assert "5 of 15 runs: one seed per row." in curves.note
    assert {len(line["x"]) for line in curves.data} == {4}
    for kind in ("bounded parameters", "trained attention"):
        some = [each for each in charts if kind in each.title]
        assert len(some) == 2
        assert "Not drawn: the same chart of 3 more rows." in some[-1].note
    assert not [each for each in charts_of(found, 4, 0) if "trained attention" in each.title]


def test_speed_is_in_milliseconds_and_mebibytes(tmp_path: Path) -> None:
    case = {"variant": "x3", "order": "none", "implementation": "blockwise", "length": 64}
    measured = {"case": case, "seconds": {"both": 0.5}, "baseline_seconds": {"none": 0.25}, "peak_memory_bytes": 2**21}
    record = {
        "setting": {"batch": 1, "heads": 2, "head_dim": 8, "precision": "float32"}, "device": "a CPU", "torch": "2",
        "commit": "c", "clean": True, "matmul_flops_per_second": 1.0, "measurements": [measured],
    }  # fmt: skip
    write_json(tmp_path / "a.json", record)
    write_json(tmp_path / "b.json", {"steps": []})
    problems: list[str] = []
    time, memory = speed(tmp_path, problems)
    assert [(line["x"], line["y"]) for line in time.data] == [([64], [500.0]), ([64], [250.0])]
    assert [(line["x"], line["y"]) for line in memory.data] == [([64], [2.0])]
    assert not problems

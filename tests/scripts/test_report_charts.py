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
from seqarena.scripts.price.record import PriceRatio
from seqarena.scripts.report import page as pages
from seqarena.scripts.report.chart import Chart
from seqarena.scripts.report.data import View, gather
from seqarena.scripts.report.page import charts_of
from seqarena.scripts.report.prices import all_prices, prices
from seqarena.scripts.report.scores import interval, scores
from seqarena.scripts.report.speed import speed
from seqarena.scripts.report.training import _last_values, layered
from tests.scripts.results import CORRECT, result, run
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
    seeds, means = chart.data[::2], chart.data[1::2]
    assert [each["x"] for each in means] == [[pytest.approx(np.mean(CORRECT[row.name]) / 2)] for row in table.rows]
    halves = [interval([each / 2 for each in CORRECT[row.name]]) for row in table.rows]
    assert [each["error_x"]["array"] for each in means] == [[pytest.approx(half)] for half in halves]
    assert [each["x"] for each in seeds] == [[right / 2 for right in CORRECT[row.name]] for row in table.rows]
    assert [each["y"] for each in seeds] == [[place] * 3 for place in range(3)]
    assert [each["meta"] for each in means] == [{"row": row.name} for row in table.rows]
    assert chart.layout["yaxis"]["ticktext"] == [row.name for row in table.rows]


def test_references_do_not_squeeze_the_scores(made: tuple[View, list[Chart]]) -> None:
    """Scores are 24 to 37 %: a floor of 12 % and chance are beyond the axis, and are named below."""
    chart = named(made[1], "Scores")
    low, high = chart.layout["xaxis"]["range"]
    assert 15 < low < 24
    assert 37 < high < 45
    assert chart.layout["shapes"] == []
    assert "Beyond the axis: floor: majority class 12.00 %, chance 10.00 %." in chart.note
    table = replace(made[0].table, floors={"near": 0.23, "close": 0.231, "far": 0.9})
    nearer = scores(replace(made[0], table=table))
    assert nearer is not None
    assert [line["x0"] for line in nearer.layout["shapes"]] == pytest.approx([23, 23.1])
    (text,) = nearer.layout["annotations"]
    assert text["text"] == "floor: near and 1 more"
    assert text["hovertext"] == "floor: near; floor: close"
    assert nearer.layout["xaxis"]["range"][0] < 23


def test_differences_have_their_intervals_the_right_way_round(made: tuple[View, list[Chart]]) -> None:
    table = made[0].table
    rows = [row for row in table.rows if row.comparison]
    for row, trace in zip(rows, named(made[1], "Difference from").data, strict=True):
        found = row.comparison
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        assert trace["x"] == [pytest.approx(100 * found.difference)]
        assert trace["x"][0] + trace["error_x"]["array"][0] == pytest.approx(100 * found.high)
        assert trace["x"][0] - trace["error_x"]["arrayminus"][0] == pytest.approx(100 * found.low)
        assert trace["error_x"]["color"] == trace["marker"]["color"] == made[0].colours[row.name]
    symbols = {trace["name"]: trace["marker"]["symbol"] for trace in named(made[1], "Difference from").data}
    assert symbols == {"dnas": "triangle-up", "x3": "circle-open"}
    assert [orders(row, table)[4] for row in rows] == [row.comparison.difference for row in rows if row.comparison]


def test_prices_are_ratios_with_their_range(made: tuple[View, list[Chart]]) -> None:
    assert not [chart for chart in made[1] if "price" in chart.title]  # nothing was measured
    view = made[0]
    ratio = PriceRatio(time=1.5, least=1.2, most=2.0, memory=1.0)
    rows = [replace(row, price=ratio) for row in view.table.rows]
    priced = replace(view, table=replace(view.table, rows=rows))
    chart = prices(priced)
    assert chart is not None
    assert [line["x"] for line in chart.data] == [[1.5]] * 3
    assert chart.data[0]["error_x"]["array"] == [0.5]
    assert chart.data[0]["error_x"]["arrayminus"] == pytest.approx([0.3])
    loss = replace(priced, table=replace(priced.table, task="wikitext2", unit="nats"))
    unknown = replace(view, table=replace(view.table, precision="bfloat16"))
    joined = all_prices([priced, priced, unknown, loss])
    assert joined is not None
    assert joined.note.endswith(
        "Tasks whose score is a loss are not in this chart: wikitext2 quick (short expressions). "
        "Tasks without a comparison or a measured price are not in this chart: listops quick (short expressions), "
        "bfloat16."
    )
    least, most = joined.layout["xaxis"]["range"]
    assert 10**least < 1  # the baseline; the axis is logarithmic
    assert 10**most > 2.0  # the slowest round
    assert [line["name"] for line in joined.data] == ["dnas", "x3"] * 2
    assert [line["showlegend"] for line in joined.data] == [True, True, False, False]
    assert joined.data[0]["y"] == [pytest.approx(100 * rows[1].comparison.difference)]  # type: ignore[union-attr]


def test_a_colour_belongs_to_a_variant_on_the_whole_page(tmp_path: Path) -> None:
    made = [result(name, seed, 50 + seed) for name in ("softmax", "dnas", "x3") for seed in range(3)]
    more = [
        replace(each, preset="hour", run=run(each.attention, "hour", 1000, each.seed)) for each in made[:3] + made[6:]
    ]
    one, other = gather(write(tmp_path, *made, *more), "softmax").views
    assert one.colours == other.colours
    assert len({one.colours[name] for name in ("softmax", "dnas", "x3")}) == 3


def test_curves_layers_and_masses_are_what_the_runs_told(made: tuple[View, list[Chart]]) -> None:
    charts = made[1]
    for line in named(charts, "Accuracy on").data:
        assert dict(zip(line["x"], line["y"], strict=True)) == {step: pytest.approx(step / 10) for step in line["x"]}
        assert line["x"][-1] == 200
    assert {line["y"][0] for line in named(charts, "Training loss").data} == {0.1}
    assert [line["y"][-1] for line in named(charts, "softmax: bounded parameters").data] == [0.5, 0.2] * 3
    for line in named(charts, "Frobenius norm of the attention matrix").data:
        assert line["y"] == [pytest.approx(1 + 200 + 1), 2.0]  # the last evaluation, the mean of seeds 0, 1, 2
        assert line["customdata"] == [3, 3]
    diverged = {
        name: [
            replace(each, result=result(name, number, None)) if number == 2 else each
            for number, each in enumerate(runs)
        ]
        for name, runs in made[0].runs.items()
    }
    chart = layered(replace(made[0], runs=diverged), "attention norm", "of two seeds")
    assert chart is not None
    assert {(line["y"][0], *line["customdata"]) for line in chart.data} == {(1 + 200 + 0.5, 2, 2)}
    for line in named(charts, "Key masses").data:
        assert dict(zip(line["x"], line["y"], strict=True)) == {
            "< 0.1": 0.0, "< 0.3": pytest.approx(12.5), "< 1": pytest.approx(37.5), "< 3": pytest.approx(50),
        }  # fmt: skip
        assert line["x"][0] == "< 0.1"  # where the first bar begins
    drawn = named(charts, "dnas, seed 0: trained attention")
    assert drawn.data[0]["z"] == [[1.5, 0.5], [-0.5, 1.5]]
    assert drawn.layout["coloraxis"]["cmid"] == 0


def test_a_layer_without_a_number_is_not_drawn_and_the_others_keep_their_place() -> None:
    lines = {"layer 2": [(20.0, 2.0), (40.0, 4.0)], "layer 1": [(20.0, 1.0)], "layer 3": [(40.0, 5.0)]}
    assert _last_values(lines) == {2: 4.0, 3: 5.0}


def test_a_loss_per_word_is_not_drawn_per_token(made: tuple[View, list[Chart]]) -> None:
    view = made[0]
    curves = {
        "loss": {"training": [(1.0, 3.0)], "validation": [(1.0, 2.5)]}, "loss per word": {"validation": [(1.0, 9.5)]},
    }  # fmt: skip
    runs = {name: [replace(run, curves=curves) for run in some] for name, some in view.runs.items()}
    words = replace(view, runs=runs, table=replace(view.table, metric="loss", unit="nats"))
    charts = charts_of(words, 100, 5)
    assert {tuple(line["y"]) for line in named(charts, "Loss on the validation set").data} == {(9.5,)}
    assert {tuple(line["y"]) for line in named(charts, "Training loss").data} == {(3.0,)}


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
    assert "The first 5 of 8 rows." in named(charts, "Scores").note
    assert len(named(charts, "Scores").data) == 10  # seeds and mean of each row
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

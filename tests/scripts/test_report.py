"""The page: what it holds, what it says, what it makes of files that are none of ours."""

import base64
import gzip
import json
import os
import re
import shutil
import signal
from dataclasses import asdict, replace
from pathlib import Path

import plotly.graph_objects
import pytest

from seqarena.common.errors import run_command
from seqarena.common.model.attention_maps import EDGES, FILE
from seqarena.common.runs.results import Result, read_results
from seqarena.scripts.leaderboard.records import PLANNED
from seqarena.scripts.report.chart import thinned
from seqarena.scripts.report.data import gather
from seqarena.scripts.report.page import charts_of
from seqarena.scripts.report.scores import interval
from seqarena.scripts.report.words import sentences
from seqarena.scripts.seqarena import dispatch
from tests.common.runs.test_cli import TINY
from tests.interruption import start
from tests.scripts.results import result, run
from tests.scripts.test_overview import results as planted

HTML = "<script>alert(1)</script><b>x"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a real sweep of two variants, of which one run is missing, and one of the other task."""
    folder = tmp_path_factory.mktemp("trained")
    names = ["--runs", str(folder / "runs"), "--data-folder", str(folder), *TINY, "--train.diagnostics"]
    sweep = ["sweep", "lra", "listops", "--attention", "softmax", "hnas", "--seeds", "0", "1", *names]
    assert run_command(dispatch, sweep) == 0
    lost = next(path for path in (folder / "runs" / "lra" / "listops").glob("*hnas*seed1*"))
    shutil.rmtree(lost)
    return folder / "runs"


def test_tables_of_different_data_have_different_titles(tmp_path: Path) -> None:
    for number, checksum in enumerate(("ab" * 32, "cd" * 32)):
        (tmp_path / str(number)).mkdir()
        other = run("softmax", "later", 1000)
        result("softmax", 0, 50, preset="later", run=other, data_checksum=checksum).write(tmp_path / str(number))
    titles = {view.table.title for view in gather(tmp_path, "softmax").views}
    assert {title.partition(" [")[2] for title in titles} == {
        "data: sha256 abababababab]", "data: sha256 cdcdcdcdcdcd]",
    }  # fmt: skip


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_kill_while_the_page_is_written_leaves_the_page_before(tmp_path: Path, moment: str) -> None:
    """Once the new page is written but not yet on the disk, and once before it takes the place of the old one."""

    def killed() -> None:
        setattr(os, moment, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        page(tmp_path)

    for number in range(2):
        (tmp_path / str(number)).mkdir()
    result("softmax", 0, 50).write(tmp_path / "0")
    before, _ = page(tmp_path)
    result("dnas", 0, 60).write(tmp_path / "1")
    assert os.waitpid(start(killed), 0)[1] == signal.SIGKILL
    assert (tmp_path / "page.html").read_text() == before
    after, _ = page(tmp_path)
    assert "dnas" not in before
    assert "dnas" in after
    assert [each.name for each in tmp_path.glob("*page*")] == ["page.html"]


def page(folder: Path, *more: str) -> tuple[str, dict]:
    """Writes the page, and returns it and the values packed in it."""
    out = folder / "page.html"
    assert (
        run_command(dispatch, ["report", "--runs", str(folder), "--out", str(out), "--benchmarks", str(folder), *more])
        == 0
    )
    text = out.read_text()
    packed = re.search(r'id="values">([^<]*)<', text)
    assert packed
    return text, json.loads(gzip.decompress(base64.b64decode(packed[1])))


def write(folder: Path, *results: Result) -> Path:
    for number, each in enumerate(results):
        (folder / str(number)).mkdir(parents=True)
        each.write(folder / str(number))
    return folder


def test_a_page_holds_tables_runs_and_charts(trained: Path) -> None:
    text, values = page(trained)
    assert "3 finished runs, <strong>1 missing</strong>" in text
    assert re.search(r"lra listops \(version \d+\), preset quick", text)
    assert "hnas" in text
    assert "2 of 3 (1 missing)" not in text
    assert "1 of 2 (1 missing)" in text
    assert "majority class" in text
    titles = [chart["title"] for chart in values["charts"]]
    assert titles[:2] == ["Scores", "Difference from softmax"]
    assert {"Accuracy on the validation set", "Training loss", "hnas, 1 layer: bounded parameters of each layer",
            "Frobenius norm of the attention matrix", "Key masses: all attentions",
            "softmax, 1 layer, seed 0: trained attention",
            "hnas, 1 layer, seed 0: trained attention"} <= {*titles}  # fmt: skip
    (found, missing) = next(runs for runs in values["runs"] if len(runs) == 2 and "missing" in runs[1]["heading"])
    (kept,) = (each for each in read_results(trained)[0].values() if each.attention == "hnas")
    assert found["command"] == kept.command
    facts = dict(found["facts"])
    assert facts["data, sha256"] == kept.data_checksum
    assert str(kept.environment["commit"]) in facts["commit"]
    assert kept.environment["device"] in facts["device"]
    changes = {path: (before, after) for path, before, after in found["changes"]}
    assert changes["train.steps"][1] == str(kept.run["train"]["steps"])
    assert changes["model.attention.class"] == ("Softmax", "Hybrid")
    assert missing["heading"] == "seed 1: missing (planned by a sweep)"
    assert "--attention hnas --seed 1" in missing["command"]


def test_every_chart_is_one_that_plotly_knows(trained: Path) -> None:
    """Plotly's own validators read each trace and layout, name by name."""
    for view in gather(trained, "softmax").views:
        charts = charts_of(view, 20, 5)
        assert len(charts) > 8
        for chart in charts:
            assert plotly.graph_objects.Figure(data=chart.data, layout=chart.layout).data


def test_nothing_on_the_page_comes_from_elsewhere(trained: Path) -> None:
    text, _ = page(trained)
    without = re.sub(r'<script type="application/gzip".*?</script>', "", text, flags=re.DOTALL)
    assert not re.search(r"https?://|<link|\bsrc=|@import|url\(", without)
    assert "default-src 'none'" in without


def test_html_in_a_name_stays_text(tmp_path: Path) -> None:
    made = [result("softmax", seed, 90) for seed in range(3)]
    made += [
        replace(result("x3", seed, 100), row=(("attention", HTML),), attention=HTML, notes=[HTML], command=HTML)
        for seed in range(3)
    ]
    text, values = page(write(tmp_path, *made))
    assert "<script>alert" not in text
    assert "<b>x" not in text
    assert "&lt;script&gt;alert(1)" in text
    shown = [
        name for chart in values["charts"] for line in chart["data"] for name in (*line.get("y", ()), line.get("name"))
    ]
    assert not [each for each in shown if isinstance(each, str) and "<" in each]


def test_files_that_are_no_results_are_named_and_counted(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(trained, folder)
    runs = sorted((folder / "lra" / "listops").iterdir())
    (runs[0] / "metrics.jsonl").write_text('{"step": 1, "loss": "none"}\n{"step": 2}\n')
    (runs[0] / FILE).write_text('{"edges": [1], "attentions": [{"name": 3}]}')
    (runs[1] / FILE).write_text('{"edges"')
    (folder / "cut").mkdir()
    (folder / "cut" / "result.json").write_text('{"format": 1,')
    (folder / "sweeps" / "foreign.json").write_text("[]")
    again = replace(read_results(folder)[0][runs[2]], finished_at="2099-01-01")
    (folder / "again").mkdir()
    again.write(folder / "again")
    (folder / "measured.json").write_text('{"matmul_flops_per_second": 1, "measurements": [{"case": 1}]}')
    text, _ = page(folder)
    told = capsys.readouterr().err
    assert "6 skipped" in text
    for name in ("metrics.jsonl, line 1", f"{runs[0].name}/{FILE}", f"{runs[1].name}/{FILE}", "cut/result.json",
                 "foreign.json", "using the newest", "measured.json"):  # fmt: skip
        assert name in told, name
        assert name in text.split("</section>")[-1], name
    assert text.count("3 finished runs") == 1


@pytest.mark.parametrize(
    "text",
    ['{"edges": [1], "attentions": 5}', '{"edges": [], "attentions": []}',
     '{"edges": [NaN], "attentions": []}', "[" * 100_000, "[]", '{"edges": "x"}',
     '{"edges": [1.0], "attentions": [{"name": "a", "queries": 1, "keys": 1, "map": [["x"]], "histogram": [1, 2]}]}',
     '{"edges": [1.0], "attentions": [{"name": "a", "queries": 0, "keys": 1, "map": [[1.0]], "histogram": [1, 2]}]}'],
    ids=range(8),
)  # fmt: skip
def test_what_a_run_left_may_be_anything(text: str, tmp_path: Path) -> None:
    write(tmp_path, result("softmax", 0, 90))
    (tmp_path / "0" / FILE).write_text(text)
    (tmp_path / "0" / "outputs").mkdir()
    (tmp_path / "0" / "outputs" / "key_masses.json").write_text(text.replace("attentions", "kind"))
    (tmp_path / "0" / "metrics.jsonl").write_text(f"{text}\n{text}\n")
    (tmp_path / "measured.json").write_text(text)
    shown, _ = page(tmp_path)
    assert "1 finished run" in shown
    assert f"0/{FILE}" in shown
    assert "metrics.jsonl, line 1" in shown


@pytest.mark.parametrize(
    "change",
    [{"environment": {}}, {"run": {"model": {}, "train": []}}, {"run": {}}, {"run": {"model": 5}},
     {"run": {"model": {}, "data": 3}},
     {"changed": {"a": [1]}}, {"score": "1"}, {"metrics": {"a": None}}, {"tokens_per_second": float("nan")},
     {"peak_memory_bytes": 1.5}],
    ids=str,
)  # fmt: skip
def test_a_result_with_something_else_inside_is_skipped(change: dict, tmp_path: Path) -> None:
    write(tmp_path, result("softmax", 0, 90))
    (tmp_path / "odd").mkdir()
    values = asdict(result("x3", 0, 90)) | change
    (tmp_path / "odd" / "result.json").write_text(json.dumps(values))
    entry = {name: values.get(name, "c") for name in PLANNED} | {"folder": "planned"}
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "a.json").write_text(json.dumps({"runs": [entry]}))
    text, _ = page(tmp_path)
    assert "1 finished run," in text
    assert "odd/result.json" in text


def test_scores_of_other_examples_are_named_and_skipped(tmp_path: Path) -> None:
    odd = replace(result("x3", 0, 90), example_scores=[0.45] * 199)
    text, _ = page(write(tmp_path, result("softmax", 0, 90), result("dnas", 0, 95), odd))
    assert "2 finished runs" in text
    assert "2/result.json: scores of 199 test examples, but other results on the same data have 200" in text
    assert "+2.50 (1 seed)" in text


def test_a_diverged_run_is_seen(tmp_path: Path) -> None:
    text, values = page(write(tmp_path, result("softmax", 0, 90), result("x3", 0, None)))
    assert "<strong>1 diverged</strong>" in text
    assert "has no score: 1 seed diverged" in text
    assert "diverged" in values["runs"][1][0]["heading"]
    assert "nothing was tested" in str(values["runs"][1][0])
    assert "x3 (1 diverged)" in values["charts"][0]["layout"]["yaxis"]["ticktext"]


def test_the_results_that_are_kept_here_are_a_page(tmp_path: Path) -> None:
    shutil.copytree(Path(__file__).parents[2] / "results" / "hour", tmp_path / "results")
    text, values = page(tmp_path / "results")
    assert "30 finished runs" in text
    assert text.count('class="protocol"') == 2
    assert all(run["command"].startswith("seqarena lra") for runs in values["runs"] for run in runs)


def test_hundreds_of_runs_are_a_small_page(tmp_path: Path) -> None:
    made = [result(f"v{row}" if row else "softmax", seed, 90 + row % 7) for row in range(50) for seed in range(4)]
    text, values = page(write(tmp_path, *made))
    assert len(text) < 2.5e6  # of which 2.0e6 are the library
    assert sum(len(runs) for runs in values["runs"]) == 200


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        ((90, 120), r"scores 15.00 points higher than softmax on 3 seeds .*It is better than softmax"),
        ((90, 90), r"scores the same as softmax on 3 seeds"),
        ((120, 60), r"scores 30.00 points lower .*It is worse than softmax"),
    ],
)
def test_comparisons_are_said_in_words(scores: tuple[int, int], said: str, tmp_path: Path) -> None:
    made = [result(name, seed, right + seed) for name, right in zip(("softmax", "x3"), scores, strict=True)
            for seed in range(3)]  # fmt: skip
    (view,) = gather(write(tmp_path, *made), "softmax").views
    ((name, sentence),) = sentences(view.table)
    assert name == "x3"
    assert re.search(said, sentence), sentence


def test_a_page_of_two_seeds_has_no_interval_and_no_p(tmp_path: Path) -> None:
    made = [result(name, seed, right + seed) for name, right in (("softmax", 50), ("x3", 150)) for seed in range(2)]
    text, values = page(write(tmp_path, *made))
    assert "the variance over seeds is unknown, so no interval and no p" in text
    assert "variance over seeds is unknown: no interval and no p." in text
    assert "95 % interval:" not in text
    assert "after Holm" not in text
    for chart in values["charts"]:
        for line in chart["data"]:
            bars = line.get("error_x", {})
            assert not any([*bars.get("array", []), *bars.get("arrayminus", [])])


def test_nothing_is_said_of_what_others_are_compared_with(tmp_path: Path) -> None:
    made = [replace(result(name, seed, 90), row=(("attention", name), ("norm", norm)), norm=norm)
            for name in ("softmax", "x3") for norm in ("post", "deescalated") for seed in range(3)]  # fmt: skip
    (view,) = gather(write(tmp_path, *made, result("tanh", 0, None)), "softmax").views
    told = dict(sentences(view.table))
    assert set(told) == {row.name for row in view.table.rows} - {"softmax, post"}
    assert "than softmax, post" in told["softmax, deescalated"] or "as softmax, post" in told["softmax, deescalated"]
    assert "as softmax, deescalated" in told["x3, deescalated"]
    assert told["tanh"] == "has no score: 1 seed diverged."


def test_the_head_is_right_about_a_winner_a_loser_and_noise(tmp_path: Path) -> None:
    text, _ = page(write(tmp_path, *planted()))
    head = text[text.index('class="overview"') : text.index('aria-label="contents"')]
    rows = {
        name: re.findall(r"class=\"(better|worse|even|unsure)\">(.) <span class=\"number\">([^<]*)</span></td>", row)
        for row, name in re.findall(
            r"(<th scope=\"row\" data-order=\"\w+\"><bdi>([^<]*)</bdi>.*?</tr>)", head, re.DOTALL
        )
    }
    assert rows["dnas"] == [("better", "▲", "+15.67")] * 2
    assert rows["x3"] == [("worse", "▼", "-35.00")] * 2
    assert [shade for shade, *_ in rows["hnas"]] == ["even", "even"]
    for place in range(2):  # each column leads to a section
        assert f'<a href="#protocol-{place}">' in head
        assert f'id="protocol-{place}"' in text


def test_a_folder_without_results_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(dispatch, ["report", "--runs", str(tmp_path)]) == 2
    assert run_command(dispatch, ["report", "--runs", str(tmp_path / "none")]) == 2
    told = capsys.readouterr().err
    assert "no results below" in told
    assert "no folder" in told
    assert not list(tmp_path.iterdir())


def test_another_baseline(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = page(trained, "--baseline", "hnas")
    assert "vs hnas" in text
    assert run_command(dispatch, ["report", "--runs", str(trained), "--baseline", "hna"]) == 2
    assert "nearest: hnas" in capsys.readouterr().err


def test_lines_are_thinned_but_for_their_ends() -> None:
    line = [(float(step), 0.0) for step in range(1000)]
    short = thinned(line, 10)
    assert (len(short), short[0], short[-1]) == (10, line[0], line[-1])
    assert thinned(line[:5], 10) == line[:5]


def test_the_interval_of_a_mean_is_students() -> None:
    assert interval([1.0]) is None
    assert interval([1.0, 2.0, 3.0]) == pytest.approx(4.302653 / 3**0.5, rel=1e-6)
    assert len(EDGES) + 1 == 12


def test_results_of_two_versions_are_told_apart_without_unfolding(tmp_path: Path) -> None:
    sources = {"common/attention/softmax.py": "1"}
    old = [result("softmax", seed, 90, sources=sources) for seed in range(2)]
    new = replace(old[0], sources={"common/attention/softmax.py": "2"}, finished_at="2027-01-01")
    text, values = page(write(tmp_path, *old, new))
    before, folded = text.split('<details class="notes">', 1)
    assert re.search(
        r"<em>softmax @\w+: measured before common/attention/softmax.py changed; softmax: after</em>", before
    )
    assert "changed; softmax: after" not in folded.split("</details>")[0]
    facts = [dict(run["facts"]) for row in values["runs"] for run in row]
    assert len({each["sources"] for each in facts}) == 2

"""The overview over several tasks, verdicts, and the columns that fit a terminal."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from seqarena.common.errors import WrongUseError
from seqarena.common.runs.results import Result
from seqarena.common.tables import render
from seqarena.scripts import leaderboard
from seqarena.scripts.leaderboard.cells import cells, footnotes, headings
from seqarena.scripts.leaderboard.columns import blocks, fitting
from seqarena.scripts.leaderboard.overview import overview_of, overview_text
from seqarena.scripts.leaderboard.paired import sds_shown
from seqarena.scripts.leaderboard.rows import detectable_by_seeds
from seqarena.scripts.leaderboard.side_by_side import join
from seqarena.scripts.leaderboard.table import code_note, tables
from seqarena.scripts.leaderboard.verdict import p_text, verdict_of
from seqarena.scripts.packages import find_package
from seqarena.scripts.price.record import PriceRatio
from tests.scripts.results import result, run
from tests.scripts.test_price import record

QUICK, HOUR = "listops quick (short expressions)", "listops hour (expressions of 20 to 100 symbols)"
"""Names of two tables in the overview."""
STEPS = {"quick": 1000, "hour": 2500}
"""Steps of the presets."""
CHECKSUMS = find_package("lra").tasks["listops"].checksums
WINNER, LOSER, NOISE = (130, 131, 133), (30, 31, 29), (95, 108, 97)
"""Correct answers of three seeds. The baseline has 100, 101 and 99."""


def results(task_seeds: int = 3) -> list[Result]:
    made = []
    for preset in ("quick", "hour"):
        for name, correct in (("softmax", (100, 101, 99)), ("dnas", WINNER), ("x3", LOSER), ("hnas", NOISE)):
            made += [
                replace(
                    result(name, seed, correct[seed]),
                    preset=preset,
                    run=run(name, preset, STEPS[preset], seed),
                    data_checksum=CHECKSUMS[preset],
                )
                for seed in range(task_seeds)
            ]
    return made


def test_a_winner_a_loser_and_noise_are_told_apart() -> None:
    made = tables(results(), [], "softmax")
    overview = overview_of(made)
    assert overview is not None
    assert [column.name for column in overview.columns] == [QUICK, HOUR]
    assert {name: [cell.verdict for cell in cells if cell] for name, cells in overview.rows.items()} == {
        "dnas": ["better", "better"], "hnas": ["no difference shown"] * 2, "x3": ["worse", "worse"],
    }  # fmt: skip
    assert list(overview.rows) == ["dnas", "hnas", "x3"]
    _, headings, rows, notes = overview_text(overview, made)
    assert headings == ["variant", "total", QUICK, HOUR]
    assert rows[0] == ["softmax, mean", "", "50.00 %", "50.00 %"]
    assert [row[1] for row in rows[1:4]] == ["2▲", "2○", "2▼"]
    assert rows[1][2:] == ["▲ +15.67", "▲ +15.67"]
    assert rows[-1][0] == "detectable difference"
    assert "▲ better" in notes[0]


def test_runs_with_changed_fields_are_named_so() -> None:
    """The preset hour has other values than these runs."""
    made = tables([replace(each, run=run(each.attention, "hour", 1000, each.seed)) if each.preset == "hour" else each
                   for each in results()], [], "softmax")  # fmt: skip
    assert [table.modified for table in made] == [False, True]
    overview = overview_of(made)
    assert overview is not None
    assert overview.columns[1].name == f"{HOUR}, modified"
    *_, notes = overview_text(overview, made)
    assert [note for note in notes if note.startswith(f"{HOUR}, modified: lra listops (version 1), preset hour")]


def test_data_of_the_users_do_not_have_the_name_of_the_presets() -> None:
    own = run("softmax", "quick", 1000)["data"] | {"path": "mine"}
    mine = [
        replace(each, run=run(each.attention, "quick", 1000, each.seed) | {"data": own}, data_checksum="cd" * 32)
        for each in results()
        if each.preset == "quick"
    ]
    made = tables([*mine, *(each for each in results() if each.preset == "hour")], [], "softmax")
    overview = overview_of(made)
    assert overview is not None
    name = "listops quick (other data)"
    assert {column.name for column in overview.columns} == {name, HOUR}
    *_, notes = overview_text(overview, made)
    (note,) = [each for each in notes if each.startswith(name)]
    assert "sha256 cdcdcdcdcdcd" in note
    assert "short expressions" not in note


def test_a_task_with_two_tables_is_one_in_the_count_of_prices() -> None:
    prices = [replace(record(), run=run("softmax", preset, STEPS[preset]), preset=preset) for preset in STEPS]
    twice = [*results(), *(replace(each, data_checksum="cd" * 32) for each in results())]
    made = tables(twice, [], "softmax", prices)
    overview = overview_of(made)
    assert overview is not None
    assert len(overview.columns) == 4
    _, _, rows, _ = overview_text(overview, made)
    assert next(row for row in rows if row[0] == "dnas")[2] == "1.50 (2 tasks)"


def test_tables_of_one_preset_with_other_settings_have_prices_of_their_own() -> None:
    made = tables([each for each in results() if each.preset == "quick"], [], "softmax")
    (other,) = tables(
        [replace(each, data_checksum="cd" * 32) for each in results() if each.preset == "quick"], [], "softmax"
    )
    for time, table in ((2.0, made[0]), (1.5, other)):
        price = PriceRatio(time=time, least=1.0, most=2.0, memory=1.0)
        table.rows[:] = [replace(row, price=price) for row in table.rows]
    overview = overview_of([*made, other])
    assert overview is not None
    assert list(overview.times["dnas"].values()) == [2.0, 1.5]
    assert list(overview.times["dnas"]) == [column.name for column in overview.columns]
    _, _, rows, _ = overview_text(overview, [*made, other])
    assert next(row for row in rows if row[0] == "dnas")[2] == "1.50 to 2.00 (1 task)"


@pytest.mark.parametrize(
    ("p_value", "shown"),
    [
        (0.04967, "0.0496"),
        (0.049999999, "0.0499"),
        (0.0494, "0.049"),
        (0.05, "0.050"),
        (0.0009, "< 0.001"),
        (1.0, "1.000"),
    ],
)
def test_a_rounded_p_stays_on_its_side_of_the_limit(p_value: float, shown: str) -> None:
    assert p_text(p_value) == shown


def test_without_spread_there_is_no_verdict() -> None:
    """All examples of all seeds right, against all wrong."""
    made = [replace(each, score=float(right), example_scores=[float(right)] * 200)
            for each in results() for right in [each.attention == "dnas"]]  # fmt: skip
    (table, _) = tables(made, [], "softmax")
    (row,) = (row for row in table.rows if row.name == "dnas")
    assert verdict_of(row, higher_is_better=True) == "no test"
    headings_and_cells = dict(zip(headings(table), cells(row, table), strict=True))
    assert headings_and_cells["vs softmax [95 %]"] == "? +100.00 (no spread)"


def test_what_a_table_could_have_shown_shrinks_with_seeds() -> None:
    sizes = detectable_by_seeds(tables(results(), [], "softmax")[0].rows)
    assert list(sizes) == [3, 5, 10, 20]
    for end in (0, 1):
        assert sizes[3][end] > sizes[5][end] > sizes[10][end] > sizes[20][end] > 0
    assert all(least < most for least, most in sizes.values())  # the variants vary differently


def test_what_an_overview_could_have_shown_is_that_of_all_rows() -> None:
    """Also of those with more seeds than the others."""
    more = [replace(each, seed=each.seed + 3) for each in results() if each.attention in ("softmax", "hnas")]
    made = tables([*results(), *more], [], "softmax")
    overview = overview_of(made)
    assert overview is not None
    sizes = [next(iter(row.detectable.values())) for row in made[0].rows if row.detectable]
    assert [next(iter(row.detectable)) for row in made[0].rows if row.detectable] == [3, 3, 6]
    assert overview.columns[0].detectable == (min(sizes), max(sizes))


def test_two_seeds_have_no_verdict() -> None:
    overview = overview_of(tables(results(2), [], "softmax"))
    assert overview is not None
    assert {cell.verdict for cells in overview.rows.values() for cell in cells if cell} == {"no test"}
    assert all(column.detectable is None for column in overview.columns)
    assert "detectable" not in str(overview_text(overview, tables(results(2), [], "softmax")))


def test_two_seeds_say_what_more_seeds_would_show() -> None:
    """The smallest for which scipy's noncentral t distribution gives a power of 0.8: 5.653 / sqrt(3) with three."""
    assert [sds_shown(seeds) for seeds in (3, 5, 10)] == pytest.approx([3.264, 1.682, 0.996], abs=2e-3)
    note = next(each for each in footnotes(tables(results(2), [], "softmax")[0]) if each.startswith("what more seeds"))
    assert note.endswith("3.3 with 3, 1.7 with 5, 1.0 with 10, 0.7 with 20")
    assert not any(each.startswith("what more seeds") for each in footnotes(tables(results(), [], "softmax")[0]))


def test_diverged_seeds_are_named() -> None:
    lost = {"status": "diverged", "score": None, "example_scores": []}
    made = [replace(each, **lost) if each.attention == "dnas" and each.seed == 2 else each for each in results()]
    shown = tables([*made, *(replace(each, seed=each.seed + 3) for each in results())], [], "softmax")
    overview = overview_of(shown)
    assert overview is not None
    rows = {row[0]: row for row in overview_text(overview, shown)[2]}
    assert all(cell.endswith("(1 diverged)") for cell in rows["dnas"][2:])
    assert not any("diverged" in cell for cell in rows["x3"])
    _, _, beside, _ = join(shown)[0]
    assert next(row for row in beside if row[0] == "dnas")[1].endswith("(5, 1 diverged)")


def test_tables_of_two_precisions_have_two_names() -> None:
    half = [replace(each, environment={"device": "a GPU", "precision": "bfloat16"}) for each in results()]
    shown = tables([*results(), *half], [], "softmax")
    assert sorted("; bfloat16" in table.title for table in shown) == [False, False, True, True]
    assert len({table.title for table in shown}) == 4
    overview = overview_of(shown)
    assert overview is not None
    assert sorted(column.name for column in overview.columns) == [
        HOUR, f"{HOUR}, bfloat16", QUICK, f"{QUICK}, bfloat16",
    ]  # fmt: skip
    counted = "total: listops quick is counted 2 times, listops hour is counted 2 times, once for each of its tables"
    assert counted in overview_text(overview, shown)[3]


def test_a_name_that_stands_for_two_codes_is_told() -> None:
    """A user's file was edited between two tasks; x3 had the same code in both, and softmax a file more in one."""
    made = []
    for each in results():
        sources = {"common/attention/base.py": "1", f"{each.attention}.py": "1"}
        if each.preset == "hour" and each.attention == "dnas":
            sources["dnas.py"] = "2"
        if each.preset == "hour" and each.attention == "softmax":
            sources |= {"lra/trainer.py": each.preset, "common/attention/fused.py": "1"}
        made.append(replace(each, sources=sources))
    shown = tables(made, [], "softmax")
    overview = overview_of(shown)
    assert overview is not None
    note = "attention not computed by the same code in all tasks: dnas"
    assert note in overview_text(overview, shown)[3]
    assert not any("same code" in note for note in overview_text(overview, tables(results(), [], "softmax"))[3])
    for table in shown:  # joined with no other
        assert code_note([table]) == []


def test_names_with_a_number_are_explained() -> None:
    earlier = [replace(each, task_version=2) for each in results()]
    made = tables([*results(), *earlier], [], "softmax")
    overview = overview_of(made)
    assert overview is not None
    notes = overview_text(overview, made)[3]
    for column in overview.columns:
        assert "#" in column.name
        assert f"{column.name}: {made[column.place].title}" in notes


def test_lower_is_better_for_losses() -> None:
    made = [replace(table, higher_is_better=False) for table in tables(results(), [], "softmax")]
    overview = overview_of(made)
    assert overview is not None
    assert list(overview.rows) == ["x3", "hnas", "dnas"]
    _, headings, _, notes = overview_text(overview, made)
    assert headings[2:] == [f"{QUICK} ↓", f"{HOUR} ↓"]
    assert notes[-1] == "↓ a loss: lower is better"
    latex = render("", headings, [["x3", "1▲ 1▼", "", ""]], notes, "latex")
    assert r"1$\bigtriangleup$ 1$\bigtriangledown$" in latex
    assert rf"{QUICK} $\downarrow$" in latex
    assert not set("▲▼○✕↓") & set("".join(line for line in latex.splitlines() if not line.startswith("%")))


def test_one_task_needs_no_overview() -> None:
    assert overview_of(tables([result("dnas", 0, 50), result("softmax", 0, 50)], [], "softmax")) is None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for each in results():
        place = tmp_path / f"{each.attention}{each.preset}{each.seed}"
        place.mkdir()
        each.write(place)
    return tmp_path


def test_printed_lines_fit_the_terminal(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    leaderboard.run(["--runs", str(folder)])
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 60
    assert "columns that do not fit this terminal: " in " ".join(shown.split())
    assert "15.67" in shown
    leaderboard.run(["--runs", str(folder), "--json"])
    assert list(json.loads(capsys.readouterr().out)) == ["overview", "tables"]


def test_the_overview_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leaderboard.run(["--runs", str(folder), "--overview"])
    shown = capsys.readouterr().out
    assert shown.startswith("Overview: difference from softmax")
    assert "floors" not in shown
    for path in folder.glob("*hour*/result.json"):
        path.unlink()
    with pytest.raises(WrongUseError, match="--overview: expected comparisons with softmax in at least 2 tasks"):
        leaderboard.run(["--runs", str(folder), "--overview"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--overview --format csv", "--overview: csv always has all tables and columns"),
        ("--columns mean --json", "--columns: json always has all tables and columns"),
        ("--overview --side-by-side", "--overview and --side-by-side cannot be combined"),
        ("--json --format csv", "--json prints JSON, --format csv does not"),
    ],
)
def test_options_without_effect_are_refused(words: str, message: str, folder: Path) -> None:
    with pytest.raises(WrongUseError, match=message):
        leaderboard.run(["--runs", str(folder), *words.split()])


def test_csv_has_verdicts_and_what_could_be_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leaderboard.run(["--runs", str(folder), "--format", "csv"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["name"]: row["verdict"] for row in rows} == {
        "softmax": "not compared", "dnas": "better", "hnas": "no difference shown", "x3": "worse",
    }  # fmt: skip
    assert all(float(row["detectable_difference"]) > 0 for row in rows[1:4])
    assert {row["time_ratio"] for row in rows} == {""}


def test_columns_are_chosen_by_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leaderboard.run(["--runs", str(folder), "--format", "markdown", "--columns", "vs", "p"])
    assert "| variant | vs softmax [95 %] | p (Holm) |" in capsys.readouterr().out
    with pytest.raises(WrongUseError, match="unknown column 'meen'"):
        leaderboard.run(["--runs", str(folder), "--columns", "meen"])
    assert capsys.readouterr().out == ""


def test_blocks_repeat_the_first_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    headings, rows = ["variant", "one", "two", "three"], [["a", "1" * 8, "2" * 8, "3" * 8]]
    monkeypatch.setenv("COLUMNS", "34")
    assert [part[0] for part in blocks(headings, rows, fixed=1)] == [["variant", "one", "two"], ["variant", "three"]]
    monkeypatch.setenv("COLUMNS", "10")  # each block has at least one column
    assert [part[0][1:] for part in blocks(headings, rows, fixed=1)] == [["one"], ["two"], ["three"]]


def test_the_mean_and_the_difference_are_dropped_last(monkeypatch: pytest.MonkeyPatch) -> None:
    headings = ["variant", "mean", "sd", "rouge 2", "seeds", "vs softmax [95 %]", "p (Holm)", "parameters"]
    monkeypatch.setenv("COLUMNS", "20")
    (kept, rows), dropped = fitting(headings, [["x"] * 8])
    assert (kept, rows) == (["variant", "mean", "vs softmax [95 %]"], [["x"] * 3])
    assert dropped == ["sd", "rouge 2", "seeds", "p (Holm)", "parameters"]

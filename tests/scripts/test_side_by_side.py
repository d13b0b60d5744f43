"""Several tasks in one table, with their other metrics; rows of checkpoints pretrained with another attention."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from seqarena.common.runs.config import to_json
from seqarena.common.runs.results import Result
from seqarena.qa.presets import PRESETS
from seqarena.scripts import leaderboard
from seqarena.scripts.leaderboard.side_by_side import join
from seqarena.scripts.leaderboard.table import Table, tables
from tests.scripts.results import result, row_of_name

ROWS = {"softmax": 0.5, "hnas": 0.6, "hnas, pretrained with softmax": 0.75}


def finetuned(task: str, row: str, seed: int, score: float) -> Result:
    metric, other = ("f1", "exact") if task == "squad1" else ("accuracy", "accuracy_mismatched")
    attention = row.split(",", maxsplit=1)[0]
    made = result(attention, seed, round(200 * score) + seed)
    trained = "softmax" if "softmax" in row else "hnas"
    run = to_json(PRESETS[task]["bert"].run)
    run |= {"seed": seed, "model": run["model"] | {"attention": {"class": attention}, "pretrained_with": trained}}
    score = sum(made.example_scores) / 200
    return replace(made, package="qa", task=task, preset="bert", row=row_of_name(row), metric=metric, score=score,
                   run=run, metrics={metric: score, other: score - 0.125}, data_checksum="x",
                   floors={"rule": 0.25})  # fmt: skip


@pytest.fixture
def results() -> list[Result]:
    made = [finetuned(task, row, seed, score) for task in ("squad1", "mnli") for row, score in ROWS.items()
            for seed in range(3)]  # fmt: skip
    return made[:-1]  # one seed of one row is not there


def test_other_metrics_stand_beside_and_a_pretrained_row_has_a_baseline(results: list[Result]) -> None:
    squad, mnli = tables(results, [], "softmax")
    assert [row.name for row in squad.rows] == list(ROWS)
    softmax, _, mixed = squad.rows
    assert softmax.mean is not None
    assert softmax.secondary["exact"] == (pytest.approx(softmax.mean - 0.125), pytest.approx(softmax.deviation))
    assert mixed.comparison is not None
    assert mixed.comparison.difference == pytest.approx(0.25)
    assert set(mnli.rows[0].secondary) == {"accuracy_mismatched"}


def test_tasks_stand_side_by_side_as_in_the_paper(results: list[Result]) -> None:
    title, headings, rows, notes = join(tables(results, [], "softmax"))[0]
    assert title == "qa, preset bert"
    assert headings == ["variant", "squad1 f1 / exact", "mnli accuracy / mismatched"]
    assert rows[0] == ["softmax", "50.50 +- 0.50 / 38.00 +- 0.50 (3)", "50.50 +- 0.50 / 38.00 +- 0.50 (3)"]
    assert rows[2][:2] == ["hnas, pretrained with softmax", "75.50 +- 0.50* / 63.00 +- 0.50 (3)"]
    assert rows[2][2].endswith("(2)")
    assert rows[3] == ["best floor", "25.00", "25.00"]
    paper = next(row for row in rows if row[0].startswith("published: hnas"))
    assert paper[1:] == ["90.9 / 84.0", "84.7"]
    assert any('* the first metric differs from that of "softmax"' in note for note in notes)


def test_the_note_names_every_row_that_a_difference_is_from(results: list[Result]) -> None:
    made = tables(results, [], "softmax")
    for row in made[0].rows[1:]:
        row.against = "softmax, post"
    assert any('differs from that of "softmax, post" or of "softmax" with p' in note for note in join(made)[0][3])


def test_a_second_protocol_of_a_task_begins_another_table(results: list[Result]) -> None:
    longer = [
        replace(each, changed={"train.steps": [1, 2]}, run=each.run | {"train": each.run["train"] | {"steps": 2}})
        for each in results[:3]
    ]
    assert [len(headings) for _, headings, _, _ in join(tables([*results, *longer], [], "softmax"))] == [3, 2]


def test_pretrainings_are_not_mixed_up(results: list[Result]) -> None:
    """A model's tasks stand together, whichever came first."""

    def of(some: list[Result], pretraining: str) -> list[Result]:
        return [
            replace(each, run=each.run | {"model": each.run["model"] | {"pretraining": pretraining}}) for each in some
        ]

    squad, mnli = results[:9], results[9:]
    made = join(tables([*of(squad, "one"), *of(squad, "two"), *of(mnli, "two")], [], "softmax"))
    assert [(title.split("pretraining ")[1], len(headings)) for title, headings, _, _ in made] == [
        ("one", 2),
        ("two", 3),
    ]


def test_a_star_needs_three_seeds(results: list[Result]) -> None:
    rows = join(tables([each for each in results if each.seed < 2], [], "softmax"))[0][2]
    assert not any("*" in cell for row in rows for cell in row)


def test_a_figure_is_comparable_with_the_presets_own_checkpoint_and_data_alone(results: list[Result]) -> None:
    def table(**changes: object) -> Table:
        run, changed = results[0].run, {"model.pretraining": ["", "sha256 x"]}
        own = {name: changes.pop(name) for name in ("init",) if name in changes}
        model = run["model"] | {"pretraining": "sha256 x"} | own
        run = run | {"model": model, "data": run["data"] | changes}
        return tables([replace(results[0], run=run, changed=changed)], [], "softmax")[0]

    assert table().comparable
    assert not table(init="somewhere/else").comparable
    assert not table(dev="mine.json").comparable


def test_the_command(results: list[Result], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, each in enumerate(results):
        folder = tmp_path / str(number)
        folder.mkdir()
        each.write(folder)
    assert leaderboard.run(["--runs", str(tmp_path), "--side-by-side", "--format", "markdown"]) == 0
    assert "| variant | squad1 f1 / exact | mnli accuracy / mismatched |" in capsys.readouterr().out
    assert leaderboard.run(["--runs", str(tmp_path), "--format", "markdown"]) == 0
    assert "| variant | mean | sd | exact | seeds |" in capsys.readouterr().out
    assert leaderboard.run(["--runs", str(tmp_path), "--json"]) == 0
    table = json.loads(capsys.readouterr().out)["tables"][0]
    assert table["rows"][0]["secondary"]["exact"][0] == pytest.approx(0.38)
    assert leaderboard.run(["--runs", str(tmp_path), "--format", "csv"]) == 0
    assert "exact" in capsys.readouterr().out

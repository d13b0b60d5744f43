"""Tables of runs that start from pretrainings: one row of all seeds, whichever seeds the pretrainings have."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from seqarena.common.runs.config import to_json
from seqarena.common.runs.results import Result
from seqarena.qa.presets import PRESETS
from seqarena.scripts.leaderboard.records import measurements
from seqarena.scripts.leaderboard.table import Table, tables
from tests.scripts.results import only, result

RUN = PRESETS["mnli"]["quick"].run


def finetuned(name: str, seed: int, pretraining: int, correct: int, sources: str = "a") -> Result:
    """A result of MNLI whose run starts from a pretraining of another seed or the same."""
    model = {
        "attention": {"class": name}, "pretraining": "mlm", "pretraining_seed": pretraining,
        "pretraining_sources": sources, "pretrained_with": name,
    }  # fmt: skip
    run = to_json(RUN)
    run |= {"seed": seed, "model": run["model"] | model}
    notes = [] if seed == pretraining else [f"pretraining seed {pretraining}"]
    return result(
        name, seed, correct, package="qa", task="mnli", run=run, notes=notes, floors={}, data_checksum="",
        sources={"qa/trainer.py": "1"}, finished_at=f"2026-01-01T00:0{pretraining}:0{seed}",
    )  # fmt: skip


def shown(some: Sequence[Result], folder: Path) -> Table:
    for number, each in enumerate(some):
        (folder / str(number)).mkdir()
        each.write(folder / str(number))
    found = measurements(folder)
    assert not found.duplicates
    return only(tables(list(found.results.values()), [], "softmax"))


@pytest.mark.parametrize("pretrainings", [(0, 1, 2), (0, 0, 0), (5, 6, 7)], ids=["its own", "one", "others"])
def test_runs_of_any_pretraining_seeds_are_one_row(pretrainings: tuple[int, int, int], tmp_path: Path) -> None:
    correct = {"softmax": (100, 101, 99), "hnas": (130, 131, 133)}
    table = shown(
        [finetuned(name, seed, pretrainings[seed], some[seed]) for name, some in correct.items() for seed in range(3)],
        tmp_path,
    )
    assert [(row.name, row.seeds) for row in table.rows] == [("softmax", [0, 1, 2]), ("hnas", [0, 1, 2])]
    assert table.rows[1].comparison is not None
    assert not any("measured before" in remark for remark in table.remarks)


def test_one_seed_from_two_pretrainings_is_in_two_rows(tmp_path: Path) -> None:
    table = shown(
        [finetuned("softmax", seed, pretraining, 100) for seed in range(2) for pretraining in (0, 1)], tmp_path
    )
    assert [row.seeds for row in table.rows] == [[0, 1], [0, 1]]
    other = table.rows[1]
    assert other.name.startswith("softmax @")
    assert f"{other.name}: from pretraining seed 0; softmax: 1" in table.remarks


def test_pretrainings_by_other_sources_are_in_two_rows(tmp_path: Path) -> None:
    table = shown([finetuned("softmax", seed, seed, 100, "ab"[seed]) for seed in range(2)], tmp_path)
    assert [row.seeds for row in table.rows] == [[1], [0]]
    assert any("the pretraining, changed" in remark for remark in table.remarks)


def test_a_later_result_of_the_same_pretraining_replaces_one(tmp_path: Path) -> None:
    one = finetuned("softmax", 0, 1, 100)
    for number, each in enumerate([one, replace(one, finished_at="2027-01-01T00:00:00")]):
        (tmp_path / str(number)).mkdir()
        each.write(tmp_path / str(number))
    found = measurements(tmp_path)
    assert len(found.results) == 1
    assert "two results of mnli softmax seed 0: using the newest" in found.duplicates[0]

"""The results that are committed belong to presets as they are now, and their table is the one in the documents."""

from pathlib import Path

import pytest

from common.config import to_json
from common.results import Result, read_results
from common.run import settings
from scripts.leaderboard import tables
from scripts.packages import find_package

ROOT = Path(__file__).parent.parent
FOUND, PROBLEMS = read_results(ROOT / "results")
RESULTS = list(FOUND.values())


def test_results_are_readable_and_three_seeds_each() -> None:
    assert not PROBLEMS
    seeds: dict[tuple[str, str], list[int]] = {}
    for result in RESULTS:
        seeds.setdefault((result.protocol, result.row), []).append(result.seed)
    assert seeds
    assert all(sorted(some) == [0, 1, 2] for some in seeds.values())


@pytest.mark.parametrize("result", RESULTS, ids=lambda each: f"{each.task}-{each.row}-{each.seed}")
def test_a_result_is_of_its_preset_and_of_clean_code(result: Result) -> None:
    package = find_package(result.package)
    task, preset = package.tasks[result.task], package.presets[result.task][result.preset]
    assert settings(result.package, result.run) == settings(result.package, to_json(preset.run))
    assert (result.changed, result.task_version, result.status) == ({}, task.version, "finished")
    assert result.data_checksum == task.checksums[result.preset]
    assert result.environment["clean"] is True


def test_the_documents_table_is_theirs() -> None:
    text = (ROOT / "docs" / "results.md").read_text()
    for table in tables(RESULTS, [], "softmax"):
        assert table.title in text
        for row in table.rows:
            assert row.mean is not None
            assert f"| {row.name} | {100 * row.mean:.2f} % |" in text

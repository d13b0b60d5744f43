"""The results that are committed belong to presets as they are now, and tables in documents are made of them."""

import functools
import re
import statistics
from pathlib import Path

import pytest

from seqarena.common.runs.config import to_json
from seqarena.common.runs.results import Result, read_results
from seqarena.common.runs.run import RowParts, settings
from seqarena.scripts.leaderboard.protocol import Protocol, protocol_of
from seqarena.scripts.packages import find_package
from seqarena.scripts.sweep.tuning import read_tuning
from tests.tables import DOCUMENTS, PAGE, TABLE, page, with_tables, without_moment

ROOT = Path(__file__).parent.parent
FOLDERS = sorted(each.parent for each in (ROOT / "results").rglob("result.json"))


CHANGED = {
    "gigaword": {
        "model.layers",
        "model.dim",
        "model.heads",
        "model.ffn_dim",
        "optim.lr",
        "optim.schedule.warmup",
        "train.steps",
        "data.tokenizer",
    },
    "recall-steps": {"train.steps"},
    "recall-steps-avx2": {"train.steps"},
    "image-steps": {"train.steps", "optim.lr"},
    "mlm-rate": {"optim.lr"},
    "mlm-row-sum": {"optim.lr"},
}
"""Folder -> fields in which its runs differ from their preset, as the document says that shows them."""


def path_in_results(path: Path) -> Path:
    return path.relative_to(ROOT / "results")


OWN_FILES = {"gigaword"}
"""Folders of results on the author's files, whose checksum no preset knows."""


@functools.cache
def results() -> dict[Path, Result]:
    """Reads all results, once, and only where a test needs them: each process collects this file."""
    found, problems = read_results(ROOT / "results")
    assert not problems
    return found


@functools.cache
def tuned() -> dict[Path, set[str]]:
    """Returns directory -> tuned fields of the results whose learning rate was tuned."""
    paths = sorted((ROOT / "results").rglob("tunings/*.json"))
    return {
        path.parent.parent / folder: set(tuning.fields)
        for path in paths
        for tuning in [read_tuning(path)]
        for choice in tuning.choices
        for folder in choice.folders
    }


def test_results_are_readable_and_of_the_planned_seeds() -> None:
    assert sorted(results()) == FOLDERS
    seeds: dict[tuple[str, Protocol, RowParts], list[int]] = {}
    for path, result in results().items():
        collection = path_in_results(path).parts[0]
        seeds.setdefault((collection, protocol_of(result), result.row), []).append(result.seed)
    assert seeds
    planned = {
        "gigaword": 1,
        "small": 5,
        "recall": 5,
        "recall-steps": 5,
        "recall-steps-avx2": 5,
        "prior": 5,
        "listops-rate": 5,
        "pathfinder-rate": 5,
        "row-sum": 5,
        "wikitext-2": 1,
        "mlm-rate": 5,
        "mlm-row-sum": 5,
    }  # docs/small.md
    assert all(sorted(some) == [*range(planned.get(key[0], 3))] for key, some in seeds.items())


def test_scores_that_presets_expect_are_those_of_the_results() -> None:
    """The first number of what a preset expects with three seeds is the mean of softmax."""
    scores: dict[tuple[str, str, str], list[float]] = {}
    for path, result in results().items():
        is_softmax = dict(result.row) == {"attention": "softmax"} and not result.changed
        if path_in_results(path).parts[0] in ("quick", "hour") and is_softmax and result.score is not None:
            scores.setdefault((result.package, result.task, result.preset), []).append(result.score)
    checked = set()
    for (package, task, preset), some in scores.items():
        expected = find_package(package).presets[task][preset].expected
        number = re.search(r"\d+(\.\d+)?", expected)
        if "(3 seeds" in expected:
            assert number is not None
            digits = len(number[0].partition(".")[2])
            factor = 1 if find_package(package).tasks[task].metric == "loss" else 100
            assert f"{factor * statistics.fmean(some):.{digits}f}" == number[0], f"{package} {task} {preset}"
            checked.add(task)
    assert checked >= {
        "listops", "text", "text-legacy", "retrieval", "image", "pathfinder", "cifar10-patches",
        "mnli", "wire", "mlm", "wikitext2",
    }  # fmt: skip


def test_floors_that_presets_expect_are_those_of_the_results() -> None:
    """The numbers after the semicolon of what a preset expects."""
    checked = set()
    for result in results().values():
        package = find_package(result.package)
        preset, task = package.presets[result.task][result.preset], package.tasks[result.task]
        named = re.findall(r"(\d+(?:\.\d+)?)(?: %)?(?:,|$)", preset.expected.partition(";")[2])
        is_current = result.data_checksum == task.checksums.get(result.preset) and result.task_version == task.version
        if named and is_current:
            factor = 1 if task.metric == "loss" else 100
            known = {
                f"{factor * floor:.{len(number.partition('.')[2])}f}"
                for number in named
                for floor in result.floors.values()
            }
            assert set(named) <= known, f"{result.package} {result.task} {result.preset}"
            checked.add((result.task, result.preset))
    quick = {task for task, preset in checked if preset == "quick"}
    assert quick == {
        "listops", "text", "text-legacy", "retrieval", "image", "pathfinder", "cifar10-patches",
        "wikitext2", "mlm", "mnli", "squad1", "squad2", "wire",
    }  # fmt: skip


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda each: str(each.relative_to(ROOT / "results")))
def test_a_result_is_of_its_preset_and_of_clean_code(folder: Path) -> None:
    result = results()[folder]
    package = find_package(result.package)
    task, preset = package.tasks[result.task], package.presets[result.task][result.preset]
    free = tuned().get(folder, set()) | CHANGED.get(path_in_results(folder).parts[0], set())
    measured = settings(type(preset.run), result.run, result.config_version)
    own = settings(type(preset.run), to_json(preset.run))
    assert measured.keys() == own.keys()
    assert {path for path, value in measured.items() if value != own[path]} <= free
    assert result.changed.keys() <= free
    assert (result.task_version, result.status) == (task.version, "finished")
    if path_in_results(folder).parts[0] in OWN_FILES:
        assert result.preset not in task.checksums
    else:
        assert result.data_checksum == task.checksums[result.preset]
    assert result.environment["clean"] is True


def test_the_training_times_of_the_guide_are_those_of_the_results() -> None:
    seconds: dict[str, list[float]] = {}
    for path, result in results().items():
        if path_in_results(path).parts[0] == "quick":
            seconds.setdefault(result.task, []).append(result.training_seconds)
    table = (ROOT / "docs" / "guide.md").read_text().split("| task | training time in seconds |")[1].split("\n\n")[0]
    found = re.findall(r"^\| ([a-z0-9-]+) \| (\d+) to (\d+) \|$", table, re.MULTILINE)
    assert {task: (int(least), int(most)) for task, least, most in found} == {
        task: (round(min(each)), round(max(each))) for task, each in seconds.items()
    }


def test_the_measured_hours_of_the_guide_are_those_of_the_results() -> None:
    told = {
        (folder, preset): hours
        for line in (ROOT / "docs" / "guide.md").read_text().splitlines()
        for numbers, folder in re.findall(r"\| ([0-9. and]+) hours of one thread \(measured, `results/(\w+)`\)", line)
        for preset, hours in zip(
            re.findall(r"`lra ([a-z0-9-]+ --preset [a-z-]+)`", line), numbers.split(" and "), strict=True
        )
    }
    assert len(told) == 4
    for (folder, words), hours in told.items():
        task, _, preset = words.split()
        seconds = [
            each.training_seconds
            for path, each in results().items()
            if path_in_results(path).parts[0] == folder and (each.task, each.preset) == (task, preset)
        ]
        assert f"{sum(seconds) / 3600:.1f}" == hours, words


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: each.name)
def test_tables_in_documents_are_those_of_the_results(document: Path) -> None:
    """``make tables`` writes them."""
    text = document.read_text()
    assert with_tables(text) == text


def test_the_page_of_the_tier_is_that_of_the_results(tmp_path: Path) -> None:
    """``make tables`` writes it."""
    assert page(tmp_path / "page.html") == without_moment(PAGE.read_text())


def test_every_result_stands_in_a_document() -> None:
    printed = [
        command.split()
        for each in DOCUMENTS
        for _, kind, command, _ in TABLE.findall(each.read_text())
        if kind == "leaderboard"
    ]
    folders = [ROOT / words[words.index("--runs") + 1] for words in printed]
    for path in (ROOT / "results").rglob("result.json"):
        assert any(path.is_relative_to(folder) for folder in folders), path

"""The scripts that make the papers' tables: they run from end to end, and quote what the tasks' records say."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from seqarena.common.runs.results import Result
from seqarena.common.runs.run import row_name
from seqarena.common.runs.tasks import Task
from seqarena.scripts import sweep
from seqarena.scripts.packages import find_package

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "scripts" / "reproduce").glob("p*.sh"))
NAMES = [path.stem for path in SCRIPTS]
SHORT = "--train.steps 2 --train.batch-size 8 --optim.schedule.warmup 1".split()
SMALL = "--model.layers 1 --model.dim 16 --model.heads 2 --model.ffn-dim 16".split()
FIELDS = {name: ["--data.generated", "100"] for name in ("p2_table1", "p2_table2")}
"""Script -> what else makes it short; the others have smaller models."""
ROWS = {
    "p1_table1": [("tiny-imagenet", f"{variant}, 1 layer")
                  for variant in ("softmax", "x3-16", "x3-raw", "x1-16", "x1-raw")],
    "p1_table2": [("imagenet", f"{variant}, 1 layer") for variant in ("softmax", "x3-14", "x3-raw", "x1-14", "x1-raw",
                  "x2-14", "relu", "elu", "gelu", "tanh", "exp")],
    "p1_table4": [(task, f"{variant}, 1 layer") for task in ("listops", "text", "retrieval", "image", "pathfinder")
                  for variant in ("softmax", "x3-14", "x1-14", "x1-raw", "x3-raw")],
    "p2_table1": [("vqa2", row) for row in ("softmax", "dnas", "hnas", "softmax, primary", "softmax, boxes")],
    "p2_table2": [("mlm", "softmax"), ("gigaword", "softmax"), ("gigaword", "hnas"),
                  ("gigaword", "softmax"), ("gigaword", "hnas[u=0.0], pretrained with softmax")],
    "p2_table3": [(task, f"{variant}, 1 layer") for task in ("mlm", "squad1", "squad2", "mnli")
                  for variant in ("softmax", "hnas")],
    "p3_fig6": [("cifar10-patches", f"softmax, {norm}1 layer")
                for norm in ("", "post, ", "deescalated[where=block_output], ")],
    "p3_fig7": [("wikitext103", f"softmax, {norm}1 layer")
                for norm in ("", "pre, ", "deescalated[mean=prefix], ", "deescalated[leaky=True], ")],
}  # fmt: skip
"""Script -> task and row of every result."""
PRINTED = {
    "p1_table1": ("lra", ("tiny-imagenet",), "P1"),
    "p1_table2": ("lra", ("imagenet",), "P1"),
    "p1_table4": ("lra", ("listops", "text", "retrieval", "image", "pathfinder"), "P1"),
    "p2_table1": ("vqa", ("vqa2",), "P2"),
    "p2_table2": ("summarization", ("gigaword",), "P2"),
    "p2_table3": ("qa", ("squad1", "squad2", "mnli"), "P2"),
}
"""Script -> package, tasks and the paper, which the source of each figure of its table names."""
NAMED = {
    "P1": {"table": range(1, 6), "figure": range(1, 15), "theorem": (4.1, 4.2, 4.4), "corollary": (4.3, 4.5)},
    "P2": {"table": range(1, 4), "figure": range(1, 7), "lemma": (1,), "eq": (6,)},
    "P3": {"table": (1,), "figure": range(1, 9), "lemma": (4,), "proposition": (9,), "theorem": (6,),
           "eq": (16, 17, 21)},
}  # fmt: skip
"""Paper -> the numbers of its tables, figures and statements, each of which has a line in docs/reproducing.md."""
STATES = {"same", "smaller", "other data", "absent", "ours", "not run"}
RUNS = {
    "p1_table1": 15,
    "p1_table2": 156,
    "p1_table4": 75,
    "p2_table1": 15,
    "p2_table2": 6,
    "p2_table3": 6,
    "p3_fig6": 9,
    "p3_fig7": 12,
}
"""Script -> runs at the paper's size, but for those that start from a checkpoint."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


def run(name: str, seqarena: Path, runs: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "CHECKPOINT"}
    environment |= {"SEQARENA": str(seqarena), "RUNS": str(runs), "COLUMNS": "250", "OMP_NUM_THREADS": "1"}
    environment |= {"HF_HUB_OFFLINE": "1"}
    command = [str(ROOT / "scripts" / "reproduce" / f"{name}.sh"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.extras
@pytest.mark.parametrize("name", NAMES)
def test_a_script_runs_from_end_to_end(name: str, tmp_path: Path, data: Path) -> None:
    """20 to 60 seconds each on two cores; the data of quick presets are generated, nothing is fetched."""
    seqarena = executable(tmp_path / "seqarena", f'#!/bin/sh\nexec "{sys.executable}" -m seqarena "$@"\n')
    fields = [*SHORT, *FIELDS.get(name, SMALL)]
    runs = tmp_path / "runs"
    told = run(name, seqarena, runs, "--preset", "quick", "--seeds", "0", "--data-folder", str(data), *fields)
    assert told.returncode == 0, told.stderr
    results = [Result.read(path.parent) for path in runs.rglob("result.json")]
    assert sorted((result.task, row_name(result.row)) for result in results if result) == sorted(ROWS[name])
    assert {result.preset for result in results if result} == {"quick"}
    plans = [json.loads(path.read_text())["runs"] for path in (runs / "sweeps").glob("*.json")]
    planned = {runs / entry["folder"] / "result.json" for plan in plans for entry in plan}
    assert planned == set(runs.rglob("result.json"))
    for task, row in ROWS[name]:
        assert f" {row} " in told.stdout, (task, row)
    assert "missing" not in told.stdout
    assert "diverged" not in told.stdout


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.extras if name == "p1_table2" else ()) for name in NAMES],  # transformers
)
def test_at_the_size_of_the_paper_the_commands_are_runs(name: str, tmp_path: Path) -> None:
    """A stand-in writes down what it is asked for, and a plan of two pretrainings where one is asked for."""
    plan = tmp_path / "plan.json"
    plan.write_text('{"runs": [\n{"folder": "mlm/a-seed0-1"},\n{"folder": "mlm/b-seed12-2"}]}')
    asked = tmp_path / "asked"
    stand_in = executable(
        tmp_path / "seqarena", f'#!/bin/sh\nprintf "%s\\n" "$*" >>"{asked}"\necho \'{{"plan": "{plan}"}}\'\n'
    )
    assert run(name, stand_in, tmp_path).returncode == 0
    *sweeps, table = (line.split() for line in asked.read_text().splitlines())
    assert table[0] == "leaderboard"
    assert table[-2:] == ["--runs", str(tmp_path)]
    planned = [sweep.plan(words[1:]) for words in sweeps if not any(word.endswith("init") for word in words)]
    runs = [each for some, _, _ in planned for each in some]
    assert len({each.folder for each in runs}) == RUNS[name]
    assert all(each.folder.is_relative_to(tmp_path) for each in runs)
    started = [words for words in sweeps if any(word.endswith("init") for word in words)]
    if name == "p2_table2":
        bert = "google-bert/bert-base-uncased"
        assert [words[-6:-2] for words in started] == [["--model.encoder-init", bert, "--model.decoder-init", bert]]
    if name == "p2_table3":
        assert [words[words.index("--model.init") + 1] for words in started] == [
            str(tmp_path / "mlm" / "a-seed0-1"), str(tmp_path / "mlm" / "b-seed12-2"),
        ]  # fmt: skip
        assert [words[-2:] for words in started] == [["--seeds", "0"], ["--seeds", "12"]]


@pytest.mark.parametrize("path", SCRIPTS, ids=NAMES)
def test_a_script_says_what_it_needs_and_what_to_expect(path: Path) -> None:
    assert os.access(path, os.X_OK)
    assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0
    head = header(path)
    for word in ("Data:", "Cost:", "Printed", "Departs:"):
        assert f"\n{word}" in head, word
    assert re.search(r"H100|H200|\bGPU that\b", head)


def test_every_script_is_known() -> None:
    assert set(NAMES) == set(ROWS) == set(RUNS) >= set(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_the_figures_that_a_script_quotes_are_those_of_the_records(name: str) -> None:
    """And every figure of the paper that the records have is quoted, in the order of the columns."""
    package, tasks, paper = PRINTED[name]
    expected: dict[tuple[str, str], list[float]] = {}
    for task in (find_package(package).tasks[each] for each in tasks):
        for figures in columns(task):
            for each in figures:
                if paper in each.source:
                    expected.setdefault((each.name, each.source), []).append(round(100 * each.value, 2))
    table = (
        header(ROOT / "scripts" / "reproduce" / f"{name}.sh")
        .split("\nPrinted")[1]
        .split("\nDeparts")[0]
        .split("\nWithout figures")[0]
    )
    quoted = [line.strip() for line in table.splitlines()[1:]]
    assert len(quoted) == len(expected)
    for (row, _), line in zip(expected.items(), quoted, strict=True):
        numbers = [float(number) for number in re.findall(r"\d+\.\d+", line)]
        assert line.startswith(row[0])
        assert numbers[: len(expected[row])] == expected[row], (row, line)


def experiments(paper: str) -> list[list[str]]:
    """Returns the cells of each line of a paper's table in docs/reproducing.md: experiment, command, state, remark."""
    text = (ROOT / "docs" / "reproducing.md").read_text().split("## Every experiment of the papers")[1]
    section = text.split(f"### {paper}, ")[1].split("\n### ")[0]
    return [
        [cell.strip() for cell in line[1:-1].split("|")]
        for line in section.splitlines()
        if line.startswith("| ") and not line.startswith("| experiment")
    ]


@pytest.mark.parametrize("paper", NAMED)
def test_every_table_figure_and_theorem_of_a_paper_has_a_line(paper: str) -> None:
    found: dict[str, set[float]] = {}
    for experiment, *_ in experiments(paper):
        for kind, numbers in re.findall(
            r"(table|figure|theorem|corollary|lemma|proposition|eq)s?\.? ((?:\d[\d.]*(?:, | and | to )?)+)",
            experiment.lower(),
        ):
            listed = [float(each.rstrip(".")) for each in re.findall(r"[\d.]+", numbers)]
            between = range(int(listed[0]), int(listed[-1]) + 1) if " to " in numbers else ()
            found.setdefault(kind, set()).update(listed, between)
    missing = {kind: set(numbers) - found.get(kind, set()) for kind, numbers in NAMED[paper].items()}
    assert not any(missing.values()), missing


@pytest.mark.parametrize("paper", NAMED)
def test_an_experiment_is_absent_or_has_a_command(paper: str) -> None:
    for experiment, command, state, *remark in experiments(paper):
        assert set(state.split(", ")) <= STATES, experiment
        assert (state == "absent") == (not command), experiment
        assert remark or state == "same", experiment


def columns(task: Task) -> list:
    return [task.published, *task.published_secondary.values()]


def header(path: Path) -> str:
    """Returns the comment at the top, without its marks."""
    lines = path.read_text().split("\nset -euo")[0].splitlines()[1:]
    return "\n".join(re.sub(r"^# ?", "", line) for line in lines)

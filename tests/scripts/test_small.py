"""The script of the tier small: its commands are the design of docs/small.md."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from seqarena.scripts import sweep

ROOT = Path(__file__).parents[2]
DESIGN, DESIGN_OF_NORMS = (ROOT / "docs" / "small.md").read_text().split("Norms are compared")
TASKS = (
    "associative-recall", "listops", "scenes", "cifar10-patches", "wikitext2", "mlm", "mnli", "pathfinder", "image",
    "wire",
)  # fmt: skip
NORMS = ("norms", "deescalation")


def commands(folder: Path, *tasks: str, diverged: bool = False) -> list[list[str]]:
    """Returns the commands that the script runs, without the name seqarena."""
    written = folder / "commands"
    stand_in = folder / "seqarena"
    end = '[ "$1" = leaderboard ]' if diverged else "true"
    stand_in.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >>"{written}"\n{end}\n')
    stand_in.chmod(0o755)
    environment = os.environ | {"SEQARENA": str(stand_in), "RUNS": str(folder / "runs")}
    script = ROOT / "scripts" / "reproduce" / "small.sh"
    done = subprocess.run([str(script), *tasks], check=not diverged, env=environment, capture_output=True)
    assert done.returncode == diverged
    return [line.split() for line in written.read_text().splitlines()]


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_swept_as_designed(task: str, tmp_path: Path) -> None:
    words, table = commands(tmp_path, task)
    assert table == ["leaderboard", "--runs", str(tmp_path / "runs")]
    planned, _, options = sweep.plan(words[1:])
    (row,) = re.findall(rf"^\| `\w+ {task}` \| `([\w-]+)` \| ([^|]+) \| ([^|]+) \|", DESIGN, re.M)
    preset, rates, rivals = row
    assert {each.run.preset for each in planned} == {preset}
    assert options.tune == [["optim.lr", *rates.split(", ")]]
    assert (options.seeds, options.tune_seeds) == ([0, 1, 2, 3, 4], [5])
    own = ["softmax", "dnas", "hnas", "x1-14", "x3-14", "relu", "sigmoid"]
    assert options.attention == [*own, *re.findall(r"`(\w+)`", rivals)]
    assert len(planned) == len(options.attention) * 3 * 6


def test_norms_are_swept_as_designed(tmp_path: Path) -> None:
    *sweeps, _ = commands(tmp_path, *NORMS)
    (row,) = re.findall(r"^\| `lra ([\w-]+)` \| `([\w-]+)` \| ([^|]+) \| ([^|]+) \|", DESIGN_OF_NORMS, re.M)
    task, preset, rates, norms = row
    swept = []
    for words in sweeps:
        planned, _, options = sweep.plan(words[1:])
        assert {(each.run.task, each.run.preset) for each in planned} == {(task, preset)}
        assert options.tune == [["optim.lr", *rates.split(", ")]]
        assert (options.seeds, options.tune_seeds) == ([0, 1, 2, 3, 4], [5])
        assert len(planned) == len(options.norm) * 3 * 6
        swept += options.norm
    assert swept == re.findall(r"`(\w+)`", norms)
    assert {each.run.model.norm.where for each in planned} == {"block_output"}  # type: ignore[attr-defined]


def test_without_a_task_all_are_swept(tmp_path: Path) -> None:
    *sweeps, table = commands(tmp_path)
    assert tuple(words[2] for words in sweeps) == (*TASKS, *("cifar10-patches" for _ in NORMS))
    assert table[0] == "leaderboard"


def test_after_a_diverged_run_the_other_tasks_are_swept(tmp_path: Path) -> None:
    *sweeps, table = commands(tmp_path, diverged=True)
    assert len(sweeps) == len(TASKS) + len(NORMS)
    assert table[0] == "leaderboard"


def test_an_interrupt_ends_the_script(tmp_path: Path) -> None:
    """The script has the interrupt of its sweep, as from the keyboard."""
    stand_in = tmp_path / "seqarena"
    stand_in.write_text(f'#!/bin/sh\necho "$1" >>"{tmp_path / "commands"}"\nkill -INT $PPID\nexit 1\n')
    stand_in.chmod(0o755)
    script = ROOT / "scripts" / "reproduce" / "small.sh"
    done = subprocess.run(
        [str(script)], check=False, env=os.environ | {"SEQARENA": str(stand_in)}, capture_output=True,
        # A shell cannot trap a signal that was ignored when it started, as in a job in the background.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert done.returncode == 130
    assert (tmp_path / "commands").read_text() == "sweep\n"


def test_an_unknown_task_is_refused(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as error:
        commands(tmp_path, "scenes", "lisops")
    assert error.value.returncode == 2
    assert not (tmp_path / "commands").exists()  # before hours of work
    assert f"choices: {' '.join((*TASKS, *NORMS))}\n".encode() in error.value.stderr

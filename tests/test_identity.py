"""Sources that are edited between two runs, or in the middle of one: two computations never share a row."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.runs import session
from seqarena.common.runs.package import Package
from seqarena.common.runs.results import Result, read_results
from seqarena.common.training import loop as training
from seqarena.common.training.runtime import differences, environment, make_accelerator
from seqarena.lra.__main__ import PACKAGE
from seqarena.lra.data.listops.official import FILES, HEADER
from seqarena.scripts import leaderboard
from seqarena.scripts.packages import PACKAGES
from seqarena.scripts.sweep import planned_run
from tests.earlier import LATER
from tests.lra.test_training import SAVED, TINY, TINY_FIELDS, interrupt, measure

ROOT = Path(__file__).parent.parent
FILE = "common/attention/softmax.py"


@pytest.fixture
def edited(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Gives an edit of softmax's formula, as the next process would see it."""

    def edit() -> None:
        real = Package.sources
        monkeypatch.setattr(Package, "sources", lambda package, run: {**real(package, run), FILE: "another"})

    return edit


def table(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, list[str]], str]:
    """Returns the leaderboard's rows by name, and all that was printed."""
    capsys.readouterr()
    assert leaderboard.run(["--runs", str(folder / "runs"), "--format", "markdown"]) == 0
    shown = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in shown.splitlines() if line.startswith("|")]
    return {cells[0]: cells for cells in rows}, shown


def test_a_result_of_other_sources_is_not_returned(
    tmp_path: Path, edited: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    first = [measure(replace(TINY, seed=seed), tmp_path) for seed in (0, 1)]
    edited()
    capsys.readouterr()
    again = measure(replace(TINY, seed=1), tmp_path)
    told = capsys.readouterr().err
    assert f"{FILE} changed since this run was measured in " in told
    assert "stays a row of its own (--overwrite or --overwrite-outdated deletes it)" in told
    assert again.sources[FILE] == "another" != first[1].sources[FILE]
    rows, shown = table(tmp_path, capsys)
    (older,) = (name for name in rows if name.startswith("softmax, 1 layer @"))
    assert (rows["softmax, 1 layer"][3], rows[older][3]) == ("1", "2")
    assert f"{older}: measured before {FILE} changed" in shown


def test_an_interrupted_run_does_not_go_on_under_other_sources(
    tmp_path: Path, edited: Callable[[], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt(SAVED, tmp_path)
    edited()
    capsys.readouterr()
    measure(SAVED, tmp_path)
    told = capsys.readouterr().err
    assert f"{FILE} changed since this run was begun in " in told
    assert "undo the change to go on there" in told
    assert "resuming after step" not in told
    monkeypatch.undo()  # the edit is taken back
    capsys.readouterr()
    measure(SAVED, tmp_path)
    assert "resuming after step 4 of 6" in capsys.readouterr().err


def test_a_directory_that_was_named_is_refused(tmp_path: Path, edited: Callable[[], None]) -> None:
    measure(TINY, tmp_path, out=tmp_path / "mine")
    edited()
    with pytest.raises(WrongUseError, match=rf"by other sources \({FILE} changed\); --overwrite starts it again"):
        measure(TINY, tmp_path, out=tmp_path / "mine")
    assert Result.read(tmp_path / "mine") is not None
    measure(TINY, tmp_path, out=tmp_path / "mine", overwrite=True)


@pytest.mark.parametrize("option", ["overwrite", "overwrite_outdated"])
def test_results_of_other_sources_are_deleted_when_asked(
    tmp_path: Path, edited: Callable[[], None], option: str
) -> None:
    measure(TINY, tmp_path)
    other = measure(replace(TINY, seed=1), tmp_path)
    edited()
    measure(TINY, tmp_path, **{option: True})
    folders = sorted((tmp_path / "runs" / "lra" / "listops").iterdir())
    assert [each.name.split("-")[3] for each in folders] == ["seed0", "seed1"]
    kept = Result.read(folders[1])
    assert kept == other
    first = measure(TINY, tmp_path)
    assert measure(TINY, tmp_path, overwrite_outdated=True).finished_at == first.finished_at


def test_the_same_data_under_another_name_are_the_same_run(
    tmp_path: Path, edited: Callable[[], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measure(TINY, tmp_path)  # makes the data
    for name in ("here", "there"):
        shutil.copytree(tmp_path / "data", tmp_path / name)
    load = type(TINY.data).load
    monkeypatch.setattr(type(TINY.data), "load", lambda data, folder: load(replace(data, path=None), folder))
    here, there, spelled = (
        replace(SAVED, data=replace(SAVED.data, path=str(tmp_path / path)))
        for path in ("here", "there", "there/../here")
    )
    interrupt(here, tmp_path)
    capsys.readouterr()
    first = measure(there, tmp_path)
    told = capsys.readouterr().err
    assert "the same run on the same data, by other file names, is in" in told
    assert "resuming after step 4 of 6" in told
    assert measure(spelled, tmp_path) == first
    assert measure(there, tmp_path) == first  # by the link that was left
    rows, _ = table(tmp_path, capsys)
    assert rows["softmax, 1 layer"][3] == "1"
    edited()
    measure(there, tmp_path, overwrite_outdated=True)
    assert measure(here, tmp_path).sources[FILE] == "another"  # the link is gone, what it led to is not
    assert first in read_results(tmp_path / "runs")[0].values()


def _official(folder: Path, first: int) -> None:
    """Writes ListOps as it is published: in every split the digits from ``first`` on, in short expressions."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in zip(FILES.values(), (40, 20, 20), strict=True):
        lines = [f"( ( ( [MAX {each % 10} ) {(each + first) % 10} ) ] )\t{max(each % 10, (each + first) % 10)}"
                 for each in range(count)]  # fmt: skip
        (folder / name).write_text("\n".join([HEADER, *lines]) + "\n")


def test_a_result_on_other_data_is_not_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Edited files, another folder under the same relative name; the same content, copied or gone, is the same run."""
    for project, first in (("one", 1), ("two", 2)):
        _official(tmp_path / project / "corpus", first)
    run = replace(SAVED, data=replace(SAVED.data, path="corpus"))
    monkeypatch.chdir(tmp_path / "one")
    first = measure(run, tmp_path)
    assert measure(run, tmp_path) == first
    monkeypatch.chdir(tmp_path / "two")
    with pytest.raises(
        BadDataError, match=r"began on data of sha256 \w+, now they are \w+; --overwrite starts it again"
    ):
        measure(run, tmp_path)
    planned = planned_run.PlannedRun(
        package=PACKAGE, run=run, session=session.Session(runs=tmp_path / "runs", data=tmp_path / "data")
    )
    assert planned.finished() is None
    assert planned.reason() == "its data files changed; their content is compared when it runs"

    monkeypatch.chdir(tmp_path / "one")
    assert planned.finished() == first
    (tmp_path / "one" / "corpus").rename(tmp_path / "one" / "before")
    assert measure(run, tmp_path) == first  # files that are gone are not needed
    _official(tmp_path / "one" / "corpus", 1)
    assert planned.finished() is None
    assert measure(run, tmp_path) == first  # the same bytes, written later
    assert planned.finished() == first
    _official(tmp_path / "one" / "corpus", 3)
    with pytest.raises(BadDataError, match="began on data of sha256"):
        measure(run, tmp_path)
    assert measure(run, tmp_path, overwrite=True).data_checksum != first.data_checksum


def test_data_that_are_edited_while_a_run_reads_them_are_not_taken_for_what_it_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = tmp_path / "corpus"
    _official(corpus, 1)
    run = replace(SAVED, data=replace(SAVED.data, path=str(corpus)))
    real = Package.assembly

    def edited_meanwhile(package: Package, *arguments: Any) -> Any:
        made = real(package, *arguments)
        _official(corpus, 2)
        return made

    monkeypatch.setattr(Package, "assembly", edited_meanwhile)
    measure(run, tmp_path)
    monkeypatch.undo()
    with pytest.raises(BadDataError, match="began on data of sha256"):
        measure(run, tmp_path)


def test_another_spelling_of_a_path_is_the_same_run_in_a_directory_that_was_named(tmp_path: Path) -> None:
    _official(tmp_path / "one" / "corpus", 1)
    spelled = [str(tmp_path / path) for path in ("one/corpus", "one/../one/corpus")]
    first, again = (
        measure(replace(SAVED, data=replace(SAVED.data, path=path)), tmp_path, out=tmp_path / "out") for path in spelled
    )
    assert first == again


def test_a_refused_run_leaves_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*_: object) -> None:
        raise BadDataError("damaged")

    monkeypatch.setattr(type(TINY.data), "load", damaged)
    with pytest.raises(BadDataError, match="damaged"):
        measure(TINY, tmp_path)
    assert not list((tmp_path / "runs" / "lra" / "listops").iterdir())


def test_a_resumed_run_tells_of_another_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt(SAVED, tmp_path)
    real = training.environment
    libraries = {"torch": "9.0"}
    monkeypatch.setattr(
        "seqarena.common.training.loop.environment",
        lambda accelerator: {**real(accelerator), "commit": "later", "threads": 7, "libraries": libraries},
    )
    capsys.readouterr()
    result = measure(SAVED, tmp_path)
    told = capsys.readouterr().err
    assert "threads 1 -> 7" in told or "threads 2 -> 7" in told
    assert "torch 2." in told
    assert "-> 9.0" in told
    assert "from step 5 on the bits may differ" in told
    assert [segment["after_step"] for segment in result.segments] == [0, 4]
    assert [segment["commit"] for segment in result.segments][1] == "later"
    _, shown = table(tmp_path, capsys)
    assert "started in one environment and resumed in another: all" in shown


def test_a_run_does_not_go_on_in_another_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(SAVED, tmp_path)
    real = training.environment
    monkeypatch.setattr(
        "seqarena.common.training.loop.environment", lambda accelerator: {**real(accelerator), "precision": "bfloat16"}
    )
    with pytest.raises(WrongUseError, match=r"began in float32 on .* computes in bfloat16"):
        measure(SAVED, tmp_path)


def test_a_checkpoint_that_a_kill_left_beside_a_result_goes(tmp_path: Path) -> None:
    measure(TINY, tmp_path)
    (folder,) = (tmp_path / "runs" / "lra" / "listops").iterdir()
    (folder / "checkpoint" / "last.pt").write_bytes(b"left")
    measure(TINY, tmp_path)
    assert not (folder / "checkpoint" / "last.pt").exists()


@pytest.fixture(scope="module")
def two_seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gives a folder with two finished runs, to be copied."""
    folder = tmp_path_factory.mktemp("two")
    for seed in (0, 1):
        measure(replace(TINY, seed=seed), folder)
    return folder


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"score": 0.99}, "was edited after it was written"),
        ({"format": 1, "score": 0.99}, "the score is 0.99, but"),
        ({"format": 1, "seed": 5}, "seed is 5, but 0 in its run"),
        ({"format": 1, "row": "dnas"}, "row 'dnas' is not of attention 'softmax'"),
        ({"format": 1, "row": "dnas", "attention": "dnas"}, "attention is 'dnas', but 'softmax' in its run"),
        ({"format": 1, "score": 0.0, "metrics": {}, "example_scores": []}, "a score without examples"),
        ({"format": 1, "status": "diverged"}, "status is 'diverged', but the score"),
        ({"format": 1, "score": 37.0, "metrics": {}, "example_scores": [37.0]}, "example scores from 37 to 37"),
    ],
)
def test_an_edited_result_is_noticed(
    tmp_path: Path, two_seeds: Path, change: dict[str, object], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(two_seeds, tmp_path, dirs_exist_ok=True)
    (path,) = (tmp_path / "runs").rglob("*seed0*/result.json")
    values = json.loads(path.read_text())
    lacking = LATER if "format" in change else set()
    path.write_text(json.dumps({name: value for name, value in (values | change).items() if name not in lacking}))
    assert leaderboard.run(["--runs", str(tmp_path / "runs")]) == 0
    shown = capsys.readouterr().err
    assert f"skipped {path}: " in shown
    assert told in shown


def test_a_worker_with_other_sources_than_the_sweep_refuses(tmp_path: Path, edited: Callable[[], None]) -> None:
    runs = planned_run.PlannedRun(package=PACKAGE, run=TINY, session=session.Session(runs=tmp_path))
    described = json.loads(json.dumps(runs.description()))
    edited()
    with pytest.raises(WrongUseError, match=rf"the sources here differ from the sweep.s \({FILE}\)"):
        planned_run.from_description(described)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Gives a copy of the project, to be edited."""
    for name in ("seqarena", "common", "scripts", *PACKAGES):
        shutil.copytree(
            ROOT / name, tmp_path / "tree" / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    return tmp_path / "tree"


def sweep(tree: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Types a sweep of x1 and softmax in a copy of the project."""
    command = [sys.executable, "-m", "seqarena", "sweep", "lra", "listops", "--attention", "softmax", "x1"]
    words = [*TINY_FIELDS, "--train.steps", "6", "--train.eval-every", "3", "--optim.schedule.warmup", "2", *more]
    where = os.environ | {"PYTHONPATH": str(tree)}
    return subprocess.run([*command, *words], cwd=tree, env=where, capture_output=True, text=True, check=False)


def edit_formula(tree: Path) -> None:
    """Divides x1 by another number."""
    path = tree / "common" / "attention" / "activations.py"
    text = path.read_text()
    assert "counts.clamp(min=1).pow(self.length_exponent)" in text
    path.write_text(text.replace("counts.clamp(min=1).pow(self.length_exponent)", "counts.clamp(min=2).sqrt()"))


@pytest.mark.extras
@pytest.mark.parametrize("launcher", [(), ("--parallel", "2"), ("--launcher", "ray")])
def test_a_sweep_measures_again_what_was_edited(copied: Path, launcher: tuple[str, ...]) -> None:
    """The first story of trust: a sweep, an edit of the formula, the sweep with one seed more."""
    assert sweep(copied, "--seeds", "0").returncode == 0
    edit_formula(copied)
    told = sweep(copied, "--seeds", "0", "1", *launcher)
    assert told.returncode == 0, told.stderr
    assert "finished before: listops softmax, 1 layer seed 0\n" in told.stderr
    assert "to run (common/attention/activations.py changed): listops x1, 1 layer seed 0\n" in told.stderr
    assert "to run (no result yet): listops softmax, 1 layer seed 1; listops x1, 1 layer seed 1\n" in told.stderr
    found = json.loads(leaderboard_of(copied).splitlines()[-1])["tables"][0]
    assert {row["name"].split("@")[0]: row["seeds"] for row in found["rows"]} == {
        "softmax, 1 layer": [0, 1], "x1, 1 layer": [0, 1], "x1, 1 layer ": [0],
    }  # fmt: skip


def leaderboard_of(tree: Path) -> str:
    command = [sys.executable, "-m", "seqarena", "leaderboard", "--json"]
    where = os.environ | {"PYTHONPATH": str(tree)}
    return subprocess.run(command, cwd=tree, env=where, capture_output=True, text=True, check=True).stdout


@pytest.mark.extras
@pytest.mark.parametrize("launcher", [None, (), ("--parallel", "2"), ("--launcher", "ray")])
def test_an_edit_in_the_middle_of_a_run_begins_again(copied: Path, launcher: tuple[str, ...] | None) -> None:
    """The second story of trust: a run that is killed, an edit of the formula, the same command; or a sweep of it."""
    fields = ["--attention", "x1", *TINY_FIELDS, "--train.eval-every", "10", "--train.steps", "30",
              "--train.checkpoint-seconds", "0", "--optim.schedule.warmup", "2"]  # fmt: skip
    names = ["seqarena.lra"] if launcher is None else ["seqarena", "sweep", "lra"]
    command = [sys.executable, "-m", *names, "listops", *fields]
    where: Any = {
        "cwd": copied,
        "env": os.environ | {"PYTHONPATH": str(copied)},
        "stderr": subprocess.PIPE,
        "text": True,
    }
    with subprocess.Popen(command, **where) as process:
        while not list(copied.glob("runs/lra/listops/*/checkpoint/last.pt")):
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
    edit_formula(copied)
    again = subprocess.run([*command, *(launcher or ())], check=True, **where)
    assert "common/attention/activations.py changed" in again.stderr
    assert "resuming" not in again.stderr
    (result,) = (each for each in read_results(copied / "runs")[0].values())
    assert [segment["after_step"] for segment in result.segments] == [0]


def test_tiles_of_a_file_are_part_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = environment(make_accelerator("float32"))
    assert "tiles" not in before
    (tmp_path / "tiles.json").write_text("{}")
    monkeypatch.setenv("SEQARENA_TILES", str(tmp_path / "tiles.json"))
    result = measure(TINY, tmp_path)
    assert result.segments[-1]["tiles"].startswith("sha256 44136fa355b3678a")
    assert any(each.startswith("tiles None -> sha256") for each in differences(before, result.segments[-1]))
    monkeypatch.setenv("SEQARENA_TILES", str(tmp_path / "none.json"))
    with pytest.raises(WrongUseError, match=r"SEQARENA_TILES=.*none.json: cannot be read"):
        environment(make_accelerator("float32"))

"""Directories that were copied, renamed, linked or half deleted: no run is given the numbers of another."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from seqarena.common.attention import ATTENTIONS
from seqarena.common.data.compiled import compiled
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.runs import session
from seqarena.common.runs.folder import run_folder
from seqarena.common.runs.package import Package
from seqarena.common.runs.results import Result
from seqarena.common.runs.session import Session, execute
from seqarena.common.training import loop
from seqarena.common.training.runtime import make_accelerator
from seqarena.lra.__main__ import PACKAGE
from seqarena.lra.run import Run
from tests.lra.test_training import SAVED, TINY, interrupt, measure

OTHER = replace(TINY, model=replace(TINY.model, attention=ATTENTIONS["x3"]))


def folder_of(run: Run, tmp_path: Path) -> Path:
    return run_folder(run, PACKAGE.name, tmp_path / "runs", PACKAGE.sources(run))


def test_a_directory_under_the_name_of_another_run_is_refused(tmp_path: Path) -> None:
    measure(TINY, tmp_path)
    shutil.copytree(folder_of(TINY, tmp_path), folder_of(OTHER, tmp_path))
    with pytest.raises(WrongUseError, match=r"holds another run: model\.attention is"):
        measure(OTHER, tmp_path)
    assert measure(OTHER, tmp_path, overwrite=True).attention == "x3"


def test_a_file_in_the_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("mine")
    with pytest.raises(WrongUseError, match=r"--out .*notes\.md is a file; name a folder for this run"):
        execute(PACKAGE, TINY, Session(out=tmp_path / "notes.md"))
    assert (tmp_path / "notes.md").read_text() == "mine"


def test_the_result_of_another_run_is_not_returned(tmp_path: Path) -> None:
    measure(TINY, tmp_path)
    measure(OTHER, tmp_path)
    shutil.copy(folder_of(TINY, tmp_path) / "result.json", folder_of(OTHER, tmp_path))
    with pytest.raises(WrongUseError, match="of another run or other sources; --overwrite starts it again"):
        measure(OTHER, tmp_path)


def test_a_directory_under_the_name_of_other_sources_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt(SAVED, tmp_path)
    before, real = folder_of(SAVED, tmp_path), Package.sources
    monkeypatch.setattr(Package, "sources", lambda package, run: {**real(package, run), "lra/model.py": "another"})
    before.rename(folder_of(SAVED, tmp_path))
    with pytest.raises(WrongUseError, match=r"begun there by other sources \(lra/model.py changed\)"):
        measure(SAVED, tmp_path)
    assert measure(SAVED, tmp_path, overwrite=True).segments[0]["after_step"] == 0
    assert "resuming after step" not in capsys.readouterr().err


def test_a_checkpoint_copied_from_another_run_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The weights of two variants have the same shapes: nothing else would tell."""
    other = replace(SAVED, model=OTHER.model)
    for run in (SAVED, other):
        interrupt(run, tmp_path)
    here, there = (folder_of(run, tmp_path) / "checkpoint" for run in (SAVED, other))
    shutil.copytree(there, tmp_path / "kept")
    shutil.rmtree(there)
    shutil.copytree(here, there)
    with pytest.raises(BadDataError, match=r"checkpoint is of another run or other sources than .*; delete it, or --"):
        measure(other, tmp_path)
    shutil.rmtree(there)
    shutil.copytree(tmp_path / "kept", there)
    real = Package.sources
    monkeypatch.setattr(Package, "sources", lambda package, run: {**real(package, run), "lra/model.py": "another"})
    interrupt(SAVED, tmp_path)
    edited = folder_of(SAVED, tmp_path) / "checkpoint"
    shutil.rmtree(edited)
    shutil.copytree(here, edited)
    with pytest.raises(BadDataError, match=r"is of another run or other sources than "):
        measure(SAVED, tmp_path)
    monkeypatch.undo()
    capsys.readouterr()
    measure(other, tmp_path)  # its own checkpoint is back
    assert "resuming after step 4 of 6" in capsys.readouterr().err


def test_an_older_version_is_kept_until_the_new_one_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = measure(SAVED, tmp_path)
    before, real = folder_of(SAVED, tmp_path), Package.sources
    monkeypatch.setattr(Package, "sources", lambda package, run: {**real(package, run), "lra/model.py": "another"})
    interrupt(SAVED, tmp_path, overwrite=True)
    assert Result.read(before) == older
    measure(SAVED, tmp_path, overwrite_outdated=True)
    assert not before.exists()


def test_overwriting_by_another_file_name_keeps_what_the_link_led_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure(TINY, tmp_path)
    for name in ("here", "there"):
        shutil.copytree(tmp_path / "data", tmp_path / name)
    load = type(TINY.data).load
    monkeypatch.setattr(type(TINY.data), "load", lambda data, folder: load(replace(data, path=None), folder))
    here, there = (replace(TINY, data=replace(TINY.data, path=str(tmp_path / name))) for name in ("here", "there"))
    first = measure(here, tmp_path)
    assert measure(there, tmp_path) == first
    assert folder_of(there, tmp_path).is_symlink()
    again = measure(there, tmp_path, overwrite=True)
    assert again.finished_at != first.finished_at
    assert Result.read(folder_of(here, tmp_path)) == first


def test_an_interrupt_while_data_are_prepared_leaves_the_directory_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(TINY.data), "load", interrupted)
        with pytest.raises(KeyboardInterrupt):
            measure(TINY, tmp_path)
    assert not folder_of(TINY, tmp_path).exists()
    assert measure(TINY, tmp_path).status == "finished"


def test_a_link_to_nothing_is_another_beginning(tmp_path: Path) -> None:
    folder = folder_of(TINY, tmp_path)
    folder.parent.mkdir(parents=True)
    folder.symlink_to("nothing")
    assert measure(TINY, tmp_path).status == "finished"
    assert not folder.is_symlink()


def test_damage_beside_a_run_does_not_stop_it(tmp_path: Path) -> None:
    folder = folder_of(TINY, tmp_path)
    beside = folder.parent / f"damaged-{folder.name.rpartition('-')[2]}" / "checkpoint"
    beside.mkdir(parents=True)
    (beside / "data.json").write_text("")
    assert measure(TINY, tmp_path).status == "finished"
    own = folder / "checkpoint" / "data.json"
    own.write_text("")
    (folder / "result.json").unlink()
    with pytest.raises(BadDataError, match=r"data\.json is damaged"):
        measure(TINY, tmp_path)


def test_outdated_versions_of_a_directory_that_was_named_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongUseError, match="--overwrite-outdated: --out names one directory"):
        measure(TINY, tmp_path, out=tmp_path / "mine", overwrite_outdated=True)
    assert not (tmp_path / "mine").exists()


def test_a_variable_that_would_change_numbers_is_refused() -> None:
    """Each in a copy of a process of its own, as Accelerate keeps what it read first."""
    values = {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4", "ACCELERATE_DYNAMO_BACKEND": "INDUCTOR"}
    code = (
        "import os\nfrom seqarena.common.training.runtime import make_accelerator\n"
        f"for name, value in {values}.items():\n"
        "    if os.fork() == 0:\n        os.environ[name] = value\n        make_accelerator('float32')\n        break\n"
        "    os.wait()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.stderr.count("Error: ") == len(values)
    assert all(f"{name} is set: unset it" in ended.stderr for name in values)


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"WORLD_SIZE": "abc"}, "WORLD_SIZE is 'abc': expected a number"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is 0"),
        ({"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}, "MASTER_ADDR, MASTER_PORT is missing"),
        ({"WORLD_SIZE": "2", "RANK": "-1"}, "RANK is '-1': expected a number"),
    ],
)
def test_variables_of_a_launcher_that_cannot_be_are_refused(
    variables: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(WrongUseError, match=told):
        make_accelerator("float32")


def test_the_metric_of_a_task_is_part_of_its_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    before = PACKAGE.sources(TINY)
    task = replace(PACKAGE.task(TINY), higher_is_better=False)
    monkeypatch.setattr(Package, "task", lambda package, run: task)
    assert PACKAGE.sources(TINY) != before


def test_compiled_code_of_a_function_that_was_edited_is_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numba's own cache looks at the function alone, not at those that it calls."""
    (tmp_path / "inner.py").write_text("import numba\n\n@numba.njit\ndef twice(n):\n    return 2 * n\n")
    (tmp_path / "outer.py").write_text(
        "from inner import twice\nfrom seqarena.common.data.compiled import compiled\n\n"
        "@compiled()\ndef four(n):\n    return twice(twice(n))\n"
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parent.parent}")
    command = [sys.executable, "-c", "import outer; print(outer.four(1))"]
    found = [subprocess.check_output(command, text=True)]
    text = (tmp_path / "inner.py").read_text()
    (tmp_path / "inner.py").write_text(text.replace("2 * n", "n + 10"))
    found.append(subprocess.check_output(command, text=True))
    assert found == ["4\n", "21\n"]


def double(number: int) -> int:
    return 2 * number


def test_without_a_home_directory_functions_are_compiled_without_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container, for a user whom no file lists."""

    def homeless(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", homeless)
    assert compiled()(double)(2) == 4


def test_an_empty_name_of_the_folder_of_caches_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert compiled()(double)(2) == 4
    assert not list((tmp_path / "here").iterdir())
    assert (tmp_path / "home" / ".cache" / "seqarena" / "numba").is_dir()


def test_a_folder_of_runs_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(OSError, match=r"could not write .*runs/lra/listops/.*: .*; the previous content is unchanged"):
        measure(TINY, tmp_path)


def test_the_peak_memory_is_that_of_the_training_if_the_test_follows_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a tuned sweep's choice, or an interruption: the last process needed less."""
    trial = Session(runs=tmp_path, data=tmp_path, validate_only=True)
    for module, peak in ((loop, 3000), (session, 2000)):
        monkeypatch.setattr(module, "peak_memory_bytes", lambda _, peak=peak: peak)
    assert execute(PACKAGE, TINY, trial).peak_memory_bytes == 3000
    for module in (loop, session):
        monkeypatch.setattr(module, "peak_memory_bytes", lambda _: 1000)
    tested = execute(PACKAGE, TINY, replace(trial, validate_only=False))
    assert (tested.status, tested.peak_memory_bytes) == ("finished", 3000)


def test_a_test_in_another_environment_is_no_training_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = measure(SAVED, tmp_path, validate_only=True)
    real = loop.environment
    monkeypatch.setattr(loop, "environment", lambda accelerator: {**real(accelerator), "threads": 7})
    capsys.readouterr()
    result = measure(SAVED, tmp_path)
    assert "-> 7: from the test on the bits may differ" in capsys.readouterr().err
    assert result.environment == trial.environment
    assert result.environment["implementations"]
    assert [each["after_step"] for each in result.segments] == [0, SAVED.train.steps]

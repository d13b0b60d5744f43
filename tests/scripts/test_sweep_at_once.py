"""Several runs at once: the same results as one after the other, and what went wrong in one stays its own."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from rich.console import Console

from seqarena.common.errors import WrongUseError, run_command
from seqarena.common.files import lock_folder
from seqarena.common.runs.results import Result, read_results
from seqarena.scripts import sweep
from seqarena.scripts.packages import PACKAGES, find_package
from seqarena.scripts.seqarena import dispatch
from seqarena.scripts.sweep import on_ray, processes
from seqarena.scripts.sweep.planned_run import PlannedRun, from_description
from seqarena.scripts.sweep.progress import FAILED, FINISHED, MOST_SHOWN, RUNNING, Board, latest
from tests.common.runs.test_cli import TINY


def arguments(folder: Path, *more: str, attention: str = "softmax x3") -> list[str]:
    folders = ["--runs", str(folder / "runs"), "--data-folder", str(folder / "data")]
    return ["sweep", "lra", "listops", "--attention", *attention.split(), *folders, *TINY, *more]


def numbers(folder: Path) -> dict[str, list[float]]:
    found = read_results(folder / "runs")[0].values()
    return {f"{each.row} {each.seed}": each.example_scores for each in found}


@pytest.mark.extras
def test_runs_at_once_are_those_one_after_the_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(dispatch, arguments(tmp_path / "one", "--seeds", "0", "1")) == 0
    both = arguments(tmp_path / "both", "--seeds", "0", "1", "--parallel", "2")
    (folder, *_) = [each.folder for each in sweep.plan(both[1:])[0]]
    folder.mkdir(parents=True)
    capsys.readouterr()
    with lock_folder(folder):  # as if somebody else ran in it: this one fails, the others do not
        assert run_command(dispatch, both) == 1
    told = capsys.readouterr()
    assert "lra listops softmax, 1 layer seed 0  failed" in told.out
    assert "failed, seqarena: " in told.err
    assert "another process is running here" in told.err
    assert len(numbers(tmp_path / "both")) == 3
    assert run_command(dispatch, [*both, "--json"]) == 0
    told = capsys.readouterr()
    assert told.err.count("(finished before)") == 3
    assert len(json.loads(told.out.splitlines()[-1])["results"]) == 4
    assert numbers(tmp_path / "both") == numbers(tmp_path / "one")


def test_the_number_of_runs_that_share_a_gpu_follows_from_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def a_result(gibibytes: float, device: str = "a GPU") -> Mock:
        return Mock(spec=Result, peak_memory_bytes=int(gibibytes * 2**30), environment={"device": device})

    def cards(*gibibytes: int) -> None:
        found = [SimpleNamespace(name="a GPU", total_memory=size * 2**30) for size in gibibytes]
        monkeypatch.setattr(processes, "_devices", lambda: [str(number) for number in range(len(found))])
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: found[number])

    cards()
    assert processes.memory_advice([a_result(1)]) == ""
    cards(16)
    assert processes.memory_advice([None, a_result(4, "a CPU")]) == ""
    assert processes.memory_advice([a_result(12), None]) == "memory: at most 12.0 GiB for a run, of 16 GiB"
    assert processes.memory_advice([a_result(0.8), a_result(2.4)]).endswith("that fit: --parallel 4")
    cards(16, 16)
    assert processes.memory_advice([a_result(2.4)]).endswith("that fit: --parallel 8")


@pytest.mark.extras
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_who_stops_the_sweep_stops_its_runs_and_it_goes_on(sent: signal.Signals, tmp_path: Path) -> None:
    """Killed it can do nothing more; its runs leave by themselves."""
    long = arguments(tmp_path, "--train.steps", "3000", "--train.eval-every", "20", "--parallel", "2")
    # Started in the background, a shell's programs ignore an interrupt, and so would theirs.
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from seqarena.scripts.seqarena import main; sys.exit(main())"
    process = subprocess.Popen([sys.executable, "-c", code, *long], stderr=subprocess.DEVNULL, start_new_session=True)
    folders = [each.folder for each in sweep.plan(long[1:])[0]]
    while not all((latest(folder)[0] or 0) > 40 for folder in folders):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(sent)
    process.wait()
    for folder in folders:
        while held_by(folder) is not None:  # a run that stays ends the test by its time limit
            time.sleep(0.1)
    assert not numbers(tmp_path)
    seen = [latest(folder)[0] for folder in folders]
    time.sleep(1)
    assert [latest(folder)[0] for folder in folders] == seen


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_run_that_was_finished_already_is_no_failure(overwrite: bool, tmp_path: Path) -> None:
    """Its worker found the result and wrote nothing, as when only the times of data files have changed."""
    planned = Mock(spec=PlannedRun, result_path=tmp_path / "result.json", session=Mock(overwrite=overwrite))
    planned.result.return_value = Mock(spec=Result, status="finished")
    planned.result_path.touch()
    (tmp_path / "log").write_text("no output")
    started = processes.RunningProcess(
        number=1, process=Mock(spec=subprocess.Popen, returncode=0), log=tmp_path / "log", log_start=0, slot=0,
        before=planned.result_path.stat().st_mtime_ns,
    )  # fmt: skip
    assert (processes._collect(planned, started, Mock(spec=Board)) is None) == overwrite


def test_another_process_is_told_all_of_a_run() -> None:
    for name in PACKAGES:
        package = find_package(name)
        for presets in package.presets.values():
            for preset in presets.values():
                planned = PlannedRun(
                    package=package, run=preset.run, session=sweep.Session(runs=Path("/r"), command="c")
                )
                again = from_description(json.loads(json.dumps(planned.description())))
                assert again.run == planned.run
                assert again.folder == planned.folder
                assert again.session.data.is_absolute()


def test_a_run_of_another_version_is_refused() -> None:
    planned, _, _ = sweep.plan(arguments(Path("x"))[1:])
    told = json.loads(json.dumps(planned[0].description()))
    told["run"]["train"]["later"] = 1
    with pytest.raises(WrongUseError, match="not a run of this version"):
        from_description(told)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--launcher", "slurm"], "unknown launcher 'slurm'"),
        (["--launcher", "ray", "--parallel", "2"], "uses the whole cluster"),
        (["--parallel", "-1"], "expected at least 1"),
        (["--cpus", "2"], "use them with --launcher ray"),
        (["--launcher", "ray", "--cpus", "0"], "--cpus: expected a number above 0, found 0"),
        (["--launcher", "ray", "--gpus", "-1"], "--gpus: expected a number of at least 0"),
    ],
)
def test_options_that_do_not_go_together(options: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(WrongUseError, match=said):
        sweep.plan([*arguments(tmp_path)[1:], *options])


def test_ray_is_missed_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert run_command(dispatch, arguments(tmp_path, "--launcher", "ray")) == 2
    assert "pip install 'seqarena[ray]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_board_shows_what_matters(tmp_path: Path) -> None:
    seeds = [str(seed) for seed in range(30)]
    longer = ["--seeds", *seeds, "--train.steps", "10"]
    planned, _, _ = sweep.plan([*arguments(tmp_path, attention="softmax")[1:], *longer])
    board = Board(planned)
    for number in range(20):
        board.set_state(number, FINISHED, "accuracy 0.5")
    board.set_state(28, RUNNING)
    board.set_state(29, FAILED, "[no] space left")
    planned[28].folder.mkdir(parents=True)
    (planned[28].folder / "metrics.jsonl").write_text('{"step": 7, "validation": {"accuracy": 0.25}}\n{"step": 8, "lo')
    console = Console(file=io.StringIO(), width=150)
    console.print(board._table())
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "30 runs: 20 finished, 8 waiting, 1 running, 1 failed" in shown
    assert "[no] space left" in shown
    assert f"7 / {planned[28].run.train.steps}" in shown
    assert "validation accuracy 0.2500" in shown
    assert shown.count("seed ") == MOST_SHOWN
    assert planned[28].run.train.steps == 10
    assert board.first[28] == (None, 7)  # perhaps of an interrupted run
    assert board._time_left(28, 5) == ""  # resumed from step 4
    board.first[28] = (time.monotonic() - 60, 5)
    assert board._time_left(28, 7).startswith("0:01:3")  # two steps a minute


def test_a_copy_of_a_run_is_whole(tmp_path: Path) -> None:
    files = {"run.json": b"{}", "checkpoint/last.pt": b"state", "checkpoint/chosen-00000002.safetensors": b"new"}
    old = tmp_path / "checkpoint" / "chosen-00000001.safetensors"
    old.parent.mkdir()
    old.write_bytes(b"old")
    (tmp_path / ".lock").touch()
    on_ray.write_files(tmp_path, files)
    assert on_ray.read_files(tmp_path) == files
    (tmp_path / "result.json").write_bytes(b"of an earlier run")
    on_ray.write_files(tmp_path, {"run.json": b"{}"})
    assert on_ray.read_files(tmp_path) == {"run.json": b"{}"}
    on_ray.write_files(tmp_path, {})
    assert on_ray.read_files(tmp_path) == {}
    assert (tmp_path / ".lock").exists()


def held_by(folder: Path) -> int | None:
    """The process that has a run's directory locked."""
    inode = (folder / ".lock").stat().st_ino
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.split()
        if "FLOCK" in words and words[5].endswith(f":{inode}"):
            return int(words[4])
    return None


@pytest.mark.extras
@pytest.mark.parametrize("shared", [True, False], ids=["a folder that all see", "a folder of the sweep's alone"])
def test_a_lost_worker_of_ray_is_made_good(
    shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two workers, one of which is killed in the middle: every result arrives, none twice, all as without Ray."""
    short = Path("/tmp") / f"seqarena-test-{os.getpid()}-{int(shared)}"  # Ray's sockets have short paths
    short.mkdir()
    monkeypatch.setenv("TMPDIR", str(short))
    monkeypatch.setattr(on_ray, "COPY_SECONDS", 0.1)
    if not shared:
        monkeypatch.setattr(Path, "touch", lambda _: None)  # nobody sees the mark
    longer = [
        "--seeds",
        "0",
        "1",
        "--train.steps",
        "900",
        "--train.eval-every",
        "50",
        "--train.checkpoint-seconds",
        "0.1",  # so that there is something to kill between on a fast machine, too
    ]
    command = arguments(tmp_path, *longer, "--launcher", "ray", attention="softmax")
    planned, _, _ = sweep.plan(command[1:])
    killed = []

    def kill() -> None:
        root = tmp_path / "runs" if shared else short / f"seqarena-{os.getuid()}" / "runs"
        folder = root / planned[0].folder.relative_to(tmp_path / "runs")
        kept = planned[0].folder / "checkpoint" / "last.pt"
        while not ((latest(folder)[0] or 0) > 150 and kept.exists()):
            time.sleep(0.05)
        worker = held_by(folder)
        assert worker is not None
        os.kill(worker, signal.SIGKILL)
        killed.append(worker)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    assert run_command(dispatch, command) == 0
    assert killed
    told = capsys.readouterr()
    assert told.err.count(": finished, ") == 2
    assert ", again" in told.err
    (log,) = (tmp_path / "runs" / "sweeps").rglob(f"{planned[0].folder.name}.log")
    assert "resuming after step" in log.read_text()
    monkeypatch.undo()
    assert len(list((tmp_path / "runs").rglob("result.json"))) == 2
    assert not list((tmp_path / "runs").glob(".sweep-*"))
    assert run_command(dispatch, arguments(tmp_path / "plain", *longer, attention="softmax")) == 0
    assert numbers(tmp_path) == numbers(tmp_path / "plain")
    assert isinstance(Result.read(planned[0].folder), Result)

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.autograd import DeviceType

from seqarena.common.errors import interrupt_advice, run_command
from seqarena.common.files import lock_folder
from seqarena.common.runs.package import Package
from seqarena.common.runs.results import row_parts
from seqarena.common.runs.run import row_name
from seqarena.common.tables import render
from seqarena.scripts import quickstart, sweep
from seqarena.scripts.benchmark.step_profile import BACKWARD, COMPUTATION, INSIDE, UPDATE, operator_name, own_seconds
from seqarena.scripts.seqarena import dispatch
from tests.common.runs.test_cli import TINY


def arguments(folder: Path, *more: str) -> list[str]:
    folders = ["--runs", str(folder / "runs"), "--data-folder", str(folder)]
    names = "lra listops --attention softmax lnas x3 --norm pre post --seeds 0 1".split()
    return [*names, *folders, *TINY, *more]


def test_a_sweep_is_the_product_and_skips_what_is_finished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned, session, _ = sweep.plan(arguments(tmp_path))
    assert len(planned) == 2 * 2 * 2  # lnas is softmax
    path = sweep.save_plan(planned, session)
    assert path == sweep.save_plan(planned, session)
    entries = json.loads(path.read_text())["runs"]
    assert {row_name(row_parts(entry["row"], "")) for entry in entries} == {
        "softmax, 1 layer", "softmax, post, 1 layer", "x3, 1 layer", "x3, post, 1 layer",
    }  # fmt: skip
    first = planned[0].measure()
    assert first.command == entries[0]["command"]
    assert run_command(dispatch, ["sweep", *arguments(tmp_path)]) == 0
    told = capsys.readouterr()
    assert "[1/8] listops softmax, 1 layer seed 0 (finished before)" in told.err
    assert told.out.count("accuracy") == 8
    assert run_command(dispatch, ["sweep", *arguments(tmp_path, "--json")]) == 0
    assert len(json.loads(capsys.readouterr().out.splitlines()[-1])["results"]) == 8
    assert run_command(dispatch, ["leaderboard", "--runs", str(tmp_path / "runs")]) == 0
    assert "x3, post, 1 layer" in capsys.readouterr().out


def small(folder: Path) -> list[str]:
    folders = ["--runs", str(folder / "runs"), "--data-folder", str(folder)]
    return ["lra", "listops", "--attention", "softmax", "x3", *folders, *TINY]


def test_runs_that_another_sweep_holds_wait_until_the_others_are_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned, _, _ = sweep.plan(small(tmp_path))
    planned[0].folder.mkdir(parents=True)
    with lock_folder(planned[0].folder):
        assert run_command(dispatch, ["sweep", *small(tmp_path)]) == 1
    told = capsys.readouterr()
    assert "[1/2] listops softmax, 1 layer seed 0: another sweep or command is running it, tried again" in told.err
    assert "seed 0: another sweep or command is running it, still" in told.err
    assert planned[0].result() is None
    assert planned[1].result() is not None
    assert run_command(dispatch, ["sweep", *small(tmp_path)]) == 0


@pytest.mark.parametrize("more", [[], ["--parallel", "2"], ["--launcher", "ray"]])
def test_an_interrupted_sweep_that_overwrites_goes_on_without(
    more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sweep's advice is printed, not that of the interrupted run: only the sweep knows its finished runs."""

    def interrupted(*_: object) -> None:
        with interrupt_advice(lambda: "the same command begins again"):
            raise KeyboardInterrupt

    for name in ("run_all", "run_processes", "run_on_ray"):
        monkeypatch.setattr(sweep, name, interrupted)
    for name in ("prepare_all", "import_ray"):
        monkeypatch.setattr(sweep, name, lambda *_, **__: None)
    for flags, told in (([], "the same command resumes"), (["--overwrite"], "command without --overwrite resumes")):
        assert run_command(dispatch, ["sweep", *small(tmp_path), *more, *flags]) == 1
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.startswith("seqarena: interrupted; ")
        assert told in last
        assert "begins again" not in last


@pytest.mark.extras  # several processes
def test_runs_that_another_sweep_holds_wait_in_a_sweep_of_several_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned, _, _ = sweep.plan(small(tmp_path))
    planned[0].folder.mkdir(parents=True)
    with lock_folder(planned[0].folder):
        assert run_command(dispatch, ["sweep", *small(tmp_path), "--parallel", "2"]) == 1
    told = capsys.readouterr().err
    assert told.count("waiting, another sweep or command is running it, tried again at the end") == 1
    assert "failed, " in told
    assert planned[1].result() is not None


def test_a_planned_command_makes_the_planned_run(tmp_path: Path) -> None:
    planned, _, _ = sweep.plan(arguments(tmp_path))
    words = planned[-1].session.command.split()
    assert words[:4] == ["seqarena", "lra", "listops", "--preset"]
    assert "--seed 1" in planned[-1].session.command
    assert "--norm post" in planned[-1].session.command


def test_all_data_are_made_before_the_first_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a task, in the order they were named, and not for what is finished: a missing file is missed at once."""
    folders = ["--runs", str(tmp_path / "runs"), "--data-folder", str(tmp_path)]
    planned, _, _ = sweep.plan(["lra", "text", "listops", "image", "--attention", "softmax", "x3", *folders])
    for each in planned[4:]:
        each.folder.mkdir(parents=True)
        (each.folder / "result.json").write_text("{}")
    told: list[str] = []
    monkeypatch.setattr(Package, "assembly", lambda _, run, *given: told.append(f"data of {run.task}"))
    sweep.prepare_all(planned)
    assert told == ["data of text", "data of listops"]
    sweep.prepare_all(planned[:2])
    assert len(told) == 2  # of a single task the first run makes them itself


def test_the_quickstart_is_four_variants(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []
    monkeypatch.setattr(quickstart.sweep, "run_all", lambda planned: asked.extend(planned) or [])
    monkeypatch.setattr(quickstart.leaderboard, "run", lambda given: 0)
    monkeypatch.setattr(quickstart, "create_report", lambda runs, out, *rest: (out, []))
    assert quickstart.run(["--runs", str(tmp_path)]) == 0
    assert [row_name(each.entry()["row"]) for each in asked] == ["softmax", "dnas", "hnas", "x3"]


@pytest.mark.extras  # several processes
def test_the_benchmark_measures_each_variant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["benchmark", "step", "lra", "listops", "--attention", "x3", "--repeats", "2", "--data-folder",
               str(tmp_path), *TINY]  # fmt: skip
    assert run_command(dispatch, [*command, "--json", "--full-matrix"]) == 0
    steps = json.loads(capsys.readouterr().out.splitlines()[-1])["steps"]
    assert [each["attention"] for each in steps] == ["x3", "x3, full matrix, padded"]
    assert all(each["forward_seconds"] > 0 and each["training_seconds"] > 0 for each in steps)
    assert all(each["peak_memory_bytes"] >= each["idle_memory_bytes"] > 2**20 for each in steps)


@pytest.mark.parametrize(
    "name",
    [
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
        "autograd::engine::evaluate_function: ScaledDotProductFlashAttentionForCpuBackward0",
        "autograd::engine::evaluate_function: GeneratedBackwardFor_seqarena_attend_blockwise_defaultBackward",
        "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
    ],
)
def test_an_operator_of_a_profile_fits_into_one_line(name: str) -> None:
    rows = [[INSIDE + operator_name(name), "100.0 %", "1234.5"]]
    shown = render("a profile", ["part", "share", "ms"], rows, [], "terminal").splitlines()
    assert sum("100.0 %" in line and "1234.5" in line and operator_name(name) in line for line in shown) == 1
    assert max(map(len, shown)) <= 80


def test_a_profile_adds_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["benchmark", "profile", "lra", "listops", "--steps", "1"]
    assert run_command(dispatch, [*command, "--data-folder", str(tmp_path / "data"), *TINY]) == 0
    shown = capsys.readouterr().out
    cells = [line.split("│") for line in shown.splitlines() if line.startswith("│ ")]
    shares = {row[1].strip(): float(row[2].strip(" %")) for row in cells}
    parts = [name for name in shares if not name.startswith(INSIDE)]
    assert len(parts) == 3
    assert sum(shares[part] for part in parts) == pytest.approx(100, abs=0.3)
    assert len(shares) > 10
    assert INSIDE + "addmm" in shares


def test_a_profile_of_a_gpu_counts_its_kernels_in_every_thread() -> None:
    """The backward pass has a thread of its own there, which no part of the step contains."""

    def event(name: str, gpu: float, parent: object = None, device: DeviceType = DeviceType.CPU) -> SimpleNamespace:
        times = {"self_cpu_time_total": 1.0, "self_device_time_total": 1e6 * gpu}
        return SimpleNamespace(name=name, cpu_parent=parent, device_type=device, **times)

    forward, update = event(COMPUTATION, 0.0), event("Optimizer.step#AdamW.step", 0.5)
    backward = event(BACKWARD + "MmBackward0", 0.25)
    events = [forward, event("aten::mm", 2.0, forward), backward, event("aten::mm", 3.0, backward)]
    events += [update, event("aten::_fused_adamw_", 1.0, update)]
    events += [event(name, 9.0, device=DeviceType.CUDA) for name in ("gemm_kernel", COMPUTATION, update.name)]
    found = own_seconds(events, on_gpu=True)
    assert {name: spent for name, spent in found.items() if spent} == {
        (COMPUTATION, "mm"): 5.0, (COMPUTATION, "MmBackward0"): 0.25, (UPDATE, "Optimizer.step#AdamW.step"): 0.5,
        (UPDATE, "_fused_adamw_"): 1.0,
    }  # fmt: skip

"""From a run to its result: trains, tests and writes it, or returns the existing result."""

import contextlib
import datetime
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from seqarena.common.attention import attention_name
from seqarena.common.errors import WrongUseError, interrupt_advice
from seqarena.common.model.attention_maps import write_maps
from seqarena.common.model.bounded import bounded_modules
from seqarena.common.runs.config import to_json
from seqarena.common.runs.folder import (
    delete_versions,
    find_same_run,
    link,
    open_run_folder,
    report_other_versions,
    run_folder,
)
from seqarena.common.runs.inputs import check_data, check_extra, check_weights, has_same_files, inputs_of, run_in
from seqarena.common.runs.named import changed_fields
from seqarena.common.runs.package import OUTPUTS, Assembly, Package
from seqarena.common.runs.results import RESULT, TRIAL, Result
from seqarena.common.runs.run import BaseRun, changed_from, is_same_run, row_name, row_of
from seqarena.common.runs.sources import Sources, check_later_imports, digest
from seqarena.common.training.log import Log
from seqarena.common.training.loop import DivergedError, first_examples, fit, require_finite_metrics
from seqarena.common.training.processes import Accelerator, gather_object
from seqarena.common.training.restart import delete_restart_state
from seqarena.common.training.runtime import (
    changed_settings,
    main_first,
    make_accelerator,
    parameter_count,
    peak_memory_bytes,
    reset_peak_memory,
    seed_torch,
    torch_settings,
)
from seqarena.common.training.step import check_graphs

MAPPED_BATCHES = 4
"""Number of batches searched for the examples drawn as heat maps."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """Folders and options of a run that do not change its numbers."""

    runs: Path = Path("runs")
    """Folder of the run directories."""
    out: Path | None = None
    """This run's directory; none: a name with the run's fingerprint, under ``runs``."""
    data: Path = Path("data")
    """Folder of prepared data."""
    overwrite: bool = False
    """Whether earlier output of this run, by these or other sources, is deleted first."""
    overwrite_outdated: bool = False
    """Whether earlier output of this run by other sources is deleted."""
    validate_only: bool = False
    """Whether the run ends after its training, as a trial. Without this option it goes on with the test."""
    trackers: tuple[str, ...] = ()
    """Accelerate trackers that also get the metrics, such as tensorboard or wandb."""
    command: str = ""
    """Command line, recorded in the result."""


def execute(package: Package, run: BaseRun, session: Session) -> Result:
    """Trains, tests and writes the result, or returns the existing one.

    A result or checkpoint of other sources is neither returned nor resumed: the run begins in another directory.

    Raises:
        WrongUseError: the directory holds another run, or another process uses it.
    """
    run.check()
    if session.out is not None and session.out.exists() and not session.out.is_dir():
        raise WrongUseError(f"--out {session.out} is a file; name a folder for this run")
    if session.out is not None and session.overwrite_outdated:
        raise WrongUseError("--overwrite-outdated: --out names one directory; --overwrite starts it again")
    sources = package.sources(run)
    folder = session.out or run_folder(run, package.name, session.runs, sources)
    accelerator = make_accelerator(run.train.precision, session.trackers, folder)
    _require_same_run(run, session, sources)
    if run.train.cuda_graphs:
        check_graphs(accelerator, compiled=run.train.compile, micro_batch_size=run.train.micro_batch_size)
    if accelerator.is_main_process and session.out is None:
        if session.overwrite and folder.is_symlink():
            folder.unlink()
        report_other_versions(folder, sources)
    try:
        return _execute_in(folder, package, run, session, accelerator, sources)
    except _SameRunError as same:
        if accelerator.is_main_process:
            link(folder, same.folder)
            print(f"{folder}: the same run on the same data, by other file names, is in {same.folder}", file=sys.stderr)
        return _execute_in(folder, package, run, session, accelerator, sources)


def _advice(folder: Path, session: Session) -> str:
    """Returns the advice printed after an interrupt."""
    if not (folder / "checkpoint" / "last.pt").exists():
        return "the same command begins again"
    return f"the same command{' without --overwrite' if session.overwrite else ''} resumes from the last checkpoint"


class _SameRunError(WrongUseError):
    """Another directory holds this run on the same data."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"the same run is in {folder}")
        self.folder = folder


def _require_same_run(run: BaseRun, session: Session, sources: Sources) -> None:
    """Raises a ``WrongUseError`` if the processes of a launcher have different sources, runs or options."""
    sources_of_all = gather_object([digest(sources)])
    if len(set(sources_of_all)) > 1:
        raise WrongUseError("the processes of this run have different sources; install the same on all machines")
    options = {name: getattr(session, name) for name in ("overwrite", "overwrite_outdated", "out")}
    first, *others = gather_object([(run, options)])
    for other_run, other_options in others:
        differences = changed_fields(first[0], other_run) | {
            name: (first[1][name], other_options[name]) for name in options if first[1][name] != other_options[name]
        }
        if differences:
            shown = "; ".join(f"{name} is {one} in one process, {other} in another"
                              for name, (one, other) in differences.items())  # fmt: skip
            raise WrongUseError(f"the processes of this run were started differently: {shown}; start all alike")


def _require_shared_folder(folder: Path) -> None:
    """Raises a ``WrongUseError`` in every process if one of them does not see the run's directory."""
    first, *others = gather_object([run_in(folder)])
    if any(each != first for each in others):
        raise WrongUseError(
            f"{folder}: not all processes of this run see this directory; expected --runs or --out on a disk that all "
            "machines share"
        )


def _execute_in(
    folder: Path, package: Package, run: BaseRun, session: Session, accelerator: Accelerator, sources: Sources
) -> Result:
    is_main = accelerator.is_main_process
    is_named = session.out is not None
    directory = open_run_folder(folder, run, sources, overwrite=session.overwrite, is_named=is_named)
    with interrupt_advice(lambda: _advice(folder, session)), directory if is_main else contextlib.nullcontext():
        accelerator.wait_for_everyone()
        _require_shared_folder(folder)
        file, finished = Result.read_finished(folder, validate_only=session.validate_only)
        accelerator.wait_for_everyone()
        if finished is not None and (finished.sources != sources or not is_same_run(
            type(run), finished.run, to_json(run), anywhere=folder.is_symlink()
        )):  # fmt: skip
            raise WrongUseError(f"{folder / file} is of another run or other sources; --overwrite starts it again")
        if finished is not None:
            began = inputs_of(run)
            main_first(accelerator, lambda: check_weights(folder, began.weights, record=False))
            main_first(accelerator, lambda: check_extra(folder, began.extra, record=False))
            if not all(gather_object([has_same_files(folder, run)])):  # decided together: what follows waits for all
                found = package.assembly(run, session.data, accelerator).data_checksum
                main_first(accelerator, lambda: check_data(folder, found, began.files))
        if finished is not None and file == RESULT and is_main:
            when = finished.finished_at[:16].replace("T", " at ")
            print(f"{folder}: this run was finished on {when} UTC; --overwrite runs it again", file=sys.stderr)
        if finished is None:
            finished = _measure(package, run, session, accelerator, folder, sources)
            main_first(accelerator, check_later_imports)
            if is_main:
                finished.write(folder, TRIAL if session.validate_only else RESULT)
        if is_main and not session.validate_only:  # the test of a trial begins with its restart state
            delete_restart_state(folder / "checkpoint", finished.chosen_step)  # a kill may have prevented this before
            if session.out is None and (session.overwrite or session.overwrite_outdated):
                delete_versions(run, folder)  # only once there is a new result
        accelerator.wait_for_everyone()
    return finished


def _measure(
    package: Package, run: BaseRun, session: Session, accelerator: Accelerator, folder: Path, sources: Sources
) -> Result:
    task, preset = package.task(run), package.preset(run)
    settings = torch_settings()
    seed_torch(run.seed, 0)
    began = inputs_of(run)
    assembly = package.assembly(run, session.data, accelerator)
    reset_peak_memory(accelerator.device)  # after data were made, which only the first run does
    if session.out is None and not session.overwrite:
        same = main_first(accelerator, lambda: find_same_run(folder, run, assembly.data_checksum))
        if same is not None:
            raise _SameRunError(same)
    main_first(accelerator, lambda: check_data(folder, assembly.data_checksum, began.files))
    main_first(accelerator, lambda: check_weights(folder, began.weights, record=True))
    main_first(accelerator, lambda: check_extra(folder, began.extra, record=True))
    row = row_of(run, preset)
    name = row_name(row)
    if session.trackers:
        accelerator.init_trackers("seqarena", config={"row": name, "task": task.name, "run": str(to_json(run))})
    test, message = None, ""
    title = f"{task.name} {name} seed {run.seed}"
    log = Log(accelerator, folder, title=title, steps=run.train.steps, trackers=bool(session.trackers))
    if accelerator.num_processes > 1:
        log.message(f"{title}: {accelerator.num_processes} processes")

    def validate(model: nn.Module) -> dict[str, float]:
        with torch.enable_grad():  # an evaluation records no gradients
            _require_settings(settings)
        return dict(assembly.validate(model).metrics)

    try:
        with log:
            progress = fit(
                assembly.model,
                assembly.loss,
                assembly.batches,
                run.optim,
                run.train,
                evaluate=validate,
                metric=task.metric,
                higher_is_better=task.higher_is_better,
                seed=run.seed,
                out=folder,
                accelerator=accelerator,
                log=log,
            )
        if not session.validate_only:
            test = assembly.test(assembly.model)
            require_finite_metrics(test.metrics, "test", progress.chosen_step, progress)
            _require_settings(settings)
        if test is not None and run.train.diagnostics and accelerator.is_main_process:
            _write_maps(assembly, accelerator, folder)
        if test is not None and assembly.write_checkpoint is not None and accelerator.is_main_process:
            assembly.write_checkpoint(assembly.model, folder)
        if test is not None and test.write_outputs is not None and accelerator.is_main_process:
            test.write_outputs(folder / OUTPUTS)
    except DivergedError as error:
        test, progress = None, error.progress
        message = f"{name} diverged: {error}"
        progress.step = error.step
        log.message(message)
    has_test = not session.validate_only
    # Before the floors, which are not part of the run's memory.
    peak = max(progress.peak_memory_bytes, peak_memory_bytes(accelerator.device))
    if session.trackers:
        accelerator.end_training()
    changes = changed_from(preset, run)
    in_training = [each for each in progress.segments if each["after_step"] < run.train.steps]  # the others only tested
    bounded = {name: module.raw.flatten().tolist() for name, module in bounded_modules(assembly.model)}
    return Result(
        package=task.package,
        task=task.name,
        task_version=task.version,
        preset=run.preset,
        changed={path: [to_json(old), to_json(new)] for path, (old, new) in changes.items()},
        row=row,
        attention=attention_name(run.model.attention),
        norm=run.model.norm_label,
        layers=run.model.depth_label,
        seed=run.seed,
        status="diverged" if message else "finished" if test is not None else "validated",
        message=message,
        notes=run.notes,
        metric=task.metric,
        score=None if test is None else test.metrics[task.metric],
        metrics={} if test is None else dict(test.metrics),
        example_scores=[] if test is None else test.examples,
        validation=progress.chosen_metrics,
        chosen_step=progress.chosen_step,
        steps=progress.step,
        floors=dict(assembly.floors()) if has_test and accelerator.is_main_process else {},  # only this one writes
        bounded={} if test is None else bounded,
        data_checksum=assembly.data_checksum,
        parameters=parameter_count(assembly.model),
        training_seconds=progress.training_seconds,
        tokens_per_second=progress.tokens / progress.training_seconds if progress.training_seconds else 0.0,
        peak_memory_bytes=peak,
        environment={name: value for name, value in in_training[-1].items() if name != "after_step"},
        segments=progress.segments,
        sources=dict(sources),
        run=to_json(run),
        command=session.command,
        finished_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
    )


def _require_settings(before: Mapping[str, str]) -> None:
    """Raises a ``WrongUseError`` if the code of a run changed a setting of the whole process."""
    changes = changed_settings(before)
    if changes:
        raise WrongUseError(
            f"the code of this run changed {changes}, which would change the numbers of other runs of this command "
            "too; remove that line, and cast inside the kernel"
        )


def _write_maps(assembly: Assembly, accelerator: Accelerator, folder: Path) -> None:
    # A batch has examples of similar length. Of several batches the longest one shows the most.
    found = [first_examples(assembly.batches, step) for step in range(MAPPED_BATCHES)]
    few = max(found, key=lambda each: each.token_count()).to(accelerator.device)
    with accelerator.autocast():
        write_maps(folder, assembly.model, lambda: assembly.loss(assembly.model, few))

"""A run's directory: made, locked, resumed, refused; and the one place where a run becomes a result."""

import contextlib
import datetime
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from accelerate import Accelerator

from common.attention import attention_name
from common.attention_maps import FILE, write_maps
from common.bounded import bounded_modules
from common.checkpoint import locked, write_json
from common.config import fingerprint, from_json, to_json
from common.errors import BadDataError, WrongUseError
from common.log import Log
from common.named import changed_fields
from common.package import OUTPUTS, Assembly, Package
from common.results import Result
from common.run import BaseRun, changed_from, row_name
from common.runtime import (
    environment,
    make_accelerator,
    parameter_count,
    peak_memory_bytes,
    reset_peak_memory,
    seed_torch,
)
from common.training import DivergedError, Progress, first_examples, fit, require_finite_metrics

MAPPED_BATCHES = 4
"""The first so many are looked through for what the heat maps show."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """Where a run reads and writes. Nothing here changes its numbers."""

    runs: Path = Path("runs")
    """Folder of the run directories."""
    out: Path | None = None
    """This run's directory; none: a name made of the run's fingerprint, under ``runs``."""
    data: Path = Path("data")
    """Folder of prepared data."""
    overwrite: bool = False
    """Whether what an earlier run left in the directory is deleted first."""
    trackers: tuple[str, ...] = ()
    """Accelerate trackers that get the metrics too, such as tensorboard or wandb."""
    command: str = ""
    """The command line, kept in the result."""


def run_folder(run: BaseRun, package: str, session: Session) -> Path:
    """Returns the run's directory: its readable name and its fingerprint."""
    if session.out is not None:
        return session.out
    name = f"{run.preset}-{attention_name(run.model.attention)}-{run.model.norm_label}-seed{run.seed}"
    safe = "".join(letter if letter.isalnum() or letter in "-_.=" else "_" for letter in name)
    return session.runs / package / run.task / f"{safe}-{fingerprint(run)}"


def execute(package: Package, run: BaseRun, session: Session) -> Result:
    """Trains, evaluates and writes the result; or returns the one that is there.

    Raises:
        WrongUseError: the directory holds another run, or somebody runs in it.
    """
    run.check()
    folder = run_folder(run, package.name, session)
    accelerator = make_accelerator(run.train.precision, session.trackers, folder)
    with _opened(folder, run, session, accelerator):
        accelerator.wait_for_everyone()
        finished = Result.read(folder)
        accelerator.wait_for_everyone()
        if finished is not None and accelerator.is_main_process:
            print(
                f"{folder}: finished at {finished.finished_at}, on data of sha256 {finished.data_checksum[:12]}...; "
                "--overwrite runs it again",
                file=sys.stderr,
            )
        if finished is None:
            finished = _measure(package, run, session, accelerator, folder)
            if accelerator.is_main_process:
                finished.write(folder)
                (folder / "checkpoint" / "last.pt").unlink(missing_ok=True)
        accelerator.wait_for_everyone()
    return finished


def _measure(package: Package, run: BaseRun, session: Session, accelerator: Accelerator, folder: Path) -> Result:
    task, preset = package.task(run), package.preset(run)
    reset_peak_memory(accelerator.device)
    seed_torch(run.seed, 0)
    assembly = package.assembly(run, session.data, accelerator)
    _refuse_other_data(folder, assembly.data_checksum, accelerator)
    row = row_name(run, preset)
    if session.trackers:
        accelerator.init_trackers("seqarena", config={"row": row, "task": task.name, "run": str(to_json(run))})
    progress, test, message = Progress(), None, ""
    title = f"{task.name} {row} seed {run.seed}"
    log = Log(accelerator, folder, title=title, steps=run.train.steps, trackers=bool(session.trackers))
    if accelerator.num_processes > 1:
        log.say(f"{title}: {accelerator.num_processes} processes")
    try:
        with log:
            progress = fit(
                assembly.model,
                assembly.loss,
                assembly.batches,
                run.optim,
                run.train,
                evaluate=lambda model: assembly.validate(model).metrics,
                metric=task.metric,
                higher_is_better=task.higher_is_better,
                seed=run.seed,
                out=folder,
                accelerator=accelerator,
                log=log,
            )
        test = assembly.test(assembly.model)
        require_finite_metrics(test.metrics, progress.step)
        if run.train.diagnostics and accelerator.is_main_process:
            _leave_maps(assembly, accelerator, folder)
        if assembly.leave is not None and accelerator.is_main_process:
            assembly.leave(assembly.model, folder)
    except DivergedError as error:
        test = None
        message = f"{row} diverged: {error}"
        progress.step = error.step
        log.say(message)
    if session.trackers:
        accelerator.end_training()
    changes = changed_from(preset, run)
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
        status="diverged" if test is None else "finished",
        message=message,
        notes=run.notes,
        metric=task.metric,
        score=None if test is None else test.metrics[task.metric],
        metrics={} if test is None else dict(test.metrics),
        example_scores=[] if test is None else test.examples,
        validation=progress.chosen_metrics,
        chosen_step=progress.chosen_step,
        steps=progress.step,
        floors=dict(assembly.floors()) if accelerator.is_main_process else {},  # whose result is written
        bounded={} if test is None else bounded,
        data_checksum=assembly.data_checksum,
        parameters=parameter_count(assembly.model),
        training_seconds=progress.training_seconds,
        tokens_per_second=progress.tokens / progress.training_seconds if progress.training_seconds else 0.0,
        peak_memory_bytes=peak_memory_bytes(accelerator.device),
        environment=environment(accelerator),
        run=to_json(run),
        command=session.command,
        finished_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def _leave_maps(assembly: Assembly, accelerator: Accelerator, folder: Path) -> None:
    # Batches are of examples of like length: of several the longest shows most.
    found = [first_examples(assembly.batches, step) for step in range(MAPPED_BATCHES)]
    few = max(found, key=lambda each: each.token_count()).to(accelerator.device)
    with accelerator.autocast():
        write_maps(folder, assembly.model, lambda: assembly.loss(assembly.model, few))


def _refuse_other_data(folder: Path, checksum: str, accelerator: Accelerator) -> None:
    """Remembers on which data a run began; refuses to go on with others."""
    path = folder / "checkpoint" / "data.json"
    began = json.loads(path.read_text())["sha256"] if path.exists() else None
    accelerator.wait_for_everyone()
    if began not in (None, checksum):
        raise BadDataError(
            f"{folder}: this run began on data of sha256 {began}, now they are {checksum}; --overwrite starts again"
        )
    if accelerator.is_main_process and began is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"sha256": checksum})


@contextlib.contextmanager
def _opened(folder: Path, run: BaseRun, session: Session, accelerator: Accelerator) -> Iterator[None]:
    """Makes and locks the directory; refuses one with another run in it. Only the main process touches it."""
    is_new = False
    with contextlib.ExitStack() as stack:
        if accelerator.is_main_process:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder))
            _refuse_another(folder, run, overwrite=session.overwrite)
            if session.overwrite:
                _empty(folder)
            is_new = not (folder / "run.json").exists()
            if is_new:
                write_json(folder / "run.json", to_json(run))
        try:
            yield
        except (WrongUseError, BadDataError):
            # Refused before it began: the directory stays free for the command as it was meant.
            if accelerator.is_main_process and is_new and not (folder / "checkpoint").exists():
                (folder / "run.json").unlink()
            raise


def start_anew(run: BaseRun, folder: Path) -> None:
    """Deletes what an earlier run left in the directory of this run.

    Raises:
        WrongUseError: the directory holds something else, or somebody runs in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        _refuse_another(folder, run, overwrite=True)
        _empty(folder)


def _empty(folder: Path) -> None:
    for name in ("result.json", "run.json", "metrics.jsonl", FILE):  # the result first: without it nothing counts
        (folder / name).unlink(missing_ok=True)
    for name in ("checkpoint", OUTPUTS):
        shutil.rmtree(folder / name, ignore_errors=True)


def _refuse_another(folder: Path, run: BaseRun, *, overwrite: bool) -> None:
    path = folder / "run.json"
    if not path.exists():
        strangers = sorted(each.name for each in folder.iterdir() if not each.name.startswith("."))
        if strangers:
            raise WrongUseError(f"{folder} holds other files ({', '.join(strangers[:3])}) and no run; choose another")
        return
    try:
        values = json.loads(path.read_text())
        ours = isinstance(values, dict) and values.get("class") == type(run).__name__
        there = None if overwrite and ours else from_json(type(run), values)
    except ValueError as error:
        hint = (
            "choose another --out" if overwrite else "choose another --out, or --overwrite if it is one of this suite"
        )
        raise WrongUseError(f"{path}: not a run of this version ({error}); {hint}") from error
    differing = {} if there is None else changed_fields(there, run)
    if differing:
        shown = "; ".join(f"{name} is {old} there, {new} here" for name, (old, new) in differing.items())
        raise WrongUseError(f"{folder} holds another run: {shown}; choose another --out, or --overwrite")

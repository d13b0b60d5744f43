"""Runs the product of tasks, variants, norms and seeds, one after another or in parallel, and saves the plan."""

import argparse
import dataclasses
import itertools
import json
import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seqarena.common.errors import InUseError, WrongUseError, interrupt_advice, look_up
from seqarena.common.files import write_json, writing
from seqarena.common.parser import Parser
from seqarena.common.runs.cli import add_session_options, build_run, session_of
from seqarena.common.runs.config import fingerprint, to_json
from seqarena.common.runs.fields import split
from seqarena.common.runs.results import Result
from seqarena.common.runs.run import row_name, row_of, settings
from seqarena.common.runs.session import Session
from seqarena.common.training.runtime import make_accelerator
from seqarena.scripts.packages import find_package
from seqarena.scripts.sweep.on_ray import import_ray, run_on_ray
from seqarena.scripts.sweep.planned_run import HELD, PlannedRun
from seqarena.scripts.sweep.processes import default_parallel, memory_advice, run_processes
from seqarena.scripts.sweep.progress import outcome
from seqarena.scripts.sweep.tuned import TunedRun, run_tuned
from seqarena.scripts.sweep.tuning import FOLDER as TUNINGS
from seqarena.scripts.sweep.tuning import Grid, grid_of

LAUNCHERS = ("processes", "ray")


def parser() -> Parser:
    """Returns the parser of ``seqarena sweep``."""
    made = Parser(prog="seqarena sweep", description=f"{__doc__}\nFields are set for all runs as --path value.")
    made.add_argument("package", help="task package")
    made.add_argument("task", nargs="+", help="tasks of the package")
    made.add_argument("--preset", help="preset to start from (default: quick)")
    made.add_argument("--attention", nargs="+", default=[None], metavar="A", help="variants (default: the preset's)")
    made.add_argument("--norm", nargs="+", default=[None], metavar="N", help="norms (default: the preset's)")
    made.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="S", help="seeds (default: 0)")
    made.add_argument(
        "--tune", nargs="+", action="append", default=[], metavar="FIELD VALUE",
        help="field to tune for each variant, and its values, such as optim.lr 3e-4 1e-3 3e-3: all are trained, "
        "the validation set chooses, and only the chosen runs are tested; may be given several times",
    )  # fmt: skip
    made.add_argument(
        "--tune-seeds", nargs="+", type=int, metavar="S",
        help="seeds that are trained with every value of --tune (default: those of --seeds); the others are trained"
        " with the chosen value only",
    )  # fmt: skip
    at_once = made.add_argument_group("parallel runs")
    at_once.add_argument(
        "--parallel", nargs="?", type=int, const=math.inf, metavar="N",
        help="number of parallel runs on this machine; without N, one per GPU, or one per core (default: 1)",
    )  # fmt: skip
    at_once.add_argument("--launcher", default="processes", help=f"{' or '.join(LAUNCHERS)} (default: processes)")
    at_once.add_argument("--cpus", type=float, help="CPUs per run on Ray (default: 1)")
    at_once.add_argument("--gpus", type=float, help="GPUs per run on Ray (default: 1 if the cluster has any)")
    add_session_options(made)
    return made


def plan(arguments: Sequence[str]) -> tuple[list[PlannedRun], Session, argparse.Namespace]:
    """Returns the planned runs, each checked, the session, and the options.

    Raises:
        WrongUseError: an unknown name or field, an invalid run, or incompatible options.
    """
    options, fields = parser().parse_known_args(arguments)
    look_up(dict.fromkeys(LAUNCHERS), options.launcher, "launcher")
    if options.tune_seeds and not options.tune:
        raise WrongUseError("--tune-seeds: there is nothing to tune; give the field and its values with --tune")
    if options.tune and options.launcher == "ray":
        raise WrongUseError("--tune: not available with --launcher ray; use --parallel")
    if options.parallel is not None and (options.launcher == "ray" or options.parallel < 1):
        raise WrongUseError(
            "--parallel: expected at least 1; omit it with --launcher ray, which uses the whole cluster"
        )
    if options.launcher != "ray" and (options.cpus, options.gpus) != (None, None):
        raise WrongUseError("--cpus and --gpus set the resources of runs on Ray; use them with --launcher ray")
    for name, least in (("cpus", "above 0"), ("gpus", "of at least 0")):
        value = getattr(options, name)
        if value is not None and not (math.isfinite(value) and value >= 0 and (value > 0 or name == "gpus")):
            raise WrongUseError(f"--{name}: expected a number {least}, found {value:g}")
    return [each.planned for each in tuned_runs(options, fields)], session_of(options, _command(arguments)), options


def _command(arguments: Sequence[str]) -> str:
    return shlex.join(["seqarena", "sweep", *arguments])


def tuned_runs(options: argparse.Namespace, fields: Sequence[str]) -> list[TunedRun]:
    """Returns the planned runs with their points of the grid; without ``--tune`` the only point has no fields.

    Raises:
        WrongUseError: an unknown name or field, or an invalid run.
    """
    package, grid = find_package(options.package), grid_of(options.tune)
    for path in grid.fields:
        if path in {split([each])[0] for each in fields if each.startswith("--")}:
            raise WrongUseError(f"--tune {path}: the field has another value too; leave out --{path}")
    found: dict[Path, TunedRun] = {}
    first: dict[tuple[Any, ...], TunedRun] = {}
    tuned = options.tune_seeds or options.seeds
    for task, attention, norm, point, seed in itertools.product(
        options.task, options.attention, options.norm, grid.points(), dict.fromkeys([*tuned, *options.seeds])
    ):
        typed = [*fields, *grid.arguments(point)]
        run = build_run(package, task, options.preset, attention, norm, seed, typed, "seqarena sweep")
        names = [("--preset", run.preset), ("--attention", attention), ("--norm", norm), ("--seed", seed)]
        words = [word for flag, name in names if name is not None for word in (flag, str(name))]
        session = session_of(options, shlex.join(["seqarena", package.name, task, *words, *typed]))
        session = dataclasses.replace(session, validate_only=bool(options.tune))
        planned = PlannedRun(package=package, run=run, session=session, tuned=grid.in_words(point))
        each = TunedRun(point=point, planned=planned, is_trial=seed in tuned, is_tested=seed in options.seeds)
        _check_point(each, first.setdefault((task, attention, norm), each), grid)
        same = found.setdefault(planned.folder, each)  # lnas is an alias of softmax: the same run is planned once
        if same.point != point:
            raise WrongUseError(
                f"--tune: {grid.in_words(same.point)} and {grid.in_words(point)} are the same run; give each value once"
            )
    return list(found.values())


def _check_point(one: TunedRun, other: TunedRun, grid: Grid) -> None:
    """Raises a ``WrongUseError`` if two points of the grid differ in more than the tuned fields, or in their row."""
    runs, package = (one.planned.run, other.planned.run), one.planned.package
    rows = {row_of(run, package.preset(run)) for run in runs}
    if len(rows) > 1:
        raise WrongUseError(
            f"--tune {' '.join(grid.fields)}: the values name different rows of a table; --attention and --norm "
            "compare rows"
        )
    mine, theirs = (settings(type(run), to_json(run)) for run in runs)
    if mine.get("legacy.drop_tail") and "train.batch_size" in grid.fields:
        raise WrongUseError(
            "--tune train.batch-size: with legacy.drop_tail its values are scored on different numbers of examples"
        )
    also = [path for path in mine if mine[path] != theirs.get(path) and path not in grid.fields]
    if also:
        raise WrongUseError(
            f"--tune {' '.join(grid.fields)}: these values change {', '.join(also)} too; to keep one value for "
            f"all, add {' '.join(f'--{path} VALUE' for path in also)}"
        )


def save_plan(planned: Sequence[PlannedRun], session: Session) -> Path:
    """Writes the plan to ``runs/sweeps`` and returns its path, which depends only on the planned runs."""
    path = session.runs / "sweeps" / f"{fingerprint([to_json(each.run) for each in planned])}.json"
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"command": session.command, "runs": [each.entry() for each in planned]})
    return path


def prepare_all(planned: Sequence[PlannedRun], *, at_once: bool = False) -> None:
    """Prepares or checks the data of every task before the first run, so that missing files are reported at once.

    The data of a single task are prepared by its first run, unless several runs start ``at_once``.
    """
    first: dict[str, PlannedRun] = {}
    for each in planned:
        if each.session.overwrite or not (each.folder / "result.json").exists():
            first.setdefault(each.run.task, each)
    for each in first.values() if at_once or len(first) > 1 else ():
        each.package.assembly(each.run, each.session.data, make_accelerator(each.run.train.precision))


def print_plan(planned: Sequence[PlannedRun]) -> None:
    """Prints which runs are finished and which will be measured, with the reason."""
    reasons: dict[str, list[str]] = {}
    for each in planned:
        reasons.setdefault(each.reason(), []).append(each.title)
    for reason, titles in reasons.items():
        print(f"{f'to run ({reason})' if reason else 'finished before'}: {'; '.join(titles)}", file=sys.stderr)


def run_all(planned: Sequence[PlannedRun]) -> list[Result | None]:
    """Measures the runs one after another and returns their results; a diverged run does not stop the sweep.

    Runs in use by another process are tried once more at the end. The result of a run that is still in use is None.
    """
    results: list[Result | None] = [None] * len(planned)
    held: list[int] = []
    for index, each in enumerate(planned):
        note = " (finished before)" if each.finished() is not None else ""
        print(f"[{index + 1}/{len(planned)}] {each.title}{note}", file=sys.stderr)
        try:
            results[index] = each.measure()
        except InUseError:
            print(f"[{index + 1}/{len(planned)}] {each.title}: {HELD}, tried again at the end", file=sys.stderr)
            held.append(index)
    for index in held:
        try:
            results[index] = planned[index].measure()
        except InUseError:
            print(f"[{index + 1}/{len(planned)}] {planned[index].title}: {HELD}, still", file=sys.stderr)
    return results


def advice(session: Session) -> str:
    """Returns what to do after an interrupt; --overwrite would delete what the sweep has just measured."""
    if not session.overwrite:
        return "the same command resumes the sweep"
    return "the same command without --overwrite resumes the sweep; results that it had not reached stay as they are"


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena sweep`` and returns its exit code."""
    planned, session, options = plan(arguments)
    if options.launcher == "ray":
        import_ray()  # reports a missing package before the data are prepared
    if options.tune:
        return _run_tuned(planned, session, options, arguments)
    path = save_plan(planned, session)
    print_plan(planned)
    logs = path.with_suffix("")
    parallel = default_parallel() if options.parallel == math.inf else options.parallel or 1
    prepare_all(planned, at_once=parallel > 1 or options.launcher == "ray")
    with interrupt_advice(lambda: advice(session)):
        results = _run_planned(planned, session, logs, parallel, options)
    if options.json:
        print(json.dumps({"plan": str(path), "results": [dataclasses.asdict(each) for each in results if each]}))
    else:
        for each, result in zip(planned, results, strict=True):
            print(f"{each.package.name} {each.title}  {'failed' if result is None else outcome(result)}")
        print(f"plan: {path}")
        _print_end(session, results)
    return 0 if all(result is not None and result.status == "finished" for result in results) else 1


def _print_end(session: Session, results: Sequence[Result | None]) -> None:
    if advised := memory_advice(results):
        print(advised)
    print(f"tables: seqarena leaderboard --runs {shlex.quote(str(session.runs))}")


def _run_tuned(
    planned: Sequence[PlannedRun], session: Session, options: argparse.Namespace, arguments: Sequence[str]
) -> int:
    """Runs a sweep with ``--tune`` and returns its exit code."""
    runs = tuned_runs(*parser().parse_known_args(arguments))
    print_plan([each.planned for each in runs if each.is_trial])
    parallel = default_parallel() if options.parallel == math.inf else options.parallel or 1
    prepare_all(planned, at_once=parallel > 1)

    def measure(some: Sequence[PlannedRun]) -> Sequence[Result | None]:
        return _run_planned(some, session, session.runs / TUNINGS, parallel, options)

    with interrupt_advice(lambda: advice(session)):
        results = run_tuned(runs, grid_of(options.tune), measure, session.runs, _command(arguments))
    if options.json:
        print(json.dumps({"results": [dataclasses.asdict(each) for each in results if each]}))
    else:
        for result in results:
            if result is not None:
                print(f"{result.package} {result.task} {row_name(result.row)} seed {result.seed}  {outcome(result)}")
        _print_end(session, results)
    return 0 if all(result is not None and result.status == "finished" for result in results) else 1


def _run_planned(
    planned: Sequence[PlannedRun], session: Session, logs: Path, parallel: int, options: argparse.Namespace
) -> Sequence[Result | None]:
    """Returns the result of every run; None where a run failed."""
    if options.launcher == "ray":
        return run_on_ray(planned, session.runs, logs, 1.0 if options.cpus is None else options.cpus, options.gpus)
    return run_processes(planned, parallel, logs) if parallel > 1 else run_all(planned)

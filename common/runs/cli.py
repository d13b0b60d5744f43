"""From a command line to a Run: named variants and presets, then any field by its path."""

import argparse
import dataclasses
import json
import shlex
import sys
import textwrap
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from seqarena.common.attention import find_attention
from seqarena.common.errors import WrongUseError, look_up, run_command, suggestion
from seqarena.common.model.norms import find_norm
from seqarena.common.parser import Parser
from seqarena.common.runs.fields import set_fields, split
from seqarena.common.runs.help import add_fields, describe, describe_task
from seqarena.common.runs.package import Package
from seqarena.common.runs.results import Result
from seqarena.common.runs.run import BaseRun, row_name
from seqarena.common.runs.session import Session, execute
from seqarena.common.runs.tasks import Task
from seqarena.common.training.optim import fit_schedule


def add_session_options(parser: Parser) -> None:
    """Adds the options of ``Session``: folders and output, no setting that changes a number."""
    group = parser.add_argument_group("where to read and write")
    group.add_argument("--runs", type=Path, default=Path("runs"), help="folder of run directories (default: runs)")
    group.add_argument("--data-folder", type=Path, default=Path("data"), help="folder of prepared data (default: data)")
    group.add_argument("--overwrite", action="store_true", help="delete earlier output of this run, and run it again")
    group.add_argument(
        "--overwrite-outdated", action="store_true",
        help="delete output of this run by other versions of the sources; up-to-date results stay",
    )  # fmt: skip
    group.add_argument("--tracker", nargs="+", default=[], help="trackers to log to: tensorboard, wandb, trackio")
    group.add_argument("--json", action="store_true", help="print the result as one JSON object on the last line")


def session_of(options: argparse.Namespace, command: str) -> Session:
    """Returns the session that the options describe."""
    return Session(
        runs=options.runs,
        out=getattr(options, "out", None),
        data=options.data_folder,
        overwrite=options.overwrite,
        overwrite_outdated=options.overwrite_outdated,
        trackers=tuple(options.tracker),
        command=command,
    )


def build_run(
    package: Package,
    task: str,
    preset: str | None,
    attention: str | None,
    norm: str | None,
    seed: int,
    fields: Sequence[str],
    prog: str,
) -> BaseRun:
    """Returns the complete, checked run of the named options and ``--path value`` arguments.

    ``preset`` None: the preset that a field among the arguments chooses, else quick.

    Raises:
        WrongUseError: an unknown name or field, or a run that cannot work.
    """
    look_up(package.tasks, task, "task", package.name)
    typed = {split([argument])[0] for argument in fields if argument.startswith("--")}
    presets = package.presets[task]
    chosen = preset or next((name for name, each in presets.items() if each.chosen_by in typed), "quick")
    run = set_fields(choose(package, task, chosen, attention, norm, seed), fields, prog)
    typed |= {f"model.{name}" for name, given in (("attention", attention), ("norm", norm)) if given is not None}
    run.check_values()
    run = _with_fitting_schedule(run.completed(typed), presets[chosen].run, typed)
    run.check()
    for path, setting in run.without_effect.items():
        if path in typed:
            raise WrongUseError(f"{path} has no effect with {setting}; omit it")
    return run


def _with_fitting_schedule(run: BaseRun, preset: BaseRun, typed: Collection[str]) -> BaseRun:
    """Returns the run. A schedule that was not typed and does not fit into the steps is shortened in proportion."""
    if any(path.startswith("optim.schedule.") for path in typed):
        return run
    schedule = fit_schedule(run.optim.schedule, preset.train.steps, run.train.steps)
    return dataclasses.replace(run, optim=dataclasses.replace(run.optim, schedule=schedule))


def choose(package: Package, task: str, preset: str, attention: str | None, norm: str | None, seed: int) -> BaseRun:
    """Returns the run of these names.

    Raises:
        WrongUseError: an unknown name; suggests the nearest one.
    """
    look_up(package.tasks, task, "task", package.name)
    run = look_up(package.presets[task], preset, "preset", f"{package.name} {task}").run
    model = run.model
    if attention is not None:
        model = dataclasses.replace(model, attention=find_attention(attention))
    if norm is not None:
        if "norm" not in {field.name for field in dataclasses.fields(model)}:
            raise WrongUseError(f"--norm: {package.name} {task} has no block normalisation")
        chosen: Any = {"norm": find_norm(norm)}
        model = dataclasses.replace(model, **chosen)
    return dataclasses.replace(run, model=model, seed=seed)


def package_parser(prog: str, task: str = "TASK") -> Parser:
    """Returns the parser of the options that choose a run. Its fields are parsed once the run is known."""
    usage = f"{prog} {task} [--preset PRESET] [--attention VARIANT] [--norm NORM] [--seed SEED] [--FIELD VALUE ...]"
    parser = Parser(prog=prog, usage=usage, add_help=False)
    parser.add_argument("task", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("--preset", help="preset to start from (default: quick)")
    parser.add_argument(
        "--attention", metavar="VARIANT", help="attention variant, or FILE.py:CLASS of your own (default: the preset's)"
    )
    parser.add_argument("--norm", help="block normalisation, or FILE.py:CLASS of your own (default: the preset's)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, data order and dropout (default: 0)")
    parser.add_argument("--out", type=Path, help="this run's directory (default: named by the run, under --runs)")
    parser.add_argument("-h", "--help", action="store_true", help="show this help, with a task also every field")
    return parser


def run_package(package: Package, arguments: Sequence[str], prog: str) -> int:
    """Trains and evaluates the run of the arguments, and prints its result."""
    if arguments and arguments[0] in package.commands:
        return package.commands[arguments[0]](arguments[1:])
    parser = package_parser(prog)
    add_session_options(parser)
    if arguments and arguments[0].startswith("-") and arguments[0] not in ("-h", "--help"):
        raise WrongUseError(
            f"the task comes first: {prog} TASK {arguments[0]} ...; tasks: {', '.join(package.tasks)}; "
            f"see {prog} --help"
        )
    options, rest = parser.parse_known_args(arguments)
    if options.task is None and not options.help:
        raise WrongUseError(f"no task given; {suggestion('', package.tasks)}; see {prog} --help")
    if options.task is not None:
        look_up({**package.tasks, **package.commands}, options.task, "task", package.name)
    if options.help:
        _print_help(package, options, prog)
        return 0
    run = build_run(
        package, options.task, options.preset, options.attention, options.norm, options.seed, rest,
        f"{prog} {options.task}",
    )  # fmt: skip
    command = shlex.join([*prog.split(), *arguments])
    result = execute(package, run, session_of(options, command))
    if _is_main_process():
        print_result(result, package.task(run), run.measured, as_json=options.json)
    return 0 if result.status == "finished" else 1


def _print_help(package: Package, options: argparse.Namespace, prog: str) -> None:
    """Prints the help of a package, or of the task among the options with every field of its run."""
    if options.task is None:
        parser = package_parser(prog)
        parser.description = describe(package, prog)
    else:
        preset = options.preset or "quick"
        run = choose(package, options.task, preset, options.attention, options.norm, options.seed)
        parser = package_parser(prog, options.task)
        parser.description = describe_task(package.tasks[options.task], package.presets[options.task], preset)
        add_fields(parser, run, preset)
    add_session_options(parser)
    parser.print_help()


def _is_main_process() -> bool:
    from accelerate import PartialState  # noqa: PLC0415  # --help must not wait for it

    return bool(PartialState().is_main_process)


def print_floors(task: Task, scores: Mapping[str, float], indent: str = "") -> None:
    """Prints the scores of trivial rules, and of exact computation of a part of the problem, a line each."""
    for kind, some in zip(("floors", "ceilings"), task.floors_and_ceilings(scores), strict=True):
        if some:
            print(f"{indent}{kind}: {', '.join(f'{name} {value:.4f}' for name, value in some.items())}")


def print_result(result: Result, task: Task, measured: str, *, as_json: bool) -> None:
    """Prints a result of a task and a note on how it was ``measured`` (if not empty): a few lines of text, or JSON."""
    if as_json:
        print(json.dumps(dataclasses.asdict(result), allow_nan=False))
        return
    print(
        f"{result.package} {result.task}, {row_name(result.row)}, seed {result.seed}, preset {result.preset}: "
        f"{result.status}"
    )
    if result.changed:
        print("  modified: " + ", ".join(f"{path} {old} -> {new}" for path, (old, new) in result.changed.items()))
    if result.notes:
        print(f"  note: {', '.join(result.notes)}")
    if result.score is None:
        print(f"  {result.message}")
        return
    print(f"  test {result.metric} {result.score:.4f} on {len(result.example_scores):,} examples, "
          f"by the checkpoint of step {result.chosen_step:,} of {result.steps:,}")  # fmt: skip
    if measured:
        print(f"  {measured}")
    others = {name: value for name, value in result.metrics.items() if name != result.metric}
    if others:
        line = ", ".join(f"{name.replace('_', ' ')} {value:,.4f}" for name, value in others.items())
        print(textwrap.fill(line, 116, initial_indent="  ", subsequent_indent="  "))
    print_floors(task, result.floors, "  ")
    for name, values in result.bounded.items():
        print(f"  {name}: {', '.join(f'{value:.3f}' for value in values)}")
    print(
        f"  {result.parameters:,} parameters, {result.training_seconds:.1f} s of training, "
        f"{result.tokens_per_second:,.0f} tokens/s, peak memory {result.peak_memory_bytes / 2**20:,.0f} MiB, "
        f"processes: {result.environment['processes']}"
    )


def main(package: Package, arguments: Sequence[str] | None = None) -> int:
    """Runs one package's command line and returns its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    return run_command(lambda rest: run_package(package, rest, f"python -m seqarena.{package.name}"), given)

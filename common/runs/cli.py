"""From a command line to a Run: named variants and presets, then any field by its path. The only importer of tyro."""

import argparse
import contextlib
import dataclasses
import functools
import io
import json
import re
import shlex
import sys
import textwrap
import typing
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import tyro

from seqarena.common.attention import ALIASES, ATTENTIONS, find_attention
from seqarena.common.attention.base import AttentionConfig
from seqarena.common.errors import WrongUseError, did_you_mean, guarded, look_up, nearest
from seqarena.common.model.blocks import NORMS, find_norm
from seqarena.common.runs.config import field_paths
from seqarena.common.runs.package import Package
from seqarena.common.runs.results import Result
from seqarena.common.runs.run import BaseRun, Preset, row_name
from seqarena.common.runs.session import Session, execute
from seqarena.common.runs.tasks import Task
from seqarena.common.training.optim import fit_schedule

CHOSEN = ("task", "preset", "seed")
"""Fields of a Run that have options of their own, and no path on the command line."""


NAMED = ("attention", "norm", "preset", "seed")
"""Options other than fields, for suggestions after a typing error."""


class Parser(argparse.ArgumentParser):
    """Argument parser that reports an error in one line and accepts no abbreviated options."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **settings)

    def error(self, message: str) -> NoReturn:
        """Raises a ``WrongUseError``."""
        raise WrongUseError(f"{message}; see {self.prog} --help")


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
    look_up(package.tasks, task, f"{package.name} task")
    typed = {_path(argument) for argument in fields if argument.startswith("--")}
    presets = package.presets[task]
    chosen = preset or next((name for name, each in presets.items() if each.chosen_by in typed), "quick")
    run = override(choose(package, task, chosen, attention, norm, seed), fields, prog)
    typed |= {f"model.{name}" for name, given in (("attention", attention), ("norm", norm)) if given is not None}
    run = _with_fitting_schedule(run.completed(typed), presets[chosen].run, typed)
    run.check()
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
        WrongUseError: an unknown name; suggests the nearest ones.
    """
    look_up(package.tasks, task, f"{package.name} task")
    run = look_up(package.presets[task], preset, f"preset of {package.name} {task}").run
    model = run.model
    if attention is not None:
        model = dataclasses.replace(model, attention=find_attention(attention))
    if norm is not None:
        if "norm" not in {field.name for field in dataclasses.fields(model)}:
            raise WrongUseError(f"--norm: {package.name} {task} has no block normalisation")
        chosen: Any = {"norm": find_norm(norm)}
        model = dataclasses.replace(model, **chosen)
    return dataclasses.replace(run, model=model, seed=seed)


def override(run: BaseRun, arguments: Sequence[str], prog: str) -> BaseRun:
    """Returns the run with the fields set that ``--path value`` arguments name. ``none`` is a value too.

    Raises:
        WrongUseError: no such field, or an invalid value; names the argument.
    """
    if arguments and not arguments[0].startswith("--"):
        raise WrongUseError(f"unexpected {arguments[0]!r}; fields are set as --path value; see {prog} --help")
    run, arguments = _with_attentions(run, arguments)
    known = [_spelled(path) for path in field_paths(run) if path not in CHOSEN]
    switches = {_spelled(path.rpartition(".")[0], f"no-{path.rpartition('.')[2]}") for path in _switches(run)}
    groups = _groups(arguments)
    for flag in (_path(group[0]).replace("_", "-") for group in groups):
        if flag not in known and flag not in switches:
            raise WrongUseError(f"unknown field --{flag}; {_hint(flag, known)}")
    found = _try_parse(run, arguments)
    if found is None:
        wrong = next((group for group in groups if _try_parse(run, group) is None), arguments)
        raise WrongUseError(f"{' '.join(wrong)}: invalid value for this field; see {prog} --help")
    return found


def _attentions(run: BaseRun) -> list[str]:
    """Returns the model's attention fields other than the one of --attention."""
    model = run.model
    names = (field.name for field in dataclasses.fields(model))
    return [name for name in names if name != "attention" and isinstance(getattr(model, name), AttentionConfig)]


def _with_attentions(run: BaseRun, arguments: Sequence[str]) -> tuple[BaseRun, list[str]]:
    """Returns the run with the attentions that ``--model.FIELD NAME`` sets, and the other arguments."""
    others: list[str] = []
    for group in _groups(arguments):
        name = _path(group[0])
        values = [*group[0].split("=", 1)[1:], *group[1:]]
        if name not in [f"model.{each}" for each in _attentions(run)]:
            others += group
        elif len(values) != 1:
            raise WrongUseError(f"{' '.join(group)}: expected the name of one attention variant")
        else:
            chosen: Any = {name.removeprefix("model."): find_attention(values[0])}
            run = dataclasses.replace(run, model=dataclasses.replace(run.model, **chosen))
    return run, others


def _path(argument: str) -> str:
    """Returns the field path in an argument, without its value."""
    return argument.split("=", 1)[0].removeprefix("--").replace("-", "_")


def _spelled(*path: str) -> str:
    return ".".join(path).replace("_", "-")


def _switches(run: BaseRun) -> list[str]:
    """Returns the paths of boolean fields, for which tyro also has ``--no-``."""
    return [path for path in field_paths(run) if isinstance(functools.reduce(getattr, path.split("."), run), bool)]


def _hint(flag: str, known: Sequence[str]) -> str:
    if flag in ("model.attention", "model.norm"):
        return f"a whole variant is chosen by --{flag.rpartition('.')[2]}"
    if flag == "seed":
        return "a single run takes --seed, a sweep --seeds"
    return did_you_mean(flag, [*NAMED, *known]) or "see --help for the fields"


def _groups(arguments: Sequence[str]) -> list[list[str]]:
    """Returns the arguments in groups: each field's name with its values."""
    groups: list[list[str]] = []
    for argument in arguments:
        if argument.startswith("--"):
            groups.append([argument])
        else:
            groups[-1].append(argument)
    return groups


def _try_parse(run: BaseRun, arguments: Sequence[str]) -> BaseRun | None:
    """Returns the run with the fields set, or None if a value is invalid. Prints nothing."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            return _parse(run, [re.sub("(^|=)none$", r"\1None", each) for each in arguments])  # tyro spells it None
        except SystemExit:
            return None


def _parse(run: BaseRun, arguments: Sequence[str], prog: str | None = None, description: str = "") -> BaseRun:
    hints = typing.get_type_hints(type(run))
    settings = dataclasses.make_dataclass(
        "Settings",
        [
            (
                field.name,
                Annotated[hints[field.name], tyro.conf.arg(help=None)],
                dataclasses.field(default=getattr(run, field.name)),
            )
            for field in dataclasses.fields(run)
            if field.name not in CHOSEN
        ],
        frozen=True,
        kw_only=True,
    )
    chosen: Any = tyro.cli(
        settings,
        args=list(arguments),
        prog=prog,
        description=description,
        config=(tyro.conf.AvoidSubcommands,),
    )
    return dataclasses.replace(
        run, **{field.name: getattr(chosen, field.name) for field in dataclasses.fields(settings)}
    )


def describe(package: Package) -> str:
    """Returns a package's tasks and their presets, one line each. Departures are in the help of each task."""
    lines = []
    for task in package.tasks.values():
        lines.append(f"  {task.name:<14} {task.title}")
        presets = package.presets[task.name].items()
        lines += [f"    --preset {name:<16} {preset.source}{_chosen_by(preset)}" for name, preset in presets]
    return "\n".join(lines)


def _chosen_by(preset: Preset[BaseRun]) -> str:
    return "" if preset.chosen_by is None else f" (the default if --{_spelled(preset.chosen_by)} is set)"


def provenance(task: Task, preset: Preset[BaseRun]) -> str:
    """Returns the sources of a task's data and of a preset's settings, the expected score, and the cost."""
    lines = (
        {"data": f"{task.source}; {task.revision}; licence: {task.licence}", "splits": task.splits}
        if preset.data is None
        else {"data": preset.data}
    )
    lines["preset"] = preset.source
    if preset.departures:
        lines["departs"] = preset.departures
    lines |= {"expected": preset.expected, "cost": preset.cost}
    return "\n".join(f"  {name + ':':<10} {text}" for name, text in lines.items())


def first_lines(table: Mapping[str, Any]) -> str:
    """Returns a table of configs, one line each: the name, the first line of the class's docstring, and the fields."""
    aliases = {target: alias for alias, target in ALIASES.items()}
    lines = []
    for name, config in table.items():
        fields = ", ".join(f"{field.name} {getattr(config, field.name)}" for field in dataclasses.fields(config))
        alias = f" (also: {aliases[name]})" if table is ATTENTIONS and name in aliases else ""
        summary = (type(config).__doc__ or "").split("\n")[0].rstrip(".")
        lines.append(f"  {name:<12} {summary}{f' [{fields}]' if fields else ''}{alias}")
    return "\n".join(lines)


def variants() -> str:
    """Returns the attention variants and the norms, one line each."""
    return f"--attention:\n{first_lines(ATTENTIONS)}\n\n--norm:\n{first_lines(NORMS)}"


def _others(package: Package, prog: str) -> str:
    lines = "".join(f"\n  {prog} {name} --help" for name in package.commands)
    return f"\n\nother commands:{lines}" if lines else ""


def package_parser(package: Package, prog: str) -> Parser:
    """Returns the parser of the options that choose a run. Its fields are parsed once the run is known."""
    parser = Parser(
        prog=prog, add_help=False, description=f"{package.title}\n\ntasks:\n{describe(package)}{_others(package, prog)}"
    )
    parser.add_argument("task", nargs="?", help="the task to train and evaluate on")
    parser.add_argument("--preset", help="the preset to start from (default: quick)")
    parser.add_argument("--attention", help="attention variant (default: the preset's)")
    parser.add_argument("--norm", help="block normalisation (default: the preset's)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, data order and dropout (default: 0)")
    parser.add_argument("--out", type=Path, help="this run's directory (default: named by the run, under --runs)")
    parser.add_argument("-h", "--help", action="store_true", help="show this help, with a task also every field")
    add_session_options(parser)
    return parser


def run_package(package: Package, arguments: Sequence[str], prog: str) -> int:
    """Trains and evaluates the run of the arguments, and prints its result."""
    if arguments and arguments[0] in package.commands:
        return package.commands[arguments[0]](arguments[1:])
    parser = package_parser(package, prog)
    if arguments and arguments[0].startswith("-") and arguments[0] not in ("-h", "--help"):
        raise WrongUseError(f"the task comes first: {prog} TASK {arguments[0]} ...; tasks: {', '.join(package.tasks)}")
    options, rest = parser.parse_known_args(arguments)
    if options.task is None and not options.help:
        raise WrongUseError(f"no task given; {nearest('', package.tasks)}; see {prog} --help")
    if options.task is None:
        parser.epilog = f"{variants()}\n\n{prog} TASK --help shows every field of a run with its default."
        parser.print_help()
        return 0
    look_up({**package.tasks, **package.commands}, options.task, f"{package.name} task")
    if options.help:
        preset = options.preset or "quick"
        run = choose(package, options.task, preset, options.attention, options.norm, options.seed)
        parser.print_help()
        print(f"\n{provenance(package.tasks[options.task], package.presets[options.task][preset])}")
        print(f"\nfields of {options.task}, preset {preset}: each can be set as --path value\n")
        with contextlib.suppress(SystemExit):
            _parse(run, ["--help"], prog=f"{prog} {options.task}")
        for name in _attentions(run):
            print(f"  --{_spelled('model', name)} chooses a variant by its name, as --attention does")
        return 0
    run = build_run(
        package, options.task, options.preset, options.attention, options.norm, options.seed, rest,
        f"{prog} {options.task}",
    )  # fmt: skip
    command = shlex.join([*prog.split(), *arguments])
    result = execute(package, run, session_of(options, command))
    if _is_main_process():
        print_result(result, run.measured, as_json=options.json)
    return 0 if result.status == "finished" else 1


def _is_main_process() -> bool:
    from accelerate import PartialState  # noqa: PLC0415  # --help must not wait for it

    return bool(PartialState().is_main_process)


def print_result(result: Result, measured: str, *, as_json: bool) -> None:
    """Prints a result and a note on how it was ``measured`` (if not empty): a few lines of text, or JSON."""
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
    print("  floors: " + ", ".join(f"{name} {value:.4f}" for name, value in result.floors.items()))
    for name, values in result.bounded.items():
        print(f"  {name}: {', '.join(f'{value:.3f}' for value in values)}")
    print(
        f"  {result.parameters:,} parameters, {result.training_seconds:.1f} s of training, "
        f"{result.tokens_per_second:,.0f} tokens/s, peak memory {result.peak_memory_bytes / 2**20:,.0f} MiB, "
        f"processes: {result.environment['processes']}"
    )


def main(package: Package, arguments: Sequence[str] | None = None) -> int:
    """Runs one package's command line and returns its exit code."""
    typed = sys.argv[1:] if arguments is None else arguments
    return guarded(lambda rest: run_package(package, rest, f"python -m seqarena.{package.name}"), typed)

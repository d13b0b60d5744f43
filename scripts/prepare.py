"""Prepares a task's data ahead of its runs: reads or generates, checks and stores them."""

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import torch

from seqarena.common.errors import interrupt_advice, look_up
from seqarena.common.parser import Parser
from seqarena.common.runs.cli import build_run, print_floors
from seqarena.common.runs.package import Package
from seqarena.common.runs.run import BaseRun
from seqarena.common.saved_table import add_output_options, save_table
from seqarena.common.training.runtime import device_name, make_accelerator
from seqarena.scripts.packages import PACKAGES, find_package


def parser() -> Parser:
    """Returns the parser of ``seqarena prepare``."""
    made = Parser(prog="seqarena prepare", description=f"{__doc__}\nFields are set as --path value, as for a run.")
    made.add_argument("package", help="task package")
    made.add_argument("task", help="task of the package")
    made.add_argument("--preset", help="preset whose data to prepare (default: the task's first other than quick)")
    made.add_argument("--data-folder", type=Path, default=Path("data"), help="folder of prepared data (default: data)")
    add_output_options(made)
    return made


def select_run(arguments: Sequence[str]) -> tuple[Package, BaseRun, Namespace]:
    """Returns the package, the run whose data are prepared, and the options.

    Raises:
        WrongUseError: an unknown name or field, or an invalid run.
    """
    options, fields = parser().parse_known_args(arguments)
    package = find_package(options.package)
    look_up(package.tasks, options.task, "task", package.name)
    preset = options.preset or next((name for name in package.presets[options.task] if name != "quick"), "quick")
    run = build_run(package, options.task, preset, None, None, 0, fields, "seqarena prepare")
    return package, run, options


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena prepare`` and returns its exit code; a repeated call resumes an interrupted one."""
    if len(arguments) > 1 and arguments[0] in PACKAGES and arguments[1] in find_package(arguments[0]).preparations:
        return find_package(arguments[0]).commands[arguments[1]](arguments[2:])
    package, wanted, options = select_run(arguments)
    with interrupt_advice(lambda: "the same command resumes with the missing data"):
        assembly = package.assembly(wanted, options.data_folder, make_accelerator(wanted.train.precision))
    name, task = f"{package.name} {wanted.task}, preset {wanted.preset}", package.task(wanted)
    print(f"{name}: sha256 {assembly.data_checksum}")
    print("computing floors ...", file=sys.stderr)
    floors = assembly.floors()
    print_floors(task, floors)
    if options.save is not None:
        rows = [[rule, f"{score:.4f}"] for rule, score in floors.items()]
        kinds = "floors and ceilings" if task.floors_and_ceilings(floors)[1] else "floors"
        notes = [f"data: sha256 {assembly.data_checksum}"]
        device = device_name(torch.device("cpu"))
        headings = ["rule", f"test {task.metric}"]
        save_table(options.save, parser().prog, arguments, f"{kinds} of {name}", headings, rows, notes, device)
    return 0

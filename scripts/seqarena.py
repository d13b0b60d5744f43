"""The ``seqarena`` command: runs a task package, or a tool that works across packages."""

import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from types import MappingProxyType

from seqarena.common.errors import look_up, run_command
from seqarena.common.parser import fit_to_terminal
from seqarena.scripts.packages import PACKAGES, find_package

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "quickstart": "train four variants on short ListOps and print the leaderboard",
        "prepare": "prepare a task's data ahead of its runs",
        "sweep": "run the product of tasks, variants, norms and seeds; skip finished runs",
        "leaderboard": "print tables of the results below a folder",
        "report": "write the results below a folder as one page that opens from disk",
        "curves": "plot the recorded metrics of runs, including diagnostics of each layer",
        "variants": "list the attention variants, grouped: name, orders, formula",
        "price": "measure time and memory of each variant's training step, in turns, for the leaderboard",
        "verify": "check an attention variant, your own or one of the table, against the contract of the suite",
        "selftest": "check attention against float64, and short trainings, on this machine",
        "figures": "draw and check claims of the papers that need no big training",
        "benchmark": "measure time and memory of each variant: attention alone, or a training step",
    }
)
"""Each command is the module of that name in this folder, imported on demand, because torch alone takes a second."""


def overview() -> str:
    """Returns the commands, the packages and their tasks, one line each."""
    commands = "\n".join(f"  {name:<14} {line}" for name, line in COMMANDS.items())
    packages = []
    for package in PACKAGES:
        tasks = importlib.import_module(f"seqarena.{package}.tasks").TASKS.values()
        title = str(importlib.import_module(f"seqarena.{package}").__doc__).rstrip(".\n")
        packages += [f"\n{package}: {title}", *(f"  {task.name:<15} {task.title}" for task in tasks)]
    return (
        "usage: seqarena PACKAGE TASK [--attention A] [--norm N] [--preset P] [--seed S] [--FIELD VALUE ...]\n"
        "       seqarena COMMAND ...\n"
        "       seqarena --version\n\n"
        f"commands (seqarena COMMAND --help):\n{commands}\n\n"
        "packages and their tasks (seqarena PACKAGE --help: presets, attention variants, norms;\n"
        "                          seqarena PACKAGE TASK --help: every field):\n" + "\n".join(packages)
    )


def dispatch(arguments: Sequence[str]) -> int:
    """Runs the package or command named first, and returns its exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(fit_to_terminal(overview()))
        return 0
    if arguments[0] == "--version":
        # Not seqarena.__version__: below a folder that holds one of that name, Python takes it for the package.
        print(f"seqarena {metadata.version('seqarena')}")
        return 0
    name, rest = arguments[0], arguments[1:]
    look_up(dict.fromkeys((*PACKAGES, *COMMANDS)), name, "package or command")
    if name in PACKAGES:
        from seqarena.common.runs.cli import run_package  # noqa: PLC0415  # slow; the overview does not need it

        return run_package(find_package(name), rest, f"seqarena {name}")
    code: int = importlib.import_module(f"seqarena.scripts.{name}").run(rest)
    return code


def main() -> int:
    """Runs the command line and returns its exit code."""
    return run_command(dispatch, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())

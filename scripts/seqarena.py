"""The ``seqarena`` command: a task package, or something that works across them."""

import importlib
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from seqarena import __version__
from seqarena.common.errors import look_up, run_command
from seqarena.scripts.packages import PACKAGES, find_package

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "quickstart": "train four variants on short ListOps and print the leaderboard",
        "prepare": "make a task's data ahead of its runs",
        "sweep": "run the product of tasks, variants, norms and seeds; skips what is finished",
        "leaderboard": "tables of the results below a folder",
        "report": "everything below a folder of runs as one page that opens from disk",
        "curves": "draw what runs recorded while they went, diagnostics of each layer included",
        "figures": "draw and check what the papers claim without big training",
        "benchmark": "time and memory of each variant: attention alone, or a training step",
    }
)
"""Each is the module of its name beside this one; imported when it is asked for, for torch alone takes a second."""


def overview() -> str:
    """Returns the commands, the packages and their tasks, one line each."""
    commands = "\n".join(f"  {name:<14} {line}" for name, line in COMMANDS.items())
    packages = []
    for package in PACKAGES:
        tasks = importlib.import_module(f"seqarena.{package}.tasks").TASKS.values()
        title = str(importlib.import_module(f"seqarena.{package}").__doc__).rstrip(".\n")
        packages += [f"\n{package}: {title}", *(f"  {task.name:<14} {task.title}" for task in tasks)]
    return (
        "usage: seqarena PACKAGE TASK [--attention A] [--norm N] [--preset P] [--seed S] [--FIELD VALUE ...]\n"
        "       seqarena COMMAND ...\n"
        "       seqarena --version\n\n"
        f"commands (seqarena COMMAND --help):\n{commands}\n\n"
        "packages and their tasks (seqarena PACKAGE --help: presets, attention variants, norms;\n"
        "                          seqarena PACKAGE TASK --help: every field):\n" + "\n".join(packages)
    )


def dispatch(arguments: Sequence[str]) -> int:
    """Runs the package or command named first."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(overview())
        return 0
    if arguments[0] == "--version":
        print(f"seqarena {__version__}")
        return 0
    name, rest = arguments[0], arguments[1:]
    look_up(dict.fromkeys((*PACKAGES, *COMMANDS)), name, "package or command")
    if name in PACKAGES:
        from seqarena.common.runs.cli import run_package  # noqa: PLC0415  # takes seconds, which the overview need not wait

        return run_package(find_package(name), rest, f"seqarena {name}")
    code: int = importlib.import_module(f"seqarena.scripts.{name}").run(rest)
    return code


def main() -> int:
    """Runs the command line and returns its exit code."""
    return run_command(dispatch, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())

"""The ``seqarena`` command: a task package, or something that works across them."""

import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from common.cli import describe, guarded, run_package, variants
from common.errors import look_up
from scripts import benchmark, curves, leaderboard, prepare, quickstart, sweep
from scripts.packages import PACKAGES

COMMANDS: Mapping[str, tuple[str, Callable[[Sequence[str]], int]]] = MappingProxyType(
    {
        "quickstart": ("train four variants on short ListOps and print the leaderboard", quickstart.run),
        "prepare": ("make a task's data ahead of its runs", prepare.run),
        "sweep": ("run the product of tasks, variants, norms and seeds; skips what is finished", sweep.run),
        "leaderboard": ("tables of the results below a folder", leaderboard.run),
        "curves": ("draw what runs recorded while they went, diagnostics of each layer included", curves.run),
        "benchmark": ("time and memory of each variant: attention alone, or a training step", benchmark.run),
    }
)


def overview() -> str:
    """Returns what there is, one line each."""
    commands = "\n".join(f"  {name:<12} {line}" for name, (line, _) in COMMANDS.items())
    packages = "\n\n".join(f"{package.name}: {package.title}\n{describe(package)}" for package in PACKAGES.values())
    return (
        "usage: seqarena PACKAGE TASK [--attention A] [--norm N] [--preset P] [--seed S] [--FIELD VALUE ...]\n"
        "       seqarena COMMAND ...\n\n"
        f"commands (seqarena COMMAND --help):\n{commands}\n\n"
        f"packages and their tasks (seqarena PACKAGE TASK --help shows every field):\n\n{packages}\n\n{variants()}"
    )


def dispatch(arguments: Sequence[str]) -> int:
    """Runs the package or command named first."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(overview())
        return 0
    name, rest = arguments[0], arguments[1:]
    look_up({**PACKAGES, **COMMANDS}, name, "package or command")
    if name in PACKAGES:
        return run_package(PACKAGES[name], rest, f"seqarena {name}")
    return COMMANDS[name][1](rest)


def main() -> int:
    """Runs the command line and returns its exit code."""
    return guarded(dispatch, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())

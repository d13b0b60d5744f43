"""Selects the run whose step is measured, and builds its data, model and optimiser."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from seqarena.common.parser import Parser
from seqarena.common.runs.cli import build_run
from seqarena.common.runs.package import Package
from seqarena.common.runs.run import BaseRun
from seqarena.scripts.packages import find_package


def add_run_options(parser: Parser) -> None:
    """Adds the options package, task, preset, norm and data folder."""
    parser.add_argument("package", help="task package")
    parser.add_argument("task", help="task of the package")
    parser.add_argument("--preset", help="preset to start from (default: quick)")
    parser.add_argument("--norm", help="norm (default: the preset's)")
    parser.add_argument(
        "--data-folder", type=Path, default=Path("data"), help="folder of prepared data (default: data)"
    )


def chosen(
    options: argparse.Namespace, attention: str | None, fields: Sequence[str], prog: str
) -> tuple[Package, BaseRun]:
    """Returns the package and the checked run that the options describe.

    Raises:
        WrongUseError: an unknown name or field, or an invalid run.
    """
    package = find_package(options.package)
    return package, build_run(package, options.task, options.preset, attention, options.norm, 0, fields, prog)


def title(options: argparse.Namespace, preset: str, fields: Sequence[str]) -> str:
    """Returns the title of the table."""
    return f"a step of {options.package} {options.task}, preset {preset}{' '.join(['', *fields])}"

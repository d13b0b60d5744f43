"""Makes a task's data ahead of its runs: read or generated, checked, kept where runs look for them."""

import sys
from collections.abc import Sequence
from pathlib import Path

from common.cli import Parser, choose, override
from common.errors import look_up
from common.runtime import make_accelerator
from scripts.packages import find_package


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena prepare`` and returns its exit code; interrupted, it goes on where it stopped."""
    parser = Parser(prog="seqarena prepare", description=f"{__doc__}\nFields are set as --path value, as for a run.")
    parser.add_argument("package", help="task package")
    parser.add_argument("task", help="task of the package")
    parser.add_argument("--preset", help="the run that wants the data (default: the task's first but quick)")
    parser.add_argument(
        "--data-folder", type=Path, default=Path("data"), help="folder of prepared data (default: data)"
    )
    options, fields = parser.parse_known_args(arguments)
    package = find_package(options.package)
    look_up(package.tasks, options.task, f"{package.name} task")
    preset = options.preset or next(name for name in package.presets[options.task] if name != "quick")
    chosen = override(choose(package, options.task, preset, None, None, 0), fields, parser.prog)
    chosen.check()
    assembly = package.assembly(chosen, options.data_folder, make_accelerator(chosen.train.precision))
    print(f"{package.name} {options.task}, preset {preset}: sha256 {assembly.data_checksum}")
    print("computing floors ...", file=sys.stderr)
    print("floors: " + ", ".join(f"{name} {value:.4f}" for name, value in assembly.floors().items()))
    return 0

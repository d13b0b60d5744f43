"""Measures what each variant costs: time and memory of a training step, divided by the baseline's.

The variants take turns, so that other programs slow all of them. The record is written below --runs, where
``seqarena leaderboard`` and ``seqarena report`` find it. Fields are set as --path value.
"""

import itertools
import shlex
from collections.abc import Sequence
from pathlib import Path

from seqarena.common.parser import Parser


def parser() -> Parser:
    """Returns the parser of ``seqarena price``."""
    made = Parser(prog="seqarena price", description=__doc__)
    made.add_argument("package", help="task package")
    made.add_argument("task", help="task of the package")
    made.add_argument("--preset", help="preset to start from (default: quick)")
    made.add_argument(
        "--attention",
        nargs="+",
        metavar="A",
        default=["softmax"],
        help="variants, the baseline first (default: softmax)",
    )
    made.add_argument("--norm", nargs="+", metavar="N", help="norms (default: the preset's)")
    made.add_argument("--rounds", type=int, default=7, help="rounds in which all variants take turns (default: 7)")
    made.add_argument("--steps", type=int, default=4, help="steps of a variant per round (default: 4)")
    made.add_argument("--runs", type=Path, default=Path("runs"), help="folder of runs (default: runs)")
    made.add_argument("--data-folder", type=Path, default=Path("data"), help="folder of prepared data (default: data)")
    made.add_argument("--json", action="store_true", help="print the record as one JSON object")
    return made


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena price`` and returns its exit code."""
    options, given = parser().parse_known_args(arguments)
    from seqarena.scripts.price.command import measure_and_record  # noqa: PLC0415  # slow; --help does not need it

    variants = list(itertools.product(options.attention, options.norm or [None]))
    return measure_and_record(options, variants, given, f"seqarena price {shlex.join(arguments)}")

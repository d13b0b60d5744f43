"""Prints tables that other commands wrote with --save, such as those of the documents in docs/measurements."""

from collections.abc import Sequence
from pathlib import Path

from seqarena.common.errors import look_up
from seqarena.common.parser import Parser
from seqarena.common.saved_table import read_table
from seqarena.common.tables import RENDERERS


def parser() -> Parser:
    """Returns the parser of ``seqarena benchmark show``."""
    made = Parser(prog="seqarena benchmark show", description=__doc__)
    made.add_argument("files", nargs="+", type=Path, metavar="FILE", help="files written with --save")
    made.add_argument("--format", default="terminal", help=f"{', '.join(RENDERERS)} (default: terminal)")
    return made


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena benchmark show`` and returns its exit code."""
    options = parser().parse_args(arguments)
    look_up(RENDERERS, options.format, "format")
    print("\n".join(read_table(path).text(options.format) for path in options.files))
    return 0

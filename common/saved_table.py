"""Tables of measurements in files, from which documents show them."""

import argparse
import itertools
import shlex
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from seqarena.common.errors import BadDataError, printable
from seqarena.common.files import read_strict_json, write_json
from seqarena.common.parser import Parser
from seqarena.common.runs.config import from_json, to_json
from seqarena.common.tables import Rows, render
from seqarena.common.training.runtime import code_version

PLACES = ("--save", "--out", "--data-folder")
"""Options that only say where files are. The command in a saved table is without them."""


@dataclass(frozen=True, kw_only=True)
class SavedTable:
    """A table of measurements, with the command that measured it."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    command: str
    device: str
    """The processor, with its number of threads, or the GPU; of compiled kernels, the compiler."""
    torch: str
    """Version of PyTorch."""
    date: str
    commit: str | None
    """Commit of the sources; None outside a checkout."""
    clean: bool | None
    """Whether the sources were as committed."""

    def text(self, style: str) -> str:
        """Returns the table in one of the formats of ``RENDERERS``, with its command as a note."""
        device = [] if any(self.device in note for note in self.notes) else [self.device]
        sources = [] if self.commit is None else [f"commit {self.commit[:8]}{' with changes' * (self.clean is False)}"]
        note = "; ".join([*device, f"PyTorch {self.torch}", self.date, *sources, f"by `{self.command}`"])
        return render(self.title, self.headings, self.rows, [*self.notes, note], style)


def add_output_options(parser: Parser, json_help: str | None = None) -> None:
    """Adds ``--save`` and, with its help, ``--json``, of which only one can be given."""
    either = parser.add_mutually_exclusive_group()
    if json_help is not None:
        either.add_argument("--json", action="store_true", help=json_help)
    either.add_argument(
        "--save", type=_new_file, metavar="FILE",
        help="also write the table to this file, which seqarena benchmark show prints",
    )  # fmt: skip


def _new_file(text: str) -> Path:
    path = Path(text)
    if path.suffix != ".json" or path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"expected a name that ends in .json, in a folder that exists; found {text}")
    if path.exists():
        try:
            read_table(path)
        except BadDataError as error:
            raise argparse.ArgumentTypeError(f"{text} exists, and is no such table; choose another name") from error
    return path


def print_table(
    options: Namespace, prog: str, arguments: Sequence[str], title: str, headings: Sequence[str], rows: Rows,
    notes: Sequence[str], device: str,
) -> None:  # fmt: skip
    """Prints a table and, if ``options.save`` is a path, writes it there, with the command and the device."""
    print(render(title, headings, rows, notes, "terminal"))
    if options.save is not None:
        save_table(options.save, prog, arguments, title, headings, rows, notes, device)


def save_table(
    path: Path, prog: str, arguments: Sequence[str], title: str, headings: Sequence[str], rows: Rows,
    notes: Sequence[str], device: str,
) -> None:  # fmt: skip
    """Writes a table to a file, with the command and the device, and prints the path."""
    command = prog.split()
    for before, each in itertools.pairwise(["", *arguments]):
        if before not in PLACES and each.partition("=")[0] not in PLACES:
            command.append(each)
    table = SavedTable(
        title=title, headings=tuple(headings), rows=tuple(map(tuple, rows)), notes=tuple(notes),
        command=shlex.join(command), device=device, torch=torch.__version__,
        date=datetime.now(UTC).date().isoformat(), **code_version(),
    )  # fmt: skip
    write_json(path, to_json(table))
    print(path)


def read_table(path: Path) -> SavedTable:
    """Reads a table that ``print_table`` wrote.

    Raises:
        BadDataError: no such file, or a file of something else.
    """
    try:
        return from_json(SavedTable, _checked(printable(read_strict_json(path))))
    except FileNotFoundError as error:
        raise BadDataError(f"{path}: no such file") from error
    except (OSError, ValueError) as error:
        raise BadDataError(f"{path}: not a table that seqarena wrote with --save ({error})") from error


def _checked(values: Any) -> Any:
    """Returns the JSON of a table whose cells are all texts; raises a ``ValueError`` for another one."""
    if not isinstance(values, dict) or not isinstance(values.get("rows"), list):
        raise ValueError("expected an object with rows")
    headings, rows = values.get("headings"), values["rows"]
    lists = [headings, values.get("notes"), *rows]
    if not all(isinstance(each, list) and all(isinstance(cell, str) for cell in each) for each in lists):
        raise ValueError("expected lists of texts")
    if not headings or any(len(row) != len(headings) for row in rows):
        raise ValueError("expected headings, and as many cells in each row")
    return values | {"rows": [tuple(row) for row in rows]}

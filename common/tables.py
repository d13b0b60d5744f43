"""Renders a table of strings for the terminal, Markdown or LaTeX."""

import io
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from rich.box import ASCII, HEAVY_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

Rows = Sequence[Sequence[str]]
TableParts = tuple[str, Sequence[str], Rows, Sequence[str]]
"""Title, headings, rows and notes."""
LONGEST_NAME, LONGEST_NOTE = 60, 118
SHORTEST_NAME = 16
"""Width to which the first column of a table that is too wide is reduced, with its names on several lines."""
STYLES = {"▲": "green", "▼": "red", "✕": "red"}
"""First character of a cell -> its style in the terminal."""
PLAIN_MARKS = str.maketrans("▲▼○✕", "+-ox")
LATEX = str.maketrans(
    {letter: f"\\{letter}" for letter in "&%$#_{}"}
    | {letter: f"${letter}$" for letter in "<>|"}
    | {"▲": r"$\bigtriangleup$", "▼": r"$\bigtriangledown$", "○": r"$\circ$", "✕": r"$\times$", "↓": r"$\downarrow$"}
    | {"\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}"}
)


def terminal(title: str, headings: Sequence[str], rows: Rows, notes: Sequence[str]) -> str:
    """Returns a table of box-drawing characters. Cells are not wrapped, except long ones of the first column."""
    is_plain = "utf" not in (sys.stdout.encoding or "").lower()
    table = Table(box=ASCII if is_plain else HEAVY_HEAD)
    widths = _widths(headings, rows)
    for number, (heading, width) in enumerate(zip(headings, widths, strict=True)):
        justify: Literal["left", "right"] = "left" if number == 0 else "right"
        table.add_column(escape(heading), justify=justify, overflow="fold", width=width)
    for row in rows:
        table.add_row(*(Text(cell, STYLES.get(cell[:1], "")) for cell in row))
    limit = terminal_width() or LONGEST_NOTE
    console = Console(file=io.StringIO(), width=limit, force_terminal=sys.stdout.isatty() or None)
    console.print(Text(title, "bold"))
    console.width = table_width(widths)
    console.print(table)
    console.width = limit
    for note in notes:
        console.print(note, markup=False, highlight=False)
    shown = console.file
    text = shown.getvalue() if isinstance(shown, io.StringIO) else ""
    return text.translate(PLAIN_MARKS) if is_plain else text


def terminal_width() -> int | None:
    """Returns the number of columns of the terminal, or COLUMNS of the environment; None in a file or pipe."""
    if os.environ.get("COLUMNS") or sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    return None


def _widths(headings: Sequence[str], rows: Rows) -> list[int]:
    """Returns the width of each column: without a line break, as far as the terminal allows it."""
    limit, widths = terminal_width(), least_widths(headings, rows)
    for index, heading in enumerate(headings):
        whole = max(len(heading), *(len(row[index]) for row in rows)) if rows else len(heading)
        if limit is None or table_width([*widths[:index], whole, *widths[index + 1 :]]) <= limit:
            widths[index] = whole
    excess = 0 if limit is None else table_width(widths) - limit
    return [max(widths[0] - max(excess, 0), min(widths[0], SHORTEST_NAME)), *widths[1:]]


def least_widths(headings: Sequence[str], rows: Rows) -> list[int]:
    """Returns the width of each column below which a cell, or a word of a heading, would be broken.

    A cell of the first column may be broken after ``LONGEST_NAME`` characters.
    """
    widths = [
        max(*(len(row[index]) for row in rows), *map(len, heading.split() or [""])) if rows else len(heading)
        for index, heading in enumerate(headings)
    ]
    return [min(widths[0], LONGEST_NAME), *widths[1:]]


def table_width(widths: Sequence[int]) -> int:
    """Returns the width of a table in the terminal, with borders, from those of its columns."""
    return sum(widths) + 3 * len(widths) + 1


def markdown(title: str, headings: Sequence[str], rows: Rows, notes: Sequence[str]) -> str:
    """Returns a Markdown table."""
    lines = [f"**{title}**", "", _pipes(headings), _pipes(["---", *["---:"] * (len(headings) - 1)])]
    lines += [_pipes(row) for row in rows]
    return "\n".join([*lines, "", *(f"- {note}" for note in notes), ""])


def _pipes(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def latex(title: str, headings: Sequence[str], rows: Rows, notes: Sequence[str]) -> str:
    """Returns a LaTeX tabular, with its notes as comments."""
    lines = [f"% {title}", rf"\begin{{tabular}}{{l{'r' * (len(headings) - 1)}}}", r"\hline"]
    lines += [_ampersands(headings), r"\hline", *map(_ampersands, rows)]
    return "\n".join([*lines, r"\hline", r"\end{tabular}", *(f"% {note}" for note in notes), ""])


def _ampersands(cells: Sequence[str]) -> str:
    line = " & ".join(cell.translate(LATEX) for cell in cells)
    return ("{}" if line[:1] in ("[", "*") else "") + line + r" \\"  # "{}": else read as an argument of the previous \\


RENDERERS: Mapping[str, Callable[[str, Sequence[str], Rows, Sequence[str]], str]] = MappingProxyType(
    {"terminal": terminal, "markdown": markdown, "latex": latex}
)


def render(title: str, headings: Sequence[str], rows: Rows, notes: Sequence[str], form: str) -> str:
    """Returns the table in one of the formats of ``RENDERERS``."""
    return RENDERERS[form](title, headings, rows, notes)

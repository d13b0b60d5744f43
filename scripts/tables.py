"""Renders a table of strings for the terminal, Markdown or LaTeX."""

import io
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from rich.box import ASCII, HEAVY_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

Rows = Sequence[Sequence[str]]
LATEX = str.maketrans(
    {letter: f"\\{letter}" for letter in "&%$#_{}"}
    | {letter: f"${letter}$" for letter in "<>|"}
    | {"\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}"}
)


def terminal(title: str, headings: Sequence[str], rows: Rows, notes: Sequence[str]) -> str:
    """Returns a table of box-drawing characters, as wide as the terminal."""
    box = HEAVY_HEAD if "utf" in (sys.stdout.encoding or "").lower() else ASCII
    table = Table(title=escape(title), title_justify="left", title_style="bold", box=box)
    for number, heading in enumerate(headings):
        table.add_column(escape(heading), justify="left" if number == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    console = Console(file=io.StringIO(), width=max(Console().width, 118))
    console.print(table)
    for note in notes:
        console.print(note, markup=False, highlight=False)
    shown = console.file
    return shown.getvalue() if isinstance(shown, io.StringIO) else ""


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

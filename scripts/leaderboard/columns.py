"""Chooses the columns of a table: those that fit the terminal, or those named by ``--columns``."""

from collections.abc import Sequence

from seqarena.common.errors import look_up
from seqarena.common.tables import least_widths, table_width, terminal_width

Columns = tuple[list[str], list[list[str]]]
"""Headings and rows."""
DROPPED_FIRST = ("memory /", "parameters", "sd", "p (Holm)", "time /", "seeds", "solved")
"""Start of the headings of columns in the order in which a narrow terminal drops them, after secondary metrics."""
FIRST_WORDS = ("vs", "p", "time", "memory")
"""Headings that are named by their first word."""
KEPT = ("variant", "mean", "vs ")


def fitting(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[Columns, list[str]]:
    """Returns the columns that fit the terminal, and the headings of the dropped ones."""
    width, kept = terminal_width(), list(headings)
    secondary = [each for each in headings if not each.startswith((*DROPPED_FIRST, *KEPT))]
    candidates = [*reversed(secondary), *(each for some in DROPPED_FIRST for each in headings if each.startswith(some))]
    while width is not None and candidates and _width(headings, rows, kept) > width:
        kept.remove(candidates.pop(0))
    return only(headings, rows, kept), [each for each in headings if each not in kept]


def only(headings: Sequence[str], rows: Sequence[Sequence[str]], wanted: Sequence[str]) -> Columns:
    """Returns the columns with the headings ``wanted``."""
    indices = [headings.index(each) for each in wanted]
    return list(wanted), [[row[index] for index in indices] for row in rows]


def named(headings: Sequence[str], names: Sequence[str]) -> list[str]:
    """Returns the headings that the user names, after the variant's.

    Raises:
        WrongUseError: a name is no heading.
    """
    by_name = {each if each.split()[0] not in FIRST_WORDS else each.split()[0]: each for each in headings[1:]}
    return [headings[0], *(look_up(by_name, name, "column") for name in names)]


def blocks(headings: Sequence[str], rows: Sequence[Sequence[str]], fixed: int) -> list[Columns]:
    """Returns a table as blocks of columns that fit the terminal; the first ``fixed`` columns start each block."""
    width, start = terminal_width(), list(range(fixed))
    found: list[list[int]] = [[*start]]
    for index in range(fixed, len(headings)):
        some = [*found[-1], index]
        own = [row for row in rows if any(row[each] for each in some[fixed:])]  # the others are not in this block
        is_full = width is not None and _width(headings, own, [headings[each] for each in some]) > width
        if is_full and len(found[-1]) > fixed:
            found.append([*start])
        found[-1].append(index)
    return [only(headings, rows, [headings[each] for each in some]) for some in found]


def _width(headings: Sequence[str], rows: Sequence[Sequence[str]], kept: Sequence[str]) -> int:
    return table_width(least_widths(*only(headings, rows, kept)))

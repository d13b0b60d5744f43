"""What a person did wrong, said in one sentence they can act on."""

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

Entry = TypeVar("Entry")


class WrongUseError(Exception):
    """A command, a name or a setting that cannot be meant; the command line ends with exit code 2.

    Not a ``ValueError``: those are what parsers swallow and rephrase.
    """


class BadDataError(ValueError):
    """A file whose content is not what its format promises; names the file and the line."""


def nearest(name: str, choices: Iterable[str]) -> str:
    """Returns ``did you mean 'dnas'?`` if something is near, and the choices in either case."""
    choices = sorted(choices)
    close = difflib.get_close_matches(name, choices, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(repr(match) for match in close)}? " if close else ""
    return f"{hint}choices: {', '.join(choices)}"


def look_up(table: Mapping[str, Entry], name: str, kind: str) -> Entry:
    """Returns the entry of a table by its name.

    Raises:
        WrongUseError: no such entry; names the nearest ones.
    """
    if name not in table:
        raise WrongUseError(f"unknown {kind} {name!r}; {nearest(name, table)}")
    return table[name]

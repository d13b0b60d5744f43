"""The parser of every command, in a file that imports nothing slow."""

import argparse
import functools
import re
import shutil
import sys
import textwrap
from typing import Any, NoReturn

from seqarena.common.errors import WrongUseError, nearest


def whole_number(text: str) -> int:
    """Returns an integer; the error for other text says what was expected and found."""
    try:
        return int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected a whole number, found {text!r}") from error


def number(text: str) -> float:
    """Returns a float; the error for other text says what was expected and found."""
    try:
        return float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected a number, found {text!r}") from error


def fit_to_terminal(text: str) -> str:
    """Returns a text whose longer lines are broken to fit the terminal; unchanged in a file or pipe.

    A line goes on below its own beginning, or below the beginning of its second column.
    """
    width = shutil.get_terminal_size(fallback=(sys.maxsize, 24)).columns
    return "\n".join(line if len(line) <= width else _break_line(line, width) for line in text.split("\n"))


def _break_line(line: str, width: int) -> str:
    columns = re.match(r" *\S+(?: \S+)? {2,}| +\S{14,} (?=\S)| *", line)
    assert columns is not None
    start = columns[0]
    return textwrap.fill(
        line[len(start) :], width, initial_indent=start, subsequent_indent=" " * len(start), break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


class Parser(argparse.ArgumentParser):
    """Argument parser that reports an error in one line and accepts no abbreviated options."""

    def __init__(self, description: str | None = None, **settings: Any) -> None:
        formatter = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=36)
        plain = (description or "").replace("``", "")  # of a docstring
        super().__init__(description=plain, allow_abbrev=False, formatter_class=formatter, **settings)
        self.register("type", int, whole_number)
        self.register("type", float, number)

    def format_help(self) -> str:
        """Returns the help, with lines that fit the terminal."""
        text = super().format_help()
        if self.description and shutil.get_terminal_size(fallback=(0, 0)).columns:
            text = text.replace(self.description, re.sub(r"(?<=\S)\n(?=[^\s-])", " ", self.description))
        return fit_to_terminal(text)

    def error(self, message: str) -> NoReturn:
        """Raises a ``WrongUseError`` with argparse's message in the words of this project."""
        message = re.sub(
            r"invalid choice: (.+) \(choose from (.+)\)$",
            lambda found: f"expected one of {found[2].replace(chr(39), '')}, found {found[1]}",
            message.removeprefix("argument "),
        )
        message = re.sub(r": expected (one|at least one) argument$", r": expected \1 value, found none", message)
        message = re.sub(r"^the following arguments are required: (.+)$", r"\1: expected a value, found none", message)
        extra = message.removeprefix("unrecognized arguments: ")
        if extra != message and not extra.startswith("-") and "--runs" in self._option_string_actions:
            message = f"unexpected {extra}; the folder of runs is named by --runs {extra}"
        elif extra != message and extra.startswith("--"):
            option = extra.split()[0].partition("=")[0]
            # Without the dashes, which would make all options similar.
            names = [each[2:] for each in self._option_string_actions if each.startswith("--")]
            similar = nearest(option[2:], names)
            message = f"unknown option {option}" + (similar and f"; {similar.replace('nearest: ', 'nearest: --')}")
        raise WrongUseError(f"{message}; see {self.prog} --help")


def at_least_one(options: argparse.Namespace, name: str) -> None:
    """Raises a ``WrongUseError`` if an option is a number below 1."""
    if getattr(options, name) < 1:
        raise WrongUseError(f"--{name}: expected at least 1, found {getattr(options, name)}")

"""Errors caused by the user or the machine, and how the command line reports them: one sentence, with advice."""

import contextlib
import difflib
import errno
import io
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from seqarena.common.memory import keep_freed_memory

Entry = TypeVar("Entry")
CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Characters that move a terminal's cursor, break a line, or change the direction of writing."""
MAX_DEPTH = 40
"""Maximum number of nested levels in a file read by this project."""


MACHINE_ERRORS: Mapping[int | None, str] = MappingProxyType(
    {
        errno.EMFILE: "too many open files; raise the limit of this process (ulimit -n)",
        errno.ENFILE: "too many open files on this machine",
        errno.ENOMEM: "out of memory",
        errno.ENOSPC: "no space left on the device; make room and run again",
        errno.EDQUOT: "the quota of this disk is used up; make room and run again",
        errno.EACCES: "no permission",
        errno.EPERM: "no permission",
        errno.EIO: "the device could not read or write; see the system log",
    }
)
"""Message of each system error that is unrelated to a file's content."""


SHORT_WRITE = re.compile(r"\d+ requested and \d+ written")
"""Message of NumPy for an array that did not fit on the disk; it has no error number."""


OUT_OF_MEMORY = re.compile("DefaultCPUAllocator: |CUDA out of memory|Storage size calculation overflowed")
"""Messages of PyTorch for tensors that do not fit into memory; these errors have no class of their own."""
SMALLER = (
    "make the batch, the sequences or the model smaller; --train.micro-batch-size computes a part of the batch at "
    "once, and seqarena benchmark step says what a step needs"
)


class WrongUseError(Exception):
    """An invalid command, name or setting; the command line ends with exit code 2.

    Not a ``ValueError``, because parsers catch and rephrase those.
    """


class InUseError(WrongUseError):
    """A run directory that is in use by another process."""


class BadDataError(ValueError):
    """A file whose content does not match its format. The message names the file and the line."""


def printable(values: Any, depth: int = MAX_DEPTH) -> Any:
    """Returns plain values with line breaks in strings replaced by spaces, and other control characters by U+FFFD.

    Raises:
        ValueError: the values are nested more than ``depth`` levels deep.
    """
    if isinstance(values, str):
        return CONTROLS.sub(lambda found: " " if found.group().isspace() else "\N{REPLACEMENT CHARACTER}", values)
    if not isinstance(values, dict | list):
        return values
    if depth == 0:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
    if isinstance(values, dict):
        return {printable(name): printable(value, depth - 1) for name, value in values.items()}
    if set(map(type, values)) <= {float, int}:  # thousands of scores
        return values
    return [printable(value, depth - 1) for value in values]


def machine_error(error: Exception, where: object) -> OSError | None:
    """Returns a readable ``OSError`` with a file's name for an error of the machine; None for any other error."""
    if not isinstance(error, OSError):
        return None
    number = error.errno
    if number is None and SHORT_WRITE.search(str(error)):
        number = errno.ENOSPC
    if number not in MACHINE_ERRORS:
        return None
    return OSError(number, MACHINE_ERRORS[number], error.filename or str(where))


@contextlib.contextmanager
def damage(where: object, kind: str, advice: str = "") -> Iterator[None]:
    """Converts any error that a library raises while it reads a file into one that names the file.

    Raises:
        BadDataError: the file does not exist, is damaged or of another kind. The message ends with ``advice``.
        OSError: the machine could not read or write the file.
    """
    try:
        yield
    except (BadDataError, WrongUseError):
        raise
    except Exception as error:
        if isinstance(error, FileNotFoundError) and str(error.filename or where) == str(where):
            raise BadDataError(f"{where} does not exist; expected: {kind}") from error
        machine = machine_error(error, where)
        if machine is not None:
            raise machine from error
        reason = str(error) or type(error).__name__
        raise BadDataError(f"{where}: not a whole {kind} ({reason}){advice and f'; {advice}'}") from error


@contextlib.contextmanager
def named_by(option: str, path: str, kind: str) -> Iterator[Path]:
    """Yields a path that the user set by an option, such as ``--data.path``, for the code that reads it.

    Raises:
        BadDataError: the path does not exist, or the code inside the context found it damaged. The message begins with
            the option.
    """
    if not Path(path).exists():
        raise BadDataError(f"{option}: {path} does not exist; expected {kind}")
    try:
        yield Path(path)
    except BadDataError as error:
        raise BadDataError(f"{option}: {error}") from error


def short_list(names: Iterable[str], most: int = 3) -> str:
    """Returns the first names as text, with the number of further ones."""
    first = list(names)
    rest = f" and {len(first) - most} more" if len(first) > most else ""
    return ", ".join(first[:most]) + rest


def nearest(name: str, choices: Iterable[str]) -> str:
    """Returns ``nearest: dnas``, the most similar choice, or an empty string if no choice is similar.

    A longer name that begins with a choice, such as ``prenorm``, means this choice.
    """
    known = sorted(choices)
    begun = [each for each in known if len(each) > 2 and name.startswith(each)]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.8) or sorted(begun, key=len)[-1:]
    close = close or difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"nearest: {close[0]}" if close else ""


def suggestion(name: str, choices: Iterable[str]) -> str:
    """Returns ``nearest: dnas``, or all choices if none is similar."""
    return nearest(name, choices) or f"choices: {', '.join(sorted(choices))}"


def look_up(table: Mapping[str, Entry], name: str, kind: str, of: str = "") -> Entry:
    """Returns the table's entry of a name. Messages read ``unknown preset 'quik'; nearest: quick``.

    Raises:
        WrongUseError: no such entry. The message suggests the most similar name, or lists all.
    """
    if name not in table:
        raise WrongUseError(f"unknown {kind} {name!r}{of and f' of {of}'}; {suggestion(name, table)}")
    return table[name]


def require_distinct(ids: Sequence[Entry], what: str) -> set[Entry]:
    """Returns ids as a set.

    Raises:
        WrongUseError: an id occurs twice.
    """
    known = set(ids)
    if len(known) < len(ids):
        twice = next(each for each in ids if ids.count(each) > 1)
        raise WrongUseError(f"{what}: expected every id once, {printable(twice)} occurs twice")
    return known


@contextlib.contextmanager
def interrupt_advice(advice: Callable[[], str]) -> Iterator[None]:
    """Adds advice to a ``KeyboardInterrupt``, which ``run_command`` prints."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(advice())
        raise


def _format_error(error: Exception) -> str:
    """Returns the message to print, as one line; control characters quoted from a file or an option are replaced."""
    text: str = printable(f"seqarena: {error}")
    return text


def run_command(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Runs a command, prints its error if any, and returns the exit code: 0 success, 2 wrong use, 1 other errors.

    Every process of the command line begins here. It therefore sets how the process allocates memory.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed, as by `2>&-`: errors could end up in another file
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # open until the process ends
    keep_freed_memory()
    code = _run_command(command, arguments)
    try:
        sys.stdout.flush()  # otherwise Python flushes at exit and prints an obscure error
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # the reader, such as `head`, has stopped reading: no error
            code = code or 1
            print(_format_error(OSError(f"standard output: {error.strerror}")), file=sys.stderr)
    return code


def _run_command(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # under an ASCII locale other letters become question marks
            stream.reconfigure(errors="replace")
    try:
        return command(arguments)
    except WrongUseError as error:
        print(_format_error(error), file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        advice = getattr(error, "__notes__", [])[-1:]  # of the command that was typed, not of a run in it
        print("; ".join(["seqarena: interrupted", *advice]), file=sys.stderr)
    except BrokenPipeError:
        return 0
    except (BadDataError, OSError) as error:
        print(_format_error(error), file=sys.stderr)
    except Exception as error:
        if isinstance(error, MemoryError) or OUT_OF_MEMORY.search(str(error)):
            print(_format_error(OSError(f"out of memory ({str(error) or 'no details'}); {SMALLER}")), file=sys.stderr)
        else:  # a defect of this project: the traceback is needed for a report
            traceback.print_exc()
    return 1

"""Errors of whoever runs a command, each in one sentence that says what to do."""

import contextlib
import difflib
import errno
import io
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

Entry = TypeVar("Entry")
CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Characters that move a terminal's cursor, break a line, or change the direction of writing."""
DEEPEST = 40
"""Levels of nesting in a file of ours."""


MACHINE: Mapping[int | None, str] = MappingProxyType(
    {
        errno.EMFILE: "too many open files; raise the limit of this process (ulimit -n)",
        errno.ENFILE: "too many open files on this machine",
        errno.ENOMEM: "out of memory",
        errno.ENOSPC: "no space left on the device; make room and run again",
        errno.EDQUOT: "the quota of this disk is used up; make room and run again",
        errno.EACCES: "no permission",
        errno.EPERM: "no permission",
        errno.EIO: "the device could not read or write; look into the system's log",
    }
)
"""Errors that say nothing of a file's content, in words."""


SHORT_WRITE = re.compile(r"\d+ requested and \d+ written")
"""All that NumPy says of an array that did not fit on the disk."""


OUT_OF_MEMORY = re.compile("DefaultCPUAllocator: |CUDA out of memory|Storage size calculation overflowed")
"""What PyTorch says, in errors of no class of their own, of tensors that do not fit."""
SMALLER = (
    "make the batch, the sequences or the model smaller; --train.micro-batch-size computes a part of the batch at "
    "once, and seqarena benchmark step says what a step needs"
)


class WrongUseError(Exception):
    """A command, a name or a setting that cannot be meant; the command line ends with exit code 2.

    Not a ``ValueError``: those are what parsers swallow and rephrase.
    """


class InUseError(WrongUseError):
    """A run directory in which another process is running."""


class BadDataError(ValueError):
    """A file whose content is not what its format promises; names the file and the line."""


def printable(values: Any, depth: int = DEEPEST) -> Any:
    """Returns plain values of a foreign file, in whose text line breaks are spaces and other controls are U+FFFD.

    Raises:
        ValueError: values that are nested more than ``depth`` levels deep.
    """
    if isinstance(values, str):
        return CONTROLS.sub(lambda found: " " if found.group().isspace() else "\N{REPLACEMENT CHARACTER}", values)
    if not isinstance(values, dict | list):
        return values
    if depth == 0:
        raise ValueError(f"nested more than {DEEPEST} levels deep")
    if isinstance(values, dict):
        return {printable(name): printable(value, depth - 1) for name, value in values.items()}
    return [printable(value, depth - 1) for value in values]


def machine_error(error: Exception, where: object) -> OSError | None:
    """Returns an error of the machine, not of a file's content, in words and with a file's name; None: it is none."""
    if not isinstance(error, OSError):
        return None
    number = error.errno
    if number is None and SHORT_WRITE.search(str(error)):
        number = errno.ENOSPC
    if number not in MACHINE:
        return None
    return OSError(number, MACHINE[number], error.filename or str(where))


@contextlib.contextmanager
def damage(where: object, kind: str, advice: str = "") -> Iterator[None]:
    """Says of every error that a library raises which file it is of: each kind of damage has a class of its own.

    Raises:
        BadDataError: the file does not exist, or is no whole one of its kind; then it ends in ``advice``.
        OSError: the machine could not read or write it.
    """
    try:
        yield
    except (BadDataError, WrongUseError):
        raise
    except Exception as error:
        if isinstance(error, FileNotFoundError) and str(error.filename or where) == str(where):
            raise BadDataError(f"{where} does not exist; expected a {kind}") from error
        machine = machine_error(error, where)
        if machine is not None:
            raise machine from error
        reason = str(error) or type(error).__name__
        raise BadDataError(f"{where}: not a whole {kind} ({reason}){advice and f'; {advice}'}") from error


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Returns ``did you mean 'dnas'?``, or nothing if nothing is near."""
    close = difflib.get_close_matches(name, sorted(choices), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(repr(match) for match in close)}?" if close else ""


def nearest(name: str, choices: Iterable[str]) -> str:
    """Returns ``did you mean 'dnas'?`` if something is near, and the choices in either case."""
    choices = sorted(choices)
    return f"{did_you_mean(name, choices)} choices: {', '.join(choices)}".lstrip()


def look_up(table: Mapping[str, Entry], name: str, kind: str) -> Entry:
    """Returns the entry of a table by its name.

    Raises:
        WrongUseError: no such entry; names the nearest ones.
    """
    if name not in table:
        raise WrongUseError(f"unknown {kind} {name!r}; {nearest(name, table)}")
    return table[name]


@contextlib.contextmanager
def advising(advice: Callable[[], str]) -> Iterator[None]:
    """Adds to an interrupt what to do after it, for ``guarded`` to say."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(advice())
        raise


def _told(error: Exception) -> str:
    """Returns a message as one line; it may quote a foreign file, or an option's value."""
    text: str = printable(f"seqarena: {error}")
    return text


def guarded(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Runs a command and returns its exit code: 0 done, 2 wrong use, 1 anything else, each said in one message."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed, as by `2>&-`: errors would be printed among results or into a file
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # for as long as the process lives
    code = _guarded(command, arguments)
    try:
        sys.stdout.flush()  # Python would do so as it exits, and print an error that no one can read
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # whoever read it, `head` perhaps, has seen enough
            code = code or 1
            print(_told(OSError(f"standard output: {error.strerror}")), file=sys.stderr)
    return code


def _guarded(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # under an ASCII locale letters that it lacks become question marks
            stream.reconfigure(errors="replace")
    try:
        return command(arguments)
    except WrongUseError as error:
        print(_told(error), file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        advice = getattr(error, "__notes__", [])[-1:]  # of the command that was typed, not of a run in it
        print("; ".join(["seqarena: interrupted", *advice]), file=sys.stderr)
    except BrokenPipeError:
        return 0
    except (BadDataError, OSError) as error:
        print(_told(error), file=sys.stderr)
    except Exception as error:
        if isinstance(error, MemoryError) or OUT_OF_MEMORY.search(str(error)):
            print(_told(OSError(f"out of memory ({str(error) or 'no details'}); {SMALLER}")), file=sys.stderr)
        else:  # a defect of ours: whoever reports it needs the trace
            traceback.print_exc()
    return 1

"""Atomic writing of files and folders, and locks that are released when their process ends."""

import contextlib
import fcntl
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from io import BufferedRandom
from pathlib import Path
from typing import Any

from seqarena.common.errors import InUseError, machine_error

MAX_DIGITS = 20
"""Length of a 64-bit integer in decimal, sign included."""
LOCK = ".lock"
"""Lock file of a folder in which one process works at a time."""


def write_atomically(path: Path, write: Callable[[BufferedRandom], object], *, before: Path | None = None) -> None:
    """Writes a file atomically: ``path`` has either the old content or the complete new content, even after a crash.

    The old content is moved to the file ``before``, if given. A crash between the two renames leaves it there alone,
    and no ``path``: readers of such a pair then read ``before``. Processes that write the same file wait for each
    other. If ``path`` is a symbolic link, its target is written.

    Raises:
        OSError: the file could not be written (a full disk, a read-only folder, a device). The old file is unchanged.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise OSError(f"{path} is a folder, a pipe or a device; name a file to write")
    unfinished = target.with_name(f".{target.name}.unfinished")
    try:
        with open_locked(unfinished) as file:
            try:
                file.truncate()  # a killed process may have left content
                write(file)
                file.flush()
                os.fsync(file.fileno())
                if before is not None and target.exists():
                    os.replace(target, before)
                os.replace(unfinished, target)
            except BaseException:
                unfinished.unlink(missing_ok=True)
                raise
        sync_folder(target.parent)
    except (Exception, KeyboardInterrupt) as error:
        raise write_error(error, path) from error


@contextlib.contextmanager
def open_locked(path: Path) -> Iterator[BufferedRandom]:
    """Opens a file with an exclusive lock, and creates it if absent. Other processes wait.

    The holder of the lock may delete or rename the file; the next process then creates a new one. The lock is released
    when the process ends, however it ends.
    """
    while True:
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                is_current = path.stat().st_ino == os.fstat(file.fileno()).st_ino
            except FileNotFoundError:
                is_current = False
            if is_current:
                yield file
                return


def sync_folder(folder: Path) -> None:
    """Flushes a folder's entries to disk, so that new names survive a power failure, if the file system supports it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems do not sync folders
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_error(error: BaseException, path: Path) -> BaseException:
    """Returns the error to report for a failed write; torch and safetensors wrap the original one."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    if any(isinstance(each, KeyboardInterrupt) for each in causes):
        return KeyboardInterrupt()
    reason = next((each for each in causes if isinstance(each, OSError)), error)
    return OSError(f"could not write {path}: {reason}; the previous content is unchanged")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Names the file or folder in an error of writing it."""
    try:
        yield
    except OSError as error:
        raise write_error(error, path) from error


def paths_below(folder: Path) -> list[Path]:
    """Returns all files and folders below a folder, in the order of their names; links to folders are followed.

    Each folder is entered once: by its own name if it has one in ``folder``, else by the first link that leads to it.
    So a link to a folder above ends, and no file is listed twice because of a link to its folder.
    """
    found: list[Path] = []
    waiting, entered = [folder], set[str]()
    while waiting:
        links = []
        for parent, folders, files in os.walk(waiting.pop(0)):
            real = os.path.realpath(parent)
            if real in entered:
                folders.clear()
                continue
            entered.add(real)
            found += [Path(parent, name) for name in (*folders, *files)]
            links += [path for path in (Path(parent, name) for name in folders) if path.is_symlink()]
        waiting += sorted(links)
    return sorted(found)


def write_json(path: Path, values: Any) -> None:
    """Writes plain values as JSON, atomically."""
    text = json.dumps(values, indent=1, allow_nan=False) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))


def read_strict_json(path: Path) -> Any:
    """Returns the plain values in a JSON file from an untrusted source.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not valid JSON, contains NaN, infinities or huge integers, or is nested too deeply.
    """
    try:
        values = json.loads(path.read_bytes(), parse_constant=_refuse, parse_int=_integer)
        _require_finite(values)
        return values
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is not a number in JSON")


def _require_finite(values: Any) -> None:
    """Raises a ``ValueError`` for a number too large for a float, which the parser returns as infinity."""
    inner = list(values.values()) if isinstance(values, dict) else values if isinstance(values, list) else [values]
    if set(map(type, inner)) <= {float, int}:  # thousands of scores
        if not all(map(math.isfinite, inner)):
            raise ValueError("a number is too large for JSON")
    elif isinstance(values, dict | list):
        for each in inner:
            _require_finite(each)


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"{text[:10]}... has more than 64 bits")
    return int(text)


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path | None]:
    """Yields a temporary folder, which is renamed to ``folder`` once filled; yields None if ``folder`` exists.

    One process fills the folder at a time, and others wait. Remains of killed processes in the parent are deleted.
    """
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(folder.with_name(f".{folder.name}.lock")):
        shutil.rmtree(unfinished, ignore_errors=True)
        if folder.exists():
            yield None
            return
        _delete_unfinished(folder.parent)
        unfinished.mkdir()
        try:
            with _name_folder(folder):
                yield unfinished
            os.replace(unfinished, folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


@contextlib.contextmanager
def _name_folder(folder: Path) -> Iterator[None]:
    """Adds the folder's name to an error of the machine that names no file, such as a full disk."""
    try:
        yield
    except OSError as error:
        machine = machine_error(error, folder)
        if machine is None:
            raise
        raise machine from error


def _delete_unfinished(parent: Path) -> None:
    """Deletes the unfinished folders of killed processes, recognised by a lock that no process holds."""
    for unfinished in parent.glob(".*.unfinished"):
        lock = unfinished.with_name(f"{unfinished.stem}.lock")
        with (
            contextlib.suppress(OSError),
            lock.open("r+") as file,
        ):  # locked, or just deleted by the process that finished
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(unfinished, ignore_errors=True)
            lock.unlink(missing_ok=True)


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Acquires a lock, waiting if necessary; at the end deletes its file."""
    with open_locked(path):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Locks a run directory for this process. The lock is released when the process ends, however it ends.

    Raises:
        InUseError: another process uses the directory.
        OSError: the file system has no locks.
    """
    path = folder / LOCK
    with writing(path):
        path.touch()
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InUseError(f"{folder}: another process is running here; wait for it or choose --out") from error
        except OSError as error:  # as on network file systems that are mounted without locks
            raise OSError(f"{folder}: cannot be locked ({error.strerror}); choose a file system with locks") from error
        yield

"""Files and folders that are whole or absent whatever happens, and locks that go with their process."""

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

LONGEST_INTEGER = 20
"""Digits and sign of a number of 64 bits."""
LOCK = ".lock"
"""File of a folder that one process works in at a time."""


def write_atomically(path: Path, write: Callable[[BufferedRandom], object], *, before: Path | None = None) -> None:
    """Writes a file so that ``path`` holds the old content or the whole new one, whatever happens in between.

    ``before`` names the file that then holds the old content, if it is to be kept. Of several processes that write
    one file each waits for the one before. Where ``path`` is a link, the file that it leads to is written.

    Raises:
        OSError: it could not be written (a full disk, a read-only folder, a device); the old file is whole.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise OSError(f"{path} is a folder, a pipe or a device; name a file to write")
    unfinished = target.with_name(f".{target.name}.unfinished")
    try:
        with held(unfinished) as file:
            try:
                file.truncate()  # a kill may have left it
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
def held(path: Path) -> Iterator[BufferedRandom]:
    """Opens a file, made where there is none, that one process holds at a time; the others wait.

    Whoever holds it may delete or rename it: then the next one makes another. The lock goes with the process, however
    it ends.
    """
    while True:
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                is_there = path.stat().st_ino == os.fstat(file.fileno()).st_ino
            except FileNotFoundError:
                is_there = False
            if is_there:
                yield file
                return


def sync_folder(folder: Path) -> None:
    """Makes new names last through a power failure, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems do not sync folders
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_error(error: BaseException, path: Path) -> BaseException:
    """Returns what a failed write is to be reported as; torch and safetensors wrap what their file raises."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    if any(isinstance(each, KeyboardInterrupt) for each in causes):
        return KeyboardInterrupt()
    reason = next((each for each in causes if isinstance(each, OSError)), error)
    return OSError(f"could not write {path}: {reason}; what was there before is whole")


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
    """Returns the plain values in a JSON file, which may come from anybody.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no JSON, or holds what JSON has no word for (NaN, infinities), or is nested without end.
    """
    try:
        return json.loads(path.read_bytes(), parse_constant=_number, parse_float=_number, parse_int=_integer)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no number that JSON has")
    return value


def _integer(text: str) -> int:
    if len(text) > LONGEST_INTEGER:
        raise ValueError(f"{text[:10]}... is larger than any number of ours")
    return int(text)


@contextlib.contextmanager
def whole(folder: Path) -> Iterator[Path | None]:
    """Gives a folder to fill, which then becomes ``folder``: whole or not at all. None: another process made it.

    One process fills it at a time, and others wait for it. What killed ones left beside it is deleted.
    """
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _only_process(folder.with_name(f".{folder.name}.lock")):
        shutil.rmtree(unfinished, ignore_errors=True)
        if folder.exists():
            yield None
            return
        _sweep_up(folder.parent)
        unfinished.mkdir()
        try:
            with _named(folder):
                yield unfinished
            os.replace(unfinished, folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


@contextlib.contextmanager
def _named(folder: Path) -> Iterator[None]:
    """Names the folder in an error of the machine that names no file: a disk that is full."""
    try:
        yield
    except OSError as error:
        machine = machine_error(error, folder)
        if machine is None:
            raise
        raise machine from error


def _sweep_up(parent: Path) -> None:
    """Deletes what killed processes left of other folders: those whose locks nobody holds."""
    for unfinished in parent.glob(".*.unfinished"):
        lock = unfinished.with_name(f"{unfinished.stem}.lock")
        with contextlib.suppress(OSError), lock.open("r+") as file:  # held, or just deleted by whoever finished
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(unfinished, ignore_errors=True)
            lock.unlink(missing_ok=True)


@contextlib.contextmanager
def _only_process(path: Path) -> Iterator[None]:
    """Waits until no other process holds a lock, holds it, and deletes its file."""
    with held(path):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds a run directory for this process; the lock goes with the process, however it ends.

    Raises:
        InUseError: another process is running in the directory.
    """
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InUseError(f"{folder}: another process is running here; wait for it or choose --out") from error
        yield

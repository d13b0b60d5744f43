"""Files that are whole or absent: atomic writes, the restart state of a run, its weights."""

import contextlib
import fcntl
import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import safetensors.torch
import torch
from torch import nn

from common.errors import BadDataError, WrongUseError

LONGEST_INTEGER = 20
"""Digits and sign of a number of 64 bits."""


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Writes a file so that ``path`` holds the old content or the whole new one, whatever happens in between.

    Raises:
        OSError: it could not be written (a full disk, a read-only folder); the old file is whole.
    """
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        with unfinished.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except (Exception, KeyboardInterrupt) as error:
        unfinished.unlink(missing_ok=True)
        raise _said(error, path) from error


def _said(error: BaseException, path: Path) -> BaseException:
    """Returns what a failed write is to be reported as; torch and safetensors wrap what their file raises."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    if any(isinstance(each, KeyboardInterrupt) for each in causes):
        return KeyboardInterrupt()
    reason = next((each for each in causes if isinstance(each, OSError)), error)
    return OSError(f"could not write {path}: {reason}; what was there before is whole")


def write_json(path: Path, values: Any) -> None:
    """Writes plain values as JSON, atomically."""
    text = json.dumps(values, indent=1, allow_nan=False) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))


def read_json(path: Path) -> Any:
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


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Writes all that a restart needs into one file, atomically."""
    write_atomically(path, lambda file: torch.save(state, file))


def load_state(path: Path) -> dict[str, Any] | None:
    """Returns what ``save_state`` wrote, or None if nothing was.

    Raises:
        BadDataError: the file is damaged, or something else.
    """
    if not path.exists():
        return None
    try:
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises a different class for each kind of damage
        raise BadDataError(f"{path} is damaged ({error}); delete it to start this run again") from error
    if not isinstance(state, dict):
        raise BadDataError(f"{path} is no checkpoint but a {type(state).__name__}; delete it to start this run again")
    return state


def save_weights(path: Path, model: nn.Module) -> None:
    """Writes a model's weights as safetensors, atomically; tensors that are shared are stored once."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        safetensors.torch.save_model(model, str(unfinished))
        os.replace(unfinished, path)
    except (Exception, KeyboardInterrupt) as error:
        unfinished.unlink(missing_ok=True)
        raise _said(error, path) from error


def load_weights(path: Path, model: nn.Module) -> None:
    """Reads a model's weights from safetensors.

    Raises:
        BadDataError: the file is missing or damaged, or holds another model.
    """
    try:
        safetensors.torch.load_model(model, str(path))
    except Exception as error:  # safetensors' own error class is not importable from every version
        raise BadDataError(f"{path}: cannot be loaded ({error})") from error


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds a run directory for this process; the lock goes with the process, however it ends.

    Raises:
        WrongUseError: another process is running in the directory.
    """
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise WrongUseError(f"{folder}: another process is running here; wait for it or choose --out") from error
        yield

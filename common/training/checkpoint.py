"""Files that are whole or absent: atomic writes, the restart state of a run, its weights."""

import contextlib
import fcntl
import hashlib
import io
import json
import math
import os
from collections.abc import Callable, Iterator
from io import BufferedRandom
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from common.errors import BadDataError, InUseError, machine_error

LONGEST_INTEGER = 20
"""Digits and sign of a number of 64 bits."""
CHECKSUM_BYTES = 32
"""Length of the sha256 at the end of a restart state."""
NAMED_DIGITS = 16
"""Hex digits of the sha256 in the name of a weights file."""


def write_atomically(path: Path, write: Callable[[BufferedRandom], object], *, before: Path | None = None) -> None:
    """Writes a file so that ``path`` holds the old content or the whole new one, whatever happens in between.

    ``before`` names the file that then holds the old content, if it is to be kept.

    Raises:
        OSError: it could not be written (a full disk, a read-only folder); the old file is whole.
    """
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        with unfinished.open("w+b") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if before is not None and path.exists():
            os.replace(path, before)
        os.replace(unfinished, path)
        _sync_folder(path.parent)
    except (Exception, KeyboardInterrupt) as error:
        unfinished.unlink(missing_ok=True)
        raise _said(error, path) from error


def _sync_folder(folder: Path) -> None:
    """Makes new names last through a power failure, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems do not sync folders
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


def save_state(path: Path, state: dict[str, Any], *, before: Path | None = None) -> None:
    """Writes all that a restart needs and its checksum into one file, atomically; ``before`` gets the old file."""

    def write(file: BufferedRandom) -> None:
        torch.save(state, file)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").digest()
        file.seek(0, os.SEEK_END)
        file.write(digest)

    write_atomically(path, write, before=before)


def load_state(path: Path) -> dict[str, Any] | None:
    """Returns what ``save_state`` wrote, or None if nothing was.

    Raises:
        BadDataError: the file is damaged, or something else.
    """
    if not path.exists():
        return None
    try:
        content = memoryview(path.read_bytes())
        if hashlib.sha256(content[:-CHECKSUM_BYTES]).digest() != content[-CHECKSUM_BYTES:]:
            raise BadDataError(f"{path} is damaged, or of another version of seqarena: its checksum is wrong")
        state: Any = torch.load(io.BytesIO(content[:-CHECKSUM_BYTES]), map_location="cpu", weights_only=True)
    except BadDataError:
        raise
    except Exception as error:  # torch raises a different class for each kind of damage
        machine = machine_error(error, path)
        if machine is not None:
            raise machine from error
        raise BadDataError(f"{path} is damaged ({error})") from error
    if not isinstance(state, dict):
        raise BadDataError(f"{path} is no checkpoint but a {type(state).__name__}")
    return state


def save_weights(path: Path, model: nn.Module) -> Path:
    """Writes a model's weights as safetensors, atomically, and returns the file: its name ends in its checksum.

    It is whole on the disk when this returns: synced, read again, and compared with the model. Tensors that are
    shared are stored once.

    Raises:
        OSError: it could not be written, or is not what was written.
    """
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        safetensors.torch.save_model(model, str(unfinished))
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        _require_written(unfinished, model)
        named = path.with_name(f"{path.stem}-{digest[:NAMED_DIGITS]}{path.suffix}")
        os.replace(unfinished, named)
        _sync_folder(path.parent)
    except (Exception, KeyboardInterrupt) as error:
        unfinished.unlink(missing_ok=True)
        raise _said(error, path) from error
    return named


def _require_written(path: Path, model: nn.Module) -> None:
    """Raises an ``OSError`` if a weights file does not hold the bits of a model."""
    own = model.state_dict()
    for name, stored in safetensors.torch.load_file(str(path)).items():
        bits, expected = (each.detach().cpu().reshape(-1).contiguous() for each in (stored, own[name]))
        if not torch.equal(bits.view(torch.uint8), expected.view(torch.uint8)):  # a NaN is equal to itself, too
            raise OSError(f"{path}: {name} is not what was written; is the disk failing?")


def load_weights(path: Path, model: nn.Module) -> None:
    """Reads a model's weights from safetensors; of a file named by ``save_weights`` the checksum is verified.

    Raises:
        BadDataError: the file is missing or damaged, or holds another model.
    """
    verify_weights(path)
    try:
        safetensors.torch.load_model(model, str(path))
    except Exception as error:  # safetensors' own error class is not importable from every version
        raise BadDataError(f"{path}: cannot be loaded ({error})") from error


def verify_weights(path: Path) -> None:
    """Compares a weights file with the checksum in its name.

    Raises:
        BadDataError: it is missing or damaged, or has no checksum in its name.
    """
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BadDataError(f"{path}: cannot be loaded ({error.strerror})") from error
    if path.stem.rpartition("-")[2] != digest[:NAMED_DIGITS]:
        raise BadDataError(f"{path} is damaged: its bytes do not have the checksum in its name")


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds a run directory for this process; the lock goes with the process, however it ends.

    Raises:
        InUseError: another process is running in the directory.
    """
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InUseError(f"{folder}: another process is running here; wait for it or choose --out") from error
        yield

"""Restart state and weights of a run, in files with checksums."""

import hashlib
import io
import os
from io import BufferedRandom
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from seqarena.common.errors import BadDataError, machine_error
from seqarena.common.files import sync_folder, write_atomically, write_error

CHECKSUM_BYTES = 32
"""Length of the sha256 at the end of a restart state."""
NAMED_DIGITS = 16
"""Number of hex digits of the sha256 in the name of a weights file."""


def save_state(path: Path, state: dict[str, Any], *, before: Path | None = None) -> None:
    """Writes a restart state and its checksum into one file, atomically. The old file is moved to ``before``."""

    def write(file: BufferedRandom) -> None:
        torch.save(state, file)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").digest()
        file.seek(0, os.SEEK_END)
        file.write(digest)

    write_atomically(path, write, before=before)


def load_state(path: Path) -> dict[str, Any] | None:
    """Returns the state that ``save_state`` wrote, or None without a file.

    Raises:
        BadDataError: the file is damaged, or is not a checkpoint.
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
        raise BadDataError(f"{path}: expected a checkpoint, found a {type(state).__name__}")
    return state


def save_weights(path: Path, model: nn.Module) -> Path:
    """Writes a model's weights as safetensors, atomically, and returns the path, which ends in the checksum.

    On return the file is complete on the disk: synced, read again, and compared with the model. Shared tensors are
    stored once.

    Raises:
        OSError: the file could not be written, or differs from the model.
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
        sync_folder(path.parent)
    except (Exception, KeyboardInterrupt) as error:
        unfinished.unlink(missing_ok=True)
        raise write_error(error, path) from error
    return named


def _require_written(path: Path, model: nn.Module) -> None:
    """Raises an ``OSError`` if a weights file does not contain the bits of a model."""
    own = model.state_dict()
    for name, stored in safetensors.torch.load_file(str(path)).items():
        bits, expected = (each.detach().cpu().reshape(-1).contiguous() for each in (stored, own[name]))
        if not torch.equal(bits.view(torch.uint8), expected.view(torch.uint8)):  # as bits, so that NaNs compare equal
            raise OSError(f"{path}: {name} differs from the data written; check the disk")


def load_weights(path: Path, model: nn.Module) -> None:
    """Reads a model's weights from a safetensors file, after verifying its checksum.

    Raises:
        BadDataError: the file is missing, damaged or of another model.
    """
    verify_weights(path)
    try:
        safetensors.torch.load_model(model, str(path))
    except Exception as error:  # safetensors' own error class is not importable from every version
        raise BadDataError(f"{path}: cannot be loaded ({error})") from error


def verify_weights(path: Path) -> None:
    """Compares a weights file with the checksum in its name.

    Raises:
        BadDataError: the file is missing or damaged, or has no checksum in its name.
    """
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BadDataError(f"{path}: cannot be loaded ({error.strerror})") from error
    if path.stem.rpartition("-")[2] != digest[:NAMED_DIGITS]:
        raise BadDataError(f"{path} is damaged: its bytes do not have the checksum in its name")

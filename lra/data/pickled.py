"""Safe reader of CIFAR-10's pickled batches.

Files get no access to numpy's classes, whose pickled state can corrupt memory.
"""

import io
import pickle
import pickletools
from typing import Any

import numpy as np

from seqarena.common.data.batches import Bytes

OPERATIONS = frozenset(
    "PROTO FRAME STOP MARK GLOBAL STACK_GLOBAL REDUCE BUILD NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 "
    "SHORT_BINSTRING BINSTRING SHORT_BINBYTES BINBYTES BINBYTES8 SHORT_BINUNICODE BINUNICODE BINUNICODE8 "
    "EMPTY_DICT SETITEM SETITEMS EMPTY_LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 "
    "BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET".split()
)
"""Opcodes needed to pickle dicts of arrays, lists of numbers and strings, in protocol 2 and later."""
MOST = 1_000_000
"""Maximum number of operations, and upper limit of memo indices."""
DEEPEST = 50
"""Maximum number of tuples, lists and dicts. A batch has fewer than ten; nested tuples could exhaust the stack."""


class _StandIn:
    """Replacement for a class or function of numpy that only stores the pickled state.

    Every replacement defines ``__setstate__``. Otherwise the opcode BUILD would set attributes on it, and they would
    persist for later files.
    """

    state: Any = None

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Type(_StandIn):
    """Replacement for numpy.dtype. The state (byte order and flags) is ignored."""

    def __init__(self, name: Any = None, *_: object) -> None:
        self.name = name.decode("ascii", "replace") if isinstance(name, bytes) else name


class _Array(_StandIn):
    """Replacement for numpy.ndarray."""

    def __init__(self, *_: object) -> None:
        """Ignores the constructor's arguments."""


class _Encode(_StandIn):
    """Replacement for codecs.encode: Python 3 pickles bytes as text in protocol 2."""

    def __new__(cls, text: str, *_: object) -> bytes:  # type: ignore[misc]
        """Returns the encoded bytes."""
        return text.encode("latin-1")


STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _Encode,
}


class _Batch(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in STAND_INS:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which CIFAR-10's batches do not use")
        return STAND_INS[module, name]


def read_batch(content: bytes) -> tuple[Bytes, Bytes]:
    """Returns the images (count, 3072) and labels (count) of a batch.

    Raises:
        ValueError: the content is not a batch. The message names the reason.
    """
    try:
        _require_plain(content)
        values = _Batch(io.BytesIO(content), encoding="bytes").load()
        images, labels = _bytes_of(values[b"data"]), values[b"labels"]
    except (pickle.UnpicklingError, KeyError, TypeError, ValueError, EOFError, IndexError, AttributeError,
            OverflowError, MemoryError) as error:  # fmt: skip
        raise ValueError(str(error) or type(error).__name__) from error
    if isinstance(labels, _Array):
        return images, _bytes_of(labels)
    if not isinstance(labels, list) or not all(type(each) is int and 0 <= each < 256 for each in labels):
        raise ValueError("expected labels as a list of integers from 0 to 255")
    return images, np.array(labels, np.uint8)


def _require_plain(content: bytes) -> None:
    """Raises a ``ValueError`` for opcodes that a batch does not need, or too many operations."""
    containers = 0
    for number, (operation, argument, _) in enumerate(pickletools.genops(content)):
        name = operation.name
        if name not in OPERATIONS:
            raise ValueError(f"it contains the opcode {name}, which CIFAR-10's batches do not use")
        containers += "TUPLE" in name or name in ("EMPTY_DICT", "EMPTY_LIST")
        is_huge = isinstance(argument, int) and argument >= MOST and ("PUT" in name or "GET" in name)
        if number >= MOST or is_huge or containers > DEEPEST:
            raise ValueError("it contains more operations than a CIFAR-10 batch can have")


def _bytes_of(array: Any) -> Bytes:
    """Returns the array that a replacement's state describes."""
    if not isinstance(array, _Array):
        raise ValueError(f"expected an array, found {type(array).__name__}")
    _, shape, kind, is_transposed, content = array.state
    if not isinstance(kind, _Type) or kind.name not in ("u1", "uint8") or not isinstance(content, bytes):
        raise ValueError("expected an array of bytes (uint8)")
    if not all(type(each) is int for each in shape):
        raise ValueError("expected an array shape of integers")
    return np.frombuffer(content, np.uint8).reshape(shape, order="F" if is_transposed else "C")

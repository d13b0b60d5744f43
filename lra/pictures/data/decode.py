"""Decodes picture files in worker processes."""

import contextlib
import hashlib
import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from seqarena.common.data.batches import Bytes
from seqarena.common.errors import BadDataError, damage
from seqarena.common.training.log import with_progress
from seqarena.common.training.workers import map_ahead, worker_processes
from seqarena.lra.data.pixels import open_picture
from seqarena.lra.pictures.data.store import KEY, Picture

FEW = 2_000
"""Up to this number of pictures, decoding takes less time than starting worker processes."""
GROUP = 16
"""Number of pictures that a worker process decodes at a time."""
CORES = os.cpu_count() or 1
GREY = frozenset({"1", "L", "LA"})
"""Modes of pictures without colour."""
DEEP = ("I", "F")
"""First letters of modes with more than 8 bits per value, which Pillow would clip."""


class PictureFile(NamedTuple):
    """The content of a picture file."""

    where: str
    """Name of the file, for messages."""
    content: bytes
    label: int


class DecodedPicture(NamedTuple):
    """A decoded picture, and whether its file was grey."""

    pixels: npt.NDArray[np.uint8]
    is_grey: bool


def decode(file: PictureFile, *, shorter: int | None, side: int | None) -> DecodedPicture:
    """Returns the pixels of a file in colour. Grey pictures get three equal channels.

    ``shorter``: length of the shorter side, to which a picture is resized. ``side``: expected rows and columns.

    Raises:
        BadDataError: the file is damaged, or has another size than expected.
    """
    with damage(file.where, "picture"):
        try:
            picture = open_picture(file.content)
        except UnidentifiedImageError:
            raise BadDataError(f"{file.where}: not a picture of a format that Pillow reads") from None
        if picture.mode.startswith(DEEP):
            raise BadDataError(f"{file.where}: expected 8 bits per value, found mode {picture.mode}")
        is_grey = picture.mode in GREY
        colour = picture.convert("RGB")
    if side is not None and colour.size != (side, side):
        columns, rows = colour.size
        raise BadDataError(f"{file.where}: expected {side} x {side} pixels, found {rows} x {columns}")
    if shorter is not None:
        scale = shorter / min(colour.size)
        columns, rows = (max(shorter, round(length * scale)) for length in colour.size)
        colour = colour.resize((columns, rows), Image.Resampling.BICUBIC)
    return DecodedPicture(np.asarray(colour, np.uint8), is_grey)


def decoded(
    files: Iterable[PictureFile], count: int, name: str, *, shorter: int | None = None, side: int | None = None
) -> Iterator[Picture]:
    """Yields the pictures of ``count`` files, in their order. Their keys are hashes of the files.

    Many files are decoded in worker processes, one per core. If some pictures are grey, one line says so.

    Raises:
        BadDataError: see ``decode``.
        OSError: a worker process was killed.
    """
    grey, first = 0, ""
    work, groups = partial(_decode, shorter=shorter, side=side), _groups(files)
    with _pool(count) as pool:
        found = map(work, groups) if pool is None else map_ahead(pool, work, groups, 4 * CORES)
        pictures = itertools.chain.from_iterable(found)
        for where, key, label, pixels, is_grey in with_progress(pictures, f"{name}: decoding", count):
            if is_grey:
                grey, first = grey + 1, first or where
            yield Picture(key=key, label=label, pixels=pixels)
    if grey:
        print(f"{name}: grey pictures, stored with three equal channels: {grey:,}, first {first}", file=sys.stderr)


def _groups(files: Iterable[PictureFile]) -> Iterator[list[PictureFile]]:
    stream = iter(files)
    return iter(lambda: list(itertools.islice(stream, GROUP)), [])


def _decode(
    files: Sequence[PictureFile], *, shorter: int | None, side: int | None
) -> list[tuple[str, bytes, int, Bytes, bool]]:
    found = []
    for file in files:
        pixels, is_grey = decode(file, shorter=shorter, side=side)
        found.append((file.where, hashlib.blake2b(file.content, digest_size=KEY).digest(), file.label, pixels, is_grey))
    return found


def _pool(count: int) -> contextlib.AbstractContextManager[Executor | None]:
    return contextlib.nullcontext() if count <= FEW else worker_processes(CORES)

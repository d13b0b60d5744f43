"""Folders of a detector's regions in all pictures of a split, memory-mapped and identified by a checksum.

``header.json`` has the detector, the numbers of pictures and boxes, and the checksum. The arrays, with one row per
picture, are ``features.npy`` (pictures boxes width, float16), ``boxes.npy`` (pictures boxes 4, float32: x1 y1 x2 y2 as
fractions of the picture), ``counts.npy``, ``sizes.npy`` (width and height in pixels) and ``ids.npy``.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.format import open_memmap

from seqarena.common.errors import BadDataError, WrongUseError, damage
from seqarena.common.files import lock_folder, paths_below, write_json
from seqarena.common.training.log import with_progress

VERSION = 1
LARGEST = 65_504.0
"""Largest number in float16."""
ARRAYS = {"features": "<f2", "boxes": "<f4", "counts": "<i4", "sizes": "<i4", "ids": "<i8"}
SAVED_EVERY = 2_000
"""Number of pictures between saves of the state, from which an interrupted conversion continues."""


@dataclass(frozen=True, kw_only=True)
class PictureRegions:
    """A detector's regions in one picture."""

    id: int
    """Id of the picture, as in VQA's questions."""
    size: tuple[int, int]
    """Width and height in pixels."""
    boxes: npt.NDArray[np.floating[Any]]
    """Corners x1 y1 x2 y2 in pixels (boxes, 4)."""
    features: npt.NDArray[np.floating[Any]]
    """Features of each box (boxes, width)."""


@dataclass(frozen=True, kw_only=True)
class Header:
    """Header of a folder of regions."""

    detector: str
    """Name of the detector, chosen by the user. Features of different detectors are not comparable."""
    pictures: int
    boxes: int
    """Maximum number of boxes per picture."""
    width: int
    """Number of features per box."""
    version: int = VERSION
    sha256: str = ""
    """Checksum of all arrays."""


@dataclass(frozen=True, kw_only=True)
class Regions:
    """A detector's regions in all pictures, mapped from disk."""

    header: Header
    features: npt.NDArray[np.float16]
    boxes: npt.NDArray[np.float32]
    counts: npt.NDArray[np.int32]
    sizes: npt.NDArray[np.int32]
    ids: npt.NDArray[np.int64]

    def rows(self, pictures: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the row of each picture id, or -1 if the folder does not contain it."""
        order = np.argsort(self.ids, kind="stable")
        ranks = np.searchsorted(self.ids[order], pictures).clip(max=len(order) - 1)
        rows: npt.NDArray[np.int64] = np.where(self.ids[order][ranks] == pictures, order[ranks], -1)
        return rows


def read_rows(array: npt.NDArray[Any], rows: npt.NDArray[np.int64], targets: Sequence[npt.NDArray[Any]]) -> None:
    """Reads rows of a memory-mapped array from its file, not through the mapping, each into one of ``targets``.

    A target that has fewer boxes than a row receives the first ones; one with more is filled at its beginning.

    Pages read through the mapping stay in the process's resident memory until the system reclaims them. After an epoch
    that would be the whole array.
    """
    assert isinstance(array, np.memmap)
    size = array[0].nbytes
    with open(str(array.filename), "rb") as file:
        for row, target in zip(rows.tolist(), targets, strict=True):
            assert target.dtype == array.dtype
            file.seek(array.offset + row * size)
            first = target[: array.shape[1]].data.cast("B")
            if file.readinto(first) != len(first):
                raise BadDataError(f"{array.filename} is truncated; delete its folder and make it again")


def write(
    folder: Path, found: Iterable[PictureRegions], *, detector: str, pictures: int, boxes: int, width: int, source: str
) -> Regions:
    """Writes a detector's regions to a folder and returns them. An interrupted call continues if repeated.

    ``source`` identifies the input files: with another one, writing starts again. For pictures with more than ``boxes``
    boxes the first are used; detectors sort boxes by score.

    Raises:
        BadDataError: pictures are repeated or missing, boxes have another width or are outside of the picture, or
            features are not finite or exceed float16.
        WrongUseError: the folder is not empty, or the disk has too little space.
    """
    if (folder / "header.json").exists():
        raise WrongUseError(f"{folder} already contains regions; delete it, or choose another folder")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WrongUseError(f"{folder}: expected a new or empty folder, found a file or other files")
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    header = Header(detector=detector, pictures=pictures, boxes=boxes, width=width)
    with lock_folder(unfinished):
        arrays, done = _open_arrays(unfinished, header, source)
        for row, each in enumerate(with_progress(found, f"{folder.name}: pictures", pictures)):
            if row < done:
                continue
            if row >= pictures:
                raise BadDataError(f"{source}: expected {pictures:,} pictures, as counted before, found more")
            _write_row(arrays, row, each, header, source)
            if (row + 1) % SAVED_EVERY == 0:
                _save(unfinished, arrays, header, source, row + 1)
            done = row + 1
        if done < pictures:
            raise BadDataError(f"{source}: expected {pictures:,} pictures, as counted before, found {done:,}")
        if len(np.unique(arrays["ids"])) < pictures:
            twice = np.sort(arrays["ids"])
            raise BadDataError(
                f"{source}: expected distinct pictures, found {twice[:-1][np.diff(twice) == 0][0]} twice"
            )
        for array in arrays.values():
            array.flush()
        whole = Header(**{**asdict(header), "sha256": _checksum(arrays, header)})
        write_json(unfinished / "header.json", asdict(whole))
    os.replace(unfinished, folder)
    (folder / "state.json").unlink(missing_ok=True)
    return read(folder)


def _open_arrays(folder: Path, header: Header, source: str) -> tuple[dict[str, Any], int]:
    """Returns the arrays of an unfinished folder, and the number of pictures in them: 0 for another source."""
    state = folder / "state.json"
    asked = {**asdict(header), "source": source}
    try:
        begun = json.loads(state.read_bytes()) if state.exists() else {}
    except ValueError:
        begun = {}  # the state is damaged, so start again
    goes_on = begun.get("asked") == asked
    shapes = _shapes(header)
    needed = sum(int(np.prod(shapes[name])) * np.dtype(kind).itemsize for name, kind in ARRAYS.items())
    if not goes_on and shutil.disk_usage(folder).free < needed:
        raise WrongUseError(f"{folder}: expected {needed / 2**30:.1f} GiB of free disk space, found less")
    mode: Any = "r+" if goes_on else "w+"
    arrays = {
        name: open_memmap(folder / f"{name}.npy", mode=mode, dtype=kind, shape=shapes[name])
        for name, kind in ARRAYS.items()
    }
    if not goes_on:
        _save(folder, arrays, header, source, 0)
    return arrays, int(begun["done"]) if goes_on else 0


def _shapes(header: Header) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each of ``ARRAYS``."""
    return {
        "features": (header.pictures, header.boxes, header.width), "boxes": (header.pictures, header.boxes, 4),
        "counts": (header.pictures,), "sizes": (header.pictures, 2), "ids": (header.pictures,),
    }  # fmt: skip


def _save(folder: Path, arrays: dict[str, Any], header: Header, source: str, done: int) -> None:
    for array in arrays.values():
        array.flush()
    write_json(folder / "state.json", {"asked": {**asdict(header), "source": source}, "done": done})


def _write_row(arrays: dict[str, Any], row: int, each: PictureRegions, header: Header, source: str) -> None:
    where, count = f"{source}, picture {each.id}", min(len(each.features), header.boxes)
    if each.features.ndim != 2 or each.features.shape[1] != header.width:
        raise BadDataError(f"{where}: expected {header.width} features per box, found shape {each.features.shape}")
    if not len(each.features) or each.boxes.shape != (len(each.features), 4) or min(each.size) < 1:
        raise BadDataError(f"{where}: expected 4 numbers for each of {len(each.features)} boxes and a size, found "
                           f"{each.boxes.shape} and {each.size}")  # fmt: skip
    features, boxes = each.features[:count], each.boxes[:count] / np.array([*each.size, *each.size])
    if not np.isfinite(features).all() or np.abs(features).max(initial=0.0) > LARGEST:
        raise BadDataError(f"{where}: expected finite features within float16's {LARGEST:,.0f}, found others")
    if not np.isfinite(boxes).all() or boxes.min(initial=0.0) < -0.01 or boxes.max(initial=0.0) > 1.01:
        raise BadDataError(
            f"{where}: expected boxes inside the picture of {each.size[0]} x {each.size[1]} pixels, found one outside"
        )
    arrays["features"][row, :count], arrays["boxes"][row, :count] = features, boxes.clip(0, 1)
    arrays["features"][row, count:], arrays["boxes"][row, count:] = 0, 0
    arrays["counts"][row], arrays["sizes"][row], arrays["ids"][row] = count, each.size, each.id


def _checksum(arrays: dict[str, Any], header: Header) -> str:
    digest = hashlib.sha256(f"{header.version} {header.detector}".encode())
    for name in sorted(ARRAYS):
        for part in _parts(arrays[name]):
            digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()


def _parts(array: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    return (array[start : start + SAVED_EVERY] for start in range(0, len(array), SAVED_EVERY))


def read(folder: Path, *, verify: bool = False) -> Regions:
    """Returns the regions of a folder, mapped from disk. ``verify`` reads everything and compares the checksum.

    Raises:
        BadDataError: the folder does not exist, is damaged, or has another version.
    """
    if not (folder / "header.json").exists():
        inside = sorted(
            str(each.parent.relative_to(folder)) for each in paths_below(folder) if each.name == "header.json"
        )
        hint = (
            f"its folders {', '.join(inside[:4])} have one" if inside else "seqarena prepare vqa features makes regions"
        )
        raise BadDataError(f"{folder}: no regions: expected header.json, found none; {hint}")
    with damage(folder, "folder of regions", "delete the folder and make it again"):
        header = Header(**json.loads((folder / "header.json").read_bytes()))
        arrays: dict[str, Any] = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ARRAYS}
        expected = {
            name: (shape, kind) for (name, kind), shape in zip(ARRAYS.items(), _shapes(header).values(), strict=True)
        }
    found = {name: (array.shape, array.dtype.str) for name, array in arrays.items()}
    if header.version != VERSION or found != expected:
        raise BadDataError(f"{folder}: expected version {VERSION} and arrays {expected}, found version "
                           f"{header.version} and {found}; delete the folder and make it again")  # fmt: skip
    if not ((arrays["counts"] >= 1) & (arrays["counts"] <= header.boxes)).all():
        raise BadDataError(
            f"{folder}: expected 1 to {header.boxes} boxes in every picture, found others; delete the folder and make "
            "it again"
        )
    if verify and _checksum(arrays, header) != header.sha256:
        raise BadDataError(f"{folder}: damaged, its sha256 is not {header.sha256}; delete the folder and make it again")
    return Regions(header=header, **arrays)

"""What a detector found in every picture of a split: one folder, mapped into memory, known by its checksum.

``header.json`` says which detector, how many pictures and boxes, and the checksum; beside it lie ``features.npy``
(pictures boxes width, float16), ``boxes.npy`` (pictures boxes 4, float32: x1 y1 x2 y2 as shares of the picture),
``counts.npy``, ``sizes.npy`` (width and height in pixels) and ``ids.npy``, a row a picture.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.format import open_memmap

from seqarena.common.errors import BadDataError, WrongUseError, damage
from seqarena.common.files import locked, paths_below, write_json
from seqarena.common.training.log import tracked

VERSION = 1
LARGEST = 65_504.0
"""The largest number of float16."""
ARRAYS = {"features": "<f2", "boxes": "<f4", "counts": "<i4", "sizes": "<i4", "ids": "<i8"}
SAVED_EVERY = 2_000
"""Pictures after which an interrupted conversion goes on."""


@dataclass(frozen=True, kw_only=True)
class PictureRegions:
    """A detector's regions in one picture."""

    id: int
    """The picture's, as in VQA's questions."""
    size: tuple[int, int]
    """Width and height in pixels."""
    boxes: npt.NDArray[np.floating[Any]]
    """x1 y1 x2 y2 in pixels (boxes, 4)."""
    features: npt.NDArray[np.floating[Any]]
    """(boxes, width)."""


@dataclass(frozen=True, kw_only=True)
class Header:
    """Content of a folder of regions."""

    detector: str
    """Its name, as the user gave it: two detectors' numbers do not mean the same."""
    pictures: int
    boxes: int
    """Most boxes of a picture."""
    width: int
    """Numbers of a box."""
    version: int = VERSION
    sha256: str = ""
    """Checksum of all arrays."""


@dataclass(frozen=True, kw_only=True)
class Regions:
    """A detector's boxes of all pictures, mapped from disk."""

    header: Header
    features: npt.NDArray[np.float16]
    boxes: npt.NDArray[np.float32]
    counts: npt.NDArray[np.int32]
    sizes: npt.NDArray[np.int32]
    ids: npt.NDArray[np.int64]

    def rows(self, pictures: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the place of each picture; -1 of those that are not there."""
        order = np.argsort(self.ids, kind="stable")
        places = np.searchsorted(self.ids[order], pictures).clip(max=len(order) - 1)
        rows: npt.NDArray[np.int64] = np.where(self.ids[order][places] == pictures, order[places], -1)
        return rows


def taken(array: npt.NDArray[Any], rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Returns some rows of an array that is mapped from disk, read by themselves.

    What is read through the map stays in the process's resident memory until the machine wants it back: after an epoch
    that would be all of it.
    """
    assert isinstance(array, np.memmap)
    found: npt.NDArray[Any] = np.empty((len(rows), *array.shape[1:]), dtype=array.dtype)
    size = array[0].nbytes
    with open(str(array.filename), "rb") as file:
        for place, row in enumerate(rows.tolist()):
            file.seek(array.offset + row * size)
            if file.readinto(memoryview(found[place]).cast("B")) != size:
                raise BadDataError(f"{array.filename} is shorter than it says; delete its folder and make it again")
    return found


def write(
    folder: Path, found: Iterable[PictureRegions], *, detector: str, pictures: int, boxes: int, width: int, source: str
) -> Regions:
    """Writes what a detector found, and returns it; an interrupted call goes on where it was, given the same pictures.

    ``source`` stands for the files that are read: another one starts again. Pictures with more than ``boxes`` keep the
    first, which detectors order by score.

    Raises:
        BadDataError: a picture that is there twice or too few of them, boxes of another width, outside of the picture,
            or numbers that are none or beyond float16.
    """
    if (folder / "header.json").exists():
        raise WrongUseError(f"{folder} holds regions already; delete it, or choose another folder")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WrongUseError(f"{folder}: expected no such file, or an empty folder")
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    header = Header(detector=detector, pictures=pictures, boxes=boxes, width=width)
    with locked(unfinished):
        arrays, done = _opened(unfinished, header, source)
        for row, each in enumerate(tracked(found, f"{folder.name}: pictures", pictures)):
            if row < done:
                continue
            if row >= pictures:
                raise BadDataError(f"{source}: more than the {pictures:,} pictures that were counted")
            _put(arrays, row, each, header, source)
            if (row + 1) % SAVED_EVERY == 0:
                _save(unfinished, arrays, header, source, row + 1)
            done = row + 1
        if done < pictures:
            raise BadDataError(f"{source}: {done:,} pictures, {pictures:,} were counted")
        if len(np.unique(arrays["ids"])) < pictures:
            twice = np.sort(arrays["ids"])
            raise BadDataError(f"{source}: picture {twice[:-1][np.diff(twice) == 0][0]} is there twice")
        for array in arrays.values():
            array.flush()
        whole = Header(**{**asdict(header), "sha256": _checksum(arrays, header)})
        write_json(unfinished / "header.json", asdict(whole))
    os.replace(unfinished, folder)
    (folder / "state.json").unlink(missing_ok=True)
    return read(folder)


def _opened(folder: Path, header: Header, source: str) -> tuple[dict[str, Any], int]:
    """Returns the arrays of an unfinished folder, and how many pictures are in them; begun anew for another source."""
    state = folder / "state.json"
    asked = {**asdict(header), "source": source}
    try:
        begun = json.loads(state.read_bytes()) if state.exists() else {}
    except ValueError:
        begun = {}  # damaged: from the beginning
    goes_on = begun.get("asked") == asked
    shapes = _shapes(header)
    needed = sum(int(np.prod(shapes[name])) * np.dtype(kind).itemsize for name, kind in ARRAYS.items())
    if not goes_on and shutil.disk_usage(folder).free < needed:
        raise WrongUseError(f"{folder}: {needed / 2**30:.1f} GiB are needed, and not free there")
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


def _put(arrays: dict[str, Any], row: int, each: PictureRegions, header: Header, source: str) -> None:
    where, count = f"{source}, picture {each.id}", min(len(each.features), header.boxes)
    if each.features.ndim != 2 or each.features.shape[1] != header.width:
        raise BadDataError(f"{where}: expected {header.width} numbers a box, found {each.features.shape}")
    if not len(each.features) or each.boxes.shape != (len(each.features), 4) or min(each.size) < 1:
        raise BadDataError(f"{where}: expected 4 numbers for each of {len(each.features)} boxes and a size, found "
                           f"{each.boxes.shape} and {each.size}")  # fmt: skip
    features, boxes = each.features[:count], each.boxes[:count] / np.array([*each.size, *each.size])
    if not np.isfinite(features).all() or np.abs(features).max(initial=0.0) > LARGEST:
        raise BadDataError(f"{where}: a feature is no number, or beyond float16's {LARGEST:,.0f}")
    if not np.isfinite(boxes).all() or boxes.min(initial=0.0) < -0.01 or boxes.max(initial=0.0) > 1.01:
        raise BadDataError(f"{where}: a box lies outside of a picture of {each.size[0]} x {each.size[1]} pixels")
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
    """Returns the regions of a folder, mapped from disk; ``verify`` reads everything and compares the checksum.

    Raises:
        BadDataError: no such folder, a damaged one, or one of another version.
    """
    if not (folder / "header.json").exists():
        inside = sorted(
            str(each.parent.relative_to(folder)) for each in paths_below(folder) if each.name == "header.json"
        )
        hint = f"in folders of it there are: {', '.join(inside[:4])}" if inside else "seqarena vqa features makes them"
        raise BadDataError(f"{folder}: no regions, for there is no header.json; {hint}")
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
        raise BadDataError(f"{folder}: a picture without a box, or with more than {header.boxes}; make it again")
    if verify and _checksum(arrays, header) != header.sha256:
        raise BadDataError(f"{folder}: damaged, its sha256 is not {header.sha256}; delete the folder and make it again")
    return Regions(header=header, **arrays)

"""Readers of region features in published formats, picture by picture. Pickles are read only on request.

| format | used by |
|---|---|
| ``tsv`` | bottom-up-attention: six columns, boxes and features as base64 of float32; LXMERT: ten columns |
| ``hdf5`` | bottom-up-attention for PyTorch: a fixed number of boxes, or ragged with ``pos_boxes`` |
| ``npz`` | one file per picture: MCAN and OpenVQA (x is width boxes), bottom-up-attention.pytorch (boxes width) |
| ``npy`` | one file per picture: Pythia |
| ``lmdb`` | MMF: pickled |

If a file does not contain the size of a picture, the maximum coordinates of its boxes are used.
"""

import base64
import binascii
import contextlib
import csv
import functools
import importlib
import pickle
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from seqarena.common.data.readers import npz_arrays
from seqarena.common.errors import BadDataError, WrongUseError, damage
from seqarena.common.training.workers import WorkerEndedError, run_in_process
from seqarena.vqa.regions import PictureRegions

Floats = npt.NDArray[np.float32]
BOTTOM_UP = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
LXMERT = ("img_id", "img_h", "img_w", "objects_id", "objects_conf", "attrs_id", "attrs_conf", "num_boxes", "boxes",
          "features")  # fmt: skip


def picture_of(name: str, where: str) -> int:
    """Returns the id at the end of a name such as COCO_val2014_000000458752."""
    found = re.search(r"(\d+)$", name)
    if found is None:
        raise BadDataError(f"{where}: expected a name that ends with the picture's id, found {name!r}")
    return int(found.group(1))


def read_tsv(path: Path, _trust: bool) -> Iterator[PictureRegions]:
    """Yields the pictures of a TSV of bottom-up-attention or LXMERT."""
    csv.field_size_limit(sys.maxsize)
    with path.open(newline="") as file:
        for number, row in enumerate(csv.reader(file, delimiter="\t"), start=1):
            where = f"{path}, line {number}"
            names = {len(BOTTOM_UP): BOTTOM_UP, len(LXMERT): LXMERT}.get(len(row))
            if names is None:
                raise BadDataError(f"{where}: expected {len(BOTTOM_UP)} or {len(LXMERT)} columns, found {len(row)}")
            values = dict(zip(names, row, strict=True))
            prefix, wide, high = ("image", "image_w", "image_h") if names is BOTTOM_UP else ("img", "img_w", "img_h")
            try:
                count, size = int(values["num_boxes"]), (int(float(values[wide])), int(float(values[high])))
                boxes, features = (
                    np.frombuffer(base64.b64decode(values[name], validate=True), dtype="<f4").reshape(count, -1)
                    for name in ("boxes", "features")
                )
            except (ValueError, binascii.Error) as error:
                raise BadDataError(f"{where}: {error}") from error
            yield PictureRegions(
                id=picture_of(values[f"{prefix}_id"], where), size=size, boxes=boxes, features=features
            )


def read_npz(path: Path, _trust: bool) -> Iterator[PictureRegions]:
    """Yields the pictures of a folder of .npz files. Their pickled entry ``info`` is not read."""
    for file in _files(path, "npz"):
        values = npz_arrays(file, ("x", "bbox", "num_bbox", "image_w", "image_h"))
        if not {"x", "bbox"} <= set(values):
            raise BadDataError(f"{file}: expected x and bbox, found {', '.join(values) or 'neither'}")
        boxes, features = np.asarray(values["bbox"], np.float32), np.asarray(values["x"], np.float32)
        count = int(values["num_bbox"]) if "num_bbox" in values else len(boxes)
        size = [int(values[name]) for name in ("image_w", "image_h") if name in values]
        if features.ndim != 2 or count not in features.shape:
            raise BadDataError(f"{file}: expected x with {count} boxes on one side, found {features.shape}")
        if features.shape[0] != count:  # a square array is (boxes, width), as newer tools write it
            features = features.T
        wide, high = size if len(size) == 2 else (int(np.ceil(side)) for side in boxes[:, 2:].max(axis=0))
        yield PictureRegions(
            id=picture_of(file.stem, str(file)), size=(wide, high), boxes=boxes[:count], features=features
        )


def read_npy(path: Path, trust: bool) -> Iterator[PictureRegions]:
    """Yields the pictures of a folder of .npy files: features only, or with ``trust`` a pickled dict with boxes."""
    for file in _files(path, "npy"):
        if _is_pickled(file):
            _require_trust(trust, file)
            values = np.load(file, allow_pickle=True)
            if values.shape != () or not isinstance(values.item(), dict):
                raise BadDataError(f"{file}: expected features, or a dict with image_feat and image_bboxes")
            yield _regions_of_dict(
                values.item(), picture_of(file.stem, str(file)), file, ("image_feat", "image_bboxes")
            )
            continue
        values = np.load(file, allow_pickle=False)
        if values.ndim != 2:
            raise BadDataError(f"{file}: expected features (boxes, width), found {values.shape}")
        whole = np.tile(np.array([0, 0, 1, 1], np.float32), (len(values), 1))  # the file has no boxes
        yield PictureRegions(id=picture_of(file.stem, str(file)), size=(1, 1), boxes=whole, features=values)


def _is_pickled(file: Path) -> bool:
    """Returns whether a .npy file contains pickled objects, by reading its header only."""
    with file.open("rb") as opened:
        version = np.lib.format.read_magic(opened)
        head = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        return bool(head(opened)[2].hasobject)


def read_hdf5(path: Path, trust: bool) -> Iterator[PictureRegions]:
    """Yields the pictures of an HDF5 file with fixed or ragged boxes.

    Picture ids are read from ``image_ids``, or from the pickle next to the file.
    """
    h5py = _extra("h5py")
    with h5py.File(path, "r") as file:
        missing = {"image_features", "image_bb"} - set(file)
        if missing:
            raise BadDataError(f"{path}: expected image_features and image_bb, found {', '.join(file)}")
        features, boxes = file["image_features"], file["image_bb"]
        ragged = file["pos_boxes"][:] if "pos_boxes" in file else None
        count = len(features) if ragged is None else len(ragged)
        ids = file["image_ids"][:].tolist() if "image_ids" in file else _pickled_ids(path, count, trust)
        _require_matching(path, {name: len(file[name]) for name in file}, ids, ragged)
        for row in range(count):
            part = slice(*ragged[row]) if ragged is not None else row
            some = np.asarray(boxes[part], np.float32)
            size = tuple(int(side) for side in file["image_sizes"][row]) if "image_sizes" in file else None
            wide, high = size or (int(np.ceil(side)) for side in some[:, 2:].max(axis=0))
            yield PictureRegions(
                id=int(ids[row]), size=(wide, high), boxes=some, features=np.asarray(features[part], np.float32)
            )


def _require_matching(path: Path, rows: Mapping[str, int], ids: list[Any], ragged: npt.NDArray[Any] | None) -> None:
    """Raises a ``BadDataError`` if the arrays of an HDF5 file do not belong together: rows would be left out or mixed.

    ``rows``: number of rows of each array. ``ragged``: first row and end of each picture's boxes.
    """
    by_box = () if ragged is None else ("image_features", "image_bb")
    per_picture = {name: rows[name] for name in ("image_ids", "image_sizes", "image_features", "image_bb")
                   if name in rows and name not in by_box}  # fmt: skip
    pictures = len(ids) if ragged is None else len(ragged)
    other = [f"{count:,} in {name}" for name, count in per_picture.items() if count != pictures]
    if other:
        raise BadDataError(f"{path}: expected rows of {pictures:,} pictures, found {', '.join(other)}")
    if any(int(each) != each for each in ids):
        raise BadDataError(f"{path}: expected whole numbers in image_ids, found others")
    if ragged is None or not pictures:
        return
    ends = ragged[:, 1]
    is_whole = (ragged[:, 0] == [0, *ends[:-1]]).all() and (ragged[:, 0] < ends).all()
    if not is_whole or not ends[-1] <= rows["image_features"] == rows["image_bb"]:
        raise BadDataError(
            f"{path}: expected pos_boxes to divide the {rows['image_features']:,} rows of image_features and the "
            f"{rows['image_bb']:,} of image_bb into consecutive parts, found others"
        )


def _extra(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise WrongUseError(f"{name} is not installed: pip install 'seqarena[regions]'") from error


def _pickled_ids(path: Path, count: int, trust: bool) -> list[int]:
    """Returns the picture id of each row, from the pickled mapping id -> row next to the file."""
    own = path.with_name(f"{path.stem}_imgid2idx.pkl")
    if not own.exists():
        raise BadDataError(f"{path}: expected picture ids, found neither image_ids in it nor {own.name} beside it")
    _require_trust(trust, own)
    rows = pickle.loads(own.read_bytes())
    ids = {row: each for each, row in rows.items()}
    if set(ids) != set(range(count)):
        raise BadDataError(f"{own}: expected rows 0 to {count - 1}, each once")
    return [ids[row] for row in range(count)]


def read_lmdb(path: Path, trust: bool) -> Iterator[PictureRegions]:
    """Yields the pictures of an LMDB of MMF, whose values are pickled."""
    with _lmdb(path, trust) as reader:
        for key in _unpickle(reader.get(b"keys"), "keys", path):
            values = _unpickle(reader.get(key), key, path)
            name = key.decode() if isinstance(key, bytes) else str(key)
            yield _regions_of_dict(values, picture_of(name, str(path)), path, ("features", "bbox"))


@contextlib.contextmanager
def _lmdb(path: Path, trust: bool) -> Iterator[Any]:
    """Begins a transaction after checking that the LMDB is complete: reading a missing page would kill the process."""
    _extra("lmdb")
    _require_trust(trust, path)
    state = (path / "data.mdb").stat()
    _check_pages(path, state.st_size, state.st_mtime_ns)
    with _begin(path) as reader:
        yield reader


@functools.lru_cache(maxsize=1)
def _check_pages(path: Path, size: int, changed: int) -> None:
    """Reads all pages in a process of its own, once for each state of the file: its size and time of change."""
    del size, changed
    try:
        run_in_process(_touch_pages, path)
    except WorkerEndedError as error:
        raise BadDataError(
            f"{path}: the process that read data.mdb was killed; the file is damaged, or memory ran out"
        ) from error


def _touch_pages(path: Path) -> None:
    """Reads a byte of each value."""
    with _begin(path) as reader:
        for value in reader.cursor().iternext(keys=False):
            value[-1:]


@contextlib.contextmanager
def _begin(path: Path) -> Iterator[Any]:
    with _extra("lmdb").open(str(path), readonly=True, lock=False) as opened:
        _check_size(opened, path)
        with opened.begin(buffers=True) as reader:
            yield reader


def _check_size(opened: Any, path: Path) -> None:
    needed = (opened.info()["last_pgno"] + 1) * opened.stat()["psize"]
    found = (path / "data.mdb").stat().st_size
    if found < needed:
        raise BadDataError(f"{path}: expected {needed:,} bytes in data.mdb, found {found:,}; the file is truncated")


def _unpickle(value: memoryview | None, key: object, path: Path) -> Any:
    if value is None:
        raise BadDataError(f"{path}: expected the key {key!r}, found none")
    return pickle.loads(value)


def _regions_of_dict(values: Mapping[str, Any], picture: int, path: Path, names: tuple[str, str]) -> PictureRegions:
    if not set(names) <= set(values):
        raise BadDataError(f"{path}: expected {' and '.join(names)}, found {', '.join(map(str, values))}")
    features, boxes = (np.asarray(values[name], np.float32) for name in names)
    size = tuple(int(values[name]) for name in ("image_width", "image_height") if name in values)
    if len(size) != 2:
        size = tuple(int(np.ceil(side)) for side in boxes[:, 2:].max(axis=0))
    real = int(values.get("num_boxes", len(features)))
    if not 0 <= real <= len(features):
        raise BadDataError(f"{path}, picture {picture}: expected num_boxes {real}, found {len(features)} boxes")
    return PictureRegions(id=picture, size=(size[0], size[1]), boxes=boxes[:real], features=features[:real])


def _files(path: Path, ending: str) -> list[Path]:
    files = sorted(path.glob(f"*.{ending}"))
    if not files:
        raise BadDataError(f"{path}: expected files *.{ending}, found none")
    return files


def _require_trust(trust: bool, path: Path) -> None:
    if not trust:
        raise WrongUseError(
            f"{path} is pickled: reading it may run code; use --trust-pickles only if you trust its source"
        )


READERS: Mapping[str, Callable[[Path, bool], Iterator[PictureRegions]]] = MappingProxyType(
    {"tsv": read_tsv, "npz": read_npz, "npy": read_npy, "hdf5": read_hdf5, "lmdb": read_lmdb}
)


def pictures(path: Path, kind: str, trust: bool) -> Iterator[PictureRegions]:
    """Yields a detector's regions, read from any of the formats.

    Raises:
        BadDataError: a file is damaged or of another format. The message names it.
        WrongUseError: a file is pickled without ``trust``, or an optional package is missing.
    """
    reader, where = READERS[kind](path, trust), "at the beginning"
    while True:
        with damage(f"{path}, {where}", f"file in format {kind}"):
            each = next(reader, None)
        if each is None:
            return
        where = f"after picture {each.id}"
        yield each


def count(path: Path, kind: str, trust: bool) -> int:
    """Returns the number of pictures without reading them. Raises as ``pictures`` does."""
    with damage(path, f"file in format {kind}"):
        return _count(path, kind, trust)


def _count(path: Path, kind: str, trust: bool) -> int:
    if kind == "tsv":
        with path.open("rb") as file:
            lines, last = 0, b"\n"
            for part in iter(lambda: file.read(2**20), b""):
                lines, last = lines + part.count(b"\n"), part[-1:]
            return lines + (last != b"\n")
    if kind in ("npz", "npy"):
        return len(_files(path, kind))
    if kind == "hdf5":
        with _extra("h5py").File(path, "r") as file:
            return len(file["pos_boxes"] if "pos_boxes" in file else file["image_features"])
    with _lmdb(path, trust) as reader:
        return len(_unpickle(reader.get(b"keys"), "keys", path))


def format_of(path: Path) -> str:
    """Returns the format of a file or folder.

    Raises:
        BadDataError: the format is unknown.
    """
    if path.is_dir():
        if (path / "data.mdb").exists():
            return "lmdb"
        for ending in ("npz", "npy"):
            if next(path.glob(f"*.{ending}"), None) is not None:
                return ending
    elif path.suffix == ".tsv":
        return "tsv"
    elif path.suffix in (".hdf5", ".h5"):
        return "hdf5"
    found = "nothing" if not path.exists() else path.name
    raise BadDataError(f"{path}: expected a .tsv or .hdf5, an LMDB folder, or a folder of .npz or .npy; found {found}")

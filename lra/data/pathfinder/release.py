"""Pathfinder as the official release holds it: folders of PNGs, and of lists with a line for each."""

import io
from pathlib import Path

import numpy as np

from seqarena.common.data.batches import Bytes
from seqarena.common.data.counter import permutation
from seqarena.common.errors import BadDataError, damage
from seqarena.lra.data.pixels import open_picture

EMPTY = "pathfinder32/curv_baseline/imgs/0/sample_172.png"
"""The one picture of the release that is an empty file."""
FIELDS = 11
"""Columns of a line: folder, file, number, label, and seven settings of the generator."""


def read_release(path: Path, size: int, contour_length: int, examples: int) -> tuple[Bytes, Bytes]:
    """Returns images (count, pixels) and labels, in an order that depends on their number alone.

    Raises:
        BadDataError: names the file and line, what was found and what was expected.
    """
    batches = sorted(each.name for each in (path / "imgs").glob("*") if each.is_dir())
    lists = sorted(each.stem for each in (path / "metadata").glob("*.npy"))
    if not lists or batches != lists:
        missing, more = sorted(set(batches) - set(lists)), sorted(set(lists) - set(batches))
        raise BadDataError(
            f"{path}: expected a level of the release, such as pathfinder32/curv_contour_length_14, with "
            f"metadata/BATCH.npy for each folder imgs/BATCH; found {len(lists):,} lists, {len(batches):,} folders"
            f"{f', no list for {missing[:3]}' if missing else ''}{f', no folder for {more[:3]}' if more else ''}; "
            "leave --data.path out to generate the data"
        )
    rows = [(name, label, f"{listed}.npy, line {line}") for listed in lists
            for name, label, line in _batch(path, listed, contour_length)]  # fmt: skip
    if len(rows) != examples:
        raise BadDataError(f"{path}: expected {examples:,} images (--data.examples), found {len(rows):,}")
    kept = [row for row in rows if not _is_known_empty(path / row[0])]
    images, labels = np.empty((len(kept), size * size), dtype=np.uint8), np.empty(len(kept), dtype=np.uint8)
    for place, (name, label, where) in zip(np.argsort(permutation(len(kept), 0)), kept, strict=True):
        images[place], labels[place] = read_image(path / name, size, where), label
    return images, labels


def _is_known_empty(path: Path) -> bool:
    return path.resolve().as_posix().endswith(EMPTY) and path.stat().st_size == 0


def _batch(path: Path, batch: str, contour_length: int) -> list[tuple[str, int, int]]:
    """Returns the rows of one list, checked against the folder beside it."""
    listed = path / "metadata" / f"{batch}.npy"
    rows = read_list(listed)
    found = []
    for number, row in enumerate(rows, start=1):
        where = f"{listed}, line {number}"
        if len(row) != FIELDS:
            raise BadDataError(f"{where}: expected {FIELDS} fields, found {len(row)}")
        if [row[0], row[1]] != [f"imgs/{batch}", f"sample_{row[2]}.png"]:
            raise BadDataError(f"{where}: expected imgs/{batch} sample_{row[2]}.png, found {row[0]} {row[1]}")
        if row[3] not in ("0", "1"):
            raise BadDataError(f"{where}: expected label 0 or 1, found {row[3]!r}")
        if row[5] != str(contour_length):
            raise BadDataError(f"{where}: contours of {row[5]} dashes; --data.contour-length is {contour_length}")
        found.append((f"{row[0]}/{row[1]}", int(row[3]), number))
    named = [Path(name).name for name, _, _ in found]
    there = {each.name for each in (path / "imgs" / batch).glob("*.png")}
    if len(named) != len(set(named)) or set(named) != there:
        missing, more = sorted(set(named) - there), sorted(there - set(named))
        raise BadDataError(
            f"{listed}: names {len(named):,} images, {len(set(named)):,} of them different; imgs/{batch} holds "
            f"{len(there):,}; missing {missing[:3] or 'none'}, not listed {more[:3] or 'none'}"
        )
    return found


def read_list(path: Path) -> list[list[str]]:
    """Returns the fields of each row: text in the release, whatever the name says; else NumPy's array."""
    content = path.read_bytes()
    if content.startswith(b"\x93NUMPY"):
        with damage(path, "array of rows of plain text"):
            rows = [
                [value.decode() if isinstance(value, bytes) else str(value) for value in row]
                for row in np.load(io.BytesIO(content), allow_pickle=False)
            ]
    else:
        rows = [line.split() for line in content.decode("ascii", "replace").rstrip().splitlines()]
    if not rows:
        raise BadDataError(f"{path}: no rows")
    return rows


def read_image(path: Path, size: int, where: str) -> Bytes:
    """Returns an image's pixels."""
    content = path.read_bytes()
    if not content:
        raise BadDataError(f"{path} ({where}): not a picture (an empty file)")
    with damage(f"{path} ({where})", "picture"):
        pixels = np.asarray(open_picture(content).convert("L"), dtype=np.uint8)
    if pixels.shape != (size, size):
        raise BadDataError(f"{path} ({where}): expected {size} x {size} pixels (--data.size), found {pixels.shape}")
    return pixels.reshape(-1)

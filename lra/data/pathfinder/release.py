"""Reader of Pathfinder's official release: folders of PNG files, and lists with one line per image."""

import io
from pathlib import Path

import numpy as np

from seqarena.common.data.batches import Bytes
from seqarena.common.data.counter import permutation
from seqarena.common.errors import BadDataError, damage
from seqarena.lra.data.pixels import open_picture

EMPTY = "pathfinder32/curv_baseline/imgs/0/sample_172.png"
"""The only image of the release whose file is empty."""
FIELDS = 11
"""Number of columns per line: folder, file, number, label, and seven settings of the generator."""


def read_release(path: Path, size: int, contour_length: int, examples: int) -> tuple[Bytes, Bytes]:
    """Returns images (count, pixels) and labels, in an order that depends only on the number of images.

    Raises:
        BadDataError: files are missing or invalid. The message names the file and line, the content found and the
            content expected.
    """
    batches = sorted(each.name for each in (path / "imgs").glob("*") if each.is_dir())
    lists = sorted(each.stem for each in (path / "metadata").glob("*.npy"))
    if not lists or batches != lists:
        missing, more = sorted(set(batches) - set(lists)), sorted(set(lists) - set(batches))
        raise BadDataError(
            f"{path}: expected a level of the release, such as pathfinder32/curv_contour_length_14, with "
            f"metadata/BATCH.npy for each folder imgs/BATCH; found {len(lists):,} lists, {len(batches):,} folders"
            f"{f', no list for {missing[:3]}' if missing else ''}{f', no folder for {more[:3]}' if more else ''}; "
            "omit --data.path to generate the data"
        )
    rows = [(name, label, f"{listed}.npy, line {line}") for listed in lists
            for name, label, line in _batch(path, listed, contour_length)]  # fmt: skip
    if len(rows) != examples:
        raise BadDataError(f"{path}: expected {examples:,} images (--data.examples), found {len(rows):,}")
    kept = [row for row in rows if not _is_known_empty(path / row[0])]
    images, labels = np.empty((len(kept), size * size), dtype=np.uint8), np.empty(len(kept), dtype=np.uint8)
    for index, (name, label, where) in zip(np.argsort(permutation(len(kept), 0)), kept, strict=True):
        images[index], labels[index] = read_image(path / name, size, where), label
    return images, labels


def _is_known_empty(path: Path) -> bool:
    return path.resolve().as_posix().endswith(EMPTY) and path.stat().st_size == 0


def _batch(path: Path, batch: str, contour_length: int) -> list[tuple[str, int, int]]:
    """Returns the rows of one list, checked against its folder of images."""
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
            raise BadDataError(
                f"{where}: expected contours of {contour_length} dashes (--data.contour-length), found {row[5]}"
            )
        found.append((f"{row[0]}/{row[1]}", int(row[3]), number))
    named = [Path(name).name for name, _, _ in found]
    there = {each.name for each in (path / "imgs" / batch).glob("*.png")}
    if len(named) != len(set(named)) or set(named) != there:
        missing, more = sorted(set(named) - there), sorted(there - set(named))
        raise BadDataError(
            f"{listed}: expected one row per image of imgs/{batch}, found {len(named):,} rows "
            f"({len(set(named)):,} distinct) for {len(there):,} images; missing files: {missing[:3] or 'none'}, "
            f"not listed: {more[:3] or 'none'}"
        )
    return found


def read_list(path: Path) -> list[list[str]]:
    """Returns the fields of each row of a list.

    The release's lists are text in spite of their .npy suffix. NumPy's format is read too.
    """
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
        raise BadDataError(f"{path}: expected rows of {FIELDS} fields, found none")
    return rows


def read_image(path: Path, size: int, where: str) -> Bytes:
    """Returns an image's pixels."""
    content = path.read_bytes()
    if not content:
        raise BadDataError(f"{path} ({where}): expected an image, found an empty file")
    with damage(f"{path} ({where})", "picture"):
        pixels = np.asarray(open_picture(content).convert("L"), dtype=np.uint8)
    if pixels.shape != (size, size):
        raise BadDataError(f"{path} ({where}): expected {size} x {size} pixels (--data.size), found {pixels.shape}")
    return pixels.reshape(-1)

"""Pathfinder as the official release holds it: folders of PNGs, and of lists with a line for each."""

import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from common.counter import permutation
from common.errors import BadDataError

EMPTY = "pathfinder32/curv_baseline/imgs/0/sample_172.png"
"""The one picture of the release that is an empty file."""
Bytes = npt.NDArray[np.uint8]
FIELDS = 11
"""Of a line: folder, file, number, label, and seven of the generator's settings."""


def read_release(path: Path, size: int) -> tuple[Bytes, Bytes]:
    """Returns images (count, pixels) and labels, in an order that depends on their number alone.

    Raises:
        BadDataError: names the file and line, what was found and what was expected.
    """
    lists = sorted((path / "metadata").glob("*.npy"), key=lambda each: (len(each.stem), each.stem))
    if not lists or not (path / "imgs").is_dir():
        raise BadDataError(
            f"{path}: expected a level of the release with imgs/BATCH/sample_N.png and metadata/BATCH.npy, such as "
            "pathfinder32/curv_contour_length_14; leave --data.path out to generate the data"
        )
    images, labels = [], []
    for listed in lists:
        rows = read_list(listed)
        there = {each.name for each in (path / "imgs" / listed.stem).glob("*.png")}
        named = {Path(name).name for name, _, _ in rows}
        if named != there:
            missing, more = sorted(named - there), sorted(there - named)
            raise BadDataError(
                f"{listed}: names {len(named):,} images, imgs/{listed.stem} holds {len(there):,}; "
                f"missing {missing[:3] or 'none'}, not listed {more[:3] or 'none'}"
            )
        for name, label, line in rows:
            image = read_image(path / name, size, f"{listed}, line {line}")
            if image is not None:
                images.append(image)
                labels.append(label)
    order = permutation(len(labels), 0)
    return np.stack(images)[order], np.array(labels, dtype=np.uint8)[order]


def read_list(path: Path) -> list[tuple[str, int, int]]:
    """Returns image, label and line of each row: text in the release, whatever the name says; else NumPy's array."""
    content = path.read_bytes()
    if content.startswith(b"\x93NUMPY"):
        try:
            rows = [[str(value) for value in row] for row in np.load(io.BytesIO(content), allow_pickle=False)]
        except ValueError as error:
            raise BadDataError(f"{path}: not an array of plain text ({error})") from error
    else:
        rows = [line.split() for line in content.decode("ascii", "replace").splitlines() if line.strip()]
    found = []
    for number, row in enumerate(rows, start=1):
        if len(row) != FIELDS:
            raise BadDataError(f"{path}, line {number}: expected {FIELDS} fields, found {len(row)}")
        if row[3] not in ("0", "1"):
            raise BadDataError(f"{path}, line {number}: expected label 0 or 1, found {row[3]!r}")
        found.append((f"{row[0]}/{row[1]}", int(row[3]), number))
    if not found:
        raise BadDataError(f"{path}: no rows")
    return found


def read_image(path: Path, size: int, where: str) -> Bytes | None:
    """Returns an image's pixels; None for the one that the release is known to hold empty."""
    content = path.read_bytes()
    if not content and path.as_posix().endswith(EMPTY):
        return None
    try:
        pixels = np.asarray(Image.open(io.BytesIO(content)).convert("L"), dtype=np.uint8)
    except OSError as error:
        reason = "an empty file" if not content else error
        raise BadDataError(f"{path} ({where}): not a picture ({reason})") from error
    if pixels.shape != (size, size):
        raise BadDataError(f"{path} ({where}): expected {size} x {size} pixels (--data.size), found {pixels.shape}")
    return pixels.reshape(-1)

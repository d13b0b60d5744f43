"""Image: what is in a picture, read one grey pixel after the other? CIFAR-10."""

import hashlib
import io
import lzma
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image as Picture

from seqarena.common.data.batches import Bytes
from seqarena.common.data.hub import hub_rows
from seqarena.common.data.prepared import Splits, prepared
from seqarena.common.errors import BadDataError, WrongUseError, damage
from seqarena.common.training.log import with_progress
from seqarena.lra import checksums
from seqarena.lra.data import cropped
from seqarena.lra.data.archives import is_hub_layout, members
from seqarena.lra.data.origin import kept_in
from seqarena.lra.data.pickled import read_batch
from seqarena.lra.data.pixels import Pixels, as_sequences, open_picture

HUB = "uoft-cs/cifar10"
REVISION = "0b2714987fa478483af9968de7c934580d0bb9a2"
HINT = (
    "--data.path takes cifar-10-python.tar.gz or cifar-10-binary.tar.gz (170 MB, www.cs.toronto.edu/~kriz/cifar.html), "
    "their folders, a folder of x_train, y_train, x_test, y_test as .npy or .npy.xz, of pictures "
    f"train/CLASS/*.png and test/CLASS/*.png, or of the Parquet files of {HUB}; lra pathfinder needs no files"
)
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
COUNTS = {"train": 50_000, "test": 10_000}
VALIDATION = 5_000
"""Training images that become the validation set: those whose hash is least."""
PIXELS = 1_024
RECORD = 1 + 3 * PIXELS
"""Bytes of an image in the binary version: a label, then red, green and blue."""
Split = tuple[Bytes, Bytes]
"""Grey images (count, 1024) and labels (count)."""


@dataclass(frozen=True, kw_only=True)
class Image(Pixels):
    """Path of CIFAR-10."""

    classes: ClassVar[int] = len(CLASSES)
    path: str | None = None
    """An official archive, its folder, or a folder of arrays, pictures or the hub's Parquet files; none: the hub."""
    length: int = PIXELS
    """Pixels that are read of an image, row by row."""

    @property
    def longest(self) -> int:
        """Pixels that are read."""
        return self.length

    def check(self) -> None:
        """Raises a ``WrongUseError`` for a length of nothing, or more than there is."""
        if not 1 <= self.length <= PIXELS:
            raise WrongUseError(f"data.length: expected 1 to {PIXELS:,}, found {self.length}")

    def load(self, folder: Path) -> tuple[Splits, str]:
        """Returns the splits, cut to ``length``, and the checksum of the whole images."""
        self.check()
        where = kept_in(folder, "image", self.path)
        kept, found = prepared(
            where, "image: reading 60,000 images", lambda: split(read_cifar(self.path)), checksums.IMAGE
        )
        return cropped(kept, self.length), found


def split(found: dict[str, Split]) -> Splits:
    """Returns train, validation and test, each in the order of its images' hashes: the same from any source."""
    ordered = {}
    for name, (images, labels) in found.items():
        keys = [hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in images]
        order = sorted(range(len(keys)), key=keys.__getitem__)
        ordered[name] = images[order], labels[order]
    (train, train_labels), (test, test_labels) = ordered["train"], ordered["test"]
    return {
        "train": as_sequences(train[VALIDATION:], train_labels[VALIDATION:]),
        "validation": as_sequences(train[:VALIDATION], train_labels[:VALIDATION]),
        "test": as_sequences(test, test_labels),
    }


def read_cifar(path: str | None) -> dict[str, Split]:
    """Returns the grey images of train and test.

    Raises:
        BadDataError: files that are missing, damaged, or not 50,000 and 10,000 images of ten classes.
    """
    if path is None or is_hub_layout(Path(path)):
        found = {split: _from_hub(path, split) for split in COUNTS}
    else:
        found = _from_files(Path(path))
    for name, count in COUNTS.items():
        images, labels = found.get(name, (np.zeros((0, PIXELS), np.uint8), np.zeros(0, np.uint8)))
        if images.shape != (count, PIXELS) or labels.shape != (count,):
            raise BadDataError(
                f"{path or HUB}: expected {count:,} images of {PIXELS:,} pixels in {name}, "
                f"found {' of '.join(f'{size:,}' for size in images.shape)} and {labels.size:,} labels; {HINT}"
            )
        if labels.max() >= len(CLASSES):
            row = int(labels.argmax())
            raise BadDataError(f"{path or HUB}: expected labels 0 to 9 in {name}, found {labels[row]} at row {row}")
    return found


def grey(red: Bytes, green: Bytes, blue: Bytes) -> Bytes:
    """Returns the luma of ITU-R 601 in whole numbers, as Pillow's mode L gives it."""
    wide = [each.astype(np.uint32) for each in (red, green, blue)]
    luma: Bytes = ((wide[0] * 19595 + wide[1] * 38470 + wide[2] * 7471 + 0x8000) >> 16).astype(np.uint8)
    return luma


def _from_hub(path: str | None, split: str) -> Split:
    rows = hub_rows(path or HUB, None if path else REVISION, split, HINT)
    if not {"img", "label"} <= set(rows.column_names):
        raise BadDataError(f"{path or HUB}: expected columns img and label, found {', '.join(rows.column_names)}")
    images, labels = [], []
    for number, row in enumerate(with_progress(rows, f"image {split}", len(rows))):
        where = f"{path or HUB}, split {split}, row {number}"
        if row["label"] not in range(len(CLASSES)):
            raise BadDataError(f"{where}: expected a label from 0 to {len(CLASSES) - 1}, found {row['label']!r}")
        images.append(_pixels(row["img"], where))
        labels.append(row["label"])
    return np.array(images), np.array(labels, dtype=np.uint8)


def _from_files(path: Path) -> dict[str, Split]:
    found: dict[str, list[Split]] = {"train": [], "test": []}
    arrays: dict[str, Bytes] = {}
    for name, content in members(path, ("_batch", "_batch_1", "_batch_2", "_batch_3", "_batch_4", "_batch_5", ".bin",
                                        ".npy", ".npy.xz", ".png")):  # fmt: skip
        where, part = f"{path}, {name}", "test" if "test" in name.rsplit("/", 2)[-1] else "train"
        if name.endswith(".bin"):
            found[part].append(_binary(content, where))
        elif name.endswith((".npy", ".npy.xz")):
            arrays[name.rsplit("/", 1)[-1].split(".")[0]] = _array(content, where)
        elif name.endswith(".png"):
            found["test" if "test" in name.split("/")[:-1] else "train"].append(_picture(content, name, where))
        else:
            found[part].append(_batch(content, where))
    for part in COUNTS:
        images = next((arrays[name] for name in arrays if name.startswith(f"x_{part}")), None)
        labels = next((arrays[name] for name in arrays if name.startswith(f"y_{part}")), None)
        if images is not None and labels is not None:
            found[part].append((images.reshape(len(images), -1), labels.reshape(-1)))
    return {
        part: (np.concatenate([images for images, _ in some]), np.concatenate([labels for _, labels in some]))
        for part, some in found.items()
        if some
    }


def _batch(content: bytes, where: str) -> Split:
    try:
        images, labels = read_batch(content)
    except ValueError as error:
        raise BadDataError(f"{where}: not a batch of CIFAR-10 for Python ({error})") from error
    if labels.ndim != 1 or images.shape != (len(labels), 3 * PIXELS):
        raise BadDataError(
            f"{where}: expected a list of labels and as many rows of {3 * PIXELS:,} bytes, found {labels.shape} and "
            f"{images.shape}"
        )
    return grey(*np.split(images, 3, axis=1)), labels


def _binary(content: bytes, where: str) -> Split:
    if len(content) % RECORD or not content:
        raise BadDataError(f"{where}: expected records of {RECORD:,} bytes, found {len(content):,} bytes")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, RECORD)
    return grey(*np.split(records[:, 1:], 3, axis=1)), records[:, 0]


def _array(content: bytes, where: str) -> Bytes:
    with damage(where, "array"):
        raw = lzma.decompress(content) if where.endswith(".xz") else content
        array = np.load(io.BytesIO(raw), allow_pickle=False)
    if array.dtype.kind not in "iu" or array.min(initial=0) < 0 or array.max(initial=0) > 255:
        raise BadDataError(f"{where}: expected whole numbers from 0 to 255, found {array.dtype}")
    found: Bytes = array.astype(np.uint8)
    if found.ndim == 1:
        return found
    if found.shape[1:] == (32, 32, 3):
        return grey(*(found[..., channel].reshape(len(found), -1) for channel in range(3)))
    if found.ndim == 0 or not len(found) or found[0].size != PIXELS:
        raise BadDataError(f"{where}: expected labels, or images of 32 x 32, grey or RGB; found shape {found.shape}")
    return found.reshape(len(found), -1)


def _picture(content: bytes, name: str, where: str) -> Split:
    folder = name.split("/")[-2] if "/" in name else ""
    names = (*CLASSES, *map(str, range(len(CLASSES))))
    if folder not in names:
        raise BadDataError(f"{where}: expected a folder named by a class ({', '.join(CLASSES)}, or 0 to 9)")
    with damage(where, "picture"):
        pixels = _pixels(open_picture(content), where)
    return pixels[None], np.array([names.index(folder) % len(CLASSES)], dtype=np.uint8)


def _pixels(picture: Picture.Image, where: str) -> Bytes:
    pixels = np.asarray(picture.convert("L"), dtype=np.uint8)
    if pixels.shape != (32, 32):
        raise BadDataError(f"{where}: expected 32 x 32 pixels, found {pixels.shape}")
    return pixels.reshape(-1)

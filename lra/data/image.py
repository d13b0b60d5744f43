"""Image: classification of grey CIFAR-10 images, read pixel by pixel. Reads all layouts of CIFAR-10."""

import hashlib
import io
import lzma
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from PIL import Image as Picture

from seqarena.common.data.archives import is_hub_layout, members
from seqarena.common.data.batches import Bytes
from seqarena.common.data.hub import hub_rows
from seqarena.common.data.prepared import Splits, prepared
from seqarena.common.errors import BadDataError, WrongUseError, damage
from seqarena.common.training.log import with_progress
from seqarena.lra import checksums
from seqarena.lra.data import truncate
from seqarena.lra.data.origin import prepared_folder
from seqarena.lra.data.pickled import read_batch
from seqarena.lra.data.pixels import Pixels, images_to_sequences, open_picture

HUB = "uoft-cs/cifar10"
REVISION = "0b2714987fa478483af9968de7c934580d0bb9a2"
HINT = (
    "--data.path accepts cifar-10-python.tar.gz or cifar-10-binary.tar.gz (170 MB, "
    "www.cs.toronto.edu/~kriz/cifar.html), their folders, or a folder that contains x_train, y_train, x_test, y_test "
    f"as .npy or .npy.xz, images as train/CLASS/*.png and test/CLASS/*.png, or the Parquet files of {HUB}; "
    "--preset quick needs no files"
)
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
COUNTS = {"train": 50_000, "test": 10_000}
VALIDATION = 5_000
"""Number of training images that form the validation set: those with the smallest hashes."""
PIXELS = 1_024
RECORD = 1 + 3 * PIXELS
"""Bytes per image in the binary version: a label, then red, green and blue."""
Split = tuple[Bytes, Bytes]
"""Images (count, 1024 if grey, else 3072: all of red, then of green and blue), and labels (count)."""
Channels = Literal[1, 3]
"""Number of values per pixel: 1 for grey, 3 for red, green and blue."""


@dataclass(frozen=True, kw_only=True)
class Image(Pixels):
    """Source of the CIFAR-10 images."""

    classes: ClassVar[int] = len(CLASSES)
    path: str | None = None
    """An official archive, its folder, or a folder of arrays, images or the hub's Parquet files. none: the hub."""
    length: int = PIXELS
    """Number of pixels read per image, row by row."""

    @property
    def longest(self) -> int:
        """Number of pixels read per image."""
        return self.length

    def check(self) -> None:
        """Raises a ``WrongUseError`` unless ``length`` is 1 to 1,024."""
        if not 1 <= self.length <= PIXELS:
            raise WrongUseError(f"data.length: expected 1 to {PIXELS:,}, found {self.length}")

    def load(self, folder: Path) -> tuple[Splits, str]:
        """Returns the splits, truncated to ``length``, and the checksum of the whole images."""
        self.check()
        where = prepared_folder(folder, "image", self.path)
        kept, found = prepared(
            where, "image: reading 60,000 images", lambda: split(read_cifar(self.path, 1)), checksums.IMAGE
        )
        return truncate(kept, self.length), found


def split(found: dict[str, Split]) -> Splits:
    """Returns train, validation and test, each sorted by image hash, so that all sources yield the same order."""
    ordered = {}
    for name, (images, labels) in found.items():
        keys = [hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in images]
        order = sorted(range(len(keys)), key=keys.__getitem__)
        ordered[name] = images[order], labels[order]
    (train, train_labels), (test, test_labels) = ordered["train"], ordered["test"]
    return {
        "train": images_to_sequences(train[VALIDATION:], train_labels[VALIDATION:]),
        "validation": images_to_sequences(train[:VALIDATION], train_labels[:VALIDATION]),
        "test": images_to_sequences(test, test_labels),
    }


def read_cifar(path: str | None, channels: Channels) -> dict[str, Split]:
    """Returns the images of train and test, in grey or in colour.

    Raises:
        BadDataError: files are missing or damaged, or do not contain 50,000 and 10,000 images of ten classes; or grey
            images where colour is wanted.
    """
    if path is None or is_hub_layout(Path(path)):
        found = {split: _from_hub(path, split, channels) for split in COUNTS}
    else:
        found = _from_files(Path(path), channels)
    for name, count in COUNTS.items():
        images, labels = found.get(name, (np.zeros((0, channels * PIXELS), np.uint8), np.zeros(0, np.uint8)))
        if images.shape != (count, channels * PIXELS) or labels.shape != (count,):
            raise BadDataError(
                f"{path or HUB}: expected {count:,} images of {PIXELS:,} pixels in {name}, "
                f"found images of shape {images.shape} and {labels.size:,} labels; {HINT}"
            )
        if labels.max() >= len(CLASSES):
            row = int(labels.argmax())
            raise BadDataError(f"{path or HUB}: expected labels 0 to 9 in {name}, found {labels[row]} in row {row}")
    return found


def grey(red: Bytes, green: Bytes, blue: Bytes) -> Bytes:
    """Returns the luma of ITU-R 601 in integer arithmetic, identical to Pillow's mode L."""
    wide = [each.astype(np.uint32) for each in (red, green, blue)]
    luma: Bytes = ((wide[0] * 19595 + wide[1] * 38470 + wide[2] * 7471 + 0x8000) >> 16).astype(np.uint8)
    return luma


def _in_channels(images: Bytes, channels: Channels, where: str) -> Bytes:
    """Returns images (count, 1024 or 3072) with the wanted number of channels."""
    if images.ndim != 2 or images.shape[1] not in (PIXELS, 3 * PIXELS) or images.shape[1] == channels * PIXELS:
        return images  # the caller checks shapes
    if channels == 3:
        raise BadDataError(f"{where}: expected images in colour, found grey ones; lra image reads grey images")
    return grey(*np.split(images, 3, axis=1))


def _from_hub(path: str | None, split: str, channels: Channels) -> Split:
    rows = hub_rows(path or HUB, None if path else REVISION, split, HINT)
    if not {"img", "label"} <= set(rows.column_names):
        raise BadDataError(f"{path or HUB}: expected columns img and label, found {', '.join(rows.column_names)}")
    images, labels = [], []
    for number, row in enumerate(with_progress(rows, f"image {split}", len(rows))):
        where = f"{path or HUB}, split {split}, row {number}"
        if row["label"] not in range(len(CLASSES)):
            raise BadDataError(f"{where}: expected a label from 0 to {len(CLASSES) - 1}, found {row['label']!r}")
        images.append(_pixels(row["img"], where, channels))
        labels.append(row["label"])
    return np.array(images), np.array(labels, dtype=np.uint8)


def _from_files(path: Path, channels: Channels) -> dict[str, Split]:
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
            found["test" if "test" in name.split("/")[:-1] else "train"].append(
                _picture(content, name, where, channels)
            )
        else:
            found[part].append(_batch(content, where))
    for part in COUNTS:
        images = next((arrays[name] for name in arrays if name.startswith(f"x_{part}")), None)
        labels = next((arrays[name] for name in arrays if name.startswith(f"y_{part}")), None)
        if images is not None and labels is not None:
            found[part].append((images.reshape(len(images), -1), labels.reshape(-1)))
    return {
        part: (
            np.concatenate([_in_channels(images, channels, str(path)) for images, _ in some]),
            np.concatenate([labels for _, labels in some]),
        )
        for part, some in found.items()
        if some
    }


def _batch(content: bytes, where: str) -> Split:
    try:
        images, labels = read_batch(content)
    except ValueError as error:
        raise BadDataError(f"{where}: not a valid batch of CIFAR-10's Python version: {error}") from error
    if labels.ndim != 1 or images.shape != (len(labels), 3 * PIXELS):
        raise BadDataError(
            f"{where}: expected a list of labels and one row of {3 * PIXELS:,} bytes per label, found labels of shape "
            f"{labels.shape} and images of shape {images.shape}"
        )
    return images, labels


def _binary(content: bytes, where: str) -> Split:
    if len(content) % RECORD or not content:
        raise BadDataError(f"{where}: expected whole records of {RECORD:,} bytes, found {len(content):,} bytes")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, RECORD)
    return records[:, 1:], records[:, 0]


def _array(content: bytes, where: str) -> Bytes:
    with damage(where, "array"):
        raw = lzma.decompress(content) if where.endswith(".xz") else content
        array = np.load(io.BytesIO(raw), allow_pickle=False)
    if array.dtype.kind not in "iu" or array.min(initial=0) < 0 or array.max(initial=0) > 255:
        raise BadDataError(
            f"{where}: expected integers from 0 to 255, found dtype {array.dtype} or values out of range"
        )
    found: Bytes = array.astype(np.uint8)
    if found.ndim == 1:
        return found
    if found.shape[1:] == (32, 32, 3):
        return found.transpose(0, 3, 1, 2).reshape(len(found), -1)
    if found.ndim == 0 or not len(found) or found[0].size != PIXELS:
        raise BadDataError(f"{where}: expected labels, or images of 32 x 32, grey or RGB; found shape {found.shape}")
    return found.reshape(len(found), -1)


def _picture(content: bytes, name: str, where: str, channels: Channels) -> Split:
    folder = name.split("/")[-2] if "/" in name else ""
    names = (*CLASSES, *map(str, range(len(CLASSES))))
    if folder not in names:
        raise BadDataError(
            f"{where}: expected a folder named after a class ({', '.join(CLASSES)}, or 0 to 9), found {folder!r}"
        )
    with damage(where, "picture"):
        pixels = _pixels(open_picture(content), where, channels)
    return pixels[None], np.array([names.index(folder) % len(CLASSES)], dtype=np.uint8)


def _pixels(picture: Picture.Image, where: str, channels: Channels) -> Bytes:
    if channels == 3 and picture.mode in ("1", "L", "LA", "I", "I;16", "F"):
        raise BadDataError(f"{where}: expected a picture in colour, found a grey one (mode {picture.mode})")
    pixels = np.asarray(picture.convert("L" if channels == 1 else "RGB"), dtype=np.uint8)
    if pixels.shape[:2] != (32, 32):
        raise BadDataError(f"{where}: expected 32 x 32 pixels, found {pixels.shape[0]} x {pixels.shape[1]}")
    return pixels.reshape(-1) if channels == 1 else pixels.transpose(2, 0, 1).reshape(-1)

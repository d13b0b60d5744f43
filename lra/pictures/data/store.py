"""Pictures stored end to end in one file, memory-mapped, and verified when they are read."""

import hashlib
import json
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqarena.common.data.batches import Bytes, Indices
from seqarena.common.data.prepared import report_outdated
from seqarena.common.errors import BadDataError, damage
from seqarena.common.files import new_folder
from seqarena.common.runs.sources import imported_by

KEY = 16
"""Bytes of a picture's key."""
ARRAYS = ("keys", "labels", "shapes", "checks")


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture of a source."""

    key: bytes
    """Hash of the picture's content, by which pictures are ordered and divided into splits."""
    label: int
    pixels: npt.NDArray[np.uint8]
    """(rows, columns, 3); red, green, blue."""


@dataclass(frozen=True, kw_only=True)
class PictureSplit:
    """The pictures of one split, in the order of their keys."""

    file: Path
    pixels: Bytes
    """The pixels of all pictures of the file, end to end."""
    offsets: npt.NDArray[np.int64]
    shapes: npt.NDArray[np.int64]
    """Rows and columns of each picture of the file."""
    checks: npt.NDArray[np.uint32]
    """CRC-32 of the pixels of each picture of the file."""
    numbers: Indices
    """Numbers of the split's pictures in the file."""
    labels: npt.NDArray[np.int64]
    """Class of each picture of the split."""

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> npt.NDArray[np.uint8]:
        """Returns a picture (rows, columns, 3).

        Raises:
            BadDataError: its pixels have changed since they were stored.
        """
        number = int(self.numbers[index])
        pixels = self.pixels[self.offsets[number] : self.offsets[number + 1]]
        if zlib.crc32(pixels.data) != self.checks[number]:
            raise BadDataError(
                f"{self.file}: picture {number} is damaged; delete the folder {self.file.parent} and run again"
            )
        rows, columns = self.shapes[number].tolist()
        picture: npt.NDArray[np.uint8] = pixels.reshape(rows, columns, 3)
        return picture


PictureSplits = dict[str, PictureSplit]
"""Name of a split -> its pictures."""


def prepared_pictures(
    folder: Path,
    what: str,
    parts: Mapping[str, Callable[[], Iterable[Picture]]],
    held_out: int,
    *,
    made_by: str,
    expected: str | None = None,
) -> tuple[PictureSplits, str]:
    """Returns train, validation and test, and their checksum. A missing folder is made first.

    ``parts`` has the pictures of train and test, and of validation if ``held_out`` is 0; else the ``held_out`` training
    pictures with the smallest keys form the validation set. The pictures of a part are never in memory together. The
    checksum covers keys, labels, sizes and splits. ``made_by``: name of the module that reads or draws the pictures.

    Raises:
        BadDataError: new pictures that do not have the ``expected`` checksum, which are discarded; fewer training
            pictures than are held out; or a damaged folder, to be deleted.
    """
    sources = imported_by(made_by)
    if not folder.exists():
        print(f"{what}, stored in {folder}", file=sys.stderr)
        with new_folder(folder) as unfinished:
            if unfinished is not None:
                for name, pictures in parts.items():
                    _write(unfinished, name, pictures())
                _report_copies(unfinished, what.partition(":")[0])
                found = _checksum(_splits(unfinished, parts, held_out))
                if expected not in (None, found):
                    raise BadDataError(
                        f"{what}: sha256 {found}, expected {expected}; a file was changed, or belongs to other data"
                    )
                record = {"sha256": found, "sources": dict(sources)}
                (unfinished / "manifest.json").write_text(json.dumps(record, indent=1) + "\n")
    with damage(folder, "folder of prepared pictures", "delete the folder and run again"):
        manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_bytes())
        splits = _splits(folder, parts, held_out)
        if (found := _checksum(splits)) != manifest["sha256"]:
            raise ValueError(f"sha256 {found}, recorded {manifest['sha256']}")
    report_outdated(folder, manifest.get("sources"), sources)
    return splits, found


def _write(folder: Path, part: str, pictures: Iterable[Picture]) -> None:
    keys, labels, shapes, checks = [], [], [], []
    with (folder / f"{part}.pixels").open("wb") as file:
        for picture in pictures:
            pixels = np.ascontiguousarray(picture.pixels)
            file.write(pixels.data)
            keys.append(picture.key)
            labels.append(picture.label)
            shapes.append(pixels.shape[:2])
            checks.append(zlib.crc32(pixels.data))
    arrays: dict[str, npt.NDArray[Any]] = {
        "keys": np.frombuffer(b"".join(keys), np.uint8).reshape(-1, KEY),
        "labels": np.array(labels, np.int64),
        "shapes": np.array(shapes, np.int64).reshape(-1, 2),
        "checks": np.array(checks, np.uint32),
    }
    for name, array in arrays.items():
        np.save(folder / f"{part}.{name}.npy", array)


def _report_copies(folder: Path, name: str) -> None:
    """Prints how many training pictures have copies of another class, and how many test pictures are in train."""
    train, test = (np.load(folder / f"{part}.keys.npy").view(f"S{KEY}")[:, 0] for part in ("train", "test"))
    of_any_class = np.unique(train, return_inverse=True)[1]
    of_one_class = np.unique(np.stack([of_any_class, np.load(folder / "train.labels.npy")]), axis=1)
    contradictory = int((np.bincount(of_one_class[0]) > 1).sum()) if len(train) else 0
    leaked = int(np.isin(test, train).sum())
    if contradictory or leaked:
        print(
            f"{name}: {contradictory:,} pictures are in several classes of train; {leaked:,} pictures of test are also "
            "in train",
            file=sys.stderr,
        )


def _splits(folder: Path, parts: Iterable[str], held_out: int) -> PictureSplits:
    splits = {part: _whole(folder, part) for part in parts}
    if held_out:
        train = splits["train"]
        if len(train) <= held_out:
            raise BadDataError(f"{len(train):,} training pictures: expected more than data.held_out {held_out:,}")
        splits["train"], splits["validation"] = _part(train, slice(held_out, None)), _part(train, slice(held_out))
    return splits


def _whole(folder: Path, part: str) -> PictureSplit:
    keys, labels, shapes, checks = (np.load(folder / f"{part}.{name}.npy") for name in ARRAYS)
    file = folder / f"{part}.pixels"
    offsets = np.concatenate([[0], np.cumsum(3 * shapes.prod(axis=1))]).astype(np.int64)
    if file.stat().st_size != offsets[-1]:
        raise ValueError(f"{file.name} has {file.stat().st_size:,} bytes, expected {offsets[-1]:,}")
    order = np.lexsort([labels, *keys.T[::-1]]).astype(np.int64)
    pixels = np.memmap(file, np.uint8, mode="r") if offsets[-1] else np.zeros(0, np.uint8)
    return PictureSplit(
        file=file, pixels=pixels, offsets=offsets, shapes=shapes, checks=checks, numbers=order, labels=labels[order]
    )


def _part(split: PictureSplit, part: slice) -> PictureSplit:
    return replace(split, numbers=split.numbers[part], labels=split.labels[part])


def _checksum(splits: PictureSplits) -> str:
    digest = hashlib.sha256()
    for name, split in sorted(splits.items()):
        keys = np.load(split.file.parent / f"{split.file.stem}.keys.npy")
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(keys[split.numbers]).data)
        digest.update(split.labels.astype("<i8").data)
        digest.update(split.shapes[split.numbers].astype("<i8").data)
    return digest.hexdigest()


def numbered(pictures: Iterable[npt.NDArray[np.uint8]], labels: Iterable[int | np.integer[Any]]) -> Iterator[Picture]:
    """Yields pictures whose keys are hashes of their pixels."""
    for pixels, label in zip(pictures, labels, strict=True):
        key = hashlib.blake2b(np.ascontiguousarray(pixels).data, digest_size=KEY).digest()
        yield Picture(key=key, label=int(label), pixels=pixels)

"""Pictures in one folder per class: ImageNet-1k and Tiny-ImageNet, in folders, in a zip archive, or from the hub."""

import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, NamedTuple

from seqarena.common.data.archives import is_hub_layout
from seqarena.common.data.hub import hub_rows
from seqarena.common.data.readers import decode_lines
from seqarena.common.errors import BadDataError, WrongUseError, damage
from seqarena.common.files import paths_below
from seqarena.common.runs.roles import Role, role
from seqarena.lra.data.origin import prepared_folder
from seqarena.lra.pictures.data import PictureData
from seqarena.lra.pictures.data.decode import PictureFile, decoded
from seqarena.lra.pictures.data.store import Picture, PictureSplits, prepared_pictures

PARTS = {"train": "train", "test": "val"}
"""Part of a data set -> its folder. The labels of the published test sets are not public."""
SUFFIXES = (".jpeg", ".jpg", ".png")
ANNOTATIONS = "val_annotations.txt"


@dataclass(frozen=True, kw_only=True)
class ClassFolders(PictureData):
    """Source of pictures in one folder per class. The published validation set is the test set."""

    hub: ClassVar[str]
    """Data set of the hub."""
    hub_splits: ClassVar[dict[str, str]]
    """Part -> split of the hub's data set."""
    name: ClassVar[str]
    path: str | None = field(default=None, metadata=role(Role.LOCATION))
    """Folder or zip archive with train/CLASS/... and val/CLASS/... (or val/val_annotations.txt as in Tiny-ImageNet), or
    a folder with the hub's Parquet files. none: the hub."""
    shorter: int | None = None
    """Pixels of a stored picture's shorter side, to which it is resized. none: all pictures have data.side."""
    counts: tuple[int, int]
    """Expected number of pictures in train and in val."""

    def check(self) -> None:
        """Raises a ``WrongUseError`` for invalid settings."""
        super().check()
        if self.shorter is not None and self.shorter < self.side:
            raise WrongUseError(f"data.shorter: expected at least data.side {self.side}, found {self.shorter}")
        if self.counts[0] <= self.held_out or self.counts[1] < 1:
            raise WrongUseError(
                f"data.counts: expected more than data.held_out {self.held_out:,} pictures in train and at least 1 in "
                f"val, found {self.counts[0]:,} and {self.counts[1]:,}"
            )

    def load(self, folder: Path) -> tuple[PictureSplits, str]:
        """Returns train, validation and test, and their checksum."""
        sizes = "-".join(map(str, (*self.counts, self.classes, self.shorter or self.side, self.held_out)))
        where = prepared_folder(folder, f"{self.name}-{sizes}", self.path, alike=False)
        found = {} if where.exists() else self._find()
        size = {"shorter": self.shorter} if self.shorter is not None else {"side": self.side}

        def pictures(part: str, count: int) -> Iterator[Picture]:
            return decoded(found[part], count, f"{self.name} {part}", **size)

        return prepared_pictures(
            where,
            f"{self.name}: reading {sum(self.counts):,} pictures",
            {part: partial(pictures, part, count) for part, count in zip(PARTS, self.counts, strict=True)},
            self.held_out,
            made_by=__name__,
        )

    def _find(self) -> dict[str, Iterator[PictureFile]]:
        """Returns the picture files of each part, which are read one by one; their number is checked before."""
        if self.path is None or is_hub_layout(Path(self.path)):
            rows = {part: self._rows(part) for part in PARTS}
            self._require_counts(rows)
            return {part: self._from_hub(some, part) for part, some in rows.items()}
        listed = list_files(Path(self.path), self.classes)
        self._require_counts(listed)
        return {part: _contents(some) for part, some in listed.items()}

    def _require_counts(self, found: Mapping[str, Sized]) -> None:
        for (part, some), count in zip(found.items(), self.counts, strict=True):
            if len(some) != count:
                raise BadDataError(
                    f"{self.path or self.hub}: expected {count:,} pictures in {PARTS[part]}, found {len(some):,}; for "
                    "another data set --data.counts TRAIN VAL and --data.classes"
                )

    def _rows(self, part: str) -> Any:
        source, split = self.path or self.hub, self.hub_splits[part]
        hint = "--data.path accepts a folder or a zip archive with train/ and val/; --preset quick needs no files"
        rows = hub_rows(source, None, split, hint)
        if not {"image", "label"} <= set(rows.column_names):
            raise BadDataError(f"{source}: expected columns image and label, found {', '.join(rows.column_names)}")
        missing = set(range(self.classes)) - set(rows["label"])
        if missing:
            raise BadDataError(f"{source}, split {split}: expected pictures of class {min(missing)}, found none")
        return rows

    def _from_hub(self, rows: Any, part: str) -> Iterator[PictureFile]:
        import datasets  # noqa: PLC0415  # takes a second, and most tasks never need it

        for number, row in enumerate(rows.cast_column("image", datasets.Image(decode=False))):
            where = f"{self.path or self.hub}, split {self.hub_splits[part]}, row {number}"
            if row["label"] not in range(self.classes):
                raise BadDataError(f"{where}: expected a label from 0 to {self.classes - 1}, found {row['label']!r}")
            if not (row["image"] or {}).get("bytes"):
                raise BadDataError(f"{where}: expected a picture, found none")
            yield PictureFile(where, row["image"]["bytes"], row["label"])


@dataclass(frozen=True, kw_only=True)
class TinyImageNet(ClassFolders):
    """Source of Tiny-ImageNet: 200 classes of ImageNet, 64 x 64 pixels."""

    hub: ClassVar[str] = "zh-plus/tiny-imagenet"
    hub_splits: ClassVar[dict[str, str]] = {"train": "train", "test": "valid"}
    name: ClassVar[str] = "tiny-imagenet"
    classes: int = 200
    """Number of classes."""
    side: int = 64
    """Rows and columns of a picture, in pixels."""
    held_out: int = 10_000
    """Number of training pictures that form the validation set: those with the smallest hashes."""
    counts: tuple[int, int] = (100_000, 10_000)
    """Expected number of pictures in train and in val."""


@dataclass(frozen=True, kw_only=True)
class ImageNet(ClassFolders):
    """Source of ImageNet-1k (ILSVRC 2012). The prepared pictures take 335 GB with shorter sides of 256 pixels."""

    hub: ClassVar[str] = "ILSVRC/imagenet-1k"
    hub_splits: ClassVar[dict[str, str]] = {"train": "train", "test": "validation"}
    name: ClassVar[str] = "imagenet"
    classes: int = 1_000
    """Number of classes."""
    side: int = 224
    """Rows and columns of a picture as the model reads it, in pixels: a crop of the stored picture."""
    held_out: int = 50_000
    """Number of training pictures that form the validation set: those with the smallest hashes."""
    shorter: int | None = 256
    """Pixels of a stored picture's shorter side, to which it is resized."""
    counts: tuple[int, int] = (1_281_167, 50_000)
    """Expected number of pictures in train and in val."""


class PictureEntry(NamedTuple):
    """A picture file that was found."""

    where: str
    label: int
    read: Callable[[], bytes]


def list_files(path: Path, classes: int) -> dict[str, list[PictureEntry]]:
    """Returns the picture files of each part, in the order of their names. Classes are numbered in that order too.

    Raises:
        BadDataError: no such folder or archive; no train or val; another number of classes than expected; a class
            without pictures; or a picture of val without a class of train.
    """
    entries = list(_entries(path))
    train, test = (dict(_below(entries, folder)) for folder in PARTS.values())
    names = sorted({name.split("/")[0] for name, read in train.items() if "/" in name or read is None})
    if len(names) != classes:
        raise BadDataError(f"{path}: expected {classes:,} classes in train/, found {len(names):,}")
    numbers = {name: number for number, name in enumerate(names)}
    annotated = _annotations(test, path)
    listed: dict[str, list[PictureEntry]] = {part: [] for part in PARTS}
    for part, found in zip(PARTS, (train, test), strict=True):
        for name in sorted(name for name, read in found.items() if read and name.lower().endswith(SUFFIXES)):
            where, file, read = f"{path}, {PARTS[part]}/{name}", name.split("/")[-1], found[name]
            assert read is not None
            by_file = part == "test" and annotated is not None
            own = annotated.get(file) if by_file and annotated is not None else name.split("/")[0]
            if own not in numbers:
                expected = (
                    f"its class of train/ in {ANNOTATIONS}"
                    if by_file
                    else f"a folder named after a class of train/ (for val/images/: a file val/{ANNOTATIONS})"
                )
                raise BadDataError(f"{where}: expected {expected}, found {own or 'none'}")
            listed[part].append(PictureEntry(where, numbers[own], read))
    for part, some in listed.items():
        empty = set(numbers.values()) - {each.label for each in some}
        if empty:
            raise BadDataError(f"{path}: expected pictures of class {names[min(empty)]} in {PARTS[part]}/, found none")
    return listed


def _entries(path: Path) -> Iterator[tuple[str, Callable[[], bytes] | None]]:
    """Yields name and reader of each file of a folder or zip archive; no reader for folders."""
    if path.is_dir():
        for each in paths_below(path):
            yield each.relative_to(path).as_posix(), None if each.is_dir() else each.read_bytes
        return
    if path.suffix != ".zip" or not path.is_file():
        raise BadDataError(f"{path}: expected a folder or a zip archive with train/ and val/")
    with damage(path, "zip archive"):
        archive = zipfile.ZipFile(path)
    for entry in archive.infolist():
        yield entry.filename.rstrip("/"), None if entry.is_dir() else partial(archive.read, entry)


def _below(
    entries: Iterable[tuple[str, Callable[[], bytes] | None]], folder: str
) -> Iterator[tuple[str, Callable[[], bytes] | None]]:
    """Yields the entries below the outermost folder of a name, without the files that macOS adds to archives.

    A class may have the name of a part, so train/val/ is no folder of val.
    """
    for name, read in entries:
        parts = PurePosixPath(name).parts
        part = next((each for each in parts[:-1] if each in PARTS.values()), None)
        if part == folder and "__MACOSX" not in parts and not parts[-1].startswith("."):
            yield "/".join(parts[parts.index(folder) + 1 :]), read


def _annotations(test: dict[str, Callable[[], bytes] | None], path: Path) -> dict[str, str] | None:
    """Returns the class of each file of val by its annotations; None without a file of annotations."""
    read = test.get(ANNOTATIONS)
    if read is None:
        return None
    where = f"{path}, val/{ANNOTATIONS}"
    found: dict[str, str] = {}
    for number, line in enumerate(decode_lines(read().splitlines(), where), start=1):
        columns = line.split("\t")
        if len(columns) < 2:
            raise BadDataError(f"{where}, line {number}: expected a file and its class, separated by a tab")
        if found.setdefault(columns[0], columns[1]) != columns[1]:
            raise BadDataError(f"{where}, line {number}: {columns[0]} has another class, {found[columns[0]]}, before")
    return found


def _contents(listed: Iterable[PictureEntry]) -> Iterator[PictureFile]:
    for each in listed:
        with damage(each.where, "picture"):
            content = each.read()
        yield PictureFile(each.where, content, each.label)

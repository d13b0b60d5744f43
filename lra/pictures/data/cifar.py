"""CIFAR-10 in colour."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from seqarena.common.errors import WrongUseError
from seqarena.lra import checksums
from seqarena.lra.data.image import CLASSES, COUNTS, Split, read_cifar
from seqarena.lra.data.origin import prepared_folder
from seqarena.lra.pictures.data import PictureData
from seqarena.lra.pictures.data.store import Picture, PictureSplits, numbered, prepared_pictures

SIDE, HELD_OUT = 32, 5_000


@dataclass(frozen=True, kw_only=True)
class Cifar(PictureData):
    """Source of the CIFAR-10 pictures: the same files as of the task image."""

    path: str | None = None
    """An official archive, its folder, or a folder of arrays, pictures or the hub's Parquet files, all in colour. none:
    the hub."""
    classes: int = 10
    """Number of classes."""
    side: int = SIDE
    """Rows and columns of a picture as the model reads it, in pixels: the centre of the picture if below 32."""
    held_out: int = HELD_OUT
    """Number of training pictures that form the validation set: those with the smallest hashes."""

    def check(self) -> None:
        """Raises a ``WrongUseError`` for another number of classes, or sizes above those of CIFAR-10."""
        super().check()
        if self.classes != len(CLASSES) or self.side > SIDE or self.held_out >= COUNTS["train"]:
            raise WrongUseError(
                f"CIFAR-10: expected data.classes {len(CLASSES)}, data.side of at most {SIDE} and data.held_out below "
                f"{COUNTS['train']:,}; found {self.classes}, {self.side} and {self.held_out:,}"
            )

    def load(self, folder: Path) -> tuple[PictureSplits, str]:
        """Returns train, validation and test, and their checksum."""
        where = prepared_folder(folder, f"cifar10-patches-{self.held_out}", self.path)
        found = read_cifar(self.path, 3) if not where.exists() else {}
        return prepared_pictures(
            where,
            f"cifar10-patches: reading {sum(COUNTS.values()):,} pictures",
            {part: partial(_pictures, found, part) for part in COUNTS},
            self.held_out,
            made_by=__name__,
            expected=checksums.CIFAR10 if self.held_out == HELD_OUT else None,
        )


def _pictures(found: dict[str, Split], part: str) -> Iterator[Picture]:
    images, labels = found[part]
    return numbered(images.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1), labels)

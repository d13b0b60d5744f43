"""Drawn digits in colour, for runs of a minute.

Digit, height and position are those of ``lra.data.digits``: every combination is in one split only. The colours of
digit and background are random, so that colour does not tell the digit.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seqarena.common.data.counter import hash64
from seqarena.common.data.held_out import draw_for_split
from seqarena.common.errors import WrongUseError
from seqarena.common.runs.config import fingerprint
from seqarena.lra.data import SPLITS
from seqarena.lra.data.digits import NOISE, Digits, Drawing, draw
from seqarena.lra.pictures.data import PictureData
from seqarena.lra.pictures.data.store import Picture, PictureSplits, numbered, prepared_pictures

VERSION = 1
CONTRAST = 96
"""Minimum distance between the colours of digit and background, in levels of brightness per channel on average."""


@dataclass(frozen=True, kw_only=True)
class DrawnDigits(PictureData):
    """Digits of varying size, position and colour, with noise: ten classes."""

    path: str | None = None
    """Must be none: the digits are drawn."""
    classes: int = 10
    """Number of classes."""
    side: int = 16
    """Rows and columns of a picture, in pixels."""
    train: int = 8_000
    """Training pictures."""
    held_out: int = 1_000
    """Validation pictures."""
    test: int = 1_000
    """Test pictures."""
    seed: int = 0
    """Seed of the data, independent of the seed of the run."""

    def check(self) -> None:
        """Raises a ``WrongUseError`` if a path is set, or for invalid sizes."""
        super().check()
        if self.path is not None:
            raise WrongUseError(
                "data.path: expected none, for the quick preset draws its pictures; choose a preset that reads files"
            )
        if self.side < 10 or min(self.train, self.test) < 1 or self.classes != 10:
            raise WrongUseError(
                "expected data.side of at least 10, data.train and data.test of at least 1 and data.classes 10; found "
                f"{self.side}, {self.train}, {self.test} and {self.classes}"
            )

    def load(self, folder: Path) -> tuple[PictureSplits, str]:
        """Returns train, validation and test, and their checksum."""
        self.check()
        where = folder / "lra" / f"drawn-digits-v{VERSION}-{fingerprint(self)}"
        counts = dict(zip(SPLITS, (self.train, self.held_out, self.test), strict=True))
        parts = {name: partial(self._draw, number, counts[name]) for number, name in enumerate(SPLITS)}
        return prepared_pictures(where, "drawing digits in colour", parts, 0, made_by=__name__)

    def drawings(self, split: int, count: int) -> list[Drawing]:
        """Returns the digits, sizes and positions of a split's pictures."""
        digits = Digits(size=self.side, seed=self.seed)
        return [draw_for_split(split, partial(digits.drawing, split, example)) for example in range(count)]

    def _draw(self, split: int, count: int) -> Iterator[Picture]:
        drawings = self.drawings(split, count)
        pictures = (
            _coloured(draw(drawing, self.side), self.side, self.seed, split, example)
            for example, drawing in enumerate(drawings)
        )
        return numbered(pictures, (drawing.digit for drawing in drawings))


def _coloured(grey: npt.NDArray[np.uint8], side: int, *keys: int) -> npt.NDArray[np.uint8]:
    """Returns a grey drawing in two random colours, its noise included; (side, side, 3)."""
    for attempt in range(1_000):
        ink, paper = (hash64(*keys, 7, attempt, np.arange(6)) % np.uint64(256 - NOISE)).astype(int).reshape(2, 3)
        if np.abs(ink - paper).mean() >= CONTRAST:
            break
    strength = grey.reshape(side, side, 1) / 255
    coloured: npt.NDArray[np.uint8] = np.rint(paper + (ink - paper) * strength).clip(0, 255).astype(np.uint8)
    return coloured

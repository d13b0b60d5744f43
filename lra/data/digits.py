"""Drawn digits in small grey pictures, for runs of a minute."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from common.config import fingerprint
from common.counter import hash64
from common.errors import WrongUseError
from common.prepared import Splits, prepared
from lra.data import SPLITS
from lra.data.pixels import Pixels, as_sequences

VERSION = 1
GLYPHS = (  # five dots a row, seven rows
    "01110 10001 10011 10101 11001 10001 01110", "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00110 01000 10000 11111", "11111 00010 00100 00010 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010", "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110", "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110", "01110 10001 10001 01111 00001 00010 01100",
)  # fmt: skip
NOISE = 32
"""Levels up to which every pixel is off."""


@dataclass(frozen=True, kw_only=True)
class Digits(Pixels):
    """Digits of different sizes, places and brightness, with noise: ten classes."""

    classes: ClassVar[int] = 10
    path: str | None = None
    """None: digits are drawn."""
    size: int = 12
    """Pixels of a side."""
    train: int = 8_000
    """Training images."""
    validation: int = 1_000
    """Validation images."""
    test: int = 1_000
    """Test images."""
    seed: int = 0
    """Seed of the data, apart from the seed of the run."""

    @property
    def longest(self) -> int:
        """Pixels of an image."""
        return self.size**2

    def check(self) -> None:
        """Raises a ``WrongUseError`` for files, or settings that describe no images."""
        if self.path is not None:
            raise WrongUseError("data.path: the quick preset draws its images; choose a preset that reads files")
        if self.size < 10 or min(self.train, self.validation, self.test) < 1:
            raise WrongUseError("expected data.size of at least 10 and at least 1 image in each split")

    def load(self, folder: Path) -> tuple[Splits, str]:
        """Returns the splits and their checksum."""
        self.check()
        where = folder / "lra" / f"digits-v{VERSION}-{fingerprint(self)}"
        return prepared(where, "image: drawing digits", self._drawn)

    def _drawn(self) -> Splits:
        found = {}
        for number, name in enumerate(SPLITS):
            count = getattr(self, name)
            drawn = hash64(self.seed, number, np.arange(count)[:, None], np.arange(6))  # count 6
            labels = (drawn[:, 0] % np.uint64(10)).astype(np.uint8)
            images = [draw(int(label), self.size, some.tolist()) for label, some in zip(labels, drawn, strict=True)]
            found[name] = as_sequences(np.stack(images), labels)
        return found


def draw(digit: int, size: int, numbers: list[int]) -> npt.NDArray[np.uint8]:
    """Returns the pixels of a digit, its looks chosen by six random numbers of 64 bits."""
    dots = np.array([[int(dot) for dot in row] for row in GLYPHS[digit].split()], dtype=np.uint8) * 255
    height = 7 + numbers[1] % (size - 8)
    width = max(5, height * 5 // 7)
    glyph = np.asarray(Image.fromarray(dots).resize((width, height), Image.Resampling.BILINEAR), dtype=np.int64)
    top, left = numbers[2] % (size - height + 1), numbers[3] % (size - width + 1)
    image = hash64(numbers[5], np.arange(size * size)).reshape(size, size) % np.uint64(NOISE)
    canvas = image.astype(np.int64)
    canvas[top : top + height, left : left + width] += glyph * (128 + numbers[4] % 96) // 255
    pixels: npt.NDArray[np.uint8] = canvas.clip(0, 255).astype(np.uint8).reshape(-1)
    return pixels

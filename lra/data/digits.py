"""Drawn digits in small grey images, for runs of a minute.

Every combination of digit, height and position is in one split only, whatever its brightness and noise. The nearest
training image therefore shows a digit of another size or position.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from seqarena.common.data.counter import hash64
from seqarena.common.data.held_out import draw_for_split
from seqarena.common.data.prepared import Splits, prepared
from seqarena.common.errors import WrongUseError
from seqarena.common.runs.config import fingerprint
from seqarena.lra.data import SPLITS
from seqarena.lra.data.pixels import Pixels, images_to_sequences

VERSION = 2
GLYPHS = (  # seven rows of five dots
    "01110 10001 10011 10101 11001 10001 01110", "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00110 01000 10000 11111", "11111 00010 00100 00010 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010", "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110", "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110", "01110 10001 10001 01111 00001 00010 01100",
)  # fmt: skip
NOISE = 32
"""Number of noise levels: every pixel gets 0 to 31 added."""


@dataclass(frozen=True, kw_only=True)
class Digits(Pixels):
    """Digits of varying size, position and brightness, with noise: ten classes."""

    classes: ClassVar[int] = 10
    path: str | None = None
    """Must be none: the digits are drawn."""
    size: int = 12
    """Side length of an image in pixels."""
    train: int = 8_000
    """Training images."""
    validation: int = 1_000
    """Validation images."""
    test: int = 1_000
    """Test images."""
    seed: int = 0
    """Seed of the data, independent of the seed of the run."""

    @property
    def longest(self) -> int:
        """Pixels per image."""
        return self.size**2

    def check(self) -> None:
        """Raises a ``WrongUseError`` if a path is set, or for invalid sizes."""
        if self.path is not None:
            raise WrongUseError(
                "data.path: expected none, for the quick preset draws its images; choose a preset that reads files"
            )
        if self.size < 10 or min(self.train, self.validation, self.test) < 1:
            raise WrongUseError(
                "expected data.size of at least 10 and data.train, data.validation, data.test of at least 1; found "
                f"{self.size}, {self.train}, {self.validation} and {self.test}"
            )

    def load(self, folder: Path) -> tuple[Splits, str]:
        """Returns the splits and their checksum."""
        self.check()
        where = folder / "lra" / f"digits-v{VERSION}-{fingerprint(self)}"
        return prepared(where, "image: drawing digits", self._draw_splits)

    def _draw_splits(self) -> Splits:
        found = {}
        for number, name in enumerate(SPLITS):
            count = getattr(self, name)
            drawings = [draw_for_split(number, partial(self.drawing, number, example)) for example in range(count)]
            images = np.stack([draw(drawing, self.size) for drawing in drawings])
            found[name] = images_to_sequences(images, np.array([drawing.digit for drawing in drawings], dtype=np.uint8))
        return found

    def drawing(self, split: int, example: int, attempt: int) -> tuple[str, "Drawing"]:
        """Returns the identity of a drawing (digit, height, position) and the whole drawing."""
        drawn = hash64(self.seed, split, example, attempt, np.arange(6)).tolist()
        height = 7 + drawn[1] % (self.size - 8)
        width = max(5, height * 5 // 7)
        drawing = Drawing(
            digit=drawn[0] % 10, height=height, width=width, top=drawn[2] % (self.size - height + 1),
            left=drawn[3] % (self.size - width + 1), brightness=128 + drawn[4] % 96, noise=drawn[5],
        )  # fmt: skip
        return f"{drawing.digit} {drawing.height} {drawing.top} {drawing.left}", drawing


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """Parameters of one image; lengths in pixels."""

    digit: int
    height: int
    width: int
    top: int
    left: int
    brightness: int
    """Brightness of the digit's brightest pixel, before noise is added."""
    noise: int
    """Seed of the noise."""


def draw(drawing: Drawing, size: int) -> npt.NDArray[np.uint8]:
    """Returns the pixels of a digit."""
    dots = np.array([[int(dot) for dot in row] for row in GLYPHS[drawing.digit].split()], dtype=np.uint8) * 255
    glyph = Image.fromarray(dots).resize((drawing.width, drawing.height), Image.Resampling.BILINEAR)
    noise = hash64(drawing.noise, np.arange(size * size)).reshape(size, size) % np.uint64(NOISE)
    canvas = noise.astype(np.int64)
    canvas[drawing.top : drawing.top + drawing.height, drawing.left : drawing.left + drawing.width] += (
        np.asarray(glyph, dtype=np.int64) * drawing.brightness // 255
    )
    pixels: npt.NDArray[np.uint8] = canvas.clip(0, 255).astype(np.uint8).reshape(-1)
    return pixels

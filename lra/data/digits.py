"""Drawn digits in small grey pictures, for runs of a minute.

A digit of one height at one place is in one split only, whatever its brightness and noise: the nearest training picture
is of a digit that is larger or lies elsewhere.
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
from seqarena.lra.data.pixels import Pixels, as_sequences

VERSION = 2
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
            looks = [draw_for_split(number, partial(self._look, number, example)) for example in range(count)]
            images = np.stack([draw(look, self.size) for look in looks])
            found[name] = as_sequences(images, np.array([look.digit for look in looks], dtype=np.uint8))
        return found

    def _look(self, split: int, example: int, attempt: int) -> tuple[str, "Look"]:
        """Returns where a digit stands, and its whole look."""
        drawn = hash64(self.seed, split, example, attempt, np.arange(6)).tolist()
        height = 7 + drawn[1] % (self.size - 8)
        width = max(5, height * 5 // 7)
        look = Look(
            digit=drawn[0] % 10, height=height, width=width, top=drawn[2] % (self.size - height + 1),
            left=drawn[3] % (self.size - width + 1), brightness=128 + drawn[4] % 96, noise=drawn[5],
        )  # fmt: skip
        return f"{look.digit} {look.height} {look.top} {look.left}", look


@dataclass(frozen=True, kw_only=True)
class Look:
    """The content of a picture; lengths in pixels."""

    digit: int
    height: int
    width: int
    top: int
    left: int
    brightness: int
    """Levels of the digit's brightest pixel, before noise is added."""
    noise: int
    """Seed of the noise."""


def draw(look: Look, size: int) -> npt.NDArray[np.uint8]:
    """Returns the pixels of a digit."""
    dots = np.array([[int(dot) for dot in row] for row in GLYPHS[look.digit].split()], dtype=np.uint8) * 255
    glyph = Image.fromarray(dots).resize((look.width, look.height), Image.Resampling.BILINEAR)
    noise = hash64(look.noise, np.arange(size * size)).reshape(size, size) % np.uint64(NOISE)
    canvas = noise.astype(np.int64)
    canvas[look.top : look.top + look.height, look.left : look.left + look.width] += (
        np.asarray(glyph, dtype=np.int64) * look.brightness // 255
    )
    pixels: npt.NDArray[np.uint8] = canvas.clip(0, 255).astype(np.uint8).reshape(-1)
    return pixels

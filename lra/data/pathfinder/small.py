"""Small Pathfinder images for runs of a minute, in which where the markers stand says nothing.

Contours of three dashes in 14 x 14 pixels can only begin in a few places: both markers' places alone tell the answer
for four images in five. So every image has another one with markers at the same places and the other answer, and no
two splits have images with markers at the same places.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import ClassVar

import numpy as np

from seqarena.common.data.batches import Bytes
from seqarena.common.data.held_out import split_of
from seqarena.common.data.nearest import FLOOR
from seqarena.common.data.prepared import Splits, prepared
from seqarena.common.errors import WrongUseError
from seqarena.common.runs.config import fingerprint
from seqarena.lra.data import SPLITS
from seqarena.lra.data.pathfinder.generator import draw_images
from seqarena.lra.data.pathfinder.geometry import GEOMETRIES
from seqarena.lra.data.pixels import Pixels, as_sequences

VERSION = 1
SIZE, CONTOUR_LENGTH = 14, 3
DRAWN_AT_ONCE = 1_000


@dataclass(frozen=True, kw_only=True)
class SmallPathfinder(Pixels):
    """Pairs of contours without distractors; two markers on one of them, or on both."""

    classes: ClassVar[int] = 2
    path: str | None = None
    """None: images are drawn."""
    train: int = 16_000
    """Training images."""
    validation: int = 2_000
    """Validation images."""
    test: int = 2_000
    """Test images."""
    seed: int = 0
    """Seed of the data, apart from the seed of the run."""

    @property
    def longest(self) -> int:
        """Pixels of an image."""
        return SIZE**2

    def check(self) -> None:
        """Raises a ``WrongUseError`` for files, or splits that have no image of each answer."""
        if self.path is not None:
            raise WrongUseError("data.path: the quick preset draws its images; choose a preset that reads files")
        if min(self.train, self.validation, self.test) < 2:
            raise WrongUseError("data.train, data.validation and data.test: expected at least 2 each")

    def load(self, folder: Path) -> tuple[Splits, str]:
        """Returns the splits and their checksum."""
        self.check()
        where = folder / "lra" / f"small-pathfinder-v{VERSION}-{fingerprint(self)}"
        return prepared(where, f"pathfinder: drawing images of {SIZE} x {SIZE}", self._drawn)

    def floors(self, splits: Splits) -> dict[str, float]:
        """Returns those of all pictures, and what the opposite of the nearest training image says.

        Two images of the same contours whose markers differ in one place have different answers, and the same places
        are never in two splits: the nearest training image is wrong more often than right, and that too is a rule.
        """
        found = super().floors(splits)
        return found | {f"opposite of the {FLOOR}": 1 - found[FLOOR]}

    def _drawn(self) -> Splits:
        wanted = [getattr(self, name) for name in SPLITS]
        found: list[list[tuple[int, Bytes]]] = [[] for _ in SPLITS]
        waiting: dict[tuple[str, int], list[Bytes]] = {}
        for markers, label, image in self._stream():
            matching = waiting.get((markers, 1 - label))
            if not matching:
                waiting.setdefault((markers, label), []).append(image)
                continue
            found[split_of(markers)] += (1 - label, matching.pop(0)), (label, image)
            if all(len(some) >= number for some, number in zip(found, wanted, strict=True)):
                break
        return {
            name: as_sequences(
                np.stack([image.reshape(-1) for _, image in some[:number]]),
                np.array([label for label, _ in some[:number]], dtype=np.uint8),
            )
            for name, some, number in zip(SPLITS, found, wanted, strict=True)
        }

    def _stream(self) -> Iterator[tuple[str, int, Bytes]]:
        """Yields both markers' places, label and image of draw 0, 1, 2, ..."""
        for start in count(0, DRAWN_AT_ONCE):
            numbers = range(start, start + DRAWN_AT_ONCE)
            drawn = draw_images(GEOMETRIES[SIZE], CONTOUR_LENGTH, 0, self.seed, numbers)
            for tips, label, image in zip(drawn.tips.tolist(), drawn.labels.tolist(), drawn.images, strict=True):
                yield str(sorted(tips)), label, image

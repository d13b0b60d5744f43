"""Small Pathfinder images for runs of a minute, with labels that do not depend on the positions of the markers.

Contours of three dashes in 14 x 14 pixels can begin only at a few positions, so that the positions of both markers
alone would determine four labels in five. Therefore every image is paired with an image of the other label that has
its markers at the same positions, and no pair of marker positions is in two splits.
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
from seqarena.lra.data.pixels import Pixels, images_to_sequences

VERSION = 1
SIZE, CONTOUR_LENGTH = 14, 3
DRAWS_PER_CHUNK = 1_000


@dataclass(frozen=True, kw_only=True)
class SmallPathfinder(Pixels):
    """Images of two contours without distractors. Both markers are on one contour, or one marker is on each."""

    classes: ClassVar[int] = 2
    path: str | None = None
    """Must be none: the images are drawn."""
    train: int = 16_000
    """Training images."""
    validation: int = 2_000
    """Validation images."""
    test: int = 2_000
    """Test images."""
    seed: int = 0
    """Seed of the data, independent of the seed of the run."""

    @property
    def longest(self) -> int:
        """Pixels per image."""
        return SIZE**2

    def check(self) -> None:
        """Raises a ``WrongUseError`` if a path is set, or a split is too small for one image of each label."""
        if self.path is not None:
            raise WrongUseError(
                "data.path: expected none, for the quick preset draws its images; choose a preset that reads files"
            )
        if min(self.train, self.validation, self.test) < 2:
            raise WrongUseError(
                "data.train, data.validation and data.test: expected at least 2 each, found "
                f"{self.train}, {self.validation} and {self.test}"
            )

    def load(self, folder: Path) -> tuple[Splits, str]:
        """Returns the splits and their checksum."""
        self.check()
        where = folder / "lra" / f"small-pathfinder-v{VERSION}-{fingerprint(self)}"
        return prepared(where, f"pathfinder: drawing images of {SIZE} x {SIZE}", self._draw_splits)

    def floors(self, splits: Splits) -> dict[str, float]:
        """Returns the floors of all image tasks, and the score of the opposite of the nearest training image's label.

        Two images of the same contours with one marker at different positions have different labels, and no pair of
        positions is in two splits. The nearest training image is therefore wrong more often than right, so its
        opposite is a better rule.
        """
        found = super().floors(splits)
        return found | {f"opposite of the {FLOOR}": 1 - found[FLOOR]}

    def _draw_splits(self) -> Splits:
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
            name: images_to_sequences(
                np.stack([image.reshape(-1) for _, image in some[:number]]),
                np.array([label for label, _ in some[:number]], dtype=np.uint8),
            )
            for name, some, number in zip(SPLITS, found, wanted, strict=True)
        }

    def _stream(self) -> Iterator[tuple[str, int, Bytes]]:
        """Yields both markers' positions, label and image of draw 0, 1, 2, ..."""
        for start in count(0, DRAWS_PER_CHUNK):
            numbers = range(start, start + DRAWS_PER_CHUNK)
            drawn = draw_images(GEOMETRIES[SIZE], CONTOUR_LENGTH, 0, self.seed, numbers)
            for tips, label, image in zip(drawn.tips.tolist(), drawn.labels.tolist(), drawn.images, strict=True):
                yield str(sorted(tips)), label, image

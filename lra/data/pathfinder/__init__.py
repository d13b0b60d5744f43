"""Pathfinder and Path-X: are two markers on one contour? From a seeded generator or the official release."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from seqarena.common.data.archives import folder_of
from seqarena.common.data.prepared import Splits, prepared
from seqarena.common.errors import WrongUseError, damage
from seqarena.common.runs.config import fingerprint
from seqarena.common.runs.sources import digest, imported_by
from seqarena.common.training.log import with_progress
from seqarena.lra.data import SPLITS
from seqarena.lra.data.origin import prepared_folder
from seqarena.lra.data.pathfinder.generator import draw_images
from seqarena.lra.data.pathfinder.geometry import GEOMETRIES
from seqarena.lra.data.pathfinder.release import read_release
from seqarena.lra.data.pixels import Pixels, images_to_sequences

GENERATOR_VERSION = 2
"""Increased whenever the generator's output changes, so that older prepared data are not reused."""
SHARD = 250
"""Images per temporary file while a data set is generated. An interruption loses at most this many."""
LEVELS = {6: "curv_baseline", 9: "curv_contour_length_9", 14: "curv_contour_length_14"}
"""Folders of the release, by the number of dashes per contour."""
MOST_DRAWN = 10
"""Maximum number of images drawn per distinct image."""
WORKERS = os.cpu_count() or 1


@dataclass(frozen=True, kw_only=True)
class Pathfinder(Pixels):
    """Config of the images: generated, or read from the official release."""

    classes: ClassVar[int] = 2
    path: str | None = None
    """Folder of the release, or of one level, such as pathfinder32/curv_contour_length_14 with imgs and metadata.
    none: generate the images."""
    size: int = 32
    """Side length of an image in pixels: 32, 64, 128 (Path-X), 256, or 14 (not in Long Range Arena)."""
    contour_length: int = 14
    """Dashes per contour: 14 is Long Range Arena's hard level; 9 and 6 are the easier ones."""
    distractors: int | None = None
    """Number of distractor contours to try per image. none: Long Range Arena's number, 5 at 32 pixels and length 14."""
    examples: int = 200_000
    """Total number of images, read or generated (all distinct): 80 % for training, 10 % each for validation and
    test."""
    seed: int = 0
    """Seed of the data, independent of the seed of the run."""

    @property
    def longest(self) -> int:
        """Pixels per image."""
        return self.size**2

    def check(self) -> None:
        """Raises a ``WrongUseError`` for invalid settings."""
        if self.size not in GEOMETRIES:
            raise WrongUseError(f"data.size: expected one of {', '.join(map(str, GEOMETRIES))}, found {self.size}")
        if self.path is not None and (self.seed or self.distractors is not None):
            raise WrongUseError(
                "data.seed and data.distractors apply to generated images only, but data.path is set; expected seed 0 "
                f"and distractors none, found {self.seed} and {self.distractors}"
            )
        if self.contour_length < 3 or self.examples < 10 or (self.distractors or 0) < 0:
            raise WrongUseError(
                "expected data.contour_length of at least 3, data.examples of at least 10 and data.distractors of at "
                f"least 0; found {self.contour_length}, {self.examples} and {self.distractors}"
            )

    @property
    def contours_to_try(self) -> int:
        """Number of distractor contours to try; some may not fit."""
        if self.distractors is not None:
            return self.distractors
        return GEOMETRIES[self.size].distractor_dashes // (self.contour_length // 3)

    def load(self, folder: Path) -> tuple[Splits, str]:
        """Returns the splits and their checksum. Prepared data are stored below ``folder``."""
        self.check()
        if self.path is not None:
            there = self._level(Path(self.path))
            return prepared(
                prepared_folder(folder, f"pathfinder-{self.size}-{self.contour_length}-{self.examples}", str(there)),
                f"pathfinder: reading {there}",
                lambda: cut(*read_release(there, self.size, self.contour_length, self.examples)),
            )
        where = folder / "lra" / f"pathfinder-v{GENERATOR_VERSION}-{fingerprint(self)}"
        shards = where.with_name(f"{where.name}.{digest(imported_by(__name__))}.shards")  # never of two generators
        what = f"pathfinder: drawing {self.examples:,} images of {self.size} x {self.size}"
        try:
            found = prepared(where, what, lambda: self._draw_splits(shards))
        except FileNotFoundError:
            if not where.exists():
                raise
            found = prepared(where, what, lambda: self._draw_splits(shards))  # another process was done first
        for each in where.parent.glob(f"{where.name}.*shards"):  # other sources' too
            shutil.rmtree(each, ignore_errors=True)
        return found

    def _level(self, path: Path) -> Path:
        """Returns the release's folder of the configured size and level, or ``path`` if there is none."""
        level = f"pathfinder{self.size}/{LEVELS.get(self.contour_length, '')}"
        inner = path if (path / "imgs").exists() else folder_of(path, level) / level
        return inner if inner.exists() else path

    def _draw_splits(self, folder: Path) -> Splits:
        """Draws until there are enough distinct images, so that no test image is in the training set."""
        images = np.empty((self.examples, self.size**2), dtype=np.uint8)
        labels = np.empty(self.examples, dtype=np.uint8)
        known: set[bytes] = set()
        drawn = 0
        while len(known) < self.examples:
            if drawn > MOST_DRAWN * self.examples:
                raise WrongUseError(
                    f"data.examples: expected {self.examples:,} distinct images, found only {len(known):,} among "
                    f"{drawn:,} drawn ({self.size} x {self.size} pixels, contours of {self.contour_length} dashes); "
                    "lower data.examples"
                )
            starts = range(drawn, drawn + self.examples - len(known), SHARD)
            for path in self._shards(folder, starts):
                for label, image in _read_shard(path):
                    key = hashlib.blake2b(image.tobytes(), digest_size=16).digest()
                    if key not in known and len(known) < self.examples:
                        labels[len(known)], images[len(known)] = label, image
                        known.add(key)
            drawn = starts[-1] + SHARD
        return cut(images, labels)

    def _shards(self, folder: Path, starts: range) -> list[Path]:
        """Returns the files of the shards that begin at these numbers. Draws the missing ones."""
        folder.mkdir(parents=True, exist_ok=True)

        def shard(start: int) -> Path:
            path = folder / f"{start:08}.npy"
            if not path.exists():
                numbers = range(start, start + SHARD)
                drawn = draw_images(
                    GEOMETRIES[self.size], self.contour_length, self.contours_to_try, self.seed, numbers
                )
                flat = drawn.images.reshape(SHARD, -1)
                with tempfile.NamedTemporaryFile(dir=folder, suffix=".unfinished", delete=False) as unfinished:
                    try:
                        np.save(unfinished, np.concatenate([drawn.labels[:, None], flat], axis=1))
                    except OSError:
                        os.unlink(unfinished.name)  # the disk is full
                        raise
                os.replace(unfinished.name, path)
            return path

        with ThreadPoolExecutor(WORKERS) as pool:
            try:
                return list(with_progress(pool.map(shard, starts), "pathfinder", len(starts)))
            except BaseException:
                pool.shutdown(cancel_futures=True)  # finished shards stay on disk for the next run
                raise


def _read_shard(path: Path) -> Iterator[tuple[np.uint8, np.ndarray]]:
    with damage(path, "image file", "delete it and run again"):
        found = np.load(path)
        yield from zip(found[:, 0], found[:, 1:], strict=True)


def cut(images: np.ndarray, labels: np.ndarray) -> Splits:
    """Splits the images in their order: 80 % for training, 10 % each for validation and test."""
    ends = [len(labels) * 8 // 10, len(labels) * 9 // 10]
    parts = zip(np.split(images, ends), np.split(labels, ends), strict=True)
    return {name: images_to_sequences(*part) for name, part in zip(SPLITS, parts, strict=True)}

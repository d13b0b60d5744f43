"""Views of the pictures of a split, read from the detectors' folders of regions (``vqa/regions.py``)."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from seqarena.common.data.batches import Indices
from seqarena.common.data.readers import npz_arrays
from seqarena.common.errors import BadDataError, damage
from seqarena.vqa.data import Integers, Layer, PictureViews, Reals, Truths, Views
from seqarena.vqa.regions import Header, Regions, read, read_rows

COMPARED_AT_ONCE = 1_000
SAME = 1e-3
"""Maximum difference between corners of equal boxes, as a fraction of the picture."""
OVERLAP = 0.3
"""Minimum intersection over union with a primary box for the primary to have found a box's object."""


@dataclass(frozen=True, kw_only=True)
class Detector:
    """Regions of one detector, from one folder or from all folders in it."""

    parts: tuple[Regions, ...]
    folder: Path

    @property
    def header(self) -> Header:
        """Header of the first part. The others have the same detector and width."""
        return self.parts[0].header

    def rows(self, pictures: Indices, missing: int) -> tuple[Integers, Integers]:
        """Returns the part and the row of each picture, or -1 for up to ``missing`` pictures without regions.

        Raises:
            BadDataError: more pictures have no regions. The message has their number and an example.
        """
        part, row = np.full(len(pictures), -1), np.full(len(pictures), -1)
        for number, regions in enumerate(self.parts):
            own = regions.rows(pictures)
            part, row = np.where(own >= 0, number, part), np.where(own >= 0, own, row)
        lost = np.unique(pictures[part < 0])
        if len(lost) > missing:
            raise BadDataError(
                f"{self.folder}: {len(lost):,} of {len(np.unique(pictures)):,} pictures have no regions, such as "
                f"{lost[0]}; expected at most {missing:,} (data.missing)"
            )
        if len(lost):
            print(
                f"{self.folder}: {len(lost):,} pictures have no regions, such as {lost[0]}; each gets a box of zeros",
                file=sys.stderr,
            )
        return part, row


def read_detector(folder: Path, *, verify: bool = False) -> Detector:
    """Returns a detector's regions, from one folder or all folders in it. ``verify`` compares their checksums.

    Raises:
        BadDataError: there are no regions, or regions of several detectors or widths.
    """
    inside = [folder] if (folder / "header.json").exists() else sorted(
        each.parent for each in folder.glob("*/header.json")
    )  # fmt: skip
    parts = tuple(read(each, verify=verify) for each in inside or [folder])
    kinds = {(part.header.detector, part.header.width) for part in parts}
    if len(kinds) > 1:
        raise BadDataError(f"{folder}: expected the regions of one detector, found {sorted(kinds)}")
    return Detector(parts=parts, folder=folder)


@dataclass(frozen=True, kw_only=True)
class DetectedViews(Views):
    """Boxes of several detectors for a split's pictures, read from disk on each access."""

    detectors: tuple[Detector, ...]
    boxes: int
    """Number of boxes read per picture and detector: the first ones."""
    part: Integers
    """Index of the part of each detector that contains a picture; -1: none (pictures, views)."""
    row: Integers
    """Row of each picture in that part (pictures, views)."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Number of detectors, of boxes per detector, and of features per box."""
        return len(self.detectors), self.boxes, self.detectors[0].header.width

    def read(self, pictures: Indices) -> PictureViews:
        """Returns the regions of pictures. A picture without regions has one box of zeros."""
        features = np.zeros((len(pictures), *self.sizes), dtype=np.float16)
        for view, part, places, rows in self._parts(pictures):
            read_rows(part.features, rows, [features[place, view] for place in places])
        corners, real = self._boxes(pictures)
        return PictureViews(features=features, centres=(corners[..., :2] + corners[..., 2:]) / 2, real=real)

    def box_count(self, pictures: Indices) -> int:
        """Returns the number of boxes of pictures that are not padding; a picture without regions has one."""
        return int(self._counts(pictures).sum())

    def seen_by_primary(self, pictures: Indices) -> Integers:
        """Returns whether a primary box overlaps by at least ``OVERLAP``, because there are no object labels."""
        corners, real = self._boxes(pictures)
        overlap = _overlap(corners[:, 1:, :, None], corners[:, :1, None])  # pictures views boxes boxes
        best = np.where(real[:, :1, None], overlap, 0.0).max(axis=3)
        return np.where(real[:, 1:], (best >= OVERLAP).astype(np.int64), -1)

    def _boxes(self, pictures: Indices) -> tuple[Reals, Truths]:
        corners = np.zeros((len(pictures), len(self.detectors), self.boxes, 4), dtype=np.float32)
        for view, part, places, rows in self._parts(pictures):
            read_rows(part.boxes, rows, [corners[place, view] for place in places])
        return corners, np.arange(self.boxes) < self._counts(pictures)[..., None]

    def _counts(self, pictures: Indices) -> Integers:
        """Returns the number of boxes of each detector in each picture (pictures, views)."""
        counts = np.ones((len(pictures), len(self.detectors)), dtype=np.int64)
        for view, part, places, rows in self._parts(pictures):
            counts[places, view] = np.minimum(part.counts[rows], self.boxes)
        return counts

    def require_aligned(self) -> None:
        """Raises a ``BadDataError`` if detectors have different boxes for a picture that all of them contain."""
        known = np.flatnonzero((self.part >= 0).all(axis=1))
        for start in range(0, len(known), COMPARED_AT_ONCE):
            some = known[start : start + COMPARED_AT_ONCE]
            corners, real = self._boxes(some)
            differ = np.abs(corners - corners[:, :1]).max(axis=(1, 2, 3)) > SAME
            if (differ | (real != real[:, :1]).any(axis=(1, 2))).any():
                raise BadDataError(
                    "data.aligned: expected the same boxes from all detectors, found different ones for a picture"
                )

    def _parts(self, pictures: Indices) -> list[tuple[int, Regions, Indices, Indices]]:
        """Returns (view, part, indices in ``pictures`` of those that the part contains, their rows in the part)."""
        found = []
        for view, detector in enumerate(self.detectors):
            for number, part in enumerate(detector.parts):
                places = np.flatnonzero(self.part[pictures, view] == number)
                if len(places):
                    found.append((view, part, places, self.row[pictures[places], view]))
        return found


def _overlap(one: Reals, other: Reals) -> Reals:
    """Returns the intersection over union of boxes (..., 4)."""
    low, high = np.maximum(one[..., :2], other[..., :2]), np.minimum(one[..., 2:], other[..., 2:])
    both = (high - low).clip(min=0).prod(axis=-1)
    areas = [(each[..., 2:] - each[..., :2]).prod(axis=-1) for each in (one, other)]
    found: Reals = both / np.maximum(areas[0] + areas[1] - both, 1e-12)
    return found


def make_views(
    detectors: Sequence[Detector], pictures: Indices, *, boxes: int, width: int, missing: int
) -> DetectedViews:
    """Returns the views of the given pictures.

    Raises:
        BadDataError: a detector has another width, or lacks more than ``missing`` pictures.
    """
    for detector in detectors:
        if detector.header.width != width:
            raise BadDataError(
                f"{detector.folder}: expected {width} features per box (data.width), found {detector.header.width} by "
                f"{detector.header.detector}"
            )
    found = [detector.rows(pictures, missing) for detector in detectors]
    return DetectedViews(
        detectors=tuple(detectors), boxes=boxes, part=np.stack([part for part, _ in found], axis=1),
        row=np.stack([row for _, row in found], axis=1),
    )  # fmt: skip


def read_layer(path: Path) -> Layer:
    """Returns a detector's last layer from an .npz file with weight and bias.

    Raises:
        BadDataError: the file is of another kind, or has other shapes.
    """
    if path.suffix != ".npz":
        raise BadDataError(f"{path}: expected an .npz with weight and bias; pickles may run code and are not read")
    with damage(path, ".npz with weight and bias"):
        arrays = npz_arrays(path, ("weight", "bias"))
        weight, bias = (arrays[name].astype(np.float32) for name in ("weight", "bias"))
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise BadDataError(f"{path}: expected finite numbers, found others in weight or bias")
    if weight.ndim != 2 or bias.shape != weight.shape[:1]:
        raise BadDataError(f"{path}: expected weight (outputs inputs) and bias (outputs), found {weight.shape} and "
                           f"{bias.shape}")  # fmt: skip
    return Layer(weight=weight, bias=bias)


def fingerprint_of(detectors: Sequence[Detector]) -> str:
    """Returns a string that identifies all detectors and their regions."""
    return json.dumps([[part.header.detector, part.header.sha256] for each in detectors for part in each.parts])

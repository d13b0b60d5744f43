"""The dashes that Pathfinder's contours are made of, drawn once for every direction they can have.

The published generator (Linsley et al. 2018; drewlinsley/pathfinder, 2019) draws each dash anew with Pillow at twice
the size and brings it down with Lanczos. Heads lie on whole pixels a fixed step from a whole-pixel pivot, so a dash has
few directions: 360 whole degrees for the first, one for each pixel of a small circle for the others.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw
from scipy import ndimage

SCALE = 2
"""Dashes and circles are drawn this many times larger, then brought down."""
DEGREES = 360
FREE = 0.3
"""A pixel is free where the mask is no more than this."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """The measures of images of one size, in pixels; Long Range Arena's values (its TFDS builder)."""

    size: int
    padding: int = 1
    """Border that no target contour touches."""
    margins: tuple[int, ...]
    """Gaps kept around a dash, one drawn for each image."""
    length: int = 5
    """Length of a dash."""
    thickness: float
    seed_distance: int
    """Between the tails of the two target contours."""
    radius: float
    """Of a marker."""
    continuity: float = 1.8
    """How little a contour may turn; 1 is least."""
    distractor_dashes: int
    """In all distractor contours together."""
    contrast: float
    """Of dashes in distractors, before the image is stretched to the full range."""
    target_contrast: float
    """Of dashes in target contours."""


GEOMETRIES: Mapping[int, Geometry] = MappingProxyType(
    {
        each.size: each
        for each in (
            # Ours, for runs of a minute: the measures of 32 pixels, closer together.
            Geometry(
                size=14, margins=(1,), length=2, thickness=0.5, seed_distance=3, radius=1.0, continuity=1.0,
                distractor_dashes=4, contrast=2.0, target_contrast=1.5,
            ),
            Geometry(
                size=32, margins=(1,), length=2, thickness=0.5, seed_distance=7, radius=1.5, continuity=1.0,
                distractor_dashes=20, contrast=2.0, target_contrast=1.5,
            ),
            Geometry(
                size=64, margins=(1,), thickness=1.0, seed_distance=12, radius=2.5, distractor_dashes=22, contrast=0.8,
                target_contrast=0.8,
            ),
            Geometry(
                size=128, margins=(2, 3), thickness=1.5, seed_distance=20, radius=3.0, distractor_dashes=35,
                contrast=0.9, target_contrast=0.9,
            ),
            Geometry(
                size=256, padding=22, margins=(3,), thickness=2.0, seed_distance=27, radius=5.0, distractor_dashes=30,
                contrast=1.0, target_contrast=1.0,
            ),
        )
    }
)  # fmt: skip


class Dashes(NamedTuple):
    """All dashes of one geometry and margin. The first 360 directions are those of seeds, the others of extensions."""

    lines: Floats
    """Brightness; directions, patch, patch: an odd number of pixels, centred on the one they are drawn from."""
    masks: Floats
    """Pixels that a dash keeps free; directions, patch, patch."""
    steps: Ints
    """From a pivot to the next one, along a dash; directions, 2 (y, x)."""
    heads: Ints
    """From a tail to its head, of seeds; 360, 2."""
    pivots: Ints
    """From a tail to its pivot, of seeds; 360, 2."""
    kernel: Ints
    """Offsets of the pixels that must be free around the tail of a seed, by direction, end to end; 2."""
    kernel_starts: Ints
    """Where each direction's begin; 361. None: no seed can have this direction."""
    ring: Ints
    """From a pivot to each head an extension may have; extensions, 2."""
    weights: Floats
    """Of each extension after a dash in each direction; directions, extensions."""
    disc: Ints
    """Offsets of the pixels that must not be masked around a head; offsets, 2."""
    first: Ints
    """Tails that the first target's seed may have, by direction, end to end; 2."""
    first_starts: Ints
    """Where each direction's begin; 361."""


def _resized(image: npt.NDArray[np.uint8], shape: tuple[int, int]) -> npt.NDArray[np.uint8]:
    return np.asarray(Image.fromarray(image).resize((shape[1], shape[0]), Image.Resampling.LANCZOS))


def stretched(image: Floats) -> npt.NDArray[np.uint8]:
    """Returns an image with its range brought to 0..255, as SciPy's image helpers did before 1.2."""
    low, high = float(image.min()), float(image.max())
    scale = 255.0 / (high - low) if high > low else 255.0
    shown: npt.NDArray[np.uint8] = (((image - low) * scale).clip(0, 255) + 0.5).astype(np.uint8)
    return shown


def _disc(radius: int) -> npt.NDArray[np.uint8]:
    y, x = np.ogrid[-radius : radius + 1, -radius : radius + 1]
    disc: npt.NDArray[np.uint8] = (x**2 + y**2 <= radius**2).astype(np.uint8)
    return disc


def _moved(origin: int, angle: float, distance: int) -> tuple[int, int]:
    """Returns how far a whole-pixel point moves along an angle; the generator rounds up."""
    return (
        math.ceil(origin + distance * math.sin(angle)) - origin,
        math.ceil(origin + distance * math.cos(angle)) - origin,
    )


def _drawn(geometry: Geometry, margin: int, angle: float) -> tuple[Floats, Floats]:
    """Returns brightness and mask of a dash from the centre of its patch along an angle."""
    half = geometry.length + math.ceil(geometry.thickness) + margin
    centre, side = half * SCALE, 2 * half + 1
    large = Image.new("L", (2 * centre + 1, 2 * centre + 1), 0)
    dy, dx = _moved(centre, angle, geometry.length * SCALE)
    width = round(geometry.thickness * SCALE)
    ImageDraw.Draw(large).line([(centre, centre), (centre + dx, centre + dy)], fill=255, width=width)
    wide = ndimage.maximum_filter(np.asarray(large), footprint=_disc(margin * SCALE), mode="constant")
    line, mask = (_resized(np.ascontiguousarray(each), (side, side)) / 255.0 for each in (np.asarray(large), wide))
    return line, mask


def _ring(step: int, middle: int) -> Ints:
    """Returns the distinct pixels on a circle around a pixel, one sampled for each pixel of arc."""
    angles = np.arange(0, 360, 360 / (2 * step * np.pi)) * np.pi / 180
    points = np.stack([middle + step * np.sin(angles), middle + step * np.cos(angles)], axis=1)
    ring: Ints = np.unique(points.astype(np.int64), axis=0) - middle
    return ring


def _kernel(mask: Floats, reach: int, size: int) -> Ints:
    """Returns the pixels that a seed's mask fills, from one pixel before its tail, up to ``reach`` away.

    Both are slips of the published generator, and so is this: where some pixel of the image would have its whole kernel
    outside (OpenCV's dilation then gives the least of numbers), it takes all of the image for full. At 32 pixels 30 of
    360 directions are left, and most contours begin towards the upper left.
    """
    offsets: Ints = np.argwhere(mask == 1.0) - len(mask) // 2 + 1
    offsets = offsets[(np.abs(offsets) <= reach).all(axis=1)]
    corners = [(y, x) for y in (0, size - 1) for x in (0, size - 1)]
    reaches = all(((offsets + corner >= 0) & (offsets + corner < size)).all(axis=1).any() for corner in corners)
    return offsets if reaches else offsets[:0]


def _starts(parts: list[Ints]) -> Ints:
    return np.cumsum([0, *(len(part) for part in parts)])


@functools.lru_cache(maxsize=8)
def dashes(geometry: Geometry, margin: int) -> Dashes:
    """Returns every dash of a geometry at one of its margins."""
    reach, middle = geometry.length + margin, geometry.size // 2
    degrees = [math.radians(each) for each in range(-180, 180)]
    ring = _ring(reach, middle)
    turns = [math.atan2(y, x) for y, x in ring.tolist()]
    angles = np.array(degrees + turns)
    drawn = [_drawn(geometry, margin, angle) for angle in degrees]
    drawn += [_drawn(geometry, margin, angle + math.pi if angle < 0 else angle - math.pi) for angle in turns]
    apart = np.abs(angles[:, None] - np.array(turns))
    turn = np.minimum(np.minimum(apart, 2 * np.pi - apart) * geometry.continuity, np.pi / 2)
    kernels = [_kernel(mask, reach, geometry.size) for _, mask in drawn[:DEGREES]]
    heads = np.array([_moved(middle, angle, geometry.length) for angle in degrees])
    back = [angle + math.pi if angle + math.pi < math.pi else angle - math.pi for angle in degrees]
    first = [_first_tails(geometry, kernel) for kernel in kernels]
    disc = _disc(margin)
    return Dashes(
        lines=np.stack([line for line, _ in drawn]),
        masks=np.stack([mask for _, mask in drawn]),
        steps=np.array([_moved(middle, angle, geometry.length + 2 * margin) for angle in angles]),
        heads=heads,
        pivots=heads + np.array([_moved(middle, angle, reach) for angle in back]),
        kernel=np.concatenate(kernels),
        kernel_starts=_starts(kernels),
        ring=ring,
        weights=np.maximum(np.cos(turn), 0) ** 2,
        disc=np.argwhere(disc) - margin,
        first=np.concatenate(first),
        first_starts=_starts(first),
    )


def _first_tails(geometry: Geometry, kernel: Ints) -> Ints:
    """Returns where the first target's seed may begin: away from the border by twice the seed distance."""
    band, size = 2 * geometry.seed_distance, geometry.size
    free = np.zeros((size, size), dtype=bool)
    free[band : size - band, band : size - band] = len(kernel) > 0
    beyond = np.pad(free, size, constant_values=True)
    for y, x in kernel.tolist():
        free &= beyond[size + y : 2 * size + y, size + x : 2 * size + x]
    tails: Ints = np.argwhere(free)
    return tails


def circle(geometry: Geometry, tip: tuple[int, int]) -> Floats:
    """Returns a marker around a tip; size, size."""
    y, x = (np.arange(geometry.size * SCALE) - each * SCALE for each in tip)
    disc = (x[None, :] ** 2 + y[:, None] ** 2 <= (geometry.radius * SCALE) ** 2).astype(np.uint8) * 255
    return _resized(disc, (geometry.size, geometry.size)) / 255.0

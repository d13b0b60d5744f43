"""Table of the dashes of Pathfinder's contours, rendered once per direction.

The published generator (Linsley et al. 2018; drewlinsley/pathfinder, 2019) renders each dash with Pillow at twice the
size and downsamples it with Lanczos. Heads are on whole pixels at a fixed distance from a whole-pixel pivot, so the
number of directions is small: 360 whole degrees for the first dash, and one per pixel of a small circle for the others.
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

SCALE = 2
"""Factor by which dashes and circles are rendered larger before they are downsampled."""
DEGREES = 360
FREE = 0.3
"""Maximum mask value of a free pixel."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Dimensions of the images of one size, in pixels: Long Range Arena's values (its TFDS builder)."""

    size: int
    padding: int = 1
    """Width of the border that no target contour touches."""
    margins: tuple[int, ...]
    """Possible gaps around a dash. One is drawn per image."""
    length: int = 5
    """Length of a dash."""
    thickness: float
    seed_distance: int
    """Distance between the tails of the two target contours."""
    radius: float
    """Radius of a marker."""
    continuity: float = 1.8
    """Straightness of the contours: turning angles are multiplied by this before they are weighted. Minimum: 1."""
    distractor_dashes: int
    """Total number of dashes in all distractor contours."""
    contrast: float
    """Contrast of dashes in distractors, before the image is scaled to the full range."""
    target_contrast: float
    """Contrast of dashes in target contours, before the image is scaled to the full range."""


GEOMETRIES: Mapping[int, Geometry] = MappingProxyType(
    {
        each.size: each
        for each in (
            # Not in Long Range Arena, for runs of a minute: the dimensions of 32 pixels, more densely packed.
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
    """All dashes of one geometry and margin.

    The first 360 directions are for seeds (the first dash of a contour), the others for extensions.
    """

    lines: Floats
    """Brightness (directions, patch, patch). A patch has odd size and is centred on the dash's starting pixel."""
    masks: Floats
    """Mask of the pixels that a dash occupies with its margin (directions, patch, patch)."""
    steps: Ints
    """Offset from a pivot to the next pivot, along a dash (directions, (y, x))."""
    heads: Ints
    """Offset from a seed's tail to its head (360, (y, x))."""
    pivots: Ints
    """Offset from a seed's tail to its pivot (360, (y, x))."""
    kernel: Ints
    """Offsets of the pixels that must be free around a seed's tail (offsets, (y, x)), concatenated over directions."""
    kernel_starts: Ints
    """Index in ``kernel`` of each direction's first offset (361). A direction without offsets cannot be a seed's."""
    ring: Ints
    """Offset from a pivot to each possible head of an extension (extensions, (y, x))."""
    weights: Floats
    """Sampling weight of each extension after a dash in each direction (directions, extensions)."""
    disc: Ints
    """Offsets of the pixels around a head whose masks lower an extension's weight (offsets, (y, x))."""
    first: Ints
    """Possible tails of the first target's seed (tails, (y, x)), concatenated over directions."""
    first_starts: Ints
    """Index in ``first`` of each direction's first tail (361)."""


def _resize(image: npt.NDArray[np.uint8], shape: tuple[int, int]) -> npt.NDArray[np.uint8]:
    return np.asarray(Image.fromarray(image).resize((shape[1], shape[0]), Image.Resampling.LANCZOS))


def to_full_range(image: Floats) -> npt.NDArray[np.uint8]:
    """Scales an image's range to 0..255, as SciPy's image helpers did before version 1.2."""
    low, high = float(image.min()), float(image.max())
    scale = 255.0 / (high - low) if high > low else 255.0
    shown: npt.NDArray[np.uint8] = (((image - low) * scale).clip(0, 255) + 0.5).astype(np.uint8)
    return shown


def _disc(radius: int) -> npt.NDArray[np.uint8]:
    y, x = np.ogrid[-radius : radius + 1, -radius : radius + 1]
    disc: npt.NDArray[np.uint8] = (x**2 + y**2 <= radius**2).astype(np.uint8)
    return disc


def _displacement(origin: int, angle: float, distance: int) -> tuple[int, int]:
    """Returns the offset (y, x) of a whole-pixel point moved along an angle. The published generator rounds up."""
    return (
        math.ceil(origin + distance * math.sin(angle)) - origin,
        math.ceil(origin + distance * math.cos(angle)) - origin,
    )


def _render_dash(geometry: Geometry, margin: int, angle: float) -> tuple[Floats, Floats]:
    """Returns brightness and mask of a dash that starts at the centre of its patch and follows an angle."""
    half = geometry.length + math.ceil(geometry.thickness) + margin
    centre, side = half * SCALE, 2 * half + 1
    large = Image.new("L", (2 * centre + 1, 2 * centre + 1), 0)
    dy, dx = _displacement(centre, angle, geometry.length * SCALE)
    width = round(geometry.thickness * SCALE)
    ImageDraw.Draw(large).line([(centre, centre), (centre + dx, centre + dy)], fill=255, width=width)
    from scipy import ndimage  # noqa: PLC0415  # slow to import; only generated images need it

    wide = ndimage.maximum_filter(np.asarray(large), footprint=_disc(margin * SCALE), mode="constant")
    line, mask = (_resize(np.ascontiguousarray(each), (side, side)) / 255.0 for each in (np.asarray(large), wide))
    return line, mask


def _ring(step: int, middle: int) -> Ints:
    """Returns the distinct pixels on a circle around a pixel, sampled once per pixel of arc."""
    angles = np.arange(0, 360, 360 / (2 * step * np.pi)) * np.pi / 180
    points = np.stack([middle + step * np.sin(angles), middle + step * np.cos(angles)], axis=1)
    ring: Ints = np.unique(points.astype(np.int64), axis=0) - middle
    return ring


def _kernel(mask: Floats, reach: int, size: int) -> Ints:
    """Returns the pixels of a seed's mask, shifted by one pixel from the tail and limited to a distance of ``reach``.

    The shift and the limit are bugs of the published generator, reproduced here, and so is the empty result: if the
    kernel would be entirely outside the image at some pixel (where OpenCV's dilation returns the smallest number), the
    generator treats the whole image as occupied. At 32 pixels, 30 of 360 directions remain, and most contours begin
    towards the upper left.
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
    drawn = [_render_dash(geometry, margin, angle) for angle in degrees]
    drawn += [_render_dash(geometry, margin, angle + math.pi if angle < 0 else angle - math.pi) for angle in turns]
    apart = np.abs(angles[:, None] - np.array(turns))
    turn = np.minimum(np.minimum(apart, 2 * np.pi - apart) * geometry.continuity, np.pi / 2)
    kernels = [_kernel(mask, reach, geometry.size) for _, mask in drawn[:DEGREES]]
    heads = np.array([_displacement(middle, angle, geometry.length) for angle in degrees])
    back = [angle + math.pi if angle + math.pi < math.pi else angle - math.pi for angle in degrees]
    first = [_first_tails(geometry, kernel) for kernel in kernels]
    disc = _disc(margin)
    return Dashes(
        lines=np.stack([line for line, _ in drawn]),
        masks=np.stack([mask for _, mask in drawn]),
        steps=np.array([_displacement(middle, angle, geometry.length + 2 * margin) for angle in angles]),
        heads=heads,
        pivots=heads + np.array([_displacement(middle, angle, reach) for angle in back]),
        kernel=np.concatenate(kernels),
        kernel_starts=_starts(kernels),
        ring=ring,
        weights=np.maximum(np.cos(turn), 0) ** 2,
        disc=np.argwhere(disc) - margin,
        first=np.concatenate(first),
        first_starts=_starts(first),
    )


def _first_tails(geometry: Geometry, kernel: Ints) -> Ints:
    """Returns the possible tails of the first target's seed, at least twice the seed distance from the border."""
    band, size = 2 * geometry.seed_distance, geometry.size
    free = np.zeros((size, size), dtype=bool)
    free[band : size - band, band : size - band] = len(kernel) > 0
    beyond = np.pad(free, size, constant_values=True)
    for y, x in kernel.tolist():
        free &= beyond[size + y : 2 * size + y, size + x : 2 * size + x]
    tails: Ints = np.argwhere(free)
    return tails


def circle(geometry: Geometry, tip: tuple[int, int]) -> Floats:
    """Returns an image (size, size) of a marker centred on a tip."""
    y, x = (np.arange(geometry.size * SCALE) - each * SCALE for each in tip)
    disc = (x[None, :] ** 2 + y[:, None] ** 2 <= (geometry.radius * SCALE) ** 2).astype(np.uint8) * 255
    return _resize(disc, (geometry.size, geometry.size)) / 255.0

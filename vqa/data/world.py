"""Content of generated scenes: objects, the detectors that found them, and the object in each box."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seqarena.common.data.counter import hash64

Numbers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Truths = npt.NDArray[np.bool_]


COLOURS = ("red", "green", "blue", "yellow", "purple", "orange", "white", "black", "pink", "brown", "grey", "gold")
SHAPES = ("cube", "ball", "cone", "ring", "star")
MATERIALS = ("metal", "wood", "glass", "rubber", "paper")
ATTRIBUTES = (SHAPES, COLOURS, MATERIALS)
"""Attributes recognised by the detectors A, B and C."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Numbers of objects and boxes in a scene, and the errors of each detector."""

    objects: int = 4
    """Number of objects per scene. They have different colours."""
    colours: int = 8
    """Number of colours. There are more colours than objects, so some are absent."""
    boxes: int = 8
    """Number of boxes per view."""
    recall: float = 0.7
    """Fraction of objects found by A. The lower it is, the more attention to the other views can help."""
    secondary_recall: float = 0.95
    """Fraction of objects found by B, and by C."""
    background: int = 0
    """Number of A's boxes on no object, whose queries are free for objects that A missed. B and C have one each."""
    aligned: bool = False
    """Whether B and C use A's boxes, in A's order, instead of their own."""
    seed: int = 0
    """Seed of the data, independent of the seed of the run."""


@dataclass(frozen=True, kw_only=True)
class SceneContent:
    """Objects and boxes of a set of scenes."""

    attributes: tuple[Numbers, Numbers, Numbers]
    """Shape, colour and material of each object (scenes, objects)."""
    places: Floats
    """Position of each object, as fractions of the picture (scenes, objects, 2)."""
    found: tuple[Truths, ...]
    """Mask of the objects found by each view (scenes, objects)."""
    boxes: tuple[Numbers, ...]
    """Object in each box of each view; the number of objects stands for none (scenes, boxes)."""
    asked: Numbers
    """Colours in the questions (scenes, 4): three of objects, and one that is absent."""


def draw(config: Layout, number: int, count: int) -> SceneContent:
    """Returns the scenes of a split. They depend only on the config and the split's number."""
    seed, things = config.seed, np.arange(config.objects)
    scene = np.arange(count)[:, None]

    def bits(what: int, *more: npt.NDArray[np.integer]) -> npt.NDArray[np.uint64]:
        return hash64(seed, number, what, *more)

    colours = bits(0, scene, np.arange(config.colours)).argsort(axis=1, kind="stable")
    attributes = (
        (bits(1, scene, things) % np.uint64(len(SHAPES))).astype(np.int64),
        colours[:, : config.objects],
        (bits(2, scene, things) % np.uint64(len(MATERIALS))).astype(np.int64),
    )
    found = tuple(
        _draw_found(uniform(seed, number, 3 + view, scene, things), recall)
        for view, recall in enumerate((config.recall, config.secondary_recall, config.secondary_recall))
    )
    boxes = [_boxes(config, number, view, seen) for view, seen in enumerate(found)]
    if config.aligned:
        boxes = [boxes[0]] * len(boxes)
        found = (found[0],) * len(boxes)
    some = bits(7, scene, things).argsort(axis=1, kind="stable")
    present = attributes[1][scene, some[:, [0, 1 % config.objects, 2 % config.objects]]]
    asked = np.concatenate([present, colours[:, -1:]], axis=1)
    return SceneContent(
        attributes=attributes, places=uniform(seed, number, 10, scene[..., None], things[:, None], np.arange(2)),
        found=found, boxes=tuple(boxes), asked=asked,
    )  # fmt: skip


def _draw_found(chances: Floats, recall: float) -> Truths:
    """Returns the mask of found objects. If there would be none, the most likely one is found."""
    found: Truths = (chances < recall) | (chances == chances.min(axis=1, keepdims=True))
    return found


def _boxes(config: Layout, number: int, view: int, found: Truths) -> Numbers:
    """Returns the object of each box: every found object once, repeated ones, and none, in random order."""
    count, objects = found.shape
    scene, box = np.arange(count)[:, None], np.arange(config.boxes)
    on_nothing = config.background if view == 0 else 1
    known = np.argsort(~found, axis=1, kind="stable")  # the found ones first
    many = found.sum(axis=1, keepdims=True)
    again = (hash64(config.seed, number, 30 + view, scene, box) % many.astype(np.uint64)).astype(np.int64)
    which = known[scene, np.where(box < many, box, again)]
    which = np.where(box >= config.boxes - on_nothing, objects, which)
    order = hash64(config.seed, number, 40 + view, scene, box).argsort(axis=1, kind="stable")
    return which[scene, order]


def uniform(*keys: int | npt.NDArray[np.integer]) -> Floats:
    """Returns uniform random numbers in [0, 1), identical on any machine."""
    return (hash64(*keys) >> np.uint64(11)).astype(np.float64) / 2.0**53


def normal(*keys: int | npt.NDArray[np.integer]) -> Floats:
    """Returns approximately normal numbers, as sums of four uniform ones: exact, so identical on any machine."""
    bits = hash64(*keys)
    total = np.zeros(bits.shape)
    for part in range(4):
        total += ((bits >> np.uint64(16 * part)) & np.uint64(0xFFFF)).astype(np.float64)
    found: Floats = (total / 65_536 - 2.0) * 3.0**0.5
    return found

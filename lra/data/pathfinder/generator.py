"""The seeded generator of Pathfinder. It follows the published generator; each image is a function of (seed, number).

Departures from drewlinsley/pathfinder at its 2019 revision: random numbers come from a counter, and dashes from a table
(``geometry.dashes``). The geometry, all retries and the quirks are the same.
"""

from typing import NamedTuple, no_type_check

import numpy as np
import numpy.typing as npt

from seqarena.common.data.compiled import compiled
from seqarena.common.data.counter import GOLDEN, hash64, mix64
from seqarena.common.errors import WrongUseError
from seqarena.lra.data.pathfinder.geometry import DEGREES, FREE, Floats, Geometry, Ints, circle, dashes, to_full_range

DASH_TRIES = 3
CONTOUR_TRIES = 5
MIN_FREE = 0.01
"""Minimum free fraction of the image for a distractor to be started."""
OVERLAP = 1.8
"""Upper limit of the sum of two dashes' masks in any pixel; reaching it counts as a crossing."""
MIN_TOTAL_WEIGHT = 1e-4
"""A contour cannot be extended if its candidates' total weight is below this."""
MOST_ATTEMPTS = 1_000_000
"""Maximum number of pairs of target contours started per image. Long Range Arena's images need 280 on average."""

mix = compiled(inline="always")(mix64)


class Plan(NamedTuple):
    """Image settings for the compiled functions."""

    size: int
    padding: int
    seed_distance: int
    contour_length: int
    """Dashes per target contour."""
    distractors: int
    """Number of distractor contours to try."""
    distractor_length: int
    contrast: float
    target_contrast: float


class Images(NamedTuple):
    """Generated images and their metadata."""

    images: npt.NDArray[np.uint8]
    """Shape (count, size, size)."""
    labels: npt.NDArray[np.uint8]
    """1: the markers are on one contour."""
    distractors: Ints
    """Number of distractor contours placed in each image."""
    attempts: Ints
    """Number of pairs of target contours started for each image."""
    tips: Ints
    """Positions of the markers, shape (count, 2, 2): image, marker, (y, x)."""


@compiled(inline="always")
@no_type_check
def below(state, number):
    """Returns a random integer from 0 to ``number`` - 1. ``state`` is a counter in an array of length one."""
    state[0] += GOLDEN
    return np.int64(((mix(state[0]) >> np.uint64(32)) * np.uint64(number)) >> np.uint64(32))


@compiled(inline="always")
@no_type_check
def inside(y, x, size):
    """Returns whether a pixel is inside the image."""
    return 0 <= y < size and 0 <= x < size


@compiled(inline="always")
@no_type_check
def paste(canvas, patch, y, x, factor):
    """Draws a patch centred on a pixel, by the maximum of patch and canvas."""
    half, size = len(patch) // 2, len(canvas)
    for row in range(max(0, y - half), min(size, y + half + 1)):
        for column in range(max(0, x - half), min(size, x + half + 1)):
            value = patch[row - y + half, column - x + half] * factor
            canvas[row, column] = max(canvas[row, column], value)


@compiled(inline="always")
@no_type_check
def crosses(mask, patch, y, x):
    """Returns whether a dash's mask would overlap the existing mask."""
    half, size = len(patch) // 2, len(mask)
    for row in range(max(0, y - half), min(size, y + half + 1)):
        for column in range(max(0, x - half), min(size, x + half + 1)):
            if mask[row, column] + patch[row - y + half, column - x + half] >= OVERLAP:
                return True
    return False


@compiled(nogil=True)
@no_type_check
def extend(state, dash, pivot, mask, kind, chances):
    """Adds a dash to a contour and returns whether there was room.

    If so, the last dash's mask is merged into ``mask``, and the new dash's ``dash`` (direction, y, x) and ``pivot``
    (y, x) replace the last dash's.
    """
    size = len(mask)
    y, x = pivot[0] + kind.steps[dash[0], 0], pivot[1] + kind.steps[dash[0], 1]
    total = 0.0
    for number in range(len(kind.ring)):
        head_y, head_x = y + kind.ring[number, 0], x + kind.ring[number, 1]
        if inside(head_y, head_x, size):
            blocked = 0.0
            for offset in range(len(kind.disc)):
                near_y, near_x = head_y + kind.disc[offset, 0], head_x + kind.disc[offset, 1]
                if inside(near_y, near_x, size):
                    blocked = max(blocked, mask[near_y, near_x])
            total += kind.weights[dash[0], number] * (1 - blocked)
        chances[number] = total
    if total < MIN_TOTAL_WEIGHT:
        return False
    for _ in range(DASH_TRIES):
        state[0] += GOLDEN
        drawn = (mix(state[0]) >> np.uint64(11)) * 2.0**-53 * total
        number = 0
        while chances[number] <= drawn:
            number += 1
        direction, head_y, head_x = DEGREES + number, y + kind.ring[number, 0], x + kind.ring[number, 1]
        if not crosses(mask, kind.masks[direction], head_y, head_x):
            paste(mask, kind.masks[dash[0]], dash[1], dash[2], 1.0)
            dash[0], dash[1], dash[2] = direction, head_y, head_x
            pivot[0], pivot[1] = y, x
            return True
    return False


@compiled(nogil=True)
@no_type_check
def seed_pair(state, dash, pivot, plan, kind):
    """Draws the first dashes of both targets and returns whether they are inside the image."""
    for snake in range(2):
        found = False
        for _ in range(DASH_TRIES):
            direction = below(state, DEGREES)
            if snake == 0:
                free = kind.first_starts[direction + 1] - kind.first_starts[direction]
                if free == 0:
                    return False
                tail = kind.first_starts[direction] + below(state, free)
                y, x = kind.first[tail, 0], kind.first[tail, 1]
            else:
                angle = below(state, DEGREES) * np.pi / 180
                y = np.int64(np.rint(dash[0, 1] + plan.seed_distance * np.sin(angle)))
                x = np.int64(np.rint(dash[0, 2] + plan.seed_distance * np.cos(angle)))
            dash[snake, 0], dash[snake, 1], dash[snake, 2] = direction, y, x
            pivot[snake, 0], pivot[snake, 1] = y + kind.pivots[direction, 0], x + kind.pivots[direction, 1]
            if inside(y + kind.heads[direction, 0], x + kind.heads[direction, 1], plan.size) and inside(
                pivot[snake, 0], pivot[snake, 1], plan.size
            ):
                found = True
                break
        if not found:
            return False
    return True


@compiled(nogil=True)
@no_type_check
def seed_distractor(state, dash, pivot, mask, kind, free):
    """Draws the first dash of a distractor at a free position and returns whether there was one."""
    size = len(mask)
    empty = 0
    for y in range(size):
        for x in range(size):
            empty += mask[y, x] <= FREE
    if empty < MIN_FREE * size * size:
        return False
    for _ in range(DASH_TRIES):
        direction = below(state, DEGREES)
        start, stop = kind.kernel_starts[direction], kind.kernel_starts[direction + 1]
        count = 0
        for y in range(size if stop > start else 0):
            for x in range(size):
                clear = True
                for offset in range(start, stop):
                    near_y, near_x = y + kind.kernel[offset, 0], x + kind.kernel[offset, 1]
                    if inside(near_y, near_x, size):
                        border = near_y in (0, size - 1) or near_x in (0, size - 1)
                        if border or mask[near_y, near_x] > FREE:
                            clear = False
                            break
                if clear:
                    free[count, 0], free[count, 1] = y, x
                    count += 1
        if count == 0:
            return False
        tail = below(state, count)
        y, x = free[tail, 0], free[tail, 1]
        dash[0], dash[1], dash[2] = direction, y, x
        pivot[0], pivot[1] = y + kind.pivots[direction, 0], x + kind.pivots[direction, 1]
        head_y, head_x = y + kind.heads[direction, 0], x + kind.heads[direction, 1]
        if inside(head_y, head_x, size) and inside(pivot[0], pivot[1], size):
            return True
    return False


@compiled(nogil=True)
@no_type_check
def draw_targets(state, plan, kind, mask, placed, tips, chances):
    """Draws both target contours, retrying until all dashes fit.

    Returns the number of attempts, or 0 if none succeeded. Writes the dashes to ``placed``, both ends of each contour
    to ``tips``, and the pixels closed to distractors to ``mask``.
    """
    dash, pivot = np.empty((2, 3), dtype=np.int64), np.empty((2, 2), dtype=np.int64)
    attempts, complete = 0, False
    while not complete:
        attempts += 1
        if attempts > MOST_ATTEMPTS:
            return 0
        complete = seed_pair(state, dash, pivot, plan, kind)
        if not complete:
            continue
        mask[:] = 1.0
        mask[plan.padding : plan.size - plan.padding, plan.padding : plan.size - plan.padding] = 0.0
        for snake in range(2):
            tips[snake, 0] = dash[snake, 1:]
            placed[snake] = dash[snake]
        for number in range(2, 2 * plan.contour_length):
            snake = number % 2
            complete = extend(state, dash[snake], pivot[snake], mask, kind, chances)
            if not complete:
                break
            placed[number] = dash[snake]
    for snake in range(2):
        tips[snake, 1] = dash[snake, 1:]
    paste(
        mask, kind.masks[dash[1, 0]], dash[1, 1], dash[1, 2], 1.0
    )  # second target only: the published generator's bug
    return attempts


@compiled(nogil=True)
@no_type_check
def draw_distractor(state, plan, kind, mask, trial, placed, free, chances):
    """Draws one distractor contour, merges its dashes into ``mask``, and returns whether there was room."""
    dash, pivot = np.empty(3, dtype=np.int64), np.empty(2, dtype=np.int64)
    for _ in range(CONTOUR_TRIES):
        trial[:] = mask
        complete = seed_distractor(state, dash, pivot, trial, kind, free)
        placed[0] = dash
        for number in range(1, plan.distractor_length):
            if complete:
                complete = extend(state, dash, pivot, trial, kind, chances)
                placed[number] = dash
        if complete:
            paste(trial, kind.masks[dash[0]], dash[1], dash[2], 1.0)
            mask[:] = trial
            return True
    return False


@compiled(nogil=True)
@no_type_check
def draw(key, plan, kind, image, tips):
    """Draws an image without markers and returns the numbers of distractors placed and of attempts.

    Writes the ends of the target contours to ``tips``: contour, end, (y, x).
    """
    state = np.array([key], dtype=np.uint64)
    chances = np.empty(len(kind.ring))
    free = np.empty((plan.size * plan.size, 2), dtype=np.int64)
    mask, trial = np.empty((plan.size, plan.size)), np.empty((plan.size, plan.size))
    placed = np.empty((2 * plan.contour_length, 3), dtype=np.int64)
    attempts = draw_targets(state, plan, kind, mask, placed, tips, chances)
    if attempts == 0:
        return 0, 0
    image[:] = 0.0
    for number in range(2 * plan.contour_length):
        paste(image, kind.lines[placed[number, 0]], placed[number, 1], placed[number, 2], plan.target_contrast)
    found = 0
    for _ in range(plan.distractors):
        if draw_distractor(state, plan, kind, mask, trial, placed, free, chances):
            found += 1
            for number in range(plan.distractor_length):
                paste(image, kind.lines[placed[number, 0]], placed[number, 1], placed[number, 2], plan.contrast)
    return found, attempts


def draw_images(geometry: Geometry, contour_length: int, distractors: int, seed: int, numbers: range) -> Images:
    """Returns the images of these numbers. Each image depends only on its number and the settings.

    Raises:
        WrongUseError: the contours are too long for the image.
    """
    size, count = geometry.size, len(numbers)
    keys = hash64(seed, contour_length, np.arange(numbers.start, numbers.stop))
    choices = hash64(seed, contour_length, 1, np.arange(numbers.start, numbers.stop))
    plan = Plan(
        size, geometry.padding, geometry.seed_distance, contour_length, distractors, contour_length // 3,
        geometry.contrast, geometry.target_contrast,
    )  # fmt: skip
    images = np.empty((count, size, size), dtype=np.uint8)
    labels = (choices & np.uint64(1)).astype(np.uint8)
    found, attempts, shown = (np.zeros((count, *shape), dtype=np.int64) for shape in ((), (), (2, 2)))
    image, tips = np.empty((size, size)), np.empty((2, 2, 2), dtype=np.int64)
    for each, (key, choice) in enumerate(zip(keys, choices.tolist(), strict=True)):
        kind = dashes(geometry, geometry.margins[(choice >> 2) % len(geometry.margins)])
        found[each], attempts[each] = draw(key, plan, kind, image, tips)
        if not attempts[each]:
            raise WrongUseError(
                f"two contours of {contour_length} dashes do not fit into {size} x {size} pixels "
                f"({MOST_ATTEMPTS:,} attempts); lower data.contour_length"
            )
        origin = (choice >> 1) & 1
        terminal = origin if labels[each] else 1 - origin
        shown[each] = tips[origin, 0], tips[terminal, 1]
        images[each] = add_markers(geometry, image, shown[each])
    return Images(images=images, labels=labels, distractors=found, attempts=attempts, tips=shown)


def add_markers(geometry: Geometry, image: Floats, tips: Ints) -> npt.NDArray[np.uint8]:
    """Adds both markers to an image and scales it to the full range."""
    for y, x in tips.tolist():
        image = np.maximum(image, circle(geometry, (y, x)))
    return to_full_range(image)

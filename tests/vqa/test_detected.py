"""Several detectors' boxes of a split's pictures: rows of folders, padding, what the primary saw."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from seqarena.common.errors import BadDataError
from seqarena.vqa.data.detected import DetectedViews, read_detector
from seqarena.vqa.regions import PictureRegions, write


def test_detectors_rows_are_read_and_padded(tmp_path: Path) -> None:
    """Of two parts, in any order, fewer boxes than asked for and more; a picture that is in none is a box of zeros."""
    generator = np.random.default_rng(0)

    def found(ids: Sequence[int]) -> list[PictureRegions]:
        made = []
        for number in ids:
            low = generator.random((1 + number % 4, 2)) * 0.5
            corners = np.concatenate([low, low + 0.2 + 0.3 * generator.random(low.shape)], axis=1) * [80, 60, 80, 60]
            made.append(PictureRegions(id=number, size=(80, 60), boxes=corners,
                              features=generator.integers(-9, 9, (len(low), 5)).astype(np.float32)))  # fmt: skip
        return made

    views: list[dict[int, PictureRegions]] = []
    for name in "AB":
        parts = {"one": found([3, 1, 2]), "two": found([7, 5])}
        for part, some in parts.items():
            write(tmp_path / name / part, some, detector=name, pictures=len(some), boxes=4, width=5, source="test")
        views.append({each.id: each for some in parts.values() for each in some})
    pictures = np.array([1, 2, 3, 5, 7, 9])
    detectors = [read_detector(tmp_path / name) for name in "AB"]
    data = DetectedViews(
        detectors=tuple(detectors), boxes=3,
        part=np.stack([each.rows(pictures, 1)[0] for each in detectors], axis=1),
        row=np.stack([each.rows(pictures, 1)[1] for each in detectors], axis=1),
    )  # fmt: skip
    asked_for = np.array([5, 3, 0, 4, 2])
    seen, saw = data.read(asked_for), data.seen_by_primary(asked_for)
    assert seen.features.shape == (5, 2, 3, 5)
    for row, picture in enumerate(pictures[asked_for].tolist()):
        for view, each in enumerate(views):
            own = each.get(picture)
            boxes = np.zeros((1, 4)) if own is None else own.boxes[:3] / [80, 60, 80, 60]
            features = np.zeros((1, 5)) if own is None else own.features[:3]
            count = len(boxes)
            assert seen.real[row, view].tolist() == [True] * count + [False] * (3 - count)
            np.testing.assert_array_equal(seen.features[row, view, :count], features)
            np.testing.assert_allclose(seen.centres[row, view, :count], (boxes[:, :2] + boxes[:, 2:]) / 2, atol=1e-6)
            if view == 1:
                first = np.zeros((1, 4)) if own is None else views[0][picture].boxes[:3] / [80, 60, 80, 60]
                expected = [int(max(overlap(box, other) for other in first) >= 0.3) for box in boxes]
                assert saw[row, 0].tolist() == expected + [-1] * (3 - count)
    assert 0 < (saw == 1).sum() < (saw >= 0).sum()
    assert data.seen_by_primary(np.array([5])).tolist() == [[[0, -1, -1]]]  # in no part
    with pytest.raises(BadDataError, match="1 of 6 pictures have no regions, such as 9"):
        detectors[0].rows(pictures, 0)
    shutil.move(tmp_path / "B" / "one", tmp_path / "A" / "three")
    with pytest.raises(BadDataError, match="regions of one detector"):
        read_detector(tmp_path / "A")
    with pytest.raises(BadDataError, match="no regions"):
        read_detector(tmp_path / "C")


def overlap(one: Sequence[float], other: Sequence[float]) -> float:
    """Intersection over union, by the areas of three rectangles."""

    def area(left: float, top: float, right: float, bottom: float) -> float:
        return max(right - left, 0.0) * max(bottom - top, 0.0)

    both = area(max(one[0], other[0]), max(one[1], other[1]), min(one[2], other[2]), min(one[3], other[3]))
    union = area(*one) + area(*other) - both
    return both / union if union else 0.0

"""Pathfinder: the generator's statistics, its promises, and the official layout read back."""

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from seqarena.common.data import prepared
from seqarena.common.data.prepared import checksum
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.lra.data import pathfinder
from seqarena.lra.data.pathfinder import Pathfinder
from seqarena.lra.data.pathfinder import release as reader
from seqarena.lra.data.pathfinder.generator import draw_images
from seqarena.lra.data.pathfinder.geometry import GEOMETRIES, circle, dashes, to_full_range
from seqarena.lra.data.pathfinder.small import SmallPathfinder

SMALL = Pathfinder(size=14, contour_length=3, examples=40)
READ = replace(SMALL, examples=12)


@pytest.mark.extras
def test_statistics_are_those_of_the_published_generator() -> None:
    """Of 500 images at 32 pixels, contour 14; beside: a run of the published code, 300 images (its error in mind)."""
    drawn = draw_images(GEOMETRIES[32], 14, 5, 0, range(500))
    assert abs(np.mean(drawn.images > 0) - 0.342) < 0.01
    assert abs(drawn.images.mean() / 255 - 0.079) < 0.003
    assert abs((drawn.images / 255).std() - 0.200) < 0.004
    assert abs(drawn.distractors.mean() - 1.15) < 0.15
    assert abs(drawn.attempts.mean() - 296) < 60
    assert abs(drawn.labels.mean() - 0.5) < 0.05
    apart = np.linalg.norm(drawn.tips[:, 0] - drawn.tips[:, 1], axis=1)
    for label, mean in ((0, 13.4), (1, 13.5)):
        assert abs(apart[drawn.labels == label].mean() - mean) < 1.2
    best = max(float(np.mean((apart > cut) == (drawn.labels == side))) for cut in range(4, 24) for side in (0, 1))
    assert best < 0.6  # how far the markers are apart tells nothing
    assert (drawn.images.reshape(500, -1).max(axis=1) == 255).all()


def test_an_image_is_a_function_of_its_number() -> None:
    whole = draw_images(GEOMETRIES[14], 4, 2, 7, range(30))
    part = draw_images(GEOMETRIES[14], 4, 2, 7, range(11, 30))
    assert np.array_equal(whole.images[11:], part.images)
    assert np.array_equal(whole.labels[11:], part.labels)
    assert not np.array_equal(whole.images, draw_images(GEOMETRIES[14], 4, 2, 8, range(30)).images)


@pytest.mark.parametrize("size", [64, 128])
def test_larger_images_are_drawn(size: int) -> None:
    drawn = draw_images(GEOMETRIES[size], 14, 2, 0, range(2))
    assert drawn.images.shape == (2, size, size)
    for image, tips in zip(drawn.images, drawn.tips, strict=True):
        assert image.max() == 255
        for y, x in tips:  # a marker stands at both ends
            assert image[max(0, y - 1) : y + 2, max(0, x - 1) : x + 2].mean() > 150


def test_dashes_lie_where_they_point() -> None:
    kind = dashes(GEOMETRIES[32], 1)
    middle = kind.lines.shape[1] // 2
    right, down = kind.lines[180], kind.lines[270]  # 0 and 90 degrees
    assert right[middle, middle : middle + 3].min() > 0.3
    assert down[middle : middle + 3, middle].min() > 0.3
    assert right[middle + 2].max() == down[:, middle + 2].max() == 0
    assert kind.masks.max() == 1
    assert (kind.masks >= kind.lines - 0.02).all()
    assert ((kind.kernel_starts[1:] > kind.kernel_starts[:-1]).sum()) == 30
    marker = circle(GEOMETRIES[32], (10, 20))
    assert marker.max() == 1
    assert marker[10, 20] == 1
    assert marker.sum() < 15
    assert to_full_range(np.array([[0.5, 1.5]])).tolist() == [[0, 255]]


def test_a_set_is_made_once_and_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pathfinder, "SHARD", 15)
    real, made = pathfinder.draw_images, []

    def counted(*given: object) -> object:
        made.append(given[-1])
        if len(made) == 2:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(pathfinder, "draw_images", counted)
    monkeypatch.setattr(pathfinder, "WORKERS", 1)
    with pytest.raises(KeyboardInterrupt):
        SMALL.load(tmp_path)
    assert not [each for each in (tmp_path / "lra").iterdir() if not each.name.endswith(".shards")]
    splits, found = SMALL.load(tmp_path)
    assert [part.start for part in made].count(0) == 1  # the first shard was kept
    assert [len(splits[name]) for name in ("train", "validation", "test")] == [32, 4, 4]
    assert found == checksum(splits) == SMALL.load(tmp_path)[1]
    assert splits["train"].lengths.tolist() == [196] * 32
    tokens, seen = splits["train"].padded(np.array([0]))
    assert seen.all()
    assert tokens.min() == 1  # a black pixel is a token
    assert not list(tmp_path.glob("lra/*.shards"))
    monkeypatch.setattr(pathfinder, "SHARD", 1_000)
    assert SMALL.load(tmp_path / "again")[1] == found


def test_contours_that_find_no_room_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WrongUseError, match=r"data.size: expected one of 14, 32"):
        replace(SMALL, size=33).check()
    with pytest.raises(WrongUseError, match="contour_length of at least 3"):
        replace(SMALL, contour_length=2).check()
    with pytest.raises(WrongUseError, match=r"two contours of 14 dashes do not fit into 14 x 14"):
        draw_images(GEOMETRIES[14], 14, 0, 0, range(1))


def release(folder: Path, *, text: bool = True) -> Path:
    """Writes a level of the release with two batches of six images."""
    drawn = draw_images(GEOMETRIES[14], 3, 1, 0, range(12))
    for batch in range(2):
        (folder / "imgs" / str(batch)).mkdir(parents=True)
        (folder / "metadata").mkdir(exist_ok=True)
        rows = []
        for number in range(6):
            name = f"sample_{number}.png"
            Image.fromarray(drawn.images[batch * 6 + number]).save(folder / "imgs" / str(batch) / name)
            label = drawn.labels[batch * 6 + number]
            rows.append([f"imgs/{batch}", name, str(number), str(label), "1.0", "3", "2", "2", "0.5", "1", "1"])
        listed = folder / "metadata" / f"{batch}.npy"
        if text:
            listed.write_text("\n".join(map(" ".join, rows)) + "\n")
        else:
            np.save(listed, np.array(rows))
    return folder


@pytest.mark.parametrize("text", [True, False])
def test_the_official_layout_is_read(tmp_path: Path, text: bool) -> None:
    level = release(tmp_path / "level", text=text)
    drawn = draw_images(GEOMETRIES[14], 3, 1, 0, range(12))
    splits, _ = replace(READ, path=str(level)).load(tmp_path / "data")
    assert sum(map(len, splits.values())) == 12
    images = {drawn.images[number].tobytes(): drawn.labels[number] for number in range(12)}
    for split in splits.values():
        for number, label in enumerate(split.labels):
            assert images[split[number].tobytes()] == label


def test_a_level_is_found_in_the_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqarena.lra.data.pathfinder.LEVELS", {3: "curv_short"})
    level = release(tmp_path / "lra_release" / "lra_release" / "pathfinder14" / "curv_short")
    _, found = replace(READ, path=str(level)).load(tmp_path / "data")
    assert replace(READ, path=str(tmp_path / "lra_release")).load(tmp_path / "data")[1] == found
    release(tmp_path / "lra_release" / "copy" / "pathfinder14" / "curv_short")
    with pytest.raises(BadDataError, match=r"one copy of pathfinder14/curv_short, found 2, .* pass the folder"):
        replace(READ, path=str(tmp_path / "lra_release")).load(tmp_path / "data")


def test_no_two_images_are_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So small, half of what is drawn was there before."""
    splits, _ = replace(SMALL, distractors=0, examples=2_000).load(tmp_path)
    images = [split[number].tobytes() for split in splits.values() for number in range(len(split))]
    assert len(images) == len(set(images)) == 2_000
    monkeypatch.setattr("seqarena.lra.data.pathfinder.MOST_DRAWN", 0)
    with pytest.raises(WrongUseError, match=r"expected 2,200 distinct images, found only 2,\d+ among 2,250 drawn"):
        replace(SMALL, distractors=0, examples=2_200).load(tmp_path)


def test_damage_is_named(tmp_path: Path) -> None:
    def reason(name: str) -> str:
        with pytest.raises(BadDataError) as caught:
            replace(READ, path=str(tmp_path / name)).load(tmp_path / "data")
        return str(caught.value)

    assert "no such file or folder" in reason("nothing")
    level = release(tmp_path / "one")
    (level / "imgs/1/sample_3.png").unlink()
    words = "found 6 rows (6 distinct) for 5 images; missing files: ['sample_3.png'], not listed: none"
    assert words in reason("one")
    level = release(tmp_path / "two")
    (level / "imgs/0/sample_3.png").write_bytes(b"")
    assert "imgs/0/sample_3.png" in reason("two")
    assert "0.npy, line 4): expected an image, found an empty file" in reason("two")
    level = release(tmp_path / "three")
    listed = level / "metadata/0.npy"
    listed.write_text(listed.read_text().replace("sample_2.png 2 ", "sample_2.png 2 7", 1))
    assert "0.npy, line 3: expected label 0 or 1" in reason("three")
    listed.write_text("\n".join(["imgs/0 sample_0.png 0 0 1.0 3 2 2 0.5 1 1"] * 6))
    assert "found 6 rows (1 distinct)" in reason("three")
    listed.write_text("imgs/0 sample_0.png 1 0 1.0 3 2 2 0.5 1 1")
    assert "line 1: expected imgs/0 sample_1.png, found imgs/0 sample_0.png" in reason("three")
    listed.write_text("imgs/0 sample_0.png 0 0 1.0 14 2 2 0.5 1 1")
    assert "line 1: expected contours of 3 dashes (--data.contour-length), found 14" in reason("three")
    listed.unlink()
    assert "found 1 lists, 2 folders, no list for ['0']" in reason("three")
    release(tmp_path / "four")
    with pytest.raises(BadDataError, match=r"expected 40 images \(--data.examples\), found 12"):
        replace(SMALL, path=str(tmp_path / "four")).load(tmp_path / "data")
    with pytest.raises(WrongUseError, match=r"but data.path is set; expected seed 0 and distractors none, found 3"):
        replace(READ, path=str(tmp_path / "four"), seed=3).load(tmp_path / "data")
    assert not (tmp_path / "data" / "lra").exists() or not list((tmp_path / "data" / "lra").iterdir())


def test_the_image_that_is_known_to_be_empty_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    level = release(tmp_path / "pathfinder14" / "curv_baseline")
    monkeypatch.setattr(reader, "EMPTY", "pathfinder14/curv_baseline/imgs/0/sample_2.png")
    (level / "imgs/0/sample_2.png").write_bytes(b"")
    splits, _ = replace(READ, path=str(level)).load(tmp_path / "data")
    assert sum(map(len, splits.values())) == 11


def test_what_is_drawn_is_kept_when_it_cannot_be_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(prepared, "save_splits", full)
    with pytest.raises(OSError, match="No space left"):
        SMALL.load(tmp_path)
    assert list(tmp_path.glob("lra/*.shards/*.npy"))
    monkeypatch.undo()
    assert len(SMALL.load(tmp_path)[0]["train"]) == 32
    assert not list(tmp_path.glob("lra/*.shards"))


def test_what_an_edited_generator_drew_is_not_mixed_with_what_is_drawn_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_draw, real_sources = pathfinder.draw_images, pathfinder.imported_by
    monkeypatch.setattr(pathfinder, "SHARD", 15)
    monkeypatch.setattr(pathfinder, "WORKERS", 1)

    def stop(*given: Any) -> Any:
        if given[-1].start == 15:
            raise KeyboardInterrupt
        return real_draw(*given)

    def other(*given: Any) -> Any:
        drawn = real_draw(*given)
        return drawn._replace(images=255 - drawn.images)

    monkeypatch.setattr(pathfinder, "draw_images", stop)
    with pytest.raises(KeyboardInterrupt):
        SMALL.load(tmp_path / "cut")
    assert list(tmp_path.glob("cut/lra/*shards/*.npy"))
    name = "lra/data/pathfinder/generator.py"
    monkeypatch.setattr(pathfinder, "imported_by", lambda module: {**real_sources(module), name: "edited"})
    monkeypatch.setattr(pathfinder, "draw_images", other)
    found, expected = (SMALL.load(tmp_path / name)[1] for name in ("cut", "whole"))
    assert found == expected
    assert not list(tmp_path.glob("cut/lra/*shards"))


def test_the_opposite_of_the_nearest_image_is_a_floor_too(tmp_path: Path) -> None:
    data = SmallPathfinder(train=60, validation=4, test=20)
    found = data.floors(data.load(tmp_path)[0])
    assert found["opposite of the nearest training example"] == 1 - found["nearest training example"]


def test_a_full_disk_is_not_filled_further_by_what_was_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: object, _: np.ndarray) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pathfinder, "SHARD", 15)
    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OSError, match="make room and run again"):
        SMALL.load(tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size]
    assert not list(tmp_path.rglob("*.unfinished"))

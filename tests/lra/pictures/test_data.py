"""Pictures: every layout gives the same pictures, a damaged one is named, training crops are those of seed and step."""

import io
import itertools
import re
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image

from seqarena.common.data.batches import ShuffledIndices
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.lra import checksums
from seqarena.lra.data import image
from seqarena.lra.pictures.data import cifar, decode, store
from seqarena.lra.pictures.data.batches import TrainingPictures, centre, centred, random_crop
from seqarena.lra.pictures.data.cifar import Cifar
from seqarena.lra.pictures.data.decode import PictureFile
from seqarena.lra.pictures.data.drawn import DrawnDigits
from seqarena.lra.pictures.data.folders import ClassFolders, ImageNet, TinyImageNet, list_files
from seqarena.lra.pictures.data.store import KEY, Picture, prepared_pictures
from tests.lra.pictures.sources import CLASSES, SIDE, class_folders, picture, tiny_imagenet, zipped
from tests.lra.test_image import TEST, TRAIN, colours, layouts

TINY = TinyImageNet(classes=3, side=SIDE, held_out=3, counts=(12, 6))
LARGE = ImageNet(classes=3, side=8, shorter=10, held_out=3, counts=(12, 6))
DRAWN = DrawnDigits(train=40, held_out=10, test=10)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "COUNTS", {"train": TRAIN, "test": TEST})
    monkeypatch.setattr(cifar, "COUNTS", {"train": TRAIN, "test": TEST})
    monkeypatch.setattr(checksums, "CIFAR10", None)


def contents(data: ClassFolders | Cifar, folder: Path) -> dict[str, list[tuple[int, bytes]]]:
    splits, _ = data.load(folder)
    return {
        name: [(int(split.labels[index]), split[index].tobytes()) for index in range(len(split))]
        for name, split in splits.items()
    }


@pytest.mark.usefixtures("few")
def test_every_layout_of_cifar_gives_the_same_pictures_in_colour(tmp_path: Path) -> None:
    sources = [each for each in layouts(tmp_path / "sources") if each.name != "npy"]  # that one is grey
    found = [Cifar(path=str(path), held_out=5).load(tmp_path / str(n)) for n, path in enumerate(sources)]
    assert len({checksum for _, checksum in found}) == 1
    assert len(found) >= 4
    images, labels = colours(TRAIN, 0)
    wanted = {(int(label), each.transpose(1, 2, 0).tobytes()) for each, label in zip(images, labels, strict=True)}
    for splits, _ in found:
        assert {name: len(split) for name, split in splits.items()} == {
            "train": TRAIN - 5,
            "validation": 5,
            "test": TEST,
        }
        both = [splits["train"], splits["validation"]]
        assert {(int(each.labels[n]), each[n].tobytes()) for each in both for n in range(len(each))} == wanted


@pytest.mark.usefixtures("few")
def test_grey_pictures_of_cifar_are_refused(tmp_path: Path) -> None:
    sources = {each.name: each for each in layouts(tmp_path / "sources")}
    with pytest.raises(BadDataError, match=r"npy: expected images in colour, found grey ones; lra image reads grey"):
        Cifar(path=str(sources["npy"])).load(tmp_path / "data")
    some = next(iter((tmp_path / "sources" / "png" / "test").rglob("*.png")))
    Image.open(some).convert("L").save(some)
    expected = rf"{some.name}: expected a picture in colour, found a grey one \(mode L\)"
    with pytest.raises(BadDataError, match=expected):
        Cifar(path=str(sources["png"])).load(tmp_path / "data")


def test_folder_archive_and_hub_give_the_same_pictures(tmp_path: Path) -> None:
    root = tiny_imagenet(tmp_path)
    by_class = tmp_path / "by-class" / "val"
    for line in (root / "val" / "val_annotations.txt").read_text().splitlines():
        file, name = line.split("\t")[:2]
        (by_class / name).mkdir(parents=True, exist_ok=True)
        (by_class / name / file).write_bytes((root / "val" / "images" / file).read_bytes())
    (by_class.parent / "train").symlink_to(root / "train")
    hub = tmp_path / "hub"
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES))})
    for split, part in (("train", "train"), ("valid", "val")):
        files = sorted((by_class.parent / part).rglob("*.JPEG"))
        names = [next(name for name in CLASSES if name in str(file)) for file in files]
        rows = {"image": [{"path": None, "bytes": each.read_bytes()} for each in files], "label": names}
        (hub / "data").mkdir(parents=True, exist_ok=True)
        datasets.Dataset.from_dict(rows, features=features).to_parquet(hub / "data" / f"{split}-00000-of-00001.parquet")
    sources = [root, zipped(root), by_class.parent, hub]
    found = [contents(replace(TINY, path=str(path)), tmp_path / str(n)) for n, path in enumerate(sources)]
    assert {name: len(some) for name, some in found[0].items()} == {"train": 9, "test": 6, "validation": 3}
    assert all(each == found[0] for each in found[1:])
    assert sorted({label for label, _ in found[0]["test"]}) == [0, 1, 2]


def test_a_class_may_have_the_name_of_a_part(tmp_path: Path) -> None:
    for part, kind in itertools.product(("train", "val"), ("bus", "train", "val")):
        file = tmp_path / "outer" / part / kind / f"{kind}.png"
        file.parent.mkdir(parents=True)
        file.write_bytes(b"")
    listed = list_files(tmp_path, 3)
    for part in ("train", "test"):
        assert [(each.where.split("/")[-2:], each.label) for each in listed[part]] == [
            (["bus", "bus.png"], 0), (["train", "train.png"], 1), (["val", "val.png"], 2),
        ]  # fmt: skip


def test_pictures_of_any_size_are_stored_with_one_shorter_side(tmp_path: Path) -> None:
    splits, checksum = replace(LARGE, path=str(class_folders(tmp_path))).load(tmp_path / "data")
    assert {tuple(splits["test"][n].shape) for n in range(6)} == {(10, 17, 3), (13, 10, 3)}
    batch = centred(splits["test"], np.arange(6), side=8, tokens=4)
    assert tuple(batch.pictures.shape) == (6, 3, 8, 8)
    assert batch.token_count() == 24
    assert replace(LARGE, path=str(tmp_path / "imagenet")).load(tmp_path / "data")[1] == checksum  # read, not made


@pytest.mark.extras
def test_worker_processes_decode_the_same_pictures_in_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [PictureFile(f"{number}.png", picture(number, (9, 8)), number % 3) for number in range(70)]
    found = []
    for few in (100, 1):
        monkeypatch.setattr(decode, "FEW", few)
        made = decode.decoded(iter(files), len(files), "some", shorter=4)
        found.append([(each.key, each.label, each.pixels.tobytes()) for each in made])
    assert len(found[0]) == 70
    assert found[0] == found[1]


def deep_picture() -> bytes:
    """A PNG with 16 bits per pixel."""
    file = io.BytesIO()
    Image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(file, "PNG")
    return file.getvalue()


def test_grey_pictures_among_colour_are_counted_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = class_folders(tmp_path)
    (root / "train" / CLASSES[1] / "0.JPEG").write_bytes(picture(7, (12, 12), "L"))
    splits, _ = replace(LARGE, path=str(root)).load(tmp_path / "data")
    line = rf"imagenet train: grey pictures, stored with three equal channels: 1, first .*train/{CLASSES[1]}/0.JPEG\n"
    assert re.search(line, capsys.readouterr().err)
    stored = [split[n] for split in splits.values() for n in range(len(split))]
    assert sum(int(np.ptp(each, axis=2).max() == 0) for each in stored) == 1


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            lambda root: (root / "train" / CLASSES[0] / "images" / f"{CLASSES[0]}_1.JPEG").write_bytes(
                picture(1)[:300]
            ),
            rf"train/{CLASSES[0]}/images/{CLASSES[0]}_1.JPEG: not a whole picture \(",
        ),
        (
            lambda root: (root / "train" / CLASSES[0] / "images" / f"{CLASSES[0]}_1.JPEG").write_bytes(b""),
            rf"train/{CLASSES[0]}/images/{CLASSES[0]}_1.JPEG: not a picture of a format that Pillow reads",
        ),
        (
            lambda root: (root / "val" / "images" / "val_0_0.JPEG").write_bytes(deep_picture()),
            r"val/images/val_0_0.JPEG: expected 8 bits per value, found mode I;16",
        ),
        (
            lambda root: [each.unlink() for each in (root / "train" / CLASSES[2] / "images").iterdir()],
            rf"expected pictures of class {CLASSES[2]} in train/, found none",
        ),
        (
            lambda root: [each.unlink() for each in (root / "val" / "images").glob("val_1_*")],
            rf"expected pictures of class {CLASSES[1]} in val/, found none",
        ),
        (
            lambda root: (root / "val" / "val_annotations.txt").unlink(),
            r"val/images/val_0_0.JPEG: expected a folder named after a class of train/ \(for val/images/: a file "
            r"val/val_annotations.txt\), found images",
        ),
        (
            lambda root: (root / "val" / "val_annotations.txt").write_text(f"val_0_1.JPEG\t{CLASSES[0]}\t0\t0\t1\t1\n"),
            r"val/images/val_0_0.JPEG: expected its class of train/ in val_annotations.txt, found none",
        ),
        (
            lambda root: (root / "val" / "val_annotations.txt").write_text("val_0_0.JPEG\n"),
            r"val_annotations.txt, line 1: expected a file and its class, separated by a tab",
        ),
        (
            lambda root: (root / "val" / "images" / "val_0_0.JPEG").write_bytes(picture(1, (9, 8))),
            r"val/images/val_0_0.JPEG: expected 8 x 8 pixels, found 8 x 9",
        ),
        (
            lambda root: (root / "val" / "images" / "val_0_0.JPEG").unlink(),
            r"tiny-imagenet-200: expected 6 pictures in val, found 5; for another data set --data.counts",
        ),
        (
            lambda root: (root / "train" / "n09999999").mkdir(),
            r"tiny-imagenet-200: expected 3 classes in train/, found 4",
        ),
        (lambda root: (root / "train").rename(root / "training"), r"expected 3 classes in train/, found 0"),
    ],
)
def test_damaged_or_missing_files_are_named(change: object, expected: str, tmp_path: Path) -> None:
    root = tiny_imagenet(tmp_path)
    change(root)  # type: ignore[operator]
    with pytest.raises(BadDataError, match=expected) as refusal:
        replace(TINY, path=str(root)).load(tmp_path / "data")
    assert "\n" not in str(refusal.value)
    assert not [*(tmp_path / "data").rglob("manifest.json")]


def test_a_truncated_archive_is_named(tmp_path: Path) -> None:
    path = zipped(tiny_imagenet(tmp_path))
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(BadDataError, match=r"tiny-imagenet-200.zip: not a whole zip archive"):
        replace(TINY, path=str(path)).load(tmp_path / "data")


def test_a_picture_that_changed_since_it_was_stored_is_named(tmp_path: Path) -> None:
    splits, _ = DRAWN.load(tmp_path)
    file = splits["train"].file
    content = bytearray(file.read_bytes())
    content[3] ^= 1
    file.write_bytes(bytes(content))
    splits, _ = DRAWN.load(tmp_path)
    damaged = int(np.flatnonzero(splits["train"].numbers == 0)[0])
    with pytest.raises(BadDataError, match=r"train.pixels: picture 0 is damaged; delete the folder .* and run again"):
        splits["train"][damaged]
    file.write_bytes(bytes(content[:-1]))
    with pytest.raises(BadDataError, match=r"not a whole folder of prepared pictures .*; delete the folder and run"):
        DRAWN.load(tmp_path)


def test_a_changed_label_of_stored_pictures_is_noticed(tmp_path: Path) -> None:
    splits, _ = DRAWN.load(tmp_path)
    path = splits["train"].file.with_name("train.labels.npy")
    labels = np.load(path)
    labels[5] = (labels[5] + 1) % 10
    np.save(path, labels)
    with pytest.raises(BadDataError, match=r"not a whole folder of prepared pictures \(sha256"):
        DRAWN.load(tmp_path)


@pytest.mark.parametrize("field", ["held_out", "side", "classes"])
def test_sizes_below_one_are_refused(field: str) -> None:
    with pytest.raises(WrongUseError, match=rf"data.{field}: expected at least 1, found 0"):
        replace(LARGE, **{field: 0}).check()  # type: ignore[arg-type]


def test_a_stored_picture_is_at_least_as_large_as_its_crop() -> None:
    with pytest.raises(WrongUseError, match=r"data.shorter: expected at least data.side 8, found 6"):
        replace(LARGE, shorter=6).check()


def test_training_crops_depend_on_seed_and_step_alone(tmp_path: Path) -> None:
    splits, _ = replace(LARGE, path=str(class_folders(tmp_path))).load(tmp_path / "data")
    order = ShuffledIndices(lengths=np.ones(9, np.int64), batch_size=4, seed=3)
    batches = TrainingPictures(split=splits["train"], order=order, side=8, tokens=4, seed=3, crop="resized")
    again = replace(batches)
    assert (batches[5].pictures == again[5].pictures).all()
    assert (batches[5].seeds == again[5].seeds).all()
    assert not (batches[0].seeds == replace(batches, seed=4)[0].seeds).any()
    twice = {tuple(batches[step].seeds.tolist()) for step in range(4)}
    assert len(twice) == 4


def test_a_random_crop_keeps_area_and_ratio_within_their_limits() -> None:
    rows = np.arange(40, dtype=np.uint8)[:, None].repeat(60, axis=1)
    columns = np.arange(60, dtype=np.uint8)[None].repeat(40, axis=0)
    coordinates = np.stack([rows, columns, rows], axis=2)
    areas = []
    for seed in range(200):
        part = random_crop(coordinates, 16, seed).astype(int)
        height, width = np.ptp(part[..., 0]) + 2, np.ptp(part[..., 1]) + 2  # interpolation loses about a pixel a side
        areas.append(height * width / 2_400)
        assert 0.6 < width / height < 1.7
    assert min(areas) < 0.2
    assert max(areas) > 0.7
    assert (centre(coordinates, 16)[0, 0] == [12, 22, 12]).all()


@pytest.mark.parametrize("wrong", [{"classes": 9}, {"side": 40}, {"held_out": 50_000}])
def test_sizes_that_cifar_has_not_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(WrongUseError, match=r"CIFAR-10: expected data.classes 10, data.side of at most 32"):
        Cifar(**wrong).check()


def test_counts_without_training_pictures_are_refused() -> None:
    with pytest.raises(WrongUseError, match=r"data.counts: expected more than data.held_out"):
        replace(TINY, counts=(1, 1), held_out=1).check()


@pytest.mark.parametrize(
    ("train", "test", "contradictory", "leaked"),
    [
        ([(1, 0), (1, 0), (2, 1)], [(3, 0)], 0, 0),  # two copies with one label say nothing wrong
        ([(1, 0), (1, 1), (2, 1), (2, 0), (3, 0)], [(4, 0)], 2, 0),
        ([(1, 0), (2, 1)], [(2, 1), (2, 0), (5, 0)], 0, 2),
    ],
)
def test_copies_between_classes_and_splits_are_reported(
    train: list[tuple[int, int]], test: list[tuple[int, int]], contradictory: int, leaked: int,
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def pictures(some: list[tuple[int, int]]) -> list[Picture]:
        pixels = np.zeros((2, 2, 3), np.uint8)
        return [Picture(key=bytes([number]) * KEY, label=label, pixels=pixels) for number, label in some]

    parts = {"train": lambda: pictures(train), "validation": lambda: pictures([(9, 0)]), "test": lambda: pictures(test)}
    prepared_pictures(tmp_path / "stored", "pictures: writing", parts, 0, made_by=store.__name__)
    told = capsys.readouterr().err
    line = f"pictures: {contradictory} pictures are in several classes of train; {leaked} pictures of test are also"
    assert (line in told) == bool(contradictory or leaked)
    assert ("pictures are in" in told) == bool(contradictory or leaked)

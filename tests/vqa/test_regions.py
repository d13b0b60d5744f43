"""Region features: every format to one folder and back, interrupted and damaged ones, pickles that are refused."""

import base64
import itertools
import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from seqarena.common.errors import BadDataError, WrongUseError, run_command
from seqarena.scripts.seqarena import dispatch
from seqarena.vqa import convert, formats, regions
from seqarena.vqa.formats import READERS, format_of, picture_of
from seqarena.vqa.regions import PictureRegions, Regions, read, write

WIDTH = 6


def pictures(count: int = 3, seed: int = 0) -> list[PictureRegions]:
    """Different numbers of boxes; values that float16 holds exactly."""
    generator = np.random.default_rng(seed)
    found = []
    for number in range(count):
        boxes = 2 + number % 3
        corners = generator.integers(0, 40, (boxes, 2))
        found.append(
            PictureRegions(
                id=100 + 7 * number, size=(80, 60),
                boxes=np.concatenate([corners, corners + 20], axis=1).astype(np.float32),
                features=generator.integers(-64, 64, (boxes, WIDTH)).astype(np.float32) / 8,
            )
        )  # fmt: skip
    return found


def as_tsv(folder: Path, found: list[PictureRegions]) -> Path:
    path = folder / "found.tsv"
    packed = [[base64.b64encode(array.tobytes()).decode() for array in (each.boxes, each.features)] for each in found]
    rows = [[str(each.id), "80", "60", str(len(each.boxes)), *both] for each, both in zip(found, packed, strict=True)]
    path.write_text("\n".join("\t".join(row) for row in rows) + "\n")
    return path


def as_lxmert(folder: Path, found: list[PictureRegions]) -> Path:
    path = folder / "obj36.tsv"
    rows = [
        [f"COCO_val2014_{each.id:012d}", "60", "80", "", "", "", "", str(len(each.boxes)),
         *(base64.b64encode(array.tobytes()).decode() for array in (each.boxes, each.features))]
        for each in found
    ]  # fmt: skip
    path.write_text("\n".join("\t".join(row) for row in rows) + "\n")
    return path


def as_npz(folder: Path, found: list[PictureRegions], *, turned: bool) -> Path:
    path = folder / "npz"
    path.mkdir()
    for each in found:
        np.savez(
            path / f"COCO_val2014_{each.id:012d}.npz", x=each.features.T if turned else each.features,
            bbox=each.boxes, num_bbox=len(each.boxes), image_w=80, image_h=60, info=np.array({"a": 1}, dtype=object),
        )  # fmt: skip
    return path


def as_npy(folder: Path, found: list[PictureRegions]) -> Path:
    path = folder / "npy"
    path.mkdir()
    for each in found:
        values = {"image_feat": each.features, "image_bboxes": each.boxes, "image_width": 80, "image_height": 60}
        np.save(path / f"{each.id}.npy", np.array(values, dtype=object), allow_pickle=True)
    return path


def as_hdf5(folder: Path, found: list[PictureRegions], *, ragged: bool) -> Path:
    import h5py  # noqa: PLC0415  # an extra

    path = folder / "train.hdf5"
    with h5py.File(path, "w") as file:
        if ragged:
            ends = np.cumsum([len(each.boxes) for each in found])
            file["pos_boxes"] = np.stack([ends - [len(each.boxes) for each in found], ends], axis=1)
            file["image_features"] = np.concatenate([each.features for each in found])
            file["image_bb"] = np.concatenate([each.boxes for each in found])
        else:
            file["image_features"] = np.stack([each.features for each in found])
            file["image_bb"] = np.stack([each.boxes for each in found])
        file["image_sizes"] = np.array([each.size for each in found])
    (folder / "train_imgid2idx.pkl").write_bytes(pickle.dumps({each.id: row for row, each in enumerate(found)}))
    return path


def as_lmdb(folder: Path, found: list[PictureRegions]) -> Path:
    import lmdb  # noqa: PLC0415  # an extra

    path = folder / "detectron.lmdb"
    with lmdb.open(str(path), map_size=2**24) as opened, opened.begin(write=True) as writer:
        for each in found:
            values = {"features": each.features, "bbox": each.boxes, "image_width": 80, "image_height": 60}
            writer.put(f"COCO_val2014_{each.id:012d}".encode(), pickle.dumps(values))
        writer.put(b"keys", pickle.dumps([f"COCO_val2014_{each.id:012d}".encode() for each in found]))
    return path


SAME = [replace(each, boxes=each.boxes[:2], features=each.features[:2]) for each in pictures()]
MAKERS: dict[str, tuple[Callable[[Path], Path], list[PictureRegions]]] = {
    "tsv": (lambda folder: as_tsv(folder, pictures()), pictures()),
    "lxmert": (lambda folder: as_lxmert(folder, pictures()), pictures()),
    "npz": (lambda folder: as_npz(folder, pictures(), turned=False), pictures()),
    "npz, turned": (lambda folder: as_npz(folder, pictures(), turned=True), pictures()),
    "npy": (lambda folder: as_npy(folder, pictures()), pictures()),
    "hdf5": (lambda folder: as_hdf5(folder, SAME, ragged=False), SAME),
    "hdf5, ragged": (lambda folder: as_hdf5(folder, pictures(), ragged=True), pictures()),
    "lmdb": (lambda folder: as_lmdb(folder, pictures()), pictures()),
}


def same(found: Regions, expected: list[PictureRegions]) -> None:
    for row, each in zip(found.rows(np.array([each.id for each in expected])), expected, strict=True):
        count = found.counts[row]
        assert count == len(each.boxes)
        assert tuple(found.sizes[row]) == each.size
        np.testing.assert_array_equal(found.features[row, :count], each.features)
        np.testing.assert_allclose(found.boxes[row, :count] * np.array([80, 60, 80, 60]), each.boxes, rtol=1e-6)
        assert not found.features[row, count:].any()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.extras) if name.startswith(("hdf5", "lmdb")) else name for name in MAKERS],
)
def test_every_format_becomes_the_same_folder(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, expected = MAKERS[name]
    source = make(tmp_path)
    command = ["prepare", "vqa", "features", "--from", str(source), "--out", str(tmp_path / "out"), "--boxes", "5",
               "--detector", "R101"]  # fmt: skip
    if name.split(",", maxsplit=1)[0] in ("npy", "hdf5", "lmdb"):
        assert run_command(dispatch, command) == 2
        assert "pickled: reading it may run code; use --trust-pickles" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
        command.append("--trust-pickles")
    assert run_command(dispatch, command) == 0
    assert "3 pictures by R101, 6 features per box" in capsys.readouterr().out
    same(read(tmp_path / "out", verify=True), expected)
    assert run_command(dispatch, command) == 2
    assert "already contains regions" in capsys.readouterr().err
    assert run_command(dispatch, [*command, "--verify"]) == 0


def whole(
    folder: Path, found: Iterator[PictureRegions] | list[PictureRegions], count: int = 3, **changes: object
) -> Regions:
    settings = {"detector": "R101", "pictures": count, "boxes": 5, "width": WIDTH, "source": "here"} | changes
    return write(folder, found, **settings)  # type: ignore[arg-type]


def test_an_interrupted_conversion_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "SAVED_EVERY", 2)
    given = pictures(7)

    def broken() -> Iterator[PictureRegions]:
        yield from given[:5]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        whole(tmp_path / "out", broken(), 7)
    assert not (tmp_path / "out").exists()
    assert json.loads((tmp_path / ".out.unfinished" / "state.json").read_text())["done"] == 4
    fresh = whole(tmp_path / "fresh", given, 7)
    seen: list[int] = []

    def told() -> Iterator[PictureRegions]:
        for number, each in enumerate(given):
            seen.append(number)
            yield replace(each, features=each.features + 1) if number < 4 else each  # these are not written again

    again = whole(tmp_path / "out", told(), 7)
    assert seen == list(range(7))
    assert again.header.sha256 == fresh.header.sha256
    same(again, given)


def test_another_source_starts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "SAVED_EVERY", 1)

    def broken() -> Iterator[PictureRegions]:
        yield pictures(seed=1)[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        whole(tmp_path / "out", broken())
    same(whole(tmp_path / "out", pictures(), source="elsewhere"), pictures())


def test_a_conversion_does_not_go_on_by_an_edited_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Iterator[PictureRegions]:
        yield pictures(seed=1)[0]
        raise KeyboardInterrupt

    real = convert.imported_by
    command = ["--from", str(as_tsv(tmp_path, pictures())), "--out", str(tmp_path / "out"), "--detector", "R101",
               "--boxes", "5"]  # fmt: skip
    monkeypatch.setattr(regions, "SAVED_EVERY", 1)
    with monkeypatch.context() as before:
        before.setattr(convert, "pictures", broken)
        with pytest.raises(KeyboardInterrupt):
            convert.features(command)
    monkeypatch.setattr(convert, "imported_by", lambda module: {**real(module), "vqa/formats.py": "edited"})
    convert.features(command)
    same(read(tmp_path / "out"), pictures())


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (pictures(2), "expected 3 pictures, as counted before, found 2"),
        (pictures(4), "as counted before, found more"),
        ([*pictures(2), pictures(1)[0]], "expected distinct pictures, found 100 twice"),
        ([replace(each, features=each.features[:, :4]) for each in pictures()], "expected 6 features per box"),
        ([replace(each, boxes=each.boxes[:1]) for each in pictures()], "expected 4 numbers for each of 2 boxes"),
        ([replace(each, boxes=each.boxes[:0], features=each.features[:0]) for each in pictures()], "of 0 boxes"),
        (
            [replace(each, boxes=each.boxes * 10) for each in pictures()],
            "inside the picture of 80 x 60 pixels, found one outside",
        ),
        (
            [replace(each, features=each.features * 1e6) for each in pictures()],
            "finite features within float16's 65,504",
        ),
        ([replace(each, features=each.features * np.nan) for each in pictures()], "expected finite features"),
    ],
)
def test_features_that_cannot_be_are_refused(tmp_path: Path, found: list[PictureRegions], words: str) -> None:
    with pytest.raises(BadDataError, match=words):
        whole(tmp_path / "out", found)
    assert not (tmp_path / "out").exists()


def test_pictures_are_found_by_their_numbers(tmp_path: Path) -> None:
    made = whole(tmp_path / "out", pictures())
    asked = np.array([107, 100, 3, 107, 5])
    assert made.rows(asked).tolist() == [1, 0, -1, 1, -1]


def test_what_is_beside_another_file_is_not_taken_for_its_own(tmp_path: Path) -> None:
    (tmp_path / "val_imgid2idx.pkl").write_bytes(pickle.dumps({1: 0, 2: 1, 3: 2}))
    with pytest.raises(BadDataError, match=r"nor train_imgid2idx\.pkl beside it"):
        formats._pickled_ids(tmp_path / "train.hdf5", 3, True)


def test_padded_rows_of_a_record_are_left_out() -> None:
    values = {"features": np.ones((5, 2)), "bbox": np.ones((5, 4)), "num_boxes": 2, "image_width": 9, "image_height": 9}
    assert formats._regions_of_dict(values, 1, Path("here"), ("features", "bbox")).features.shape == (2, 2)
    with pytest.raises(BadDataError, match="num_boxes 6, found 5"):
        formats._regions_of_dict({**values, "num_boxes": 6}, 1, Path("here"), ("features", "bbox"))


def test_a_table_may_end_without_a_line_s_end(tmp_path: Path) -> None:
    path = as_tsv(tmp_path, pictures())
    assert formats.count(path, "tsv", False) == 3
    path.write_text(path.read_text().rstrip("\n"))
    assert formats.count(path, "tsv", False) == 3


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.npz", b"junk"),
        ("1.npy", b"junk"),
        ("1.npy", b"\x93NUMPY\x01\x00"),
        ("a.tsv", b"\xff\xfe\x00"),
        ("a.npz", b""),
    ],
)
def test_damaged_files_are_named_and_not_called_pickled(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    path = tmp_path / name if name.endswith("tsv") else tmp_path
    with pytest.raises(BadDataError, match=str(tmp_path)):
        list(formats.pictures(path, format_of(path), False))


def test_a_folder_that_is_taken_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")

    def never() -> Iterator[PictureRegions]:
        raise AssertionError
        yield

    with pytest.raises(WrongUseError, match="expected a new or empty folder"):
        whole(tmp_path / "out", never())
    assert (tmp_path / "out" / "mine.txt").exists()


def test_damage_is_found(tmp_path: Path) -> None:
    whole(tmp_path / "out", pictures())
    array = np.load(tmp_path / "out" / "features.npy", mmap_mode="r+")
    array[0, 0, 0] += 1
    array.flush()
    with pytest.raises(BadDataError, match="damaged, its sha256 is not"):
        read(tmp_path / "out", verify=True)
    (tmp_path / "out" / "boxes.npy").unlink()
    with pytest.raises(BadDataError, match="delete the folder and make it again"):
        read(tmp_path / "out")
    with pytest.raises(BadDataError, match="no regions"):
        read(tmp_path / "nowhere")


@pytest.mark.extras
@pytest.mark.parametrize(
    ("name", "ragged"),
    [*itertools.product(("image_ids", "image_sizes", "image_bb"), (True, False)), ("pos_boxes", True)],
)
def test_arrays_of_hdf5_that_do_not_belong_together_are_refused(name: str, ragged: bool, tmp_path: Path) -> None:
    """A row more or less would leave out a picture or its boxes, and boxes that are shifted would be another's."""
    import h5py  # noqa: PLC0415  # an extra

    path = as_hdf5(tmp_path, pictures() if ragged else SAME, ragged=ragged)
    with h5py.File(path, "a") as file:
        file["image_ids"] = np.array([each.id for each in SAME])
    assert len(list(formats.pictures(path, "hdf5", False))) == 3
    changes = [lambda array: np.concatenate([array, array[:1]])]
    if name == "pos_boxes":
        changes += [lambda array: array[:-1], lambda array: array + 1, lambda array: array * 2,
                    np.zeros_like]  # fmt: skip
    elif name == "image_ids":
        changes += [lambda array: array[:-1], lambda array: array + 0.5]
    for change in changes:
        with h5py.File(path, "a") as file:
            whole = file[name][:]
            del file[name]
            file[name] = change(whole)
        with pytest.raises(BadDataError, match="expected"):
            list(formats.pictures(path, "hdf5", False))
        with h5py.File(path, "a") as file:
            del file[name]
            file[name] = whole
    assert len(list(formats.pictures(path, "hdf5", False))) == 3


def test_formats_are_told_apart_and_names_read(tmp_path: Path) -> None:
    assert format_of(as_npz(tmp_path, pictures(), turned=False)) == "npz"
    assert picture_of("COCO_val2014_000000458752", "here") == 458_752
    with pytest.raises(BadDataError, match="ends with the picture's id"):
        picture_of("picture", "here")
    with pytest.raises(BadDataError, match="found nothing"):
        format_of(tmp_path / "nowhere")
    (tmp_path / "broken.tsv").write_text("1\t2\n")
    with pytest.raises(BadDataError, match="line 1: expected 6 or 10 columns, found 2"):
        next(READERS["tsv"](tmp_path / "broken.tsv", False))
    (tmp_path / "broken.tsv").write_text("1\t80\t60\t2\tnot base64\tQUJD\n")
    with pytest.raises(BadDataError, match="line 1"):
        next(READERS["tsv"](tmp_path / "broken.tsv", False))
    with pytest.raises(WrongUseError, match="unknown format"):
        guarded_features(tmp_path)


def guarded_features(folder: Path) -> None:
    from seqarena.vqa.convert import features  # noqa: PLC0415

    features(["--from", str(folder), "--out", str(folder / "o"), "--detector", "R", "--format", "tvs"])


@pytest.mark.extras
def test_an_lmdb_of_which_a_part_is_missing_ends_no_process(tmp_path: Path) -> None:
    """A page that is mapped and not there is a bus error: in a process of its own."""
    source = as_lmdb(tmp_path, pictures(60))
    stored = source / "data.mdb"
    stored.write_bytes(stored.read_bytes()[: 3 * 4096])
    command = ["prepare", "vqa", "features", "--from", str(source), "--trust-pickles", "--out", str(tmp_path / "out")]
    command = [sys.executable, "-m", "seqarena", *command, "--boxes", "5", "--detector", "R101"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 1, ran.stderr
    assert "bytes in data.mdb, found 12,288; the file is truncated" in ran.stderr


@pytest.mark.extras
def test_an_lmdb_with_a_value_that_is_too_long_ends_no_process(tmp_path: Path) -> None:
    """A value of several pages is named by its length and its first page, before and after its key."""
    source = as_lmdb(tmp_path, pictures(100))
    stored = source / "data.mdb"
    content = stored.read_bytes()
    first = next(page for page in range(2, len(content) // 4096) if content[4096 * page + 10] == 4)
    named = b"keys" + first.to_bytes(8, "little")
    before, after = content.split(named)
    stored.write_bytes(before[:-8] + (2**30).to_bytes(4, "little") + before[-4:] + named + after)
    with pytest.raises(BadDataError, match=r"the process that read data\.mdb was killed; the file is damaged"):
        formats.count(source, "lmdb", trust=True)
    with pytest.raises(BadDataError, match="was killed"):  # a failed check is no check
        next(formats.pictures(source, "lmdb", trust=True))

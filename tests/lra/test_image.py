"""Image: every layout of CIFAR-10 gives the same bytes; what is no CIFAR-10 is refused."""

import io
import lzma
import pickle
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image as Picture

from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.lra import checksums
from seqarena.lra.data import image, truncate
from seqarena.lra.data.digits import Digits
from seqarena.lra.data.image import CLASSES, Image, grey
from seqarena.lra.data.pickled import STAND_INS, read_batch
from seqarena.lra.data.pixels import images_to_sequences, open_picture

TRAIN, TEST = 25, 10


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "COUNTS", {"train": TRAIN, "test": TEST})
    monkeypatch.setattr(image, "VALIDATION", 5)
    monkeypatch.setattr(checksums, "IMAGE", None)


def colours(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns images (count, 3, 32, 32) and labels."""
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (count, 3, 32, 32)).astype(np.uint8), (np.arange(count) % 10).astype(np.uint8)


def layouts(folder: Path) -> list[Path]:
    """Writes the same images as the official archives, as pictures, as arrays, and as the hub does."""
    parts = {"train": colours(TRAIN, 0), "test": colours(TEST, 1)}
    for name in ("py", "bin", "png", "npy", "hub/plain_text"):
        (folder / name).mkdir(parents=True)
    for split, (images, labels) in parts.items():
        pictures = [Picture.fromarray(each.transpose(1, 2, 0)) for each in images]
        for batch in range(5 if split == "train" else 1):
            some = slice(batch * 5, batch * 5 + 5) if split == "train" else slice(None)
            name = f"data_batch_{batch + 1}" if split == "train" else "test_batch"
            flat = images[some].reshape(len(labels[some]), -1)
            (folder / "py" / name).write_bytes(
                pickle.dumps({b"data": flat, b"labels": labels[some].tolist(), b"batch_label": b"x"}, protocol=2)
            )
            (folder / "bin" / f"{name}.bin").write_bytes(np.concatenate([labels[some, None], flat], axis=1).tobytes())
        for number, picture in enumerate(pictures):
            where = folder / "png" / split / CLASSES[labels[number]]
            where.mkdir(parents=True, exist_ok=True)
            picture.save(where / f"{number:04}.png")
        greys = np.stack([np.asarray(each.convert("L")).reshape(-1) for each in pictures])
        buffer = io.BytesIO()
        np.save(buffer, greys)
        (folder / "npy" / f"x_{split}_gray.npy.xz").write_bytes(lzma.compress(buffer.getvalue()))
        np.save(folder / "npy" / f"y_{split}.npy", labels)
        rows = datasets.Dataset.from_dict({"img": pictures, "label": labels.tolist()}).cast_column(
            "img", datasets.Image()
        )
        rows.to_parquet(folder / "hub" / "plain_text" / f"{split}-00000-of-00001.parquet")
    with tarfile.open(folder / "cifar-10-python.tar.gz", "w:gz") as tar:
        tar.add(folder / "py", arcname="cifar-10-batches-py")
    return [folder / name for name in ("py", "bin", "png", "npy", "hub", "cifar-10-python.tar.gz")]


def test_every_layout_gives_the_same_bytes(tmp_path: Path) -> None:
    found = {source.name: Image(path=str(source)).load(tmp_path / "data")[1] for source in layouts(tmp_path)}
    assert len(set(found.values())) == 1, found
    splits, _ = Image(path=str(tmp_path / "py")).load(tmp_path / "data")
    assert [len(splits[name]) for name in ("train", "validation", "test")] == [20, 5, 10]
    images, labels = colours(TEST, 1)
    want = {
        np.asarray(Picture.fromarray(each.transpose(1, 2, 0)).convert("L")).tobytes(): label
        for each, label in zip(images, labels, strict=True)
    }
    assert {splits["test"][n].tobytes(): label for n, label in enumerate(splits["test"].labels)} == want
    tokens, _ = splits["test"].padded(np.arange(10))
    assert tokens.shape == (10, 1_024)
    pixels = np.stack([np.asarray(splits["test"][n]) for n in range(10)])
    assert np.array_equal(tokens.numpy(), pixels.astype(int) + 1)
    short, again = Image(path=str(tmp_path / "py"), length=7).load(tmp_path / "data")
    assert again == found["py"]
    assert set(short["test"].lengths.tolist()) == {7}
    floors = Image(path=str(tmp_path / "py")).floors(splits)
    assert floors["majority class"] == 0.1


def test_a_floor_reads_only_the_pixels_that_a_model_reads() -> None:
    images = np.tile(np.array([[0] * 4 + [0] * 4, [0] * 4 + [200] * 4], np.uint8), (3, 1))
    split = images_to_sequences(images, np.tile(np.array([0, 1], np.uint8), 3))
    splits = {"train": split, "test": split}
    assert Digits().floors(splits)["nearest training example"] == 1.0
    assert Digits().floors(truncate(splits, 4))["nearest training example"] == 0.5


def test_a_class_that_training_has_not_is_never_guessed() -> None:
    images = np.repeat(np.array([[0], [200]], np.uint8), 8, axis=1)
    split = images_to_sequences(np.tile(images, (3, 1)), np.tile(np.array([0, 2], np.uint8), 3))
    found = Digits().floors({"train": split, "test": split})
    assert found == {"majority class": 0.5, "brightness": 1.0, "nearest training example": 1.0}


def test_grey_is_pillows() -> None:
    images, _ = colours(3, 5)
    want = [np.asarray(Picture.fromarray(each.transpose(1, 2, 0)).convert("L")) for each in images]
    assert np.array_equal(grey(*images.transpose(1, 0, 2, 3)), np.stack(want))


class Harmful:
    """Calls a function when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("harm",)


def text(content: bytes) -> bytes:
    return b"U" + bytes([len(content)]) + content


def batch_of_python_2(images: np.ndarray, labels: list[int]) -> bytes:
    """Returns a batch as Python 2's cPickle wrote the official ones: names and bytes are strings of 8 bits."""
    size, content = len(images).to_bytes(4, "little"), images.tobytes()
    state = b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    kind = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R" + state
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    held = b"T" + len(content).to_bytes(4, "little") + content
    array = empty + b"(K\x01J" + size + b"M\x00\x0c\x86" + kind + b"\x89" + held + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([each]) for each in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + numbers + b"u."


def test_batches_of_python_2_and_3_are_read() -> None:
    images = np.random.default_rng(0).integers(0, 256, (7, 3072)).astype(np.uint8)
    labels = [0, 9, 3, 3, 1, 2, 8]
    every = [batch_of_python_2(images, labels)]
    for protocol in (2, 3, 4, 5):
        every += [pickle.dumps({b"data": images, b"labels": some}, protocol=protocol)
                  for some in (labels, np.array(labels, np.uint8)) if protocol < 5]  # fmt: skip
    for content in every:
        found = read_batch(content)
        np.testing.assert_array_equal(found[0], images)
        assert found[1].tolist() == labels


def test_no_pickle_corrupts_memory() -> None:
    """State of numpy's own classes does: flags of a dtype without objects, an array longer than its bytes."""
    images = np.zeros((7, 3072), np.uint8)
    whole = batch_of_python_2(images, [0] * 7)
    flags = whole.replace(b"K\x00tb\x89", b"K\x3ftb\x89")
    assert flags != whole
    np.testing.assert_array_equal(read_batch(flags)[0], images)
    evil = {
        "expected an array of bytes": whole.replace(b"U\x02u1", b"U\x02O8"),
        "cannot reshape": whole.replace(b"M\x00\x0c\x86", b"M\x00\x0d\x86"),
        "more operations than a CIFAR-10": b"\x80\x02}r\xff\xff\xff\xff.",
        "more operations than a CIFAR-10 batch": b"\x80\x02}K\x00" + b"\x85" * 500_000 + b"K\x00s.",
        "it refers to numpy.load": whole.replace(b"numpy.core.multiarray\n_reconstruct", b"numpy\nload"),
        "it contains the opcode NEWOBJ": b"\x80\x02cnumpy\nndarray\n)\x81.",
        "expected an array, found": pickle.dumps({b"data": b"", b"labels": []}, protocol=3),
    }
    for reason, content in evil.items():
        assert content != whole, reason
        with pytest.raises(ValueError, match=re.escape(reason)):
            read_batch(content)


@pytest.mark.parametrize(("module", "name"), STAND_INS)
def test_a_pickle_leaves_nothing_behind_for_the_next_one(module: str, name: str) -> None:
    """BUILD sets attributes of a function or of a class without ``__setstate__``."""
    stand_in = STAND_INS[module, name]
    before = dict(vars(stand_in))
    state = b"N}X\x05\x00\x00\x00stateK\x07s\x86b."
    with pytest.raises(ValueError, match=r"__setstate__|'state'"):
        read_batch(b"\x80\x02c" + f"{module}\n{name}\n".encode() + state)
    assert dict(vars(stand_in)) == before


@pytest.mark.extras
def test_a_pickle_that_corrupts_memory_ends_in_one_message(tmp_path: Path) -> None:
    """A dtype of bytes that says that it holds objects, whose numbers are then taken for addresses."""
    images = np.full((7, 3072), 0x41, np.uint8)
    state = b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK"
    evil = batch_of_python_2(images, [0] * 7).replace(state + b"\x00tb", state + b"\x3ftb")
    evil = evil.replace(b"U\x02u1", b"U\x02O8")
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as tar:
        entry = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
        entry.size = len(evil)
        tar.addfile(entry, io.BytesIO(evil))
    command = [sys.executable, "-m", "seqarena", "prepare", "lra", "image"]
    command += ["--data.path", str(tmp_path / "cifar-10-python.tar.gz"), "--data-folder", str(tmp_path / "data")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in ran.stderr.splitlines() if line.startswith("seqarena: ")]
    assert ran.returncode == 1, ran.stderr
    assert len(lines) == 1
    assert (
        "data_batch_1: not a valid batch of CIFAR-10's Python version: expected an array of bytes (uint8)" in lines[0]
    )
    assert "Traceback" not in ran.stderr


def test_a_picture_whose_checksum_does_not_fit_is_refused() -> None:
    file = io.BytesIO()
    Picture.fromarray(np.arange(1024, dtype=np.uint8).reshape(32, 32)).save(file, "png", compress_level=0)
    whole = file.getvalue()
    assert open_picture(whole).size == (32, 32)
    place = len(whole) // 2
    with pytest.raises(SyntaxError, match="broken PNG"):
        open_picture(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])


def test_what_is_no_cifar_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layouts(tmp_path)

    def reason(name: str) -> str:
        with pytest.raises(BadDataError) as caught:
            Image(path=str(tmp_path / name)).load(tmp_path / "data")
        assert not (tmp_path / "data" / "lra").exists() or not list((tmp_path / "data" / "lra").iterdir())
        return str(caught.value)

    (tmp_path / "py" / "data_batch_2").write_bytes(pickle.dumps(Harmful()))
    words = "data_batch_2: not a valid batch of CIFAR-10's Python version: it refers to builtins.print"
    assert words in reason("py")
    assert "harm" not in capsys.readouterr().out
    (tmp_path / "py" / "data_batch_2").unlink()
    assert "expected 25 images of 1,024 pixels in train, found images of shape (20, 1024)" in reason("py")
    content = (tmp_path / "bin" / "test_batch.bin").read_bytes()
    (tmp_path / "bin" / "test_batch.bin").write_bytes(content[:-1])
    assert "expected whole records of 3,073 bytes" in reason("bin")
    (tmp_path / "bin" / "test_batch.bin").write_bytes(b"\x0b" + content[1:])
    assert "expected labels 0 to 9 in test, found 11 in row 0" in reason("bin")
    xz = tmp_path / "npy" / "x_test_gray.npy.xz"
    xz.write_bytes(xz.read_bytes()[:-30])
    assert "x_test_gray.npy.xz: not a whole array" in reason("npy")
    (tmp_path / "png" / "test" / "cat" / "0003.png").write_bytes(b"")
    assert "0003.png: not a whole picture" in reason("png")
    (tmp_path / "png" / "test" / "cat" / "0003.png").rename(tmp_path / "png" / "test" / "cat" / "3.txt")
    (tmp_path / "png" / "test" / "12").mkdir()
    Picture.fromarray(np.zeros((32, 32), np.uint8)).save(tmp_path / "png" / "test" / "12" / "a.png")
    assert "expected a folder named after a class" in reason("png")
    np.save(tmp_path / "npy" / "x_test_gray.npy", np.zeros((0, 1_024), np.uint8))
    xz.unlink()
    assert "expected labels, or images of 32 x 32" in reason("npy")
    assert "expected an archive (.tar, " in reason("npy/y_test.npy")
    labels = {"train": -1, "test": 3}
    for split, label in labels.items():
        picture = Picture.fromarray(np.zeros((32, 32 if split == "train" else 31), np.uint8))
        rows = datasets.Dataset.from_dict({"img": [picture], "label": [label]}).cast_column("img", datasets.Image())
        rows.to_parquet(tmp_path / "hub" / "plain_text" / f"{split}-00000-of-00001.parquet")
    assert "split train, row 0: expected a label from 0 to 9, found -1" in reason("hub")
    archive = tmp_path / "cifar-10-python.tar.gz"
    archive.write_bytes(archive.read_bytes()[:-5_000])
    assert "not a whole tar archive" in reason(archive.name)


def test_digits_are_drawn(tmp_path: Path) -> None:
    data = Digits(train=60, validation=10, test=200)
    splits, found = data.load(tmp_path)
    assert data.load(tmp_path / "again")[1] == found
    assert [len(splits[name]) for name in ("train", "validation", "test")] == [60, 10, 200]
    assert set(splits["test"].labels.tolist()) == set(range(10))
    pixels = np.asarray(splits["test"].tokens)
    assert pixels.max() > 150
    assert np.median(pixels) < 64
    with pytest.raises(WrongUseError, match="at least 10"):
        Digits(size=8).check()
    with pytest.raises(WrongUseError, match="draws its images"):
        Digits(path="x").check()

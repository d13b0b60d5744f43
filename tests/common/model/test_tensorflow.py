"""TensorFlow checkpoints: every tensor is read bit for bit, and what is damaged or malicious is one message."""

import re
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from seqarena.common.data.crc32c import crc32c
from seqarena.common.data.protobuf import fields, varint
from seqarena.common.errors import BadDataError
from seqarena.common.model.bert.google import OPTIMISER
from seqarena.common.model.bert.tensorflow import LARGEST_INDEX, read_tensors
from tests.common.model.google import table
from tests.common.model.google.table import HEADER, block, message, shape, tensor
from tests.common.model.google.write import HERE, NAMES, slots, values, variables

TWO = np.array([1.5, -2], np.float32).tobytes()


def everything(index: Path) -> dict[str, torch.Tensor]:
    return read_tensors(index, lambda _: True)


def weights(index: Path) -> dict[str, torch.Tensor]:
    return read_tensors(index, lambda name: not OPTIMISER.fullmatch(name))


@pytest.mark.parametrize(("content", "expected"), [
    (b"", 0), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E), (bytes(range(31, -1, -1)), 0x113FDB5C),
])  # fmt: skip
def test_the_checksum_is_that_of_the_standard(content: bytes, expected: int) -> None:
    """Values of RFC 3720, B.4."""
    assert crc32c(np.frombuffer(bytearray(content), np.uint8)) == expected


@pytest.mark.parametrize("kind", list(NAMES))
def test_every_tensor_is_the_one_that_tensorflow_wrote(kind: str) -> None:
    index = HERE / kind / f"{NAMES[kind]}.index"
    found = everything(index)
    assert found.pop("global_step").equal(torch.tensor(0))
    expected = {name: values(name, sizes) for name, sizes in (variables(kind) | slots(kind)).items()}
    assert found.keys() == expected.keys()
    for name, numbers in expected.items():
        assert found[name].dtype == torch.float32
        assert tuple(found[name].shape) == numbers.shape
        assert found[name].numpy().tobytes() == numbers.tobytes()
    assert weights(index).keys() == variables(kind).keys()


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[str], Path]:
    def copied(kind: str) -> Path:
        shutil.copytree(HERE / kind, tmp_path, dirs_exist_ok=True)
        return tmp_path / f"{NAMES[kind]}.index"

    return copied


@pytest.mark.parametrize("kind", list(NAMES))
def test_every_changed_byte_of_the_index_is_noticed(kind: str, copy: Callable[[str], Path]) -> None:
    index = copy(kind)
    content = index.read_bytes()
    for place in range(zlib.crc32(kind.encode()) % 5, len(content), 5):
        made = bytearray(content)
        made[place] ^= 1 << place % 8
        index.write_bytes(made)
        with pytest.raises(BadDataError, match=re.escape(f"{index.name.removesuffix('.index')}.")):
            weights(index)
    for stop in (*range(0, len(content), 50), len(content) - 1):
        index.write_bytes(content[:stop])
        with pytest.raises(BadDataError, match=r"index: not a whole index of a TensorFlow checkpoint .*download"):
            weights(index)


@pytest.mark.parametrize("kind", list(NAMES))
def test_a_changed_byte_of_the_data_is_noticed_unless_it_is_the_optimisers(
    kind: str, copy: Callable[[str], Path]
) -> None:
    index = copy(kind)
    expected = weights(index)
    unread = 0
    files = sorted(index.parent.glob("*.data-*"))
    for file in files:
        content = file.read_bytes()
        for place in range(0, len(content), 53):
            made = bytearray(content)
            made[place] ^= 1 << place % 8
            file.write_bytes(made)
            message = ""
            try:
                found = weights(index)
            except BadDataError as error:
                message = str(error)
            else:
                unread += 53
                assert all(each.equal(expected[name]) for name, each in found.items())
            assert re.search(rf"^$|{file.name}: not a whole data file .*the checksum of \S+ is wrong", message)
        for stop in range(0, len(content), 499):
            file.write_bytes(content[:stop])
            with pytest.raises(BadDataError, match=rf"{file.name}: .*expected at least [\d,]+ bytes, found {stop:,}"):
                weights(index)
        file.write_bytes(content)
    skipped = 4 * sum(int(np.prod(sizes)) for sizes in slots(kind).values()) + 8
    assert unread == pytest.approx(skipped, rel=0.2)
    files[-1].unlink()
    with pytest.raises(BadDataError, match=rf"{files[-1].name} does not exist; expected: data file"):
        weights(index)


def test_types_and_shapes(tmp_path: Path) -> None:
    """The empty name is that of the header, so no tensor has it."""
    parts = {
        b"a": (tensor(content=TWO, sizes=(1, 2)), [[1.5, -2.0]]),
        b"b": (tensor((4, 8), content=TWO[:4], sizes=()), 1.5),
        b"c": (tensor((4, 12), sizes=(0, 3)), []),
        b"d": (tensor((1, 9), (4, 12), content=bytes([7, *bytes(7)]), sizes=(1,)), [7]),
        b"e": (tensor((1, 14), (4, 20), content=b"\xc0\x3f", sizes=(1,)), [1.5]),
    }
    index = table.table(block([HEADER, *((name, each) for name, (each, _) in parts.items())]))
    path = table.write(tmp_path, index, TWO + TWO[:4] + bytes([7, *bytes(7)]) + b"\xc0\x3f")
    assert {name: each.tolist() for name, each in everything(path).items()} == {
        name.decode(): expected for name, (_, expected) in parts.items()
    }
    two = table.table(block([HEADER, (b"a", parts[b"a"][0])]), block([(b"b", parts[b"b"][0])]))
    assert list(everything(table.write(tmp_path, two, TWO + TWO))) == ["a", "b"]


def one(*changed: table.Field, name: bytes = b"a") -> bytes:
    """Returns an index of one tensor, with some fields changed."""
    return table.table(block([HEADER, (name, tensor(*changed, content=TWO))]))


A = (b"a", tensor(content=TWO))
REFUSED: dict[str, tuple[bytes, str]] = {
    "no header": (table.table(block([A])), "the header is missing"),
    "nothing": (table.table(), "expected 1 to 10,000 data files, found 0"),
    "no data file": (table.table(block([(b"", b""), A])), "expected 1 to 10,000 data files, found 0"),
    "too many data files": (table.table(block([(b"", message((1, 2**31 - 1)))])), "found 2,147,483,647"),
    "another byte order": (table.table(block([(b"", message((1, 1), (2, 1)))])), "another byte order"),
    "another table": (table.table(block([HEADER, A]), further=[A]), "parts that no checkpoint has"),
    "compressed": (table.table(block([HEADER, A], compressed=1)), "compressed; expected .* TensorFlow 1.2 or later"),
    "not sorted": (table.table(block([HEADER, (b"b", A[1]), A])), "names are not sorted"),
    "twice": (table.table(block([HEADER, A, A])), "names are not sorted"),
    "a block twice": (table.table(block([HEADER, A]), repeated=2), "blocks overlap"),
    "shared bytes": (table.table(block([HEADER, A, (b"b", A[1])])), "b shares bytes with another tensor"),
    "a message that is cut": (table.table(block([HEADER, (b"a", A[1][:-1])])), "ends inside its field 6"),
    "in parts": (table.table(block([HEADER, (b"\0a", b"?"), (b"a", tensor((7, b"")))])), r"a \(it is stored in parts"),
    "a long name": (one(name=b"a" * 513), "impossible sizes"),
    "a name that is no text": (one(name=b"\xff"), "utf-8"),
    "another data file": (one((3, 1)), "a is in none of the 1 data files"),
    "a negative data file": (one((3, 2**64 - 1)), "a is in none of the 1 data files"),
    "text": (one((1, 7)), r"found a \(TensorFlow's type 7\)"),
    "outside": (one((4, 1)), "expected at least 9 bytes, found 8"),
    "a huge start": (one((4, 2**64 - 1)), "expected at least"),
    "a huge size": (one((5, 2**48), (2, shape(2**46))), "expected at least"),
    "a shape of other size": (one((2, shape(3))), r"a of shape \(3,\) cannot have 8 bytes"),
    "a huge shape": (one((2, shape(2**32, 2**32))), "impossible shape"),
    "no element of many": (one((5, 0), (2, shape(0, 2**63))), "impossible shape"),
    "many dimensions": (one((2, shape(*[1] * 9))), "at most 8 dimensions, found 9"),
    "a shape that is no message": (one((2, 5)), "in place of bytes"),
    "a size that is no number": (one((5, b"8")), "in place of a number"),
    "another checksum": (one((6, bytes(4))), "the checksum of a is wrong"),
    "no table": (b"version https://git-lfs.github.com/spec/v1\n" * 3, "last bytes are not those of such a file"),
    "too large": (bytes(LARGEST_INDEX + 1), "expected at most 4,194,304 bytes, found more"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_one_message(name: str, tmp_path: Path) -> None:
    index, expected = REFUSED[name]
    with pytest.raises(BadDataError, match=rf"x\.(index|data-00000-of-00001): .*{expected}"):
        everything(table.write(tmp_path, index, TWO))


def test_what_is_not_wanted_is_not_read(tmp_path: Path) -> None:
    """Such as texts, or tensors in parts."""
    index = table.table(block([HEADER, (b"\0a", b"?"), (b"a", tensor((7, b""))), (b"b", tensor((1, 7))), (b"c", A[1])]))
    assert list(read_tensors(table.write(tmp_path, index, TWO), lambda name: name == "c")) == ["c"]


def test_restart_points_and_prefixes_of_a_block(tmp_path: Path) -> None:
    """Each is impossible, with a right checksum."""
    whole = block([HEADER, A])
    for changed in (b"\xff\xff\xff\xff", (1 << 20).to_bytes(4, "little")):
        made = whole[:-9] + changed + b"\0"
        with pytest.raises(BadDataError, match="too many restart points"):
            everything(table.write(tmp_path, table.table(made + table.checksum(made)), TWO))
    made = b"\x05" + whole[1:-4]
    with pytest.raises(BadDataError, match="impossible sizes"):
        everything(table.write(tmp_path, table.table(made + table.checksum(made)), TWO))


def test_integers_and_messages_of_protocol_buffers_have_ends() -> None:
    assert varint(b"\xff" * 9 + b"\x01", 0) == (2**64 - 1, 10)
    for content, expected in [
        (b"", "end inside"), (b"\x80", "end inside"), (b"\xff" * 9 + b"\x02", "more than 64 bits"),
        (b"\x80" * 2**20, "more than 64 bits"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=expected):
            varint(content, 0)
    for content, expected in [
        (b"\x0b", "unknown kind 3"), (b"\x0f", "unknown kind 7"), (b"\x12\x05abcd", "inside its field 2"),
        (b"\x0d\0\0\0", "inside its field 1"), (b"\x09" + bytes(7), "inside its field 1"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=expected):
            list(fields(content))

"""WikiText's words are numbered, strung together and cut as Transformer-XL does it."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import BadDataError, WrongUseError
from common.prepared import prepared
from pretraining.data.wikitext import Streams, Words, as_ragged, of_ragged, read

TRAIN = " \n = Game = \n \n the game <unk> the Game\nthe end\n"


def folder(path: Path, train: str = TRAIN, valid: str = "the end\n", test: str = "\n<unk> game\n") -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name, text in (("train", train), ("valid", valid), ("test", test)):
        (path / f"wiki.{name}.tokens").write_text(text)
    return path


def test_words_are_numbered_by_frequency_then_by_first_appearance_behind_the_end(tmp_path: Path) -> None:
    words, streams = read(folder(tmp_path))
    assert words.words == ("<eos>", "the", "=", "Game", "game", "<unk>", "end")
    assert streams["train"].tolist() == [0, 2, 3, 2, 0, 0, 1, 4, 5, 1, 3, 0, 1, 6, 0]
    assert streams["valid"].tolist() == [1, 6, 0]
    assert streams["test"].tolist() == [0, 5, 4, 0]


def test_the_published_zip_is_read_as_it_is(tmp_path: Path) -> None:
    inside = folder(tmp_path / "wikitext-2")
    with zipfile.ZipFile(tmp_path / "wikitext-2-v1.zip", "w") as archive:
        for path in inside.iterdir():
            archive.write(path, f"wikitext-2/{path.name}")
    expected = read(inside)
    for source in (tmp_path / "wikitext-2-v1.zip", tmp_path):  # also a folder that holds its folder
        words, streams = read(source)
        assert words == expected[0]
        assert all(np.array_equal(streams[name], expected[1][name]) for name in streams)


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    words, streams = read(folder(tmp_path / "wiki", TRAIN.replace("end", "ende ☃"), "the\n"))
    kept, checksum = prepared(tmp_path / "kept", "words", lambda: as_ragged(words, streams))
    again, same = prepared(tmp_path / "kept", "words", lambda: pytest.fail("made twice"))
    assert checksum == same
    found, ids = of_ragged(again)
    assert found == words
    assert all(np.array_equal(ids[name], streams[name]) for name in streams)
    assert all(len(each) for each in kept.values())


def test_what_is_no_wikitext_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadDataError, match=r"there is no <unk> in it; expected the word-level text"):
        read(folder(tmp_path / "raw", train="the end\n"))
    with pytest.raises(
        BadDataError, match=r"wiki.valid.tokens, line 2: 'stranger' is not in the vocabulary of 7 words"
    ):
        read(folder(tmp_path / "other", valid="the\nthe stranger\n"))
    with pytest.raises(BadDataError, match=r"does not exist"):
        read(tmp_path / "no")
    (tmp_path / "broken.zip").write_bytes(b"PK broken")
    with pytest.raises(BadDataError, match=r"cannot be read"):
        read(tmp_path / "broken.zip")
    (folder(tmp_path / "cut") / "wiki.test.tokens").unlink()
    with pytest.raises(BadDataError, match=r"wiki.test.tokens does not exist"):
        read(tmp_path / "cut")


@given(total=st.integers(20, 200), count=st.integers(1, 6), length=st.integers(1, 9))
def test_segments_are_the_streams_in_order(total: int, count: int, length: int) -> None:
    ids = np.arange(total, dtype=np.int32)
    streams = Streams(ids=ids, count=count, length=min(length, total // count - 1))
    batches = [streams[step] for step in range(streams.segments)]
    tokens = np.concatenate([batch.tokens.numpy() for batch in batches], axis=1)
    targets = np.concatenate([batch.targets.numpy() for batch in batches], axis=1)
    each = total // count
    assert np.array_equal(tokens, ids[: each * count].reshape(count, each)[:, :-1])
    assert np.array_equal(targets, tokens + 1)
    assert [bool(batch.fresh.any()) for batch in batches] == [True] + [False] * (streams.segments - 1)
    assert sum(batch.weight() for batch in batches) == count * (each - 1)
    again = streams[streams.segments]
    assert np.array_equal(again.tokens, batches[0].tokens)
    assert bool(again.fresh.all())


def test_steps_of_an_epoch_are_the_published_ones() -> None:
    """103,227,021 tokens in segments of 150: 11,470 steps of 60 streams, 17,205 of 40."""
    ids = np.lib.stride_tricks.as_strided(np.zeros(1, dtype=np.int32), (103_227_021,), (0,))
    assert Streams(ids=ids, count=60, length=150).segments == 11_470
    assert Streams(ids=ids, count=40, length=150).segments == 17_205


def test_streams_that_cannot_be_are_refused() -> None:
    ids = np.zeros(30, dtype=np.int32)
    with pytest.raises(WrongUseError, match="30 tokens are too few for 20 streams"):
        Streams(ids=ids, count=20, length=1)
    with pytest.raises(WrongUseError, match="a segment of 10 tokens is longer than the 9 targets of each of 3 streams"):
        Streams(ids=ids, count=3, length=10)


def test_lines_without_words_are_an_end_alone() -> None:
    words = Words.counted(["a <unk>", ""], "here")
    assert words.encode(["", "  ", "a"], "here").tolist() == [0, 0, 1, 0]

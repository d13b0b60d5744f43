"""WikiText's words are numbered, strung together and cut as Transformer-XL does it; what is no WikiText is refused."""

import os
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqarena.common.data.batches import TokenArray
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.pretraining.wikitext.data import PUBLISHED, EncodedText, WikiText, differences
from seqarena.pretraining.wikitext.sources import HUB_SPLITS, lines_of_book, lines_of_path
from seqarena.pretraining.wikitext.streams import Streams
from seqarena.pretraining.wikitext.vocabularies import Bytes, Pieces, Words
from tests.pretraining.wiki import TRAIN, folder

REAL = Path(os.environ.get("SEQARENA_WIKITEXT2", "wikitext-2-v1.zip"))


def load(path: Path, kept: Path, **fields: object) -> EncodedText:
    return replace(WikiText(path=str(path)), **fields).load(kept, "wikitext2", report_differences=False)


def numbers(ids: TokenArray) -> list[int]:
    return np.asarray(ids).tolist()


def test_words_are_numbered_by_frequency_then_by_first_appearance_behind_the_end(tmp_path: Path) -> None:
    words = Words.from_lines(TRAIN.splitlines(), "here")
    assert words.words == ("<eos>", "the", "=", "Game", "game", "<unk>", "end")
    text = load(folder(tmp_path / "wiki"), tmp_path / "kept")
    assert numbers(text.ids["train"]) == [0, 2, 3, 2, 0, 0, 1, 4, 5, 1, 3, 0, 1, 6, 0]
    assert numbers(text.ids["valid"]) == [1, 6, 0]
    assert numbers(text.ids["test"]) == [0, 5, 4, 0]
    assert (text.vocabulary, text.end) == (7, 0)
    assert text.words == {"train": 15, "valid": 3, "test": 4}
    assert text.bytes == {"train": 1 + 9 + 1 + 24 + 8, "valid": 8, "test": 12}


def zipped(inside: Path, path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for each in sorted(inside.iterdir(), reverse=True):
            archive.write(each, f"{inside.name}/{each.name}")
    return path


def test_splits_of_different_sets_are_not_mixed(tmp_path: Path) -> None:
    folder(tmp_path / "both" / "wikitext-2")
    folder(tmp_path / "both" / "wikitext-103")
    (tmp_path / "both" / "wikitext-103" / "wiki.train.tokens").unlink()
    with pytest.raises(
        BadDataError, match=r"several sets of files, in wikitext-(2|103), wikitext-(2|103); name one folder"
    ):
        load(tmp_path / "both", tmp_path / "kept")


def test_a_file_of_another_system_is_the_same_text_packed_or_not(tmp_path: Path) -> None:
    """A mark of the byte order before the first line, two bytes at the end of each."""
    inside = folder(tmp_path / "wiki")
    expected = load(inside, tmp_path / "kept").checksum
    other = tmp_path / "other"
    other.mkdir()
    for path in inside.iterdir():
        text = "\ufeff" + path.read_text().replace("\n", "\r\n")
        (other / path.name).write_bytes(text.encode())
    for source in (other, zipped(other, tmp_path / "other.zip")):
        assert load(source, tmp_path / "kept").checksum == expected


def test_the_published_zip_is_read_as_it_is(tmp_path: Path) -> None:
    inside = folder(tmp_path / "wikitext-2")
    zipped(inside, tmp_path / "wikitext-2-v1.zip")
    checksums = {
        load(source, tmp_path / "kept").checksum
        for source in (inside, tmp_path / "wikitext-2-v1.zip", tmp_path)  # also a folder that holds its folder
    }
    assert len(checksums) == 1


def test_rows_of_the_hub_are_lines(tmp_path: Path) -> None:
    """A local folder in the hub's layout: a row a line, with its line feed."""
    inside = folder(tmp_path / "wiki")
    hub = tmp_path / "hub"
    (hub / "wikitext-2-v1").mkdir(parents=True)
    parts = "".join(f"  - {{split: {name}, path: wikitext-2-v1/{name}-*}}\n" for name in HUB_SPLITS.values())
    (hub / "README.md").write_text(f"---\nconfigs:\n- config_name: wikitext-2-v1\n  data_files:\n{parts}---\n")
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet  # noqa: PLC0415

    for name, split in HUB_SPLITS.items():
        lines = (inside / f"wiki.{name}.tokens").read_text().splitlines(keepends=True)
        table = pa.table({"text": [" " + line if line.strip() else "" for line in lines]})
        pyarrow.parquet.write_table(table, hub / "wikitext-2-v1" / f"{split}-00000-of-00001.parquet")
    theirs = WikiText(hub=f"{hub}:wikitext-2-v1").load(tmp_path / "kept", "wikitext2", report_differences=False)
    assert theirs.checksum == load(inside, tmp_path / "kept").checksum
    mine = WikiText(hub="nobody/nothing:x", path=str(inside)).load(
        tmp_path / "kept", "wikitext2", report_differences=False
    )
    assert mine.checksum == theirs.checksum  # a path is read instead
    parts_of_test = hub / "wikitext-2-v1"
    shutil.copy(parts_of_test / "test-00000-of-00001.parquet", parts_of_test / "test-00001-of-00001.parquet")
    again = WikiText(hub=f"{hub}:wikitext-2-v1").load(tmp_path / "kept", "wikitext2", report_differences=False)
    assert len(again.ids["test"]) == 2 * len(theirs.ids["test"])  # what was prepared before is not used


def test_pieces_and_bytes_say_the_same_text_to_the_last_byte(tmp_path: Path) -> None:
    train = TRAIN.replace("end", "ende ☃ <eos>") * 3
    wiki = folder(tmp_path / "wiki", train)
    plain = "".join(" ".join(line.split()) + "\n" for line in train.split("\n")[:-1])
    words, pieces, said = (
        load(wiki, tmp_path / "kept", kind=kind, pieces=260, unknown="replace") for kind in ("word", "piece", "byte")
    )
    assert bytes(np.asarray(said.ids["train"])).decode() == plain
    assert (said.vocabulary, said.end) == (256, 10)
    assert len(said.ids["train"]) == said.bytes["train"]
    made = Pieces.train(train.split("\n")[:-1], 260)
    ids = made.encode(train.split("\n")[:-1], "here")
    assert made.inner.decode(ids.tolist(), skip_special_tokens=False).replace("<eos>", "\n") == plain.replace(
        "<eos>", "\n"
    )
    assert (ids == made.end).sum() == plain.count("\n")  # a written <eos> is pieces
    assert words.words == pieces.words == said.words
    assert words.bytes == pieces.bytes == said.bytes
    assert len(pieces.ids["train"]) > words.words["train"]
    assert len({words.checksum, pieces.checksum, said.checksum}) == 3


def test_raw_text_is_for_pieces_and_bytes(tmp_path: Path) -> None:
    wiki = folder(tmp_path / "wiki", "the end\n", "the end\n", "the\n")
    for path in list(wiki.iterdir()):
        path.rename(path.with_suffix(".raw"))
    assert load(wiki, tmp_path / "kept", kind="byte").words["train"] == 3
    with pytest.raises(BadDataError, match=r"there is no wiki.train.tokens in it"):
        load(wiki, tmp_path / "kept")


def test_what_is_no_wikitext_is_refused(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with pytest.raises(BadDataError, match=r"there is no <unk> in it; expected the word-level text"):
        load(folder(tmp_path / "raw", train="the end\n"), kept)
    strange = folder(tmp_path / "other", valid="the\nthe stranger\n")
    with pytest.raises(
        BadDataError, match=r"valid, line 2: 'stranger' is not in the vocabulary of 7 words.*--data.unknown replace"
    ):
        load(strange, kept)
    assert numbers(load(strange, kept, unknown="replace").ids["valid"]) == [1, 0, 1, 5, 0]
    with pytest.raises(BadDataError, match=r"no such file or folder"):
        load(tmp_path / "no", kept)
    (tmp_path / "broken.zip").write_bytes(b"PK broken")
    with pytest.raises(BadDataError, match="not a whole zip"):
        load(tmp_path / "broken.zip", kept)
    (folder(tmp_path / "cut") / "wiki.test.tokens").unlink()
    with pytest.raises(
        BadDataError, match=r"there is no wiki.test.tokens in it; expected a folder or zip with all three"
    ):
        load(tmp_path / "cut", kept)
    with pytest.raises(BadDataError, match=r"wiki.valid.tokens is one of the three files; expected the folder"):
        load(tmp_path / "cut" / "wiki.valid.tokens", kept)
    with pytest.raises(BadDataError, match=r"test: the split is empty"):
        load(folder(tmp_path / "empty", test=""), kept)
    whole = zipped(folder(tmp_path / "wiki", TRAIN * 50), tmp_path / "damaged.zip")
    packed = bytearray(whole.read_bytes())
    packed[80:90] = b"0123456789"
    whole.write_bytes(packed)
    with pytest.raises(BadDataError, match=r"damaged.zip: not a whole zip"):
        load(whole, kept)
    with pytest.raises(WrongUseError, match="expected more than 256"):
        WikiText(kind="piece", pieces=200).check()
    assert sorted(each.name for each in (kept / "pretraining").iterdir() if each.name.startswith(".")) == []


def test_other_counts_than_the_published_ones_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    WikiText(path=str(folder(tmp_path / "wiki"))).load(tmp_path / "kept", "wikitext103", report_differences=True)
    told = capsys.readouterr().err
    assert "found 15 words of train, published 103,227,021" in told
    assert "found 7 words of vocabulary, published 267,735" in told
    text = load(folder(tmp_path / "wiki"), tmp_path / "kept")
    whole = replace(text, vocabulary=33_278, words={name: PUBLISHED["wikitext2"][name] for name in text.words})
    assert differences(whole, "word", "wikitext2") == []


def test_the_bundled_book_has_rare_words_unknown_and_chapters_in_one_split() -> None:
    lines = lines_of_book()
    train = [line.split() for line in lines("train")]
    words = Words.from_lines(lines("train"), "the book")
    assert len(words) == 6_970
    counts = {name: sum(len(line.split()) + 1 for line in lines(name)) for name in ("train", "valid", "test")}
    assert counts == {"train": 857_522, "valid": 44_838, "test": 45_909}
    assert all(word in words.numbers for name in ("valid", "test") for line in lines(name) for word in line.split())
    rarest = words.words[-1]
    assert sum(line.count(rarest) for line in train) == 3
    assert Bytes().encode(lines("valid"), "the book")[-1] == 10


@pytest.mark.extras
@pytest.mark.skipif(not REAL.exists(), reason="a check on the real WikiText-2, where SEQARENA_WIKITEXT2 names its zip")
def test_the_real_wikitext2_has_the_published_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = WikiText(path=str(REAL)).load(tmp_path, "wikitext2", report_differences=True)
    assert differences(text, "word", "wikitext2") == []
    assert "as published" not in capsys.readouterr().err


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
    words = Words.from_lines(["a <unk>", ""], "here")
    assert words.encode(["", "  ", "a"], "here").tolist() == [0, 0, 1, 0]


def test_a_zip_whose_directory_leaves_out_a_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "set.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for split in ("train", "valid", "test"):
            archive.writestr(f"wiki.{split}.tokens", "a cat .\n" * 9)
    content = path.read_bytes()
    entry = content.index(b"PK\x01\x02")
    for start, stop, expected in ((8, 24, "72"), (16, 28, "some")):  # no bytes, and their checksum, 0
        damaged = content[: entry + start] + bytes(stop - start) + content[entry + stop :]
        path.write_bytes(damaged)
        lines = lines_of_path(path, ("tokens",))
        with pytest.raises(BadDataError, match=rf"wiki\.train\.tokens: expected {expected} bytes, found 0"):
            list(lines("train"))
        assert len(list(lines("test"))) == 9

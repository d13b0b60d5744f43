"""Files of a corpus, and where sentences are cut."""

import tarfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from seqarena.common.data import imdb
from seqarena.common.errors import BadDataError
from seqarena.pretraining.data import MaskedText
from seqarena.pretraining.data.documents import Text, documents, sentences, sources
from tests.pretraining.texts import TEXTS


def test_sentences_end_where_sentences_end() -> None:
    assert sentences(TEXTS[0]) == ["Call me Ishmael.", "Some years ago I went to sea!", "Whenever it is damp, I go."]
    assert sentences(TEXTS[1]) == ["There now is your city.", "Right and left the streets take you waterward"]
    assert sentences('He said, "Go." Then he left. (It was late.) "Why?" Nobody knew.') == [
        'He said, "Go."', "Then he left.", "(It was late.)", '"Why?"', "Nobody knew.",
    ]  # fmt: skip
    assert sentences("e.g. this, at 3.5 m.") == ["e.g. this, at 3.5 m."]


@given(st.text(alphabet="aB1. !?\"')(]\n\t", max_size=60))
def test_cutting_loses_nothing_but_white_space(text: str) -> None:
    assert "".join("".join(sentences(text)).split()) == "".join(text.split())


def test_sources_are_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b.txt", "a/c.jsonl", "a.parquet", "notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert [path.relative_to(tmp_path).as_posix() for path in sources(tmp_path)] == ["a/c.jsonl", "a.parquet", "b.txt"]
    assert list(documents(tmp_path / "b.txt", Text(strict=True))) == ["x"]


@pytest.mark.parametrize(("name", "line"), [("a.txt", b"one\n"), ("a.jsonl", b'{"text": "one"}\n')])
def test_a_byte_order_mark_is_no_text(tmp_path: Path, name: str, line: bytes) -> None:
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + line)
    assert list(documents(tmp_path / name, Text(strict=True))) == ["one"]


def test_sources_behind_a_link_to_a_folder_are_read(tmp_path: Path) -> None:
    for name in ("text/b.txt", "more/c.txt", "more/inner/d.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "text" / "a").symlink_to(tmp_path / "more")
    found = [path.relative_to(tmp_path / "text").as_posix() for path in sources(tmp_path / "text")]
    assert found == ["a/c.txt", "a/inner/d.txt", "b.txt"]


@pytest.fixture
def reviews(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """IMDB's folder with three reviews of each kind, as its archive unpacks."""
    monkeypatch.setattr(imdb, "TRAINED", dict.fromkeys(imdb.TRAINED, 3))
    for split, labels in (("train", ("neg", "pos", "unsup")), ("test", ("neg", "pos"))):
        for label in labels:
            folder = tmp_path / "aclImdb" / split / label
            folder.mkdir(parents=True)
            for number in range(3):
                (folder / f"{number}_7.txt").write_text(f"{split} {label} {number}.<br /><br />caf\u00e9")
        (tmp_path / "aclImdb" / split / "urls_pos.txt").write_text("http://www.imdb.com/title/tt1/usercomments\n")
    (tmp_path / "aclImdb" / "README.txt").write_text("not a review")
    return tmp_path / "aclImdb"


def packed(folder: Path, archive: Path, *inner: str) -> Path:
    """Packs a folder, or some folders in it."""
    with tarfile.open(archive, f"w:{archive.suffix.removeprefix('.')}") as tar:
        for name in inner or ("",):
            tar.add(folder / name, arcname=f"aclImdb/{name}".rstrip("/"))
    return archive


def test_the_training_reviews_of_imdb_are_documents_and_its_test_reviews_are_not(reviews: Path, tmp_path: Path) -> None:
    """In the same order from the archive, from its folder, from the folder above, and from an archive in two parts."""
    parts = tmp_path / "parts"
    parts.mkdir()
    packed(reviews, parts / "aclImdb_v1.labelled.tar.xz", "train/pos", "train/neg", "test")
    packed(reviews, parts / "aclImdb_v1.unsup.tar.xz", "train/unsup")
    (parts / "unrelated.tar.gz").write_bytes(b"")
    expected = [f"train {label} {number}.\n\ncaf\u00e9" for label in ("neg", "pos", "unsup") for number in range(3)]
    for path in (reviews, tmp_path, packed(reviews, tmp_path / "aclImdb_v1.tar.gz"), parts):
        assert [each for file in sources(path) for each in documents(file, Text(strict=True))] == expected


def test_an_archive_that_is_not_the_whole_of_imdb_is_refused(reviews: Path, tmp_path: Path) -> None:
    with pytest.raises(BadDataError, match=r"expected aclImdb_v1.tar.gz .*; found no review in train/neg"):
        list(documents(packed(reviews, tmp_path / "only.tar.gz", "test"), Text(strict=True)))
    (reviews / "train" / "pos" / "1_7.txt").unlink()
    with pytest.raises(BadDataError, match=r"expected 3 reviews in train/pos, found 2; unpack the archive again"):
        list(documents(reviews, Text(strict=True)))


def test_the_folder_of_imdb_is_prepared_apart_from_what_was_read_as_plain_text(reviews: Path) -> None:
    assert MaskedText(path=str(reviews))._name().startswith("imdb-")

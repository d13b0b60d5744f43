"""Files of a corpus, and where sentences are cut."""

from pathlib import Path

import hypothesis.strategies as st
from hypothesis import given

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


def test_sources_behind_a_link_to_a_folder_are_read(tmp_path: Path) -> None:
    for name in ("text/b.txt", "more/c.txt", "more/inner/d.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "text" / "a").symlink_to(tmp_path / "more")
    found = [path.relative_to(tmp_path / "text").as_posix() for path in sources(tmp_path / "text")]
    assert found == ["a/c.txt", "a/inner/d.txt", "b.txt"]

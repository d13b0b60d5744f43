"""Byte-level BPE: every text has tokens, offsets leave out the space before a word, special tokens by their roles."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqarena.common.data.corpus import chapters
from seqarena.common.data.tokenization import SPECIAL, Tokenizer, load_tokenizer, word_tokenizer
from seqarena.common.errors import BadDataError
from tests.common.data.byte_level import write_byte_level

TEXTS = [" ".join(verses[:6]) for verses in chapters()[:20]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write_byte_level(tmp_path_factory.mktemp("byte_level"), TEXTS))


def test_special_tokens_have_their_roles(made: Tokenizer) -> None:
    assert [made.id(name) for name in SPECIAL] == [1, 3, 0, 2, 399]
    assert np.flatnonzero(made.special).tolist() == [0, 1, 2, 3, 399]
    assert (made.separators, word_tokenizer(["a"]).separators) == (2, 1)


@given(st.text())
def test_every_text_is_decoded_as_it_was(made: Tokenizer, text: str) -> None:
    (ids,) = made.encode([text])
    assert made.decode(ids.tolist()) == text
    assert not made.special[ids].any()


@given(st.text(alphabet="ab é<mask>\n", min_size=1))
def test_offsets_are_of_the_text_without_the_space_before_a_word(made: Tokenizer, text: str) -> None:
    ((ids, places),) = made.encode_with_offsets([text])
    assert len(ids) == len(places)
    assert (np.diff(places, axis=0) >= 0).all()
    covered = {index for start, stop in places.tolist() for index in range(start, stop)}
    assert {index for index, letter in enumerate(text) if not letter.isspace()} <= covered
    assert all(not text[start].isspace() for start, stop in places.tolist() if stop - start > 1)


def test_pieces_know_whether_they_go_on_with_a_word(made: Tokenizer) -> None:
    (ids,) = made.encode([" firmament, darkness"])
    begins = np.flatnonzero(~made.continues[ids])
    assert len(ids) > 3
    assert [made.decode(part.tolist()) for part in np.split(ids, begins[1:])] == [" firmament", ",", " darkness"]


def test_what_is_saved_is_read_again(made: Tokenizer, tmp_path: Path) -> None:
    made.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert (again.fingerprint, again.separators) == (made.fingerprint, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


def test_a_space_may_be_added_before_the_first_word(tmp_path: Path) -> None:
    write_byte_level(tmp_path, TEXTS)
    plain = load_tokenizer(tmp_path).encode([" God"])[0].tolist()
    (tmp_path / "tokenizer_config.json").write_text('{"add_prefix_space": true}')
    assert load_tokenizer(tmp_path).encode(["God"])[0].tolist() == plain


def test_a_damaged_vocabulary_is_one_message(tmp_path: Path) -> None:
    write_byte_level(tmp_path, TEXTS)
    vocabulary, merges = tmp_path / "vocab.json", tmp_path / "merges.txt"
    content = json.loads(vocabulary.read_text())
    merges.write_text("#version: 0.2\nonly\n")
    with pytest.raises(BadDataError, match=r"vocab.json: not a whole tokenizer"):
        load_tokenizer(tmp_path)
    merges.unlink()
    with pytest.raises(BadDataError, match=r"merges.txt does not exist; expected it with vocab.json"):
        load_tokenizer(tmp_path)
    vocabulary.write_text(json.dumps({token: number for token, number in content.items() if token != "<mask>"}))
    merges.write_text("")
    with pytest.raises(BadDataError, match=r"the vocabulary has no <mask>; expected <s> <pad> </s> <unk> <mask>"):
        load_tokenizer(tmp_path)
    vocabulary.write_text("[")
    with pytest.raises(BadDataError, match=r"vocab.json: not a whole tokenizer"):
        load_tokenizer(tmp_path)

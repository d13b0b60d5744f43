import os
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import models

from seqarena.common.data.corpus import VOCABULARY, chapters
from seqarena.common.data.tokenization import SPECIAL, LibraryTokenizer, load_tokenizer, train_tokenizer
from seqarena.common.errors import BadDataError, WrongUseError

TEXTS = [" ".join(verses[:6]) for verses in chapters()[:40]]


@pytest.mark.parametrize("kind", ["wordpiece", "sentencepiece"])
def test_what_is_trained_is_kept_and_read_again(kind: str, tmp_path: Path) -> None:
    made = train_tokenizer(TEXTS, kind, 300)  # type: ignore[arg-type]
    assert len(made) <= 300
    made.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.fingerprint == made.fingerprint
    text = "In the beginning God created the heaven and the earth."
    (one,), (other,) = made.encode([text]), again.encode([text])
    assert (one == other).all()
    assert made.decode(one.tolist()) == text.lower()
    assert (tmp_path / "vocab.txt").exists() == (kind == "wordpiece")
    assert (tmp_path / "spiece.model").exists() == (kind == "sentencepiece")
    assert [made.id(name) for name in SPECIAL] == list(range(5))
    assert made.special.sum() == 5
    assert made.id("no such token") == -1


@pytest.mark.parametrize("kind", ["wordpiece", "sentencepiece"])
def test_pieces_know_whether_they_go_on_with_a_word(kind: str) -> None:
    made = train_tokenizer(TEXTS, kind, 150)  # type: ignore[arg-type]
    (ids,) = made.encode(["firmament firmament darkness"])
    begins = np.flatnonzero(~made.continues[ids])
    assert len(ids) > 3
    assert len(begins) == 3
    words = [made.decode(part.tolist()).strip() for part in np.split(ids, begins[1:])]
    assert words == ["firmament", "firmament", "darkness"]


def test_the_bundled_vocabulary_is_whole() -> None:
    made = load_tokenizer(VOCABULARY)
    assert len(made) == 4_000
    (ids,) = made.encode(["In the BEGINNING God created"])
    assert made.decode(ids.tolist()) == "in the beginning god created"
    unknown = sum((each == made.id("[UNK]")).sum() for each in made.encode(TEXTS))
    assert unknown == 0


def test_case_is_the_vocabularys(tmp_path: Path) -> None:
    words = [*SPECIAL, "[unused0]", "word"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    assert load_tokenizer(tmp_path).encode(["Word"])[0].tolist() == [6]
    assert load_tokenizer(tmp_path).special.tolist() == [True] * 6 + [False]
    (tmp_path / "vocab.txt").write_text("\n".join([*words, "Word"]))
    assert load_tokenizer(tmp_path).encode(["Word word"])[0].tolist() == [7, 6]
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert load_tokenizer(tmp_path).encode(["Word word"])[0].tolist() == [6, 6]


def test_alberts_names_are_known() -> None:
    pieces = [("<pad>", 0.0), ("<unk>", 0.0), ("[CLS]", 0.0), ("[SEP]", 0.0), ("[MASK]", 0.0), ("▁a", -1.0)]
    made = LibraryTokenizer(inner=tokenizers.Tokenizer(models.Unigram(pieces, unk_id=1)), source="a test")
    assert [made.id(name) for name in SPECIAL] == [0, 1, 2, 3, 4]
    assert made.special.tolist() == [True] * 5 + [False]


def test_what_is_no_vocabulary_is_named(tmp_path: Path) -> None:
    files = "spiece.model, 30k-clean.model, tokenizer.json, vocab.json, vocab.txt"
    with pytest.raises(BadDataError, match=f"does not exist; expected a folder with one of {files}"):
        load_tokenizer(tmp_path)
    for name in ("tokenizer.json", "spiece.model"):
        (tmp_path / name).write_text("{}")
        with pytest.raises(BadDataError, match=rf"{name}: not a whole tokenizer"):
            load_tokenizer(tmp_path)
    with pytest.raises(WrongUseError, match="a vocabulary of 9 tokens: expected at least 100"):
        train_tokenizer(TEXTS, "wordpiece", 9)


@pytest.mark.parametrize("kind", ["wordpiece", "sentencepiece"])
@pytest.mark.parametrize("failure", [BadDataError("line 7: no text"), KeyboardInterrupt()])
def test_an_error_of_the_texts_is_that_of_the_training(kind: str, failure: BaseException) -> None:
    def texts() -> Iterator[str]:
        yield from TEXTS
        raise failure

    with pytest.raises(type(failure)) as caught:
        train_tokenizer(texts(), kind, 300)  # type: ignore[arg-type]
    assert caught.value is failure


@pytest.mark.parametrize("kind", ["wordpiece", "sentencepiece"])
def test_text_that_says_mask_is_text(kind: str, tmp_path: Path) -> None:
    train_tokenizer(TEXTS, kind, 200).save(tmp_path)  # type: ignore[arg-type]
    made = load_tokenizer(tmp_path)
    (ids,) = made.encode(["a [MASK] b [SEP] [CLS] c"])
    assert not np.isin(ids, [made.id(name) for name in ("[MASK]", "[SEP]", "[CLS]", "[PAD]")]).any()


def test_numbers_without_a_token_are_refused(tmp_path: Path) -> None:
    words = {**{name: number for number, name in enumerate(SPECIAL)}, "far": 99}
    tokenizers.Tokenizer(models.WordPiece(words, unk_token="[UNK]")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(BadDataError, match="6 tokens, but ids up to 99; some tokens are missing"):
        load_tokenizer(tmp_path)


def test_letters_are_limited_and_too_many_are_said() -> None:
    many = ["".join(chr(0x4E00 + number) for number in range(300))] * 2
    assert len(train_tokenizer(many, "wordpiece", 200)) <= 200 + 1
    with pytest.raises(WrongUseError, match="no sentencepiece vocabulary of 100 tokens can be trained"):
        train_tokenizer(many, "sentencepiece", 100)


@pytest.mark.parametrize("name", ["spiece.model", "tokenizer.json", "vocab.txt"])
def test_too_many_open_files_are_no_damage_of_a_vocabulary(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("{}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        with pytest.raises(OSError, match="raise the limit of this process") as caught:
            load_tokenizer(tmp_path / name)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not isinstance(caught.value, BadDataError)


def test_accents_and_chinese_characters_are_as_the_config_beside_the_vocabulary_says(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*SPECIAL, "café", "cafe", "中", "国", "中国"]) + "\n")
    config = tmp_path / "tokenizer_config.json"
    config.write_text('{"do_lower_case": true}')
    assert load_tokenizer(path).encode(["Café 中国"])[0].tolist() == [6, 7, 8]
    config.write_text('{"do_lower_case": true, "strip_accents": false, "tokenize_chinese_chars": false}')
    assert load_tokenizer(path).encode(["Café 中国"])[0].tolist() == [5, 9]

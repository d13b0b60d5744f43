"""SentencePiece: the tokens are those of the library's processor; offsets; the corrections of ALBERT's code."""

import itertools
import pickle
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from seqarena.common.data.corpus import chapters
from seqarena.common.data.tokenization import SPECIAL, Tokenizer, load_tokenizer, train_tokenizer
from seqarena.common.data.tokenization.conversion import field
from seqarena.common.data.tokenization.sentencepiece import (
    SYMBOLS,
    SentencePieceTokenizer,
    prepare,
    train_sentencepiece,
)
from seqarena.common.errors import WrongUseError

VERSES = [verse for verses in chapters()[:60] for verse in verses]
NUMBERS = [f"in {year}, after 9, {year}, and 1,000, 2,000, or {year}s" for year in range(1900, 1960)] * 3
MADE = train_sentencepiece([*VERSES, *NUMBERS], 800)
EDGES = [
    "", " ", "  two  blanks\tand\ta tab\nand a line \r\n", "[MASK] [CLS] [SEP] <pad> <unk> <s>", "▁a ▁▁ b▁",
    "ﬁne ｆｕｌｌ ｗｉｄｔｈ", "é e\u0301 ǟ a\u0308\u0304", "😀 👩\u200d👩\u200d👧 🇩🇪", "ß İ ı Σίσυφος ΣΑΣ", "½ ① ﷺ ㎒",
    "日本語 한국어 \u1100\u1161", "a\u200bb \ufeffc d\u00ade", "a\x00b \x01 \x1c \x85 \u2028 x",
    '1,000, (in fact) "x" - y–z £5€.', "``quoted''", "x" * 3_000, "don't stop 9, 10, 1900,", "\U0010ffff\ufffe",
]  # fmt: skip
LETTERS = "ab ,.(9▁ﬁ½é\u0301\u0308 \t\nßİΣς😀\u200bﷺＡÅ"
TEXT = st.text(st.one_of(st.sampled_from(LETTERS), st.characters(exclude_categories=["Cs"])))


def processor(made: SentencePieceTokenizer = MADE) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=made.model)


def published() -> SentencePieceTokenizer:
    """A lower-case model that keeps capitals, as ALBERT's published one, with tokens such as ``1900,``."""
    model = bytearray()

    class Writer:
        write = model.extend

    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter([prepare(text) for text in [*VERSES[:100], *NUMBERS]]), model_writer=Writer(),
        vocab_size=400, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        user_defined_symbols=list(SYMBOLS), minloglevel=2,
    )  # fmt: skip
    return SentencePieceTokenizer(model=bytes(model), published=True, source="a test")


def test_tokens_of_text_and_edges_are_the_processors() -> None:
    texts = [*EDGES, *VERSES[-300:], "\n".join(VERSES[:200])]
    expected = processor().Encode(texts)
    assert [each.tolist() for each in MADE.encode(texts)] == expected
    assert [each.tolist() for each, _ in MADE.encode_with_offsets(texts)] == expected
    assert MADE.encode([]) == MADE.encode_with_offsets([]) == []
    assert sum(map(len, expected[len(EDGES) :])) > 10_000


@given(st.lists(TEXT, max_size=3))
def test_tokens_of_any_text_are_the_processors(texts: list[str]) -> None:
    assert [each.tolist() for each in MADE.encode(texts)] == processor().Encode(texts)


def test_the_vocabulary_is_alberts_in_ids_and_symbols() -> None:
    assert MADE.tokens[:5] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    assert MADE.tokens[5 : 5 + len(SYMBOLS)] == list(SYMBOLS)
    assert [MADE.id(name) for name in SPECIAL] == [0, 1, 2, 3, 4]
    assert not any(symbol in token for token in MADE.tokens[5 + len(SYMBOLS) :] for symbol in SYMBOLS)
    assert not any("▁" in token[1:] for token in MADE.tokens)


def test_training_depends_on_texts_and_size_alone() -> None:
    again = train_sentencepiece(iter([*VERSES, *NUMBERS]), 800)
    assert again.model == MADE.model
    assert again.fingerprint == MADE.fingerprint != train_sentencepiece(VERSES, 800).fingerprint


def test_a_text_that_is_too_small_or_too_long() -> None:
    few = train_tokenizer(["a man a plan"] * 3, "sentencepiece", 1_000)
    assert len(few) < 40
    long = train_tokenizer([" ".join(VERSES[:400])], "sentencepiece", 300)  # beyond the library's limit of 4,192 bytes
    assert len(long) == 300
    for texts in ([], ["", " "]):
        with pytest.raises(WrongUseError, match="vocabulary of 100 tokens can be trained on this text: it is empty"):
            train_tokenizer(texts, "sentencepiece", 100)
    many = ["".join(chr(0x4E00 + number) for number in range(300))] * 2
    with pytest.raises(WrongUseError, match=r"text: Vocabulary size is smaller than required_chars. 100 vs 314"):
        train_tokenizer(many, "sentencepiece", 100)


def test_blanks_tabs_and_lines_are_white_space() -> None:
    (one,), (other,) = MADE.encode(["and  the\tlord\n said "]), MADE.encode(["and the lord said"])
    assert one.tolist() == other.tolist()
    assert MADE.id("[UNK]") not in one
    counts = Counter(itertools.chain.from_iterable(each.tolist() for each in MADE.encode(VERSES)))
    assert MADE.tokens[counts.most_common(1)[0][0]] != "▁"


def test_it_is_pickled_with_its_processor() -> None:
    MADE.encode(VERSES[:1])
    again = pickle.loads(pickle.dumps(MADE))
    assert again == MADE
    assert again.encode(VERSES[:20])[7].tolist() == MADE.encode(VERSES[:20])[7].tolist()


def test_words_begin_at_their_mark() -> None:
    (ids,) = MADE.encode(["in firmaments (zyx), 9s"])
    words = [[MADE.tokens[number] for number in part] for part in np.split(ids, np.flatnonzero(~MADE.continues[ids]))]
    assert ["".join(word).replace("▁", "") for word in words if "".join(word) not in ("", "▁")] == [
        "in", "firmaments", "(zyx", ")", ",", "9s"
    ]  # fmt: skip
    assert not MADE.continues[[MADE.id(name) for name in SPECIAL]].any()
    assert not MADE.continues[[MADE.id(symbol) for symbol in SYMBOLS]].any()


@given(TEXT, st.booleans())
def test_offsets_increase_and_cover_their_tokens(text: str, corrected: bool) -> None:
    made = PUBLISHED if corrected else MADE
    ((ids, offsets),) = made.encode_with_offsets([text])
    assert ids.tolist() == made.encode([text])[0].tolist()
    assert offsets.shape == (len(ids), 2)
    assert (np.diff(offsets, axis=0) >= 0).all()
    assert ((offsets >= 0) & (offsets <= len(text))).all()
    assert (offsets[:, 0] < offsets[:, 1]).all()
    normal = processor(made).Normalize
    for number, (begin, end) in zip(ids.tolist(), offsets.tolist(), strict=True):
        token, part = made.tokens[number].replace("▁", ""), text[begin:end]
        inside = normal(prepare(part) if corrected else part).replace("▁", "")
        composed = unicodedata.normalize("NFC", part) == part  # the rules compose marks across tokens' borders
        assert number == 1 or token in inside or not composed or "Σ" in part


def test_offsets_under_normalisation() -> None:
    def parts(text: str, made: SentencePieceTokenizer = MADE) -> list[str]:
        ((_, offsets),) = made.encode_with_offsets([text])
        spans = [text[begin:end] for begin, end in offsets.tolist()]
        return [span for span, before in zip(spans, ["", *spans], strict=False) if span != before]

    assert parts("  And  the\tLORD said.") == ["And", "the", "LORD", "said", "."]
    assert parts("ｔｈｅ ｓａｉｄ") == ["ｔｈｅ", "ｓａｉｄ"]
    assert parts("the ½ said") == ["the", "½", "said"]
    assert parts("the e\u0301 said") == ["the", "e\u0301", "said"]
    assert parts("the 😀 said") == ["the", "😀", "said"]
    assert parts("thé E\u0301 said 1900,", PUBLISHED)[:1] == ["thé"]


def test_alberts_code_prepares_text_and_splits_numbers_from_commas() -> None:
    def pieces(text: str) -> list[str]:
        """google-research/albert, tokenization.py: encode_pieces."""
        inner, found = processor(PUBLISHED), []
        for piece in inner.Encode(text, return_type=str):
            if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
                again = inner.Encode(piece[:-1].replace("▁", ""), return_type=str)
                if piece[0] != "▁" and again[0][0] == "▁":
                    again = again[1:] if len(again[0]) == 1 else [again[0][1:], *again[1:]]
                found += [*again, piece[-1]]
            else:
                found.append(piece)
        return found

    def albert(text: str) -> str:
        """preprocess_text, with do_lower_case."""
        plain = unicodedata.normalize("NFKD", " ".join(text.strip().split()))
        return "".join(letter for letter in plain if not unicodedata.combining(letter)).lower()

    assert any(token[-1] == "," and token[-2:-1].isdigit() for token in PUBLISHED.tokens)
    changed = 0
    for text in [*EDGES, *NUMBERS[:40], *VERSES[-100:], "In 1907, Ångström said 1,000, 2,000, Façade"]:
        expected = [processor(PUBLISHED).PieceToId(piece) for piece in pieces(albert(text))]
        assert PUBLISHED.encode([text])[0].tolist() == expected, text
        changed += expected != processor(PUBLISHED).Encode(albert(text))
    assert changed > 20


def test_a_published_model_is_known_by_its_letters_or_its_config(tmp_path: Path) -> None:
    def read(folder: Path) -> SentencePieceTokenizer:
        made: Tokenizer = load_tokenizer(folder)
        assert isinstance(made, SentencePieceTokenizer)
        return made

    (tmp_path / "spiece.model").write_bytes(PUBLISHED.model)
    assert read(tmp_path).published
    assert read(tmp_path).fingerprint == PUBLISHED.fingerprint
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert not read(tmp_path).published
    PUBLISHED.save(tmp_path)
    assert read(tmp_path).fingerprint == PUBLISHED.fingerprint
    (tmp_path / "spiece.model").write_bytes(MADE.model)
    (tmp_path / "tokenizer_config.json").unlink()
    assert not read(tmp_path / "spiece.model").published


def test_the_tokenizer_json_beside_the_model_gives_the_same_tokens(tmp_path: Path) -> None:
    MADE.save(tmp_path)
    other = load_tokenizer(tmp_path / "tokenizer.json")
    texts = [*VERSES[-300:], *NUMBERS[:10], 'don\'t stop 9, 10, (in fact) "x" - ﬁne ｆｕｌｌ ½ 😀']
    texts = [text.replace("000", "") for text in texts]  # 0 00 and 00 0 have the same score
    assert [each.tolist() for each in other.encode(texts)] == [each.tolist() for each in MADE.encode(texts)]
    assert (other.continues == MADE.continues).all()


def test_fields_of_protocol_buffers() -> None:
    message = (
        b"\x08\x96\x01" + b"\x12\x03abc" + b"\x1d\x00\x00\x80\x3f" + b"\x21" + bytes(8) + b"\x12\x01z" + b"\x1a\x00"
    )
    assert [field(message, number) for number in (1, 2, 3, 9)] == [b"", b"z", b"", b""]
    assert field(b"\x12\xac\x02" + bytes(300), 2) == bytes(300)


PUBLISHED = published()

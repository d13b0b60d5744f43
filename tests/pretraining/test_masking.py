"""Masks: budget, borders, lengths, replacements; a function of (seed, epoch, example) alone."""

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from tokenizers import models

from seqarena.common.data.counter import hash64
from seqarena.common.data.tokenization import SPECIAL as NAMES
from seqarena.common.data.tokenization import LibraryTokenizer
from seqarena.common.errors import WrongUseError
from seqarena.pretraining.masking import (
    NONE,
    PADDING,
    SCOPES,
    SPECIAL,
    MaskedSequences,
    Masker,
    Masking,
    _length,
    _spans,
)

WORDS = [*NAMES, "[unused0]", *(f"w{n}" for n in range(60)), *(f"##c{n}" for n in range(40))]
TOKENIZER = LibraryTokenizer(
    inner=tokenizers.Tokenizer(models.WordPiece({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]")),
    source="a test",
)
FIRST, PIECES = 6, 66
"""The first word, and the first piece that goes on with one."""
COUNTS = np.arange(len(WORDS)) + 1
CLS, SEP, MASK = (TOKENIZER.id(name) for name in ("[CLS]", "[SEP]", "[MASK]"))


def rows(count: int, length: int, seed: int, pieces: float = 0.25, pad: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of segments with [CLS] and [SEP]; some words have several pieces, some rows end in padding."""
    generator = np.random.default_rng(seed)
    tokens = generator.integers(FIRST, PIECES, (count, length)).astype(np.int32)
    goes_on = generator.random((count, length)) < pieces
    tokens[goes_on] = generator.integers(PIECES, len(WORDS), goes_on.sum())
    segments = np.zeros((count, length), dtype=np.int32)
    middle = length // 2
    segments[:, middle:] = 1
    tokens[:, 0], tokens[:, middle], tokens[:, -1 - pad] = CLS, SEP, SEP
    segments[:, [0, middle, length - 1 - pad]] = SPECIAL
    if pad:
        tokens[:, -pad:], segments[:, -pad:] = 0, PADDING
    return tokens, segments


def masked(
    masking: Masking, tokens: np.ndarray, segments: np.ndarray, epoch: int = 0, seed: int = 0
) -> MaskedSequences:
    masker = Masker(masking, TOKENIZER, COUNTS, seed)
    return masker(tokens, segments, np.arange(len(tokens)), np.full(len(tokens), epoch))


@given(
    st.sampled_from(["inverse", "geometric", "uniform", "single"]),
    st.integers(1, 10),
    st.sampled_from(["word", "piece"]),
    st.sampled_from(["piece", "word", "span"]),
    st.floats(0.02, 0.5),
    st.sampled_from(["vocabulary", "everything", "unigram"]),
    st.integers(8, 64),
    st.integers(0, 3),
    st.integers(0, 2**31),
)
@settings(max_examples=80)
def test_masks_keep_their_promises(
    law: str, longest: int, unit: str, scope: str, share: float, source: str, length: int, pad: int, seed: int
) -> None:
    masking = Masking(law=law, longest=longest, unit=unit, scope=scope, share=share, source=source)  # type: ignore[arg-type]
    tokens, segments = rows(12, length, seed, pad=pad)
    result = masked(masking, tokens, segments, seed=seed)
    assert result.places.shape == result.targets.shape == (12, masking.targets(length))
    for row in range(12):
        real = result.targets[row] != NONE
        places = result.places[row][real]
        assert 1 <= len(places) <= masking.targets(length - pad)
        assert (np.diff(places) > 0).all()
        assert (segments[row, places] >= 0).all()  # never a special token, never padding
        assert (result.targets[row][real] == tokens[row, places]).all()
        untouched = np.ones(length, dtype=bool)
        untouched[places] = False
        assert (result.tokens[row][untouched] == tokens[row][untouched]).all()
        if source == "vocabulary":
            new = result.tokens[row, places]
            assert (~TOKENIZER.special[new[new != MASK]]).all()
        if unit == "word" and len(places) < masking.targets(length - pad):
            for place in places:  # whole words
                for other, step in ((place + 1, 1), (place, -1)):
                    inside = segments[row, other] == segments[row, other - 1] and tokens[row, other] >= PIECES
                    assert not inside or {other, other - 1} <= set(places.tolist()), step


def test_most_of_the_budget_is_used() -> None:
    tokens, segments = rows(2_000, 128, 0)
    result = masked(Masking(), tokens, segments)
    assert 0.145 < (result.targets != NONE).sum() / tokens.size <= 0.1485  # of 19 targets for 128 tokens


def test_lengths_follow_their_law() -> None:
    """Cut off and weighted anew where a segment ends, or something lies between two units."""
    whole = np.array([[place, place + 1, 0] for place in range(12)])
    ended = np.array([[0, 1, 0], [1, 3, 0], [3, 4, 1]])
    apart = np.array([[0, 1, 0], [1, 3, 0], [4, 5, 0]])
    draws = (np.arange(10_000) + 0.5) / 10_000
    for law, longest, expected in (
        ("inverse", 3, [6 / 11, 3 / 11, 2 / 11]),
        ("uniform", 3, [1 / 3] * 3),
        ("single", 3, [1.0]),
        ("geometric", 10, 0.8 ** np.arange(10) / (0.8 ** np.arange(10)).sum()),
    ):
        weights = Masking(law=law, longest=longest).weights()  # type: ignore[arg-type]
        for units in (whole, ended, apart):
            lengths = np.array([_length(units, 0, weights, draw) for draw in draws])
            shares = np.bincount(lengths, minlength=len(expected) + 1)[1:] / len(draws)
            wanted = np.array(expected) if units is whole else np.array([*expected[:2]]) / sum(expected[:2])
            assert np.abs(shares[: len(wanted)] - wanted).max() < 1e-3
            assert shares[len(wanted) :].sum() == 0
    spans_of_ten = 0.8 ** np.arange(10) / (0.8 ** np.arange(10)).sum()
    assert (spans_of_ten * np.arange(1, 11)).sum() == pytest.approx(3.80, abs=0.005)  # SpanBERT's mean


def test_realised_shares_are_those_that_the_reference_simulated() -> None:
    """pretraining_qa.md section 1: spans of 0.584 / 0.260 / 0.157 at length 128, shortened and given up as they are."""
    units = np.array([[place, place + 1, 0] for place in range(126)])
    counts = np.zeros(4)
    order, draws = np.empty(126, dtype=np.int64), np.empty(126, dtype=np.int64)
    for key in hash64(9, np.arange(4_000)):
        _spans(units, Masking().weights(), SCOPES.index("span"), 19, key, order, draws)
        assert (draws > 0).sum() == 19
        counts += np.bincount(np.bincount(draws)[1:], minlength=4)
    assert np.abs(counts[1:] / counts[1:].sum() - [0.584, 0.260, 0.157]).max() < 0.01


def test_replacements_are_drawn_where_they_should_be() -> None:
    tokens, segments = rows(3_000, 128, 3)
    for scope in ("piece", "word", "span"):
        result = masked(Masking(scope=scope), tokens, segments)  # type: ignore[arg-type]
        real = result.targets != NONE
        there = np.take_along_axis(result.tokens, result.places, axis=1)
        fates = np.where(there == MASK, 0, np.where(there == result.targets, 2, 1))
        shares = [(fates[real] == fate).mean() for fate in (0, 1, 2)]
        assert np.abs(np.array(shares) - [0.8, 0.1, 0.1]).max() < 0.02


def test_what_shares_a_scope_shares_its_fate() -> None:
    """Of three neighbouring targets, where a row has but three: mostly one span of three words."""
    tokens, segments = rows(6_000, 128, 8, pieces=0.0)
    mixed = {}
    for scope in ("piece", "word", "span"):
        result = masked(Masking(law="uniform", scope=scope, share=0.0235), tokens, segments)  # type: ignore[arg-type]
        there = np.take_along_axis(result.tokens, result.places, axis=1)
        fates = np.where(there == MASK, 0, np.where(there == result.targets, 2, 1))
        triples = fates[(result.places[:, 2] - result.places[:, 0] == 2) & (result.targets != NONE).all(axis=1)]
        assert len(triples) > 1_000
        mixed[scope] = (triples != triples[:, :1]).any(axis=1).mean()
    apart = 1 - 0.8**3 - 2 * 0.1**3
    assert abs(mixed["piece"] - apart) < 0.04
    assert abs(mixed["word"] - apart) < 0.04
    assert mixed["span"] < 0.04  # two spans that happen to touch


def test_random_tokens_come_from_where_they_should() -> None:
    tokens, segments = rows(3_000, 128, 4)
    drawn = {}
    for source in ("vocabulary", "everything", "unigram"):
        masking = Masking(masked=0.0, replaced=1.0, source=source)  # type: ignore[arg-type]
        result = masked(masking, tokens, segments)
        there = np.take_along_axis(result.tokens, result.places, axis=1)[result.targets != NONE]
        drawn[source] = np.bincount(there, minlength=len(WORDS)) / len(there)
    assert drawn["vocabulary"][:FIRST].sum() == drawn["unigram"][:FIRST].sum() == 0
    assert np.abs(drawn["everything"] - 1 / len(WORDS)).max() < 0.003
    expected = COUNTS * ~TOKENIZER.special
    assert np.abs(drawn["unigram"] - expected / expected.sum()).max() < 0.003


def test_masks_depend_on_seed_epoch_and_example_alone() -> None:
    """So they are the same for any batch, any number of workers, and after a resume."""
    tokens, segments = rows(40, 64, 5)
    masker = Masker(Masking(), TOKENIZER, COUNTS, 7)
    examples, epochs = np.arange(40), np.full(40, 3)
    whole = masker(tokens, segments, examples, epochs)
    some = np.array([31, 4, 17])
    part = Masker(Masking(), TOKENIZER, COUNTS, 7)(tokens[some], segments[some], examples[some], epochs[some])
    assert (part.tokens == whole.tokens[some]).all()
    assert (part.places == whole.places[some]).all()
    for other in (masker(tokens, segments, examples, epochs + 1), masker(tokens, segments, examples + 40, epochs),
                  Masker(Masking(), TOKENIZER, COUNTS, 8)(tokens, segments, examples, epochs)):  # fmt: skip
        assert (other.places != whole.places).any(axis=1).mean() > 0.9


def test_no_span_crosses_a_border() -> None:
    """A trap of ALBERT's code: special tokens are dropped before n-grams are formed, which then straddle [SEP]."""
    tokens, segments = rows(3_000, 16, 6, pieces=0.0)
    masking = Masking(law="uniform", longest=8, scope="span", masked=0.5, replaced=0.0, share=0.4)
    result = masked(masking, tokens, segments)
    both = 0
    for row in range(len(tokens)):
        hidden = result.tokens[row] == MASK
        chosen = np.isin(np.arange(16), result.places[row][result.targets[row] != NONE])
        if chosen[7] and chosen[9]:  # on both sides of [SEP]: each side has a draw of its own
            both += hidden[7] != hidden[9]
    assert both > 50


def test_targets_are_of_the_length_not_of_a_default() -> None:
    """Another trap: 20 targets at length 512 are 3.9 % of the tokens."""
    assert Masking().targets(512) == 77
    assert Masking().targets(128) == 19
    assert Masking().targets(3) == 1


def test_wrong_settings_are_refused() -> None:
    for changes in (
        {"share": 0.0},
        {"share": 1.0},
        {"longest": 0},
        {"geometric": 1.0},
        {"masked": 0.95},
        {"replaced": -0.1},
    ):
        with pytest.raises(WrongUseError, match=r"data\.masking"):
            replace(Masking(), **changes).check()  # type: ignore[arg-type]

"""Beam search against every sequence there is, against a plain one without a cache, and against itself."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seqarena.common.errors import WrongUseError
from seqarena.summarization.decoding import Decoding, Headline, search, top
from seqarena.summarization.model import Summarizer
from tests.summarization.tiny import model, texts

START, END = 1, 2
SHORT = Decoding(max_length=4, min_length=0)


def following(summarizer: Summarizer, source: torch.Tensor, real: torch.Tensor, said: list[int]) -> torch.Tensor:
    """Log probabilities of what follows, for one text: the whole decoder, nothing remembered."""
    tokens = torch.tensor([[START, *said]])
    with torch.no_grad():
        context = summarizer.encode(source[None], real[None])
        hidden = summarizer.decode(tokens, torch.ones_like(tokens, dtype=torch.bool), context, real[None])
        scores = summarizer.masked(hidden[0, -1:], summarizer.bert.embeddings.table)
    return scores[0].float().log_softmax(dim=-1)


def plainly(
    summarizer: Summarizer, source: torch.Tensor, real: torch.Tensor, how: Decoding, banned: tuple[int, ...]
) -> list[tuple[tuple[int, ...], float]]:
    """Beam search of one text as a textbook has it; stops when nothing goes on."""
    going: list[tuple[list[int], float]] = [([], 0.0)]
    finished: list[tuple[tuple[int, ...], float]] = []
    for length in range(1, how.max_length + 1):
        candidates = []
        for said, total in going:
            scores = following(summarizer, source, real, said)
            for token in range(len(scores)):
                repeats = {tuple(said[at : at + how.no_repeat]) for at in range(len(said) - how.no_repeat + 1)}
                again = how.no_repeat and tuple([*said, token][-how.no_repeat :]) in repeats
                if token in banned or (token == END and length <= how.min_length) or again:
                    continue
                candidates.append(([*said, token], total + float(scores[token])))
        candidates.sort(key=lambda each: -each[1])
        best = candidates[: 2 * how.beam]
        ends = [said[-1] == END or length == how.max_length for said, _ in best]
        finished += [
            (tuple(said[:-1] if said[-1] == END else said), total / how.divisor(length))
            for (said, total), over in list(zip(best, ends, strict=True))[: how.beam]
            if over
        ]
        finished = sorted(finished, key=lambda each: -each[1])[: how.beam]
        going = [each for each, over in zip(best, ends, strict=True) if not over][: how.beam]
        if (how.stop == "full" or how.beam == 1) and len(finished) == how.beam:
            break
        full = len(finished) == how.beam and bool(going)
        if how.stop == "current" and full and finished[-1][1] >= going[0][1] / how.divisor(length):
            break
    return finished


def same(found: list[Headline], expected: list[tuple[tuple[int, ...], float]]) -> None:
    assert [each.tokens for each in found] == [tokens for tokens, _ in expected[: len(found)]]
    assert [each.score for each in found] == pytest.approx([score for _, score in expected[: len(found)]], abs=1e-5)


def test_a_beam_wide_enough_finds_the_best_of_all_sequences() -> None:
    summarizer = model(vocabulary=5)
    source, real = texts(2, 5)
    for text in range(2):
        after = {
            said: following(summarizer, source[text], real[text], list(said)).tolist()
            for length in range(4)
            for said in itertools.product([0, 1, 3, 4], repeat=length)
        }
        every = [
            ((*said, token)[:-1] if token == END else (*said, token), [*said, token])
            for said in after
            for token in range(5)
            if token == END or len(said) == 3
        ]
        for normalization in ("gnmt", "power", "none"):
            how = replace(SHORT, beam=200, normalization=normalization, n_best=5, alpha=1.3)  # type: ignore[arg-type]
            (found,) = search(summarizer, source[text : text + 1], real[text : text + 1], how, start=START, end=END)
            scored = [
                (said, sum(after[tuple(path[:at])][path[at]] for at in range(len(path))) / how.divisor(len(path)))
                for said, path in every
            ]
            same(found, sorted(scored, key=lambda each: -each[1]))
            assert len(found) == 5


@settings(max_examples=10)
@given(
    how=st.builds(
        Decoding, beam=st.integers(1, 4), normalization=st.sampled_from(["gnmt", "power", "none"]),
        alpha=st.sampled_from([0.0, 0.6, 1.0]), max_length=st.integers(3, 7), min_length=st.integers(0, 2),
        no_repeat=st.integers(0, 2), stop=st.sampled_from(["bound", "current", "full"]),
    ),
    banned=st.sampled_from([(), (0, 1), (5,)]), seed=st.integers(0, 5),
)  # fmt: skip
def test_the_search_is_that_of_a_textbook(how: Decoding, banned: tuple[int, ...], seed: int) -> None:
    """Whose every step runs the whole decoder; also where texts are done at different times."""
    summarizer = model(vocabulary=7, seed=seed)
    source, real = texts(2, 7)
    found = search(summarizer, source, real, how, start=START, end=END, banned=banned)
    for text in range(2):
        same(found[text], plainly(summarizer, source[text], real[text], how, banned))
        assert len(found[text]) == 1


@pytest.mark.parametrize(("own", "cross"), [("dnas", "softmax"), ("hnas", "dnas"), ("recency", "x3"), ("x1", "hnas")])
def test_any_variant_is_searched_with_as_without_a_cache(own: str, cross: str) -> None:
    summarizer = model(vocabulary=8, own=own, cross=cross, norm="deescalated")
    source, real = texts(3, 8)
    how = replace(SHORT, beam=3, max_length=6, stop="full")
    for text, found in enumerate(search(summarizer, source, real, how, start=START, end=END)):
        same(found, plainly(summarizer, source[text], real[text], how, ()))


def test_divisors_are_the_published_ones() -> None:
    """Wu et al. 2016, equation 14; fairseq's and transformers' length_penalty."""
    assert Decoding(alpha=0.6).divisor(7) == pytest.approx(2.0**0.6)
    assert Decoding(alpha=0.6).divisor(1) == 1.0
    assert Decoding(normalization="power", alpha=2.0).divisor(7) == 49.0
    assert Decoding(normalization="none").divisor(7) == 1.0


def test_one_text_alone_is_one_among_many_in_any_order() -> None:
    summarizer = model()
    source, real = texts(9)
    how = Decoding(beam=3, max_length=12, n_best=3)
    together = search(summarizer, source, real, how, start=START, end=END)
    turned = torch.arange(8, -1, -1)
    backwards = search(summarizer, source[turned], real[turned], how, start=START, end=END)
    for text in range(9):
        length = int(real[text].sum())
        one = slice(text, text + 1)
        (alone,) = search(summarizer, source[one, :length], real[one, :length], how, start=START, end=END)
        for found in (together[text], backwards[8 - text]):
            same(found, [(each.tokens, each.score) for each in alone])


def test_a_beam_of_one_is_greedy() -> None:
    summarizer = model()
    source, real = texts(6)
    how = Decoding(beam=1, max_length=10, min_length=0)
    for text, (found,) in enumerate(search(summarizer, source, real, how, start=START, end=END)):
        said: list[int] = []
        while len(said) < 10:
            said.append(int(following(summarizer, source[text], real[text], said).argmax()))
            if said[-1] == END:
                break
        assert found.tokens == tuple(token for token in said if token != END)


def test_an_end_at_the_first_step_is_an_empty_headline() -> None:
    summarizer = model()
    with torch.no_grad():
        summarizer.masked.bias[END] = 50.0
    source, real = texts(2)
    for beam in (1, 3):
        how = replace(SHORT, beam=beam)
        assert [some[0].tokens for some in search(summarizer, source, real, how, start=START, end=END)] == [(), ()]
    longer = search(summarizer, source, real, replace(SHORT, min_length=2, beam=3), start=START, end=END)
    assert [len(some[0].tokens) for some in longer] == [2, 2]


def test_a_ban_gives_its_probability_to_nobody() -> None:
    """As in transformers: the score of what is said is the same whether or not something else is banned."""
    summarizer = model()
    source, real = texts(3)
    how = replace(SHORT, beam=1, max_length=2, normalization="none")
    free = search(summarizer, source, real, how, start=START, end=END)
    other = next(token for token in range(3, 12) if all(token not in some[0].tokens for some in free))
    assert search(summarizer, source, real, how, start=START, end=END, banned=[other]) == free


@given(rows=st.integers(1, 3), size=st.integers(1, 2_000), count=st.integers(1, 9), seed=st.integers(0, 99))
def test_the_highest_by_blocks_are_the_highest(rows: int, size: int, count: int, seed: int) -> None:
    scores = torch.randn(2, rows, size, generator=torch.Generator().manual_seed(seed))
    count = min(count, size)
    value, place = top(scores, count)
    assert torch.equal(value, scores.topk(count, dim=-1).values)
    assert torch.equal(scores.gather(-1, place), value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"beam": 0}, "decoding.beam: expected at least 1, found 0"),
        ({"min_length": 32}, "decoding.min_length: expected 0 up to below decoding.max_length 32, found 32"),
        ({"n_best": 6}, "decoding.n_best 6 is above decoding.beam 5"),
        ({"alpha": -1.0}, "decoding.alpha and decoding.no_repeat: expected at least 0"),
    ],
)
def test_settings_that_no_search_can_have_are_refused(fields: dict[str, float], message: str) -> None:
    with pytest.raises(WrongUseError, match=message):
        Decoding(**fields).check()  # type: ignore[arg-type]


@pytest.mark.parametrize("beam", [1, 3])
def test_a_hypothesis_of_outputs_that_are_not_numbers_has_no_finite_score(beam: int) -> None:
    broken = model()
    torch.nn.init.constant_(list(broken.parameters())[-1], torch.nan)
    for some in search(broken, *texts(3), Decoding(beam=beam, max_length=5), start=1, end=2):
        assert math.isnan(some[0].score)

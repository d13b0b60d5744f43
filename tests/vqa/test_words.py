"""Questions as words, answers as options: cut as Pythia does, scored as the server does, vectors from a file."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqarena.common.errors import BadDataError
from seqarena.vqa.data import words as spelling
from seqarena.vqa.data.options import options_of
from seqarena.vqa.data.published import UNKNOWN, Annotation
from seqarena.vqa.official import accuracy, clean, normalize

SAID = st.sampled_from(
    ["yes", "Yes", "no", "2", "two", "a dog", "dog", "the dog.", "t-shirt", "t shirt", "", "none", "unk"]
)


@given(st.lists(SAID, min_size=10, max_size=10), st.lists(SAID, min_size=1, max_size=6, unique=True), st.booleans())
def test_options_are_the_official_accuracy(references: Sequence[str], answers: Sequence[str], normalizes: bool) -> None:
    """Whatever is in the list: what its every answer scores, and how many people gave it."""
    each = Annotation(id=1, question_type="", answer_type="", common="", answers=tuple(references))
    listed = [UNKNOWN, *answers]
    found = options_of([each], listed, normalized_targets=normalizes)
    scores, people = np.zeros(len(listed)), np.zeros(len(listed))
    for place, count, score in zip(found.places[0], found.people[0], found.scores[0], strict=True):
        if place >= 0:
            scores[place], people[place] = score, count
    for place, answer in enumerate(listed):
        expected = 0.0 if answer == UNKNOWN else accuracy(answer, references)
        assert scores[place] == expected  # to the last bit
        said = [normalize(clean(one)) if normalizes else one for one in references]
        assert people[place] == (0 if answer == UNKNOWN else said.count(answer))


def test_words_are_cut_as_pythias() -> None:
    assert spelling.tokenize("Is this the dog's t-shirt, or not?") == [
        "is", "this", "the", "dog", "'", "s", "t", "-", "shirt", "or", "not",
    ]  # fmt: skip
    cut = [["a", "b"], ["b", "c", "b"], []]
    words = spelling.vocabulary(cut)
    assert words == ["", "b", "a", "c"]
    assert spelling.word_ids([["c", "new", "b"], []], words, 2).tolist() == [[3, 0], [0, 0]]


def test_glove_is_read_by_word(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_text("the 1 2 3\nb 0.5 -1 2e-1\n. . 7 8 9\n")
    np.testing.assert_allclose(spelling.glove(path, ["", "a", "b"]), [[0] * 3, [0] * 3, [0.5, -1, 0.2]])
    path.write_text("2 3\nb 1 2 3\n")  # as word2vec's text files begin
    assert spelling.glove(path, ["", "b"])[1].tolist() == [1, 2, 3]
    for text, message in (
        ("b 1 2 3\nc 1 2\n", "line 2: expected a word and 3 numbers"), ("b 1 nan 3\n", "expected 3 finite"),
        ("b 1 x 3\n", "line 1: expected 3 finite numbers"),
        ("b 1 2 3\nblue 1 2 3 4\n", "line 2: expected a word and 3 numbers, found more"),
        ("d 1 2 3\n", "questions' 3 words, found none"), ("", "questions' 3 words, found none"),
    ):  # fmt: skip
        path.write_text(text)
        with pytest.raises(BadDataError, match=message):
            spelling.glove(path, ["", "b", "c"])

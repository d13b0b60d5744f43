"""Words of questions: tokenization as in Pythia's code, vocabulary, and GloVe's vectors."""

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seqarena.common.data.readers import text_lines
from seqarena.common.errors import BadDataError

Numbers = npt.NDArray[np.int32]
BETWEEN = re.compile(r"(\W+)")


def tokenize(question: str) -> list[str]:
    """Tokenizes a question: lower case, without commas and question marks. Other punctuation forms tokens.

    "dog's" is dog, ', s; "t-shirt" is t, -, shirt (Pythia v0.1).
    """
    text = question.lower().replace(",", "").replace("?", "").replace("'s", " 's")
    return [part.strip() for part in BETWEEN.split(text) if part.strip()]


def vocabulary(questions: Iterable[Sequence[str]]) -> list[str]:
    """Returns the empty word, which stands for padding and unknown words, and all words, most frequent first."""
    counts: dict[str, int] = {}
    for words in questions:
        for word in words:
            counts[word] = counts.get(word, 0) + 1
    return ["", *sorted(counts, key=lambda word: (-counts[word], word))]


def word_ids(questions: Sequence[Sequence[str]], words: Sequence[str], length: int) -> Numbers:
    """Returns the ids of each question's first words, 0 after its end and for unknown words (questions, length)."""
    known = {word: number for number, word in enumerate(words)}
    found = np.zeros((len(questions), length), dtype=np.int32)
    for row, each in enumerate(questions):
        numbers = [known.get(word, 0) for word in each[:length]]
        found[row, : len(numbers)] = numbers
    return found


def glove(path: Path, words: Sequence[str]) -> npt.NDArray[np.float32]:
    """Reads word vectors from a text file with a word and its numbers per line. Missing words get zeros.

    Raises:
        BadDataError: the file does not exist, a line has another width, or none of the words is in the file.
    """
    rows = {word: row for row, word in enumerate(words) if word}
    found: npt.NDArray[np.float32] | None = None
    known = 0
    for number, line in enumerate(text_lines(path), start=1):
        # Some of GloVe's "words" contain spaces, so the numbers are split from the end of the line.
        word, *values = line.rstrip(" ").rsplit(" ", -1 if found is None else found.shape[1])
        if number == 1 and len(values) == 1:
            continue  # word2vec's text files begin with the numbers of words and columns
        if found is None:
            found = np.zeros((len(words), len(values)), dtype=np.float32)
        if len(values) != found.shape[1] or not values:
            raise BadDataError(
                f"{path}, line {number}: expected a word and {found.shape[1]} numbers, found {len(values)}"
            )
        if " " in word and _is_number(word.rsplit(" ", 1)[1]):
            raise BadDataError(f"{path}, line {number}: expected a word and {found.shape[1]} numbers, found more")
        if word in rows:
            if not all(_is_number(value) for value in values):
                raise BadDataError(f"{path}, line {number}: expected {found.shape[1]} finite numbers, found {values}")
            found[rows[word]] = [float(value) for value in values]
            known += 1
    if found is None or not known:
        raise BadDataError(f"{path}: expected vectors of the questions' {len(words):,} words, found none of them")
    return found


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False

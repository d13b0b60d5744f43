"""The official accuracy of VQA v2: normalisation and comparison of answers, identical to the last bit.

The accuracy of an answer is the mean, over the ten annotators, of min(1, n / 3), where n of the other nine gave the
answer. The rules are those of the challenge's server, including its quirks, which are marked "as on the server".
"""

import functools
import re
from collections.abc import Sequence
from typing import Literal

Rules = Literal["official", "legacy"]
"""official: rules since 11 March 2021; legacy: the rules before, by which P2 was scored."""

MARKS = ';/[]"{}()=+\\_-><@`,?!'
"""Punctuation except the apostrophe, the colon and the period."""
PERIOD = re.compile(r"(?!<=\d)(\.)(?!\d)")
"""Period to remove. As on the server, the look-behind is mistyped: a period is removed wherever no digit follows."""
PERIODS = 32
"""Maximum number of replacements. As on the server, it is the value of a flag passed by mistake."""
COMMA_IN_NUMBER = re.compile(r"\d,\d")
NUMBERS = {
    word: str(number)
    for number, word in enumerate(
        ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    )
} | {"none": "0"}
ARTICLES = ("a", "an", "the")
_ONE_APOSTROPHE = """
ain't aren't can't could've couldn't didn't doesn't don't hadn't hasn't haven't he'd he's how'd how'll how's I'm
I've isn't it'd it'll ma'am mightn't might've mustn't must've needn't not've o'clock oughtn't shan't should've
shouldn't somebody'll somebody's someone'd someone'll someone's something'd something'll that's there'd there're
there's they'd they'll they're they've 'twas wasn't we've weren't what'll what're what's what've when's where'd
where's where've who'd who'll who's who've why'll why're why's won't would've wouldn't y'all you'd you'll you're
you've
"""
_TWO_APOSTROPHES = """
couldn't've hadn't've he'd've I'd've it'd've mightn't've she'd've shouldn't've somebody'd've someone'd've something'd've
there'd've they'd've we'd've who'd've wouldn't've you'd've
"""


def _remove_apostrophe(word: str, number: int) -> str:
    """Returns a word without apostrophe ``number``, counted from 0."""
    *_, index = [at for at, letter in enumerate(word) if letter == "'"][: number + 1]
    return word[:index] + word[index + 1 :]


CONTRACTIONS = (
    {_remove_apostrophe(word, 0): word for word in _ONE_APOSTROPHE.split()}
    | {_remove_apostrophe(word, number): word for word in _TWO_APOSTROPHES.split() for number in (0, 1)}
    | {"let's": "let's", "she's": "she's", "somebody'd": "somebodyd"}  # as on the server
    | dict.fromkeys(("ow's'at", "'ows'at", "'ow'sat"), "'ow's'at")
    | dict.fromkeys(("yall'll", "y'allll"), "y'all'll")
    | dict.fromkeys(("yall'd've", "y'alld've", "y'all'dve"), "y'all'd've")
)
"""Word without apostrophe -> contraction. As on the server: words are lower-cased first, so the four with a capital
never match."""


def without_marks(text: str) -> str:
    """Returns the text without punctuation.

    As on the server: a mark is removed if it is next to a space anywhere in the text, or if the text has a comma
    between digits; otherwise it is replaced by a space.
    """
    has_number = COMMA_IN_NUMBER.search(text) is not None
    found = text
    for mark in MARKS:
        is_loose = f"{mark} " in text or f" {mark}" in text
        found = found.replace(mark, "" if is_loose or has_number else " ")
    return PERIOD.sub("", found, count=PERIODS)


def plain_words(text: str) -> str:
    """Returns the words in lower case, with numbers as digits, without articles, and with apostrophes restored."""
    words = [NUMBERS.get(word, word) for word in text.lower().split()]
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in ARTICLES)


@functools.lru_cache(maxsize=2**18)
def normalize(text: str) -> str:
    """Returns the normalised form of an answer."""
    return plain_words(without_marks(text))


def clean(text: str) -> str:
    """Returns an answer on one line, without surrounding whitespace."""
    return text.replace("\n", " ").replace("\t", " ").strip()


def accuracy(answer: str, references: Sequence[str], rules: Rules = "official") -> float:
    """Returns the accuracy of an answer given the annotators' answers, from 0 to 1.

    As on the server: if all annotators gave the same answer, nothing is normalised (official), or only the answer
    (legacy).
    """
    if rules == "legacy":
        found = normalize(clean(answer))
        unanimous = len(set(references)) == 1
        return leave_one_out_accuracy(
            [each == found for each in (references if unanimous else map(without_marks, references))]
        )
    known, normalizes = comparable_references(references)
    found = normalize(clean(answer)) if normalizes else clean(answer)
    return leave_one_out_accuracy([each == found for each in known])


def comparable_references(references: Sequence[str]) -> tuple[list[str], bool]:
    """Returns the references to compare with, and whether the answer is normalised first (official rules)."""
    known = [clean(each) for each in references]
    normalizes = len(set(known)) > 1
    return [normalize(each) for each in known] if normalizes else known, normalizes


def leave_one_out_accuracy(agreeing: Sequence[bool]) -> float:
    """Returns the leave-one-out accuracy of an answer: the mean over annotators of min(1, others who agree / 3)."""
    each_without = [min(1.0, float(sum(agreeing) - own) / 3) for own in agreeing]
    return float(sum(each_without)) / len(each_without)


def mean_per_cent(accuracies: Sequence[float]) -> float:
    """Returns the mean in per cent, rounded to two digits as on the server."""
    return round(100 * float(sum(accuracies)) / len(accuracies), 2)

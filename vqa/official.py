"""The official accuracy of VQA v2: how answers are normalised and compared, to the last bit.

Per question: for each of its ten people, the other nine's agreement with the answer, over 3, at most 1; the mean of the
ten. The rules are those of the challenge's server, oddities included: each is marked "as theirs".
"""

import functools
import re
from collections.abc import Sequence
from typing import Literal

Rules = Literal["official", "legacy"]
"""official: since 11 March 2021; legacy: before, as P2's server scored."""

MARKS = ';/[]"{}()=+\\_-><@`,?!'
"""Punctuation but for the apostrophe, the colon and the period."""
PERIOD = re.compile(r"(?!<=\d)(\.)(?!\d)")
"""The official script's own: its look-behind is mistyped, so that a period is removed wherever no digit follows."""
PERIODS = 32
"""The official script's own: it passes a flag as the number of replacements."""
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


def _without(word: str, number: int) -> str:
    """Returns a word without its apostrophe of that number."""
    *_, place = [at for at, letter in enumerate(word) if letter == "'"][: number + 1]
    return word[:place] + word[place + 1 :]


CONTRACTIONS = (
    {_without(word, 0): word for word in _ONE_APOSTROPHE.split()}
    | {_without(word, number): word for word in _TWO_APOSTROPHES.split() for number in (0, 1)}
    | {"let's": "let's", "she's": "she's", "somebody'd": "somebodyd"}  # as theirs
    | dict.fromkeys(("ow's'at", "'ows'at", "'ow'sat"), "'ow's'at")
    | dict.fromkeys(("yall'll", "y'allll"), "y'all'll")
    | dict.fromkeys(("yall'd've", "y'alld've", "y'all'dve"), "y'all'd've")
)
"""The official script's own: words are lower-case by then, so the four with a capital never match."""


def without_marks(text: str) -> str:
    """Returns the text without punctuation.

    As theirs: a mark leaves nothing where it touches a blank anywhere in the text, or where the text has a comma
    between digits; else a blank.
    """
    has_number = COMMA_IN_NUMBER.search(text) is not None
    found = text
    for mark in MARKS:
        is_loose = f"{mark} " in text or f" {mark}" in text
        found = found.replace(mark, "" if is_loose or has_number else " ")
    return PERIOD.sub("", found, count=PERIODS)


def plain_words(text: str) -> str:
    """Returns the words in lower case, numbers as digits, no articles, contractions with their apostrophes."""
    words = [NUMBERS.get(word, word) for word in text.lower().split()]
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in ARTICLES)


@functools.lru_cache(maxsize=2**18)
def normalized(text: str) -> str:
    """Returns an answer as it is compared."""
    return plain_words(without_marks(text))


def cleaned(text: str) -> str:
    """Returns an answer on one line, without blanks around it."""
    return text.replace("\n", " ").replace("\t", " ").strip()


def accuracy(answer: str, references: Sequence[str], rules: Rules = "official") -> float:
    """Returns the accuracy of an answer to a question that several people answered, from 0 to 1.

    As theirs: where all people gave the same answer nothing is normalised (official), or only what is scored (legacy).
    """
    if rules == "legacy":
        found = normalized(cleaned(answer))
        alike = len(set(references)) == 1
        return share([each == found for each in (references if alike else map(without_marks, references))])
    known, normalizes = compared(references)
    found = normalized(cleaned(answer)) if normalizes else cleaned(answer)
    return share([each == found for each in known])


def compared(references: Sequence[str]) -> tuple[list[str], bool]:
    """Returns what an answer is compared with, and whether it is normalised before (official rules)."""
    known = [cleaned(each) for each in references]
    normalizes = len(set(known)) > 1
    return [normalized(each) for each in known] if normalizes else known, normalizes


def share(agreeing: Sequence[bool]) -> float:
    """Returns the accuracy of an answer with which these people agree: the mean of what each, left out, leaves."""
    each_without = [min(1.0, float(sum(agreeing) - own) / 3) for own in agreeing]
    return float(sum(each_without)) / len(each_without)


def rounded(accuracies: Sequence[float]) -> float:
    """Returns the mean in per cent, two digits, as the server rounds."""
    return round(100 * float(sum(accuracies)) / len(accuracies), 2)

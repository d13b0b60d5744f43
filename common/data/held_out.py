"""Splits of generated examples that share no content: a hash of an example's content determines its split.

The content of an example (a premise, a headline, the position of a digit) is the part that a model could memorise,
without details that do not change the answer. The same content belongs to the same split in every set, so a split
needs no knowledge of the others. A draw that belongs to another split is repeated. An example remains a function of
seed, split and index, independent of the order of generation.
"""

from collections.abc import Callable
from typing import TypeVar

from seqarena.common.data.counter import hash_text
from seqarena.common.errors import WrongUseError

Example = TypeVar("Example")
SHARES = (0.8, 0.1, 0.1)
"""Fractions of all contents: training, and the two held-out splits."""
MOST_DRAWN = 10_000
"""Maximum draws per example. Ten suffice on average."""


def split_of(content: str) -> int:
    """Returns the split of a content: 0 for training, 1 and 2 held out."""
    position = hash_text(f"split of {content}") / 2.0**64
    return sum(position >= end for end in (SHARES[0], SHARES[0] + SHARES[1]))


def draw_for_split(split: int, draw: Callable[[int], tuple[str, Example]]) -> Example:
    """Returns the first example of draws 0, 1, 2, ... whose content belongs to ``split``.

    ``draw`` maps the number of the draw to a content and an example.

    Raises:
        WrongUseError: no such draw, because there are too few contents.
    """
    for attempt in range(MOST_DRAWN):
        content, example = draw(attempt)
        if split_of(content) == split:
            return example
    raise WrongUseError(
        f"none of {MOST_DRAWN:,} generated examples belongs to split {split}: too few different contents"
    )

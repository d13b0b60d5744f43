"""Splits of generated examples that share no content: a hash of what an example shows says which split it is in.

The content of an example is what a model could learn by heart, without what makes no difference to the answer: a
premise, a headline, where a digit stands. The same content belongs to the same split in every set, so that no split
must know what another one holds. A draw that belongs to another split is drawn again: an example stays a function of
seed, split and number, whoever draws it and in whatever order.
"""

from collections.abc import Callable
from typing import TypeVar

from seqarena.common.data.counter import hash_text
from seqarena.common.errors import WrongUseError

Example = TypeVar("Example")
SHARES = (0.8, 0.1, 0.1)
"""Shares of all contents: to train on, and for the two splits that are held out."""
MOST_DRAWN = 10_000
"""Draws for one example, at most; ten are enough on average."""


def split_of(content: str) -> int:
    """Returns the number of the split that a content belongs to: 0 to train on, 1 and 2 held out."""
    place = hash_text(f"split of {content}") / 2.0**64
    return sum(place >= end for end in (SHARES[0], SHARES[0] + SHARES[1]))


def drawn_for(split: int, draw: Callable[[int], tuple[str, Example]]) -> Example:
    """Returns the first example of draws 0, 1, 2, ... whose content belongs to a split; a draw gives content, example.

    Raises:
        WrongUseError: there is none, for there are too few contents.
    """
    for attempt in range(MOST_DRAWN):
        content, example = draw(attempt)
        if split_of(content) == split:
            return example
    raise WrongUseError(
        f"of {MOST_DRAWN:,} generated examples none belongs to split {split}: their contents are too few"
    )

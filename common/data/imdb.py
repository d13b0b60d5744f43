"""Files of the Large Movie Review Dataset (Maas et al. 2011), in its authors' archive or folder."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from seqarena.common.data.archives import ARCHIVES, members
from seqarena.common.errors import BadDataError

ARCHIVE = "aclImdb_v1.tar.gz (84 MB, ai.stanford.edu/~amaas/data/sentiment) or its folder aclImdb"
REVIEWS = 12_500
"""Number of reviews per label, in each of train and test."""
UNLABELLED = "unsup"
"""Folder of the training reviews without a label."""
TRAINED = {"neg": REVIEWS, "pos": REVIEWS, UNLABELLED: 50_000}
"""Folder of training reviews -> their number."""
REVIEW = re.compile(r"(?:^|/)(train|test)/(neg|pos|unsup)/(\d+)_\d+\.txt$")


class ReviewFile(NamedTuple):
    """Place of a review in the archive."""

    split: str
    label: str
    """neg, pos or ``UNLABELLED``."""
    number: int


def review_file(name: str) -> ReviewFile | None:
    """Returns the place of a review by the name of its file, or None for another file."""
    found = REVIEW.search(name)
    return None if found is None else ReviewFile(found[1], found[2], int(found[3]))


def is_imdb(path: Path) -> bool:
    """Returns whether a path is an archive, or the folder that the archive unpacks to."""
    inside = [each / "train" / label for each in (path, path / "aclImdb") for label in TRAINED]
    return path.name.endswith(ARCHIVES) if path.is_file() else any(each.is_dir() for each in inside)


def training_reviews(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yields the name and text of each training review, with and without a label, but of no test review.

    The order is by label, then by number, so that an archive and its folder give the same reviews in the same order.

    Raises:
        BadDataError: the path is damaged, has no training review, or lacks some of a label.
    """
    found: dict[str, dict[int, tuple[str, bytes]]] = {label: {} for label in TRAINED}
    for name, content in members(path, (".txt",)):
        place = review_file(name)
        if place is not None and place.split == "train":
            found[place.label][place.number] = name, content
    if not any(found.values()):
        raise BadDataError(f"{path}: expected {ARCHIVE}; found no review in train/neg, train/pos or train/unsup")
    for label, some in found.items():
        if some and len(some) != TRAINED[label]:
            raise BadDataError(
                f"{path}: expected {TRAINED[label]:,} reviews in train/{label}, found {len(some):,}; unpack the "
                "archive again, or name the archive itself"
            )
    for some in found.values():
        yield from (some[number] for number in sorted(some))

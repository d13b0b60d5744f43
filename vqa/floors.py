"""Scores of trivial rules: most frequent answers, which ignore the picture, and the nearest training example."""

from collections.abc import Mapping

import numpy as np

from seqarena.common.data.batches import Indices
from seqarena.common.data.nearest import FLOOR, TESTED, nearest
from seqarena.vqa.data import Integers, Split, Truths, VqaData

SUMMED = 20_000_000
"""Maximum total number of summed features of training pictures: enough for all generated pictures, for few real
ones."""
READ = 256
"""Number of pictures read at a time."""
PARTS = 100
"""Sums are rounded to multiples of 1 / PARTS, so that distances are exact and identical on any machine."""


def floors(loaded: VqaData) -> Mapping[str, float]:
    """Returns the scores of the most frequent answer, overall and per category of each partition.

    Frequencies are counted over all annotators' answers in training. A further floor, on the first test questions only,
    is the answer to the nearest training example: the same question about the most similar picture.
    """
    train, test = loaded.splits["train"], loaded.splits["test"]
    count = len(loaded.answers)
    found = {"most frequent answer": np.full(len(test), _likeliest(train, np.ones(len(train), dtype=bool), count))}
    for name, part in test.parts.items():
        of_train = train.parts[name]
        if not part.names:
            continue
        each: Integers = np.array([_likeliest(train, of_train.of == kind, count) for kind in range(len(part.names))])
        overall = found["most frequent answer"]  # for questions of no category
        found[f"most frequent of its {name.replace('_', ' ')}"] = np.where(part.of < 0, overall, each[part.of])
    scores = {name: float(test.score(guesses).mean()) for name, guesses in found.items()}
    copied: Indices = np.zeros(len(test), dtype=np.int64)
    copied[:TESTED] = nearest_answers(train, test, otherwise=int(found["most frequent answer"][0]))
    return scores | {FLOOR: float(test.score(copied)[:TESTED].mean())}


def nearest_answers(train: Split, test: Split, otherwise: int) -> Indices:
    """Returns the most frequent answer to the nearest training question of each of the first ``TESTED`` questions.

    The nearest one has the same text and a picture with the smallest difference in feature sums over the boxes of each
    detector; ties go to the first. ``otherwise``: the answer to questions whose text is not in training.
    """
    views, _, width = train.views.sizes
    known = np.flatnonzero(train.pictures < SUMMED // (views * width))
    asked = np.arange(min(TESTED, len(test)))
    guesses = np.full(len(asked), otherwise)
    seen, shown = sums(train, train.pictures[known]), sums(test, test.pictures[asked])
    size = max(train.words.shape[1], test.words.shape[1])
    texts, wanted = (
        np.pad(each, ((0, 0), (0, size - each.shape[1]))) for each in (train.words[known], test.words[asked])
    )
    for text in np.unique(wanted, axis=0):
        same, these = np.flatnonzero((texts == text).all(axis=1)), np.flatnonzero((wanted == text).all(axis=1))
        if len(same):
            first = known[same[nearest(seen[same], shown[these])]]
            guesses[these] = train.options[first, train.people[first].argmax(axis=1)]
    return guesses


def sums(split: Split, pictures: Indices) -> Integers:
    """Returns the feature sums over the real boxes of each detector, in hundredths (pictures, features)."""
    wanted, back = np.unique(pictures, return_inverse=True)
    found = []
    for start in range(0, len(wanted), READ):
        views = split.views.read(wanted[start : start + READ])
        total = (views.features * views.real[..., None]).sum(axis=2, dtype=np.float64)
        found.append(np.rint(PARTS * total).astype(np.int32).reshape(len(total), -1))
    summed: Integers = np.concatenate(found)[back]
    return summed


def _likeliest(train: Split, inside: Truths, answers: int) -> int:
    """Returns the most frequent answer to the masked questions; without questions, the first answer of the list."""
    options, people = train.options[inside], train.people[inside]
    known = options >= 0
    return int(np.bincount(options[known], weights=people[known], minlength=answers).argmax())

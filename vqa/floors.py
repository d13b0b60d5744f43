"""Scores of trivial rules: those that look at no picture, and the one that knows the training pictures by heart."""

from collections.abc import Mapping

import numpy as np

from seqarena.common.data.batches import Indices
from seqarena.common.data.nearest import FLOOR, TESTED, nearest
from seqarena.vqa.data import Integers, Split, Truths, VqaData

SUMMED = 20_000_000
"""Numbers in the sums of all training pictures that are compared, at most: of all generated ones, of few real ones."""
READ = 256
"""Pictures that are read at once."""
PARTS = 100
"""Parts of a unit to which sums are rounded: distances are exact, the same on any machine."""


def floors(loaded: VqaData) -> Mapping[str, float]:
    """Returns what the most frequent answer scores, of all questions and of each question's own kind of each partition.

    How often an answer is given is counted on the training questions, one for each person. And the answer of the
    nearest training example, on the first test questions: the same question about the picture that looks most alike.
    """
    train, test = loaded.splits["train"], loaded.splits["test"]
    count = len(loaded.answers)
    found = {"most frequent answer": np.full(len(test), _likeliest(train, np.ones(len(train), dtype=bool), count))}
    for name, part in test.parts.items():
        of_train = train.parts[name]
        if not part.names:
            continue
        each: Integers = np.array([_likeliest(train, of_train.of == kind, count) for kind in range(len(part.names))])
        found[f"most frequent of its {name.replace('_', ' ')}"] = each[part.of]
    scores = {name: float(test.scored(guesses).mean()) for name, guesses in found.items()}
    copied: Indices = np.zeros(len(test), dtype=np.int64)
    copied[:TESTED] = of_nearest(train, test, otherwise=int(found["most frequent answer"][0]))
    return scores | {FLOOR: float(test.scored(copied)[:TESTED].mean())}


def of_nearest(train: Split, test: Split, otherwise: int) -> Indices:
    """Returns the likeliest answer to the nearest training question of each of the first ``TESTED`` test questions.

    That is the same question about another picture: the one whose sums over the boxes of each detector differ least,
    the first of several. ``otherwise``: the answer to a question that was never asked in training.
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
    """Returns the sums over the real boxes of each detector, in hundredths, of some pictures (pictures, numbers)."""
    wanted, back = np.unique(pictures, return_inverse=True)
    found = []
    for start in range(0, len(wanted), READ):
        views = split.views.read(wanted[start : start + READ])
        total = (views.features * views.real[..., None]).sum(axis=2, dtype=np.float64)
        found.append(np.rint(PARTS * total).astype(np.int32).reshape(len(total), -1))
    summed: Integers = np.concatenate(found)[back]
    return summed


def _likeliest(train: Split, inside: Truths, answers: int) -> int:
    """Returns the answer that most people gave to some questions; to none of them, the first."""
    options, people = train.options[inside], train.people[inside]
    known = options >= 0
    return int(np.bincount(options[known], weights=people[known], minlength=answers).argmax())

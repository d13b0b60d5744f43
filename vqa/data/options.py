"""The answers to each question, with their numbers of annotators and their scores by the official rules."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seqarena.vqa.data.published import UNKNOWN, Annotation
from seqarena.vqa.official import clean, comparable_references, leave_one_out_accuracy, normalize


@dataclass(frozen=True, kw_only=True)
class Options:
    """Answers with annotators or with a score, padded to the largest number of options of a question."""

    places: npt.NDArray[np.int32]
    """Index of each option in the answer list; -1: padding (questions, options)."""
    people: npt.NDArray[np.int8]
    """Number of annotators of each option (questions, options)."""
    scores: npt.NDArray[np.float64]
    """Score of each option (questions, options)."""


def options_of(annotations: Sequence[Annotation], answers: Sequence[str], *, normalized_targets: bool) -> Options:
    """Returns the options of questions among a list of ``answers``.

    ``normalized_targets``: whether annotators' answers are normalised before they are looked up and counted. The scores
    do not depend on it, because they follow the official rules.
    """
    known = {answer: index for index, answer in enumerate(answers) if answer != UNKNOWN}
    by_text, by_rules = _indices_by(known, clean), _indices_by(known, lambda answer: normalize(clean(answer)))
    found: list[list[tuple[int, int, float]]] = []
    for each in annotations:
        counted: dict[int, int] = {}
        for answer in each.answers:
            index = known.get(normalize(clean(answer)) if normalized_targets else answer)
            if index is not None:
                counted[index] = counted.get(index, 0) + 1
        references, normalizes = comparable_references(each.answers)
        scored = {
            index: leave_one_out_accuracy([reference == answer for reference in references])
            for answer in set(references)
            for index in (by_rules if normalizes else by_text).get(answer, ())
        }
        found.append(
            [(index, counted.get(index, 0), scored.get(index, 0.0)) for index in sorted(counted.keys() | scored)]
        )
    most = max((len(each) for each in found), default=0) or 1
    places = np.full((len(found), most), -1, dtype=np.int32)
    people, scores = np.zeros((len(found), most), dtype=np.int8), np.zeros((len(found), most))
    for row, some in enumerate(found):
        for column, (index, count, score) in enumerate(some):
            places[row, column], people[row, column], scores[row, column] = index, count, score
    return Options(places=places, people=people, scores=scores)


def _indices_by(known: Mapping[str, int], change: Callable[[str], str]) -> Mapping[str, list[int]]:
    """Returns changed answer -> indices of all answers that are equal after ``change``."""
    found: dict[str, list[int]] = {}
    for answer, index in known.items():
        found.setdefault(change(answer), []).append(index)
    return found

"""The answers to each question, how many people gave them, and their scores by the official rules."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seqarena.vqa.data.published import UNKNOWN, Annotation
from seqarena.vqa.official import cleaned, compared, normalized, share


@dataclass(frozen=True, kw_only=True)
class Options:
    """The answers that count, padded to as many as the question with most has."""

    places: npt.NDArray[np.int32]
    """In the list of answers; -1: none (questions, options)."""
    people: npt.NDArray[np.int8]
    """How many gave each."""
    scores: npt.NDArray[np.float64]
    """Score of each."""


def options_of(annotations: Sequence[Annotation], answers: Sequence[str], *, normalized_targets: bool) -> Options:
    """Returns the options of questions among a list of ``answers``.

    ``normalized_targets``: whether what people said is normalised before it is looked up to be counted. Scores do not
    depend on it: both sides are compared as the official rules compare them.
    """
    known = {answer: place for place, answer in enumerate(answers) if answer != UNKNOWN}
    by_text, by_rules = _by(known, cleaned), _by(known, lambda answer: normalized(cleaned(answer)))
    found: list[list[tuple[int, int, float]]] = []
    for each in annotations:
        counted: dict[int, int] = {}
        for said in each.answers:
            place = known.get(normalized(cleaned(said)) if normalized_targets else said)
            if place is not None:
                counted[place] = counted.get(place, 0) + 1
        references, normalizes = compared(each.answers)
        scored = {
            place: share([reference == said for reference in references])
            for said in set(references)
            for place in (by_rules if normalizes else by_text).get(said, ())
        }
        found.append(
            [(place, counted.get(place, 0), scored.get(place, 0.0)) for place in sorted(counted.keys() | scored)]
        )
    most = max((len(each) for each in found), default=0) or 1
    places = np.full((len(found), most), -1, dtype=np.int32)
    people, scores = np.zeros((len(found), most), dtype=np.int8), np.zeros((len(found), most))
    for row, some in enumerate(found):
        for column, (place, count, score) in enumerate(some):
            places[row, column], people[row, column], scores[row, column] = place, count, score
    return Options(places=places, people=people, scores=scores)


def _by(known: Mapping[str, int], change: Callable[[str], str]) -> Mapping[str, list[int]]:
    """Returns the places of all answers that are the same once they are changed."""
    found: dict[str, list[int]] = {}
    for answer, place in known.items():
        found.setdefault(change(answer), []).append(place)
    return found

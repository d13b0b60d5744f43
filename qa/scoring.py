"""Exact match and F1 of answers, by the rules of the official scripts of SQuAD 1.1 and 2.0."""

import math
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from seqarena.qa.data.squad import Questions

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
"""Translation that removes ASCII punctuation only, as the official scripts do."""


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Exact match and F1 of each answered question, from 0 to 1."""

    exact: Mapping[str, float]
    f1: Mapping[str, float]


def normalize(answer: str) -> str:
    """Returns an answer in lower case, without punctuation, articles and redundant whitespace."""
    return " ".join(ARTICLES.sub(" ", answer.lower().translate(PUNCTUATION)).split())


def exact_match(answer: str, gold: str) -> float:
    """Returns 1 if two answers are equal after normalisation, else 0."""
    return float(normalize(answer) == normalize(gold))


def f1(answer: str, gold: str, *, empty_matches_empty: bool) -> float:
    """Returns the F1 of the words of two answers after normalisation.

    ``empty_matches_empty``: if either answer has no words, the F1 is 1 if neither has (2.0). Without it the F1 is 0
    whenever no word is shared (1.1).
    """
    mine, theirs = normalize(answer).split(), normalize(gold).split()
    if empty_matches_empty and not (mine and theirs):
        return float(mine == theirs)
    shared = sum((Counter(mine) & Counter(theirs)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(mine), shared / len(theirs)
    return (2 * precision * recall) / (precision + recall)  # the official order: the last bit breaks ties of thresholds


def golds(answers: Sequence[str], *, unanswerable: bool) -> list[str]:
    """Returns the gold answers to compare with. For 2.0, golds without words are dropped; if none remain, [""]."""
    if not unanswerable:
        return list(answers)
    return [answer for answer in answers if normalize(answer)] or [""]


def score(questions: Questions, answers: Mapping[str, str], *, unanswerable: bool) -> Scores:
    """Returns the scores of the questions in ``answers`` (id -> text): for each, the maximum over its golds."""
    exact, words = {}, {}
    for each in questions.questions:
        if each.id in answers:
            compared = list(dict.fromkeys(golds([text for text, _ in each.answers], unanswerable=unanswerable)))
            mine = answers[each.id]
            exact[each.id] = max(exact_match(mine, gold) for gold in compared)
            words[each.id] = max(f1(mine, gold, empty_matches_empty=unanswerable) for gold in compared)
    return Scores(exact=exact, f1=words)


def summary_one(questions: Questions, scores: Scores) -> dict[str, float]:
    """Returns the results of ``evaluate-v1.1.py``, in per cent. A question without a prediction counts as wrong."""
    total = len(questions)
    return {
        "exact": 100.0 * sum(scores.exact.values()) / total,
        "f1": 100.0 * sum(scores.f1.values()) / total,
        "total": total,
    }


def with_threshold(
    questions: Questions, scores: Mapping[str, float], null_odds: Mapping[str, float], threshold: float
) -> dict[str, float]:
    """Returns the scores after questions with null odds above a threshold are left unanswered."""
    answerable = {each.id: bool(each.answers) for each in questions.questions}
    return {
        name: float(not answerable[name]) if null_odds.get(name, 0.0) > threshold else value
        for name, value in scores.items()
    }


def summary_two(
    questions: Questions,
    scores: Scores,
    answers: Mapping[str, str],
    null_odds: Mapping[str, float] | None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """Returns the results of ``evaluate-v2.0.py``, in per cent.

    A question without a prediction is skipped in all means. With ``null_odds``, the best scores over all thresholds are
    added. They are an oracle's, because the threshold is chosen on these same questions.
    """
    odds = dict.fromkeys(answers, 0.0) if null_odds is None else null_odds
    exact = with_threshold(questions, scores.exact, odds, threshold)
    words = with_threshold(questions, scores.f1, odds, threshold)
    found = _means(exact, words, list(scores.exact), "")
    for prefix, has in (("HasAns_", True), ("NoAns_", False)):
        ids = [each.id for each in questions.questions if bool(each.answers) == has and each.id in scores.exact]
        found |= _means(exact, words, ids, prefix) if ids else {}
    if null_odds is not None:
        for name, raw in (("exact", scores.exact), ("f1", scores.f1)):
            best, at = best_threshold(questions, raw, null_odds)
            found |= {f"best_{name}": best, f"best_{name}_thresh": at}
    return found


def _means(exact: Mapping[str, float], words: Mapping[str, float], ids: Sequence[str], prefix: str) -> dict[str, float]:
    total = len(ids)
    sums = (sum(each[name] for name in ids) for each in (exact, words))
    means = [100.0 * value / total if total else 0.0 for value in sums]
    return {f"{prefix}exact": means[0], f"{prefix}f1": means[1], f"{prefix}total": total}


def best_threshold(
    questions: Questions, scores: Mapping[str, float], null_odds: Mapping[str, float]
) -> tuple[float, float]:
    """Returns the best mean score over all thresholds, in per cent, and the smallest threshold that reaches it.

    ``scores`` are those before a threshold is applied. The mean equals that of ``with_threshold`` at the returned
    threshold. If leaving all questions unanswered is best, the threshold is 0 if all odds are above 0 (probabilities,
    as in the official script), else a number below all odds. Departures from the official script, whose best score may
    be unreachable: the official script also stops between questions of equal odds, and counts an answer that is only an
    article as wrong for an unanswerable question.
    """
    answerable = {each.id: bool(each.answers) for each in questions.questions}
    order = sorted(scores, key=lambda name: null_odds.get(name, 0.0))
    if not order:
        return 0.0, 0.0
    steps = (scores[name] - float(not answerable[name]) for name in order)
    sums = list(accumulate(steps, initial=float(sum(not answerable[name] for name in order))))
    odds = [null_odds.get(name, 0.0) for name in order]
    # A threshold answers all questions of equal odds or none of them, so no threshold reaches the sums in between.
    ends = [0, *(count for count in range(1, len(order)) if odds[count - 1] < odds[count]), len(order)]
    best = max(sums[count] for count in ends)
    count = next(count for count in ends if sums[count] == best)
    return 100.0 * best / len(order), odds[count - 1] if count else _below(odds[0])


def _below(odds: float) -> float:
    """Returns a threshold below the odds: 0 if the odds are positive."""
    return 0.0 if odds > 0 else min(odds - 1.0, math.nextafter(odds, -math.inf))

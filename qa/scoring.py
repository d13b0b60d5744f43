"""Exact match and F1 of answers, as the official scripts of SQuAD 1.1 and 2.0 count them."""

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
"""ASCII alone is taken out: so it is in the official scripts."""


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Exact match and F1 of each answered question, from 0 to 1."""

    exact: Mapping[str, float]
    f1: Mapping[str, float]


def normalized(answer: str) -> str:
    """Returns an answer in lower case without punctuation, articles and needless blanks."""
    return " ".join(ARTICLES.sub(" ", answer.lower().translate(PUNCTUATION)).split())


def exact_match(answer: str, gold: str) -> float:
    """Returns 1 where two answers are the same once normalised."""
    return float(normalized(answer) == normalized(gold))


def f1(answer: str, gold: str, *, empty_matches_empty: bool) -> float:
    """Returns the F1 of the words of two answers, once normalised.

    ``empty_matches_empty``: where either has no words, 1 if both have none (2.0); otherwise 0 whenever no word is
    shared (1.1).
    """
    mine, theirs = normalized(answer).split(), normalized(gold).split()
    if empty_matches_empty and not (mine and theirs):
        return float(mine == theirs)
    shared = sum((Counter(mine) & Counter(theirs)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(mine), shared / len(theirs)
    return (2 * precision * recall) / (precision + recall)  # in their order: the last bit breaks ties of thresholds


def golds(answers: Sequence[str], *, unanswerable: bool) -> list[str]:
    """Returns what an answer is compared with; 2.0 drops golds without a word, and none left means no answer."""
    if not unanswerable:
        return list(answers)
    return [answer for answer in answers if normalized(answer)] or [""]


def score(questions: Questions, answers: Mapping[str, str], *, unanswerable: bool) -> Scores:
    """Returns the scores of the questions that ``answers`` (id -> text) has, the best over the golds of each."""
    exact, words = {}, {}
    for each in questions.questions:
        if each.id in answers:
            compared = list(dict.fromkeys(golds([text for text, _ in each.answers], unanswerable=unanswerable)))
            mine = answers[each.id]
            exact[each.id] = max(exact_match(mine, gold) for gold in compared)
            words[each.id] = max(f1(mine, gold, empty_matches_empty=unanswerable) for gold in compared)
    return Scores(exact=exact, f1=words)


def summary_one(questions: Questions, scores: Scores) -> dict[str, float]:
    """Returns what ``evaluate-v1.1.py`` says, in per cent: a question without a prediction counts as wrong."""
    total = len(questions)
    return {
        "exact": 100.0 * sum(scores.exact.values()) / total,
        "f1": 100.0 * sum(scores.f1.values()) / total,
        "total": total,
    }


def with_threshold(
    questions: Questions, scores: Mapping[str, float], null_odds: Mapping[str, float], threshold: float
) -> dict[str, float]:
    """Returns the scores if questions whose null odds are above a threshold are left unanswered."""
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
    """Returns what ``evaluate-v2.0.py`` says, in per cent.

    A question without a prediction is left out of all means. With ``null_odds`` also the best scores over all
    thresholds on them, which these very questions chose: an oracle's.
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
    """Returns the best mean score over all thresholds, in per cent, and the least threshold that gives it.

    ``scores`` are those of the answers themselves. The mean is what ``with_threshold`` gives at that threshold. Where
    the best is to answer nothing, the threshold is 0 if all odds are above it (probabilities, as in the official
    script), else one below them all. Departures from the official script, whose best no threshold may give: it also
    stops between questions of equal odds, and takes an answer that is an article alone for a wrong one where there is
    none.
    """
    answerable = {each.id: bool(each.answers) for each in questions.questions}
    order = sorted(scores, key=lambda name: null_odds.get(name, 0.0))
    if not order:
        return 0.0, 0.0
    steps = (scores[name] - float(not answerable[name]) for name in order)
    sums = list(accumulate(steps, initial=float(sum(not answerable[name] for name in order))))
    odds = [null_odds.get(name, 0.0) for name in order]
    # A threshold answers all questions of equal odds or none: sums in between are of none.
    ends = [0, *(count for count in range(1, len(order)) if odds[count - 1] < odds[count]), len(order)]
    best = max(sums[count] for count in ends)
    count = next(count for count in ends if sums[count] == best)
    return 100.0 * best / len(order), odds[count - 1] if count else _below(odds[0])


def _below(odds: float) -> float:
    """Returns a threshold below odds: 0 where it is one."""
    return 0.0 if odds > 0 else min(odds - 1.0, math.nextafter(odds, -math.inf))

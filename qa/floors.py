"""Scores of trivial rules on the finetuning tasks. A model that scores no higher has learned no more than the rule."""

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from seqarena.common.data.nearest import FLOOR, TESTED, label_of_nearest, nearest, word_counts
from seqarena.qa.data import world
from seqarena.qa.data.mnli import LABELS, Pair
from seqarena.qa.data.squad import Question, Questions
from seqarena.qa.scoring import f1, score

SENTENCE = re.compile(r"(?<=[.!?])\s+")
WORD = re.compile(r"\w+")
COPIED = 20_000
"""Maximum number of training questions that the nearest question is searched in."""
SMOOTHED = 1.0
"""Smoothing constant added to every count of naive Bayes."""


def squad_floors(train: Questions, questions: Questions, *, unanswerable: bool, generated: bool) -> dict[str, float]:
    """Returns rule -> F1.

    The rules are: the first sentence; the sentence that shares the most words with the question; no answer (2.0); the
    answer of the nearest training question, by the words of question and paragraph; for generated questions, any answer
    of the right kind, as a mean over those in the paragraph.
    """
    rules: dict[str, Callable[[Question], str]] = {
        "first sentence": lambda each: _sentences(questions, each)[0],
        "sentence with most words of the question": lambda each: _most_similar_sentence(questions, each),
    }
    answered = {name: {each.id: rule(each) for each in questions.questions} for name, rule in rules.items()}
    if unanswerable:
        answered["no answer"] = {each.id: "" for each in questions.questions}
    found = {
        name: float(np.mean(list(score(questions, answers, unanswerable=unanswerable).f1.values())))
        for name, answers in answered.items()
    }
    found[FLOOR] = _nearest_question_f1(train, questions, unanswerable)
    if generated:
        found["any answer of the right kind"] = _right_kind_f1(questions, unanswerable)
    return found


def _nearest_question_f1(train: Questions, questions: Questions, unanswerable: bool) -> float:
    sample = questions.some(questions.questions[:TESTED])
    known = train.questions[:COPIED]
    found = nearest(
        *word_counts(
            [_question_and_paragraph(train, each) for each in known],
            [_question_and_paragraph(sample, each) for each in sample.questions],
        )
    )
    copied = [next((text for text, _ in known[number].answers), "") for number in found.tolist()]
    answers = {each.id: text for each, text in zip(sample.questions, copied, strict=True)}
    return float(np.mean(list(score(sample, answers, unanswerable=unanswerable).f1.values())))


def _question_and_paragraph(questions: Questions, question: Question) -> str:
    """Returns a question and its paragraph as one text, with a prefix at the words of the question."""
    return _with_prefix(question.text, questions.contexts[question.context])


def _right_kind_f1(questions: Questions, unanswerable: bool) -> float:
    """Returns the mean F1 of any answer of the right kind."""
    means = []
    for each in questions.questions:
        golds = [text for text, _ in each.answers] or [""]
        candidates = world.answers_of_right_kind(questions.contexts[each.context], each.text)
        scores = [max(f1(one, gold, empty_matches_empty=unanswerable) for gold in golds) for one in candidates]
        means.append(float(np.mean(scores)))
    return float(np.mean(means))


def _sentences(questions: Questions, question: Question) -> list[str]:
    return SENTENCE.split(questions.contexts[question.context].strip())


def _most_similar_sentence(questions: Questions, question: Question) -> str:
    words = set(WORD.findall(question.text.lower()))
    return max(_sentences(questions, question), key=lambda each: len(words & set(WORD.findall(each.lower()))))


def pair_floors(train: Sequence[Pair], test: Sequence[Pair]) -> dict[str, float]:
    """Returns rule -> accuracy. The rules are fitted on ``train``.

    The rules are: the most frequent label; naive Bayes (smoothed counts) on the words of the hypothesis alone, and on
    the words of both sentences as separate features; the label of the training pair with the most similar words.
    """

    def hypothesis(each: Pair) -> set[str]:
        return set(WORD.findall(each.hypothesis.lower()))

    def both(each: Pair) -> set[str]:
        return {f"premise {word}" for word in WORD.findall(each.premise.lower())} | hypothesis(each)

    trained, labels = (np.array([each.label for each in some]) for some in (train, test))
    most = np.bincount(trained).argmax()
    train_counts, test_counts = word_counts(
        *([_with_prefix(each.premise, each.hypothesis) for each in some] for some in (train, test))
    )
    return {
        "most frequent label": float(np.mean(labels == most)),
        "words of the hypothesis alone": _bayes(train, test, hypothesis),
        "words of both": _bayes(train, test, both),
        FLOOR: label_of_nearest(train_counts, trained, test_counts, labels),
    }


def _with_prefix(first: str, second: str) -> str:
    """Concatenates two texts, with a prefix at the words of the first."""
    return " ".join([*(f"first_{word}" for word in WORD.findall(first)), second])


def _bayes(train: Sequence[Pair], test: Sequence[Pair], words: Callable[[Pair], set[str]]) -> float:
    known: Mapping[str, int] = {
        word: number for number, word in enumerate(sorted({word for each in train for word in words(each)}))
    }
    counts: npt.NDArray[np.float64] = np.full((len(LABELS), len(known)), SMOOTHED)
    labels = np.bincount([each.label for each in train], minlength=len(LABELS)) + SMOOTHED
    for each in train:
        counts[each.label, [known[word] for word in words(each)]] += 1
    present = counts / (labels + SMOOTHED)[:, None]  # fraction of a label's pairs that contain the word
    absent = np.log1p(-present)
    log_odds = np.log(present) - absent
    base = np.log(labels / labels.sum()) + absent.sum(axis=1)
    right = [
        (base + log_odds[:, [known[word] for word in words(each) if word in known]].sum(axis=1)).argmax() == each.label
        for each in test
    ]
    return float(np.mean(right))

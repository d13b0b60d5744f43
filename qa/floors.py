"""What trivial rules score: below these a model has learned nothing that matters."""

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
"""Training questions whose answers are copied, at most."""
SMOOTHED = 1.0
"""Added to every count of naive Bayes."""


def of_squad(train: Questions, questions: Questions, *, unanswerable: bool, generated: bool) -> dict[str, float]:
    """Returns the F1 of rules: the first sentence, the one that shares most words with the question, no answer ever.

    And the answer of the nearest training question, by its words and its paragraph's. Of generated questions also any
    answer of the right kind: the mean over those that the paragraph has.
    """
    rules: dict[str, Callable[[Question], str]] = {
        "first sentence": lambda each: _sentences(questions, each)[0],
        "sentence with most words of the question": lambda each: _nearest(questions, each),
    }
    answered = {name: {each.id: rule(each) for each in questions.questions} for name, rule in rules.items()}
    if unanswerable:
        answered["no answer"] = {each.id: "" for each in questions.questions}
    found = {
        name: float(np.mean(list(score(questions, answers, unanswerable=unanswerable).f1.values())))
        for name, answers in answered.items()
    }
    found[FLOOR] = _of_nearest(train, questions, unanswerable)
    return found | ({"any answer of the right kind": _right_kind(questions, unanswerable)} if generated else {})


def _of_nearest(train: Questions, questions: Questions, unanswerable: bool) -> float:
    asked = questions.some(questions.questions[:TESTED])
    known = train.questions[:COPIED]
    found = nearest(
        *word_counts([_asked(train, each) for each in known], [_asked(asked, each) for each in asked.questions])
    )
    copied = [next((text for text, _ in known[number].answers), "") for number in found.tolist()]
    answers = {each.id: text for each, text in zip(asked.questions, copied, strict=True)}
    return float(np.mean(list(score(asked, answers, unanswerable=unanswerable).f1.values())))


def _asked(questions: Questions, question: Question) -> str:
    """Returns a question and its paragraph as one text, the words of the question marked."""
    return _marked(question.text, questions.contexts[question.context])


def _right_kind(questions: Questions, unanswerable: bool) -> float:
    means = []
    for each in questions.questions:
        golds = [text for text, _ in each.answers] or [""]
        candidates = world.right_kind(questions.contexts[each.context], each.text)
        scores = [max(f1(one, gold, empty_matches_empty=unanswerable) for gold in golds) for one in candidates]
        means.append(float(np.mean(scores)))
    return float(np.mean(means))


def _sentences(questions: Questions, question: Question) -> list[str]:
    return SENTENCE.split(questions.contexts[question.context].strip())


def _nearest(questions: Questions, question: Question) -> str:
    asked = set(WORD.findall(question.text.lower()))
    return max(_sentences(questions, question), key=lambda each: len(asked & set(WORD.findall(each.lower()))))


def of_pairs(train: Sequence[Pair], test: Sequence[Pair]) -> dict[str, float]:
    """Returns the accuracy of rules that were fitted on ``train``.

    The most frequent label; naive Bayes (smoothed counts) on the words of the hypothesis alone, and on those of both
    sentences, of each its own; the label of the training pair whose words differ least.
    """

    def hypothesis(each: Pair) -> set[str]:
        return set(WORD.findall(each.hypothesis.lower()))

    def both(each: Pair) -> set[str]:
        return {f"premise {word}" for word in WORD.findall(each.premise.lower())} | hypothesis(each)

    trained, labels = (np.array([each.label for each in some]) for some in (train, test))
    most = np.bincount(trained).argmax()
    known, asked = word_counts(*([_marked(each.premise, each.hypothesis) for each in some] for some in (train, test)))
    return {
        "most frequent label": float(np.mean(labels == most)),
        "words of the hypothesis alone": _bayes(train, test, hypothesis),
        "words of both": _bayes(train, test, both),
        FLOOR: label_of_nearest(known, trained, asked, labels),
    }


def _marked(marked: str, text: str) -> str:
    """Returns two texts as one, the words of the first marked."""
    return " ".join([*(f"first_{word}" for word in WORD.findall(marked)), text])


def _bayes(train: Sequence[Pair], test: Sequence[Pair], words: Callable[[Pair], set[str]]) -> float:
    known: Mapping[str, int] = {
        word: number for number, word in enumerate(sorted({word for each in train for word in words(each)}))
    }
    counts: npt.NDArray[np.float64] = np.full((len(LABELS), len(known)), SMOOTHED)
    labels = np.bincount([each.label for each in train], minlength=len(LABELS)) + SMOOTHED
    for each in train:
        counts[each.label, [known[word] for word in words(each)]] += 1
    present = counts / (labels + SMOOTHED)[:, None]  # of a label's pairs, the share that has the word
    absent = np.log1p(-present)
    lean = np.log(present) - absent
    base = np.log(labels / labels.sum()) + absent.sum(axis=1)
    right = [
        (base + lean[:, [known[word] for word in words(each) if word in known]].sum(axis=1)).argmax() == each.label
        for each in test
    ]
    return float(np.mean(right))

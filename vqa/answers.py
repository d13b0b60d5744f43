"""The answer vocabulary of a model: built from annotations, with its maximum accuracy and simple floors."""

from collections import Counter
from collections.abc import Mapping, Sequence

from seqarena.vqa.data.options import options_of
from seqarena.vqa.data.published import Annotation
from seqarena.vqa.official import accuracy, clean, normalize

LEAST = 9
"""Minimum number of questions in which an answer is the most frequent one. All published lists use 9."""


def vocabulary(annotations: Sequence[Annotation], least: int = LEAST) -> list[str]:
    """Returns the answers that are the most frequent one of at least ``least`` questions, most frequent first.

    Answers are normalised as in scoring. An answer that is only an article becomes the empty string, which published
    lists contain too (bottom-up-attention, LXMERT).
    """
    counts = Counter(normalize(clean(each.common)) for each in annotations)
    kept = [answer for answer, count in counts.items() if count >= least]
    return sorted(kept, key=lambda answer: (-counts[answer], answer))


def ceiling(annotations: Sequence[Annotation], answers: Sequence[str]) -> float:
    """Returns the accuracy of always choosing the best answer of the list."""
    scores = options_of(annotations, answers, normalized_targets=False).scores
    return float(scores.max(axis=1, initial=0.0).mean())


def priors(train: Sequence[Annotation], test: Sequence[Annotation]) -> Mapping[str, float]:
    """Returns the accuracy of the answer yes, and of the most frequent answer to each question type."""
    counts: dict[str, Counter[str]] = {}
    for each in train:
        counts.setdefault(each.question_type, Counter())[normalize(clean(each.common))] += 1
    overall = sum(counts.values(), Counter()).most_common(1)[0][0]
    likeliest = {name: some.most_common(1)[0][0] for name, some in counts.items()}
    return {
        "yes": sum(accuracy("yes", each.answers) for each in test) / len(test),
        "most frequent of its question type": sum(
            accuracy(likeliest.get(each.question_type, overall), each.answers) for each in test
        ) / len(test),
    }  # fmt: skip

"""The list of answers that a model chooses from: made of annotations, and how well it could do at best."""

from collections import Counter
from collections.abc import Mapping, Sequence

from seqarena.vqa.data.published import Annotation
from seqarena.vqa.official import accuracy, cleaned, normalized

LEAST = 9
"""Questions in which an answer must be the most frequent one, as everybody has it."""


def vocabulary(annotations: Sequence[Annotation], least: int = LEAST) -> list[str]:
    """Returns the answers that are the most frequent one of at least so many questions, most frequent first.

    Normalised as they are scored. An answer that is nothing but an article becomes the empty one, which the lists that
    go around have too (bottom-up-attention, LXMERT).
    """
    counts = Counter(normalized(cleaned(each.common)) for each in annotations)
    kept = [answer for answer, count in counts.items() if count >= least]
    return sorted(kept, key=lambda answer: (-counts[answer], answer))


def ceiling(annotations: Sequence[Annotation], answers: Sequence[str]) -> float:
    """Returns the accuracy of whoever always chooses the best answer of the list."""
    known = set(answers)
    total = 0.0
    for each in annotations:
        options = {answer for said in each.answers for answer in (cleaned(said), normalized(cleaned(said)))} & known
        total += max((accuracy(answer, each.answers) for answer in options), default=0.0)
    return total / len(annotations)


def priors(train: Sequence[Annotation], test: Sequence[Annotation]) -> Mapping[str, float]:
    """Returns what yes scores, and the most frequent answer to each type of question."""
    counts: dict[str, Counter[str]] = {}
    for each in train:
        counts.setdefault(each.question_type, Counter())[normalized(cleaned(each.common))] += 1
    overall = sum(counts.values(), Counter()).most_common(1)[0][0]
    likeliest = {name: some.most_common(1)[0][0] for name, some in counts.items()}
    return {
        "yes": sum(accuracy("yes", each.answers) for each in test) / len(test),
        "most frequent of its question type": sum(
            accuracy(likeliest.get(each.question_type, overall), each.answers) for each in test
        ) / len(test),
    }  # fmt: skip

"""What trivial rules score: below these a model has learned nothing that matters."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from common.counter import permutation
from summarization.data.files import Pair
from summarization.data.text import normalized
from summarization.rouge import METRICS, rows

LEAD = 8
"""Words of a text that are taken for its headline, as in Rush et al. 2015."""
CANDIDATES, JUDGED = 40, 200
"""Headlines that are tried on all, and the pairs on which the best is chosen."""


def floors(fitted: Sequence[Pair], test: Sequence[Pair]) -> dict[str, dict[str, float]]:
    """Returns the mean ROUGE of rules on the test pairs; rule -> metric -> score.

    The first eight words of the text; and one headline for all: of some of the headlines of the pairs it is ``fitted``
    to, and of their most frequent words, the one with the best mean ROUGE-1 there.
    """
    references = [pair.summary for pair in test]
    leads = [lead(pair.document) for pair in test]
    constant = best_constant([pair.summary for pair in fitted])
    return {
        f"first {LEAD} words": _means(leads, references),
        "best constant headline": _means([constant] * len(references), references),
    }


def lead(document: str) -> str:
    """Returns the first eight words of a text."""
    return " ".join(normalized(document).split()[:LEAD])


def best_constant(headlines: Sequence[str]) -> str:
    """Returns the headline that does best for all."""
    drawn = [headlines[at] for at in permutation(len(headlines), 0)[: CANDIDATES + JUDGED].tolist()]
    counted = Counter(word for each in headlines for word in dict.fromkeys(normalized(each).split()))
    frequent = [" ".join(word for word, _ in counted.most_common(count)) for count in (4, 8, 12)]
    candidates, judged = [*frequent, *drawn[:CANDIDATES]], drawn[-JUDGED:]
    best: str = max(candidates, key=lambda each: float(rows([each] * len(judged), judged)["rouge1"].mean()))
    return best


def _means(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    found = rows(hypotheses, references)
    return {name: float(np.mean(found[name])) for name in METRICS}

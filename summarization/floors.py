"""Floors of headline generation: ROUGE of trivial rules."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from seqarena.common.data.batches import Ragged
from seqarena.common.data.counter import permutation
from seqarena.common.data.nearest import FLOOR, Counts, nearest
from seqarena.common.data.tokenization import Tokenizer
from seqarena.summarization.data import Splits
from seqarena.summarization.data.batches import EncodedPairs
from seqarena.summarization.data.text import decode, normalized
from seqarena.summarization.rouge import METRICS, rows

LEAD = 8
"""Number of leading words used as a headline, as in Rush et al. 2015."""
CANDIDATES, JUDGED = 40, 200
"""Number of candidate headlines for the constant, and of pairs that it is chosen on."""


def floors(splits: Splits, tokenizer: Tokenizer) -> dict[str, dict[str, float]]:
    """Returns the mean ROUGE of trivial rules on the test pairs; rule -> metric -> score.

    The rules: the first eight words of the text; the best constant headline, chosen by ROUGE-1 on validation pairs
    among some of their headlines and their most frequent words; the headline of the nearest training text.
    """
    fitted, test = splits.validation.pairs, splits.test.pairs
    copied = nearest_headlines(splits.train, splits.test.encoded, tokenizer)
    references = [pair.summary for pair in test]
    leads = [lead(pair.document) for pair in test]
    constant = best_constant([pair.summary for pair in fitted])
    return {
        f"first {LEAD} words": _means(leads, references),
        "best constant headline": _means([constant] * len(references), references),
        FLOOR: _means(copied, references[: len(copied)]),
    }


def nearest_headlines(train: EncodedPairs, test: EncodedPairs, tokenizer: Tokenizer) -> list[str]:
    """Returns, for the first test texts, the headline of the training text with the nearest token counts."""
    found = nearest(_counts(train.sources, len(tokenizer)), _counts(test.sources, len(tokenizer)))
    return [decode(train.targets[number].tolist(), tokenizer) for number in found.tolist()]


def _counts(texts: Ragged, vocabulary: int) -> Counts:
    """Returns the number of occurrences of each token in each text, (texts, tokens)."""
    from scipy import sparse  # noqa: PLC0415  # slow to import; only floors need it

    found = sparse.csr_matrix(
        (np.ones(len(texts.tokens), dtype=np.int64), texts.tokens.astype(np.int64), texts.offsets),
        shape=(len(texts), vocabulary),
    )
    found.sum_duplicates()
    return found


def lead(document: str) -> str:
    """Returns the first eight words of a text."""
    return " ".join(normalized(document).split()[:LEAD])


def best_constant(headlines: Sequence[str]) -> str:
    """Returns the headline with the best mean ROUGE-1, used for all texts."""
    drawn = [headlines[at] for at in permutation(len(headlines), 0)[: CANDIDATES + JUDGED].tolist()]
    counted = Counter(word for each in headlines for word in dict.fromkeys(normalized(each).split()))
    frequent = [" ".join(word for word, _ in counted.most_common(count)) for count in (4, 8, 12)]
    candidates, judged = [*frequent, *drawn[:CANDIDATES]], drawn[-JUDGED:]
    best: str = max(candidates, key=lambda each: float(rows([each] * len(judged), judged)["rouge1"].mean()))
    return best


def _means(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    found = rows(hypotheses, references)
    return {name: float(np.mean(found[name])) for name in METRICS}

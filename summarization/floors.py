"""What trivial rules score: below these a model has learned nothing that matters."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy import sparse

from seqarena.common.data.batches import Ragged
from seqarena.common.data.counter import permutation
from seqarena.common.data.nearest import FLOOR, nearest
from seqarena.common.data.tokenization import Tokenizer
from seqarena.summarization.data import Splits
from seqarena.summarization.data.batches import Encoded
from seqarena.summarization.data.text import decode, normalized
from seqarena.summarization.rouge import METRICS, rows

LEAD = 8
"""Words of a text that are taken for its headline, as in Rush et al. 2015."""
CANDIDATES, JUDGED = 40, 200
"""Headlines that are tried on all, and the pairs on which the best is chosen."""


def floors(splits: Splits, tokenizer: Tokenizer) -> dict[str, dict[str, float]]:
    """Returns the mean ROUGE of rules on the test pairs; rule -> metric -> score.

    The first eight words of the text; one headline for all: of some of the headlines of the validation pairs, and of
    their most frequent words, the one with the best mean ROUGE-1 there; the headline of the nearest training text.
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


def nearest_headlines(train: Encoded, test: Encoded, tokenizer: Tokenizer) -> list[str]:
    """Returns the headline of the training text nearest to each of the first test texts, by how often tokens occur."""
    found = nearest(_counts(train.sources, len(tokenizer)), _counts(test.sources, len(tokenizer)))
    return [decode(train.targets[number].tolist(), tokenizer) for number in found.tolist()]


def _counts(texts: Ragged, vocabulary: int) -> sparse.csr_matrix:
    """Returns how often each token is in each text, (texts, tokens)."""
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

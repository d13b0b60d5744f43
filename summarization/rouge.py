"""ROUGE of headlines as in published results, its confidence intervals, and further statistics.

The score is the mean F1 over all rows. Text is lower-cased, only letters and digits count, and words are stemmed as
in ROUGE-1.5.5 with ``-m``. The package ``rouge-score`` counts the matches; its own stemmer lacks irregular forms
(*grew*, *fell*) and scores about 0.1 points lower on Gigaword's test pairs.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from seqarena.common.errors import BadDataError
from seqarena.common.runs.metrics import Array
from seqarena.summarization.data.text import UNKNOWN, normalized, without_unknown
from seqarena.summarization.stemming import stem

METRICS = ("rouge1", "rouge2", "rougeL")
Stemming = Literal["ROUGE-1.5.5", "rouge-score"]
"""Source of the stems: the Perl script, or the Python package, which lacks irregular forms."""
RESAMPLES = 1_000
WORD = re.compile(r"[a-z0-9]+")


class _Stems:
    """Tokenizer of ``rouge-score`` that returns the stems compared by ROUGE-1.5.5 with ``-m``."""

    def tokenize(self, text: str) -> list[str]:
        return [stem(word) for word in WORD.findall(text.lower())]


def rows(hypotheses: Sequence[str], references: Sequence[str], stemming: Stemming = "ROUGE-1.5.5") -> dict[str, Array]:
    """Returns F1 of each row by metric, in 0 to 1. Empty hypotheses score 0; unknown words count as words.

    Raises:
        BadDataError: different numbers of hypotheses and references, or none.
    """
    from rouge_score.rouge_scorer import RougeScorer  # noqa: PLC0415  # takes a second to import, with nltk

    if not hypotheses or len(hypotheses) != len(references):
        raise BadDataError(f"expected as many hypotheses as references, found {len(hypotheses)} and {len(references)}")
    scorer = RougeScorer(list(METRICS), use_stemmer=True, tokenizer=_Stems() if stemming == "ROUGE-1.5.5" else None)
    pairs = zip(hypotheses, references, strict=True)
    found = [scorer.score(normalized(reference), normalized(hypothesis)) for hypothesis, reference in pairs]
    return {name: np.array([each[name].fmeasure for each in found], dtype=np.float64) for name in METRICS}


def drop_unknown(hypotheses: Sequence[str]) -> list[str]:
    """Returns hypotheses with their unknown words removed."""
    return [without_unknown(each) for each in hypotheses]


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean over rows with its 95 % interval, times 100."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"


def intervals(scores: Mapping[str, Array], seed: int = 0) -> dict[str, Interval]:
    """Returns each metric's mean with its percentile bootstrap interval over rows; deterministic given the seed."""
    draws = np.random.default_rng(seed)
    table = np.stack([scores[name] for name in METRICS], axis=1)
    count = len(table)
    means = np.empty((RESAMPLES, len(METRICS)))
    for sample in range(RESAMPLES):
        times = np.bincount(draws.integers(count, size=count), minlength=count)
        means[sample] = times @ table / count
    low, high = 100 * np.quantile(means, [0.025, 0.975], axis=0)
    mean = 100 * table.mean(axis=0)
    return {
        name: Interval(mean=float(mean[at]), low=float(low[at]), high=float(high[at]))
        for at, name in enumerate(METRICS)
    }


def text_statistics(
    hypotheses: Sequence[str], references: Sequence[str], documents: Sequence[str] | None = None
) -> dict[str, float]:
    """Returns statistics of hypotheses that ROUGE does not show.

    length_ratio: words of all hypotheses over words of all references. unknown: fraction of words that are unknown.
    with_unknown, empty: fractions of rows. repeats: fraction of words that occurred earlier in their row. novel_1,
    novel_2 (given ``documents``): fractions of words and word pairs that are not in the text. Words are runs of
    letters and digits, as in ROUGE but not stemmed, so that a tokenizer's spacing does not matter.
    """
    generated, expected = ([_words(each) for each in some] for some in (hypotheses, references))
    words = sum(map(len, generated))
    marker = UNKNOWN.lower()
    found = {
        "length_ratio": words / max(sum(map(len, expected)), 1),
        "unknown": sum(row.count(marker) for row in generated) / max(words, 1),
        "with_unknown": sum(marker in row for row in generated) / len(generated),
        "empty": sum(not each.strip() for each in hypotheses) / len(generated),
        "repeats": sum(len(row) - len(set(row)) for row in generated) / max(words, 1),
    }
    if documents is not None:
        texts = [_words(each) for each in documents]
        for size in (1, 2):
            pairs = [(_runs(row, size), set(_runs(text, size))) for row, text in zip(generated, texts, strict=True)]
            new = sum(run not in there for runs, there in pairs for run in runs)
            found[f"novel_{size}"] = new / max(sum(len(runs) for runs, _ in pairs), 1)
    return found


def _words(text: str) -> list[str]:
    return WORD.findall(normalized(text).lower())


def _runs(words: Sequence[str], size: int) -> list[tuple[str, ...]]:
    return list(zip(*(words[first:] for first in range(size)), strict=False))

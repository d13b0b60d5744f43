"""Headlines against their references: ROUGE as published figures have it, its uncertainty, and what else to know.

The mean of rows' F1, all rows; of lower-case text in which letters and digits alone count, stemmed as ROUGE-1.5.5 does
with ``-m``. The package ``rouge-score`` counts matches; its own stemmer knows no irregular forms (*grew*, *fell*), and
on Gigaword's test pairs scores about 0.1 points less.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenizers import Tokenizer

from seqarena.common.errors import BadDataError
from seqarena.common.runs.metrics import Array
from seqarena.summarization.data.text import UNKNOWN, normalized, without_unknown
from seqarena.summarization.stemming import stem

METRICS = ("rouge1", "rouge2", "rougeL")
Stemming = Literal["ROUGE-1.5.5", "rouge-score"]
"""Source of the stems: the Perl script, or the Python package, which has no irregular forms."""
RESAMPLES = 1_000
WORD = re.compile(r"[a-z0-9]+")


class _Stems(Tokenizer):  # type: ignore[misc]
    """Words of a text as ROUGE-1.5.5 compares them with ``-m``."""

    def tokenize(self, text: str) -> list[str]:
        return [stem(word) for word in WORD.findall(text.lower())]


def rows(hypotheses: Sequence[str], references: Sequence[str], stemming: Stemming = "ROUGE-1.5.5") -> dict[str, Array]:
    """Returns F1 of each row by metric, from 0 to 1; an empty hypothesis scores 0, an unknown word counts as a word.

    Raises:
        BadDataError: not as many hypotheses as references, or none.
    """
    if not hypotheses or len(hypotheses) != len(references):
        raise BadDataError(f"expected as many hypotheses as references, found {len(hypotheses)} and {len(references)}")
    scorer = RougeScorer(list(METRICS), use_stemmer=True, tokenizer=_Stems() if stemming == "ROUGE-1.5.5" else None)
    pairs = zip(hypotheses, references, strict=True)
    found = [scorer.score(normalized(reference), normalized(hypothesis)) for hypothesis, reference in pairs]
    return {name: np.array([each[name].fmeasure for each in found], dtype=np.float64) for name in METRICS}


def dropped(hypotheses: Sequence[str]) -> list[str]:
    """Returns hypotheses without their unknown words: one of the three ways to treat them."""
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
    """Returns each metric's mean with its percentile bootstrap interval over rows; the same for the same seed."""
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


def described(
    hypotheses: Sequence[str], references: Sequence[str], documents: Sequence[str] | None = None
) -> dict[str, float]:
    """Returns what scores do not say of hypotheses.

    length_ratio: words of all hypotheses over those of all references; unknown: share of words that are unknown;
    with_unknown, empty: shares of rows; repeats: share of words that stand earlier in their row; with ``documents``
    novel_1 and novel_2: shares of words and pairs of words that the text has not. Words are what ROUGE compares,
    letters and digits, here without stemming: how a tokenizer spaced them out changes nothing.
    """
    said, told = ([_words(each) for each in some] for some in (hypotheses, references))
    words = sum(map(len, said))
    marker = UNKNOWN.lower()
    found = {
        "length_ratio": words / max(sum(map(len, told)), 1),
        "unknown": sum(row.count(marker) for row in said) / max(words, 1),
        "with_unknown": sum(marker in row for row in said) / len(said),
        "empty": sum(not each.strip() for each in hypotheses) / len(said),
        "repeats": sum(len(row) - len(set(row)) for row in said) / max(words, 1),
    }
    if documents is not None:
        texts = [_words(each) for each in documents]
        for size in (1, 2):
            pairs = [(_runs(row, size), set(_runs(text, size))) for row, text in zip(said, texts, strict=True)]
            new = sum(run not in there for runs, there in pairs for run in runs)
            found[f"novel_{size}"] = new / max(sum(len(runs) for runs, _ in pairs), 1)
    return found


def _words(text: str) -> list[str]:
    return WORD.findall(normalized(text).lower())


def _runs(words: Sequence[str], size: int) -> list[tuple[str, ...]]:
    return list(zip(*(words[first:] for first in range(size)), strict=False))

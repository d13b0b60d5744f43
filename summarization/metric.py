"""ROUGE of headlines as a metric of the evaluate library; it runs offline and is deterministic."""

from typing import Any

import datasets
import evaluate  # type: ignore[import-untyped]

from seqarena.summarization.rouge import intervals, rows


class RougeMetric(evaluate.Metric):  # type: ignore[misc]
    """ROUGE-1, ROUGE-2 and ROUGE-L F1 times 100, with the stemming of ROUGE-1.5.5's option ``-m``.

    Predictions and references: headlines. Returns rouge1, rouge2, rougeL, and for each ``_low`` and ``_high``, the 95
    % interval over rows. The library's own ``rouge`` does not stem, and returns the median of an unseeded bootstrap.
    """

    def _info(self) -> evaluate.MetricInfo:
        features = {"predictions": datasets.Value("string"), "references": datasets.Value("string")}
        return evaluate.MetricInfo(description=str(__doc__), citation="Lin 2004", features=datasets.Features(features))

    def _compute(self, *, predictions: list[str], references: list[str], seed: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, each in intervals(rows(predictions, references), seed).items():
            found |= {name: each.mean, f"{name}_low": each.low, f"{name}_high": each.high}
        return found

"""VQA's official accuracy as a metric of the evaluate library. It downloads nothing."""

from typing import Any

import datasets
import evaluate  # type: ignore[import-untyped]

from seqarena.common.errors import WrongUseError, require_distinct
from seqarena.vqa.data.published import Annotation
from seqarena.vqa.score import RULES, score


class VqaMetric(evaluate.Metric):  # type: ignore[misc]
    """Accuracy of VQA v2: ``VqaMetric("official")``, or ``VqaMetric("legacy")`` for the rules before March 2021.

    Predictions have question_id and answer. References have question_id, answers (strings), question_type and
    answer_type. The result has overall, per_answer_type and per_question_type, in per cent.
    """

    def __init__(self, config_name: str = "official", **settings: Any) -> None:
        if config_name not in RULES:
            raise WrongUseError(f"expected {' or '.join(RULES)}, found {config_name}")
        super().__init__(config_name=config_name, **settings)

    def _info(self) -> evaluate.MetricInfo:
        text, number = datasets.Value("string"), datasets.Value("int64")
        features = {
            "predictions": {"question_id": number, "answer": text},
            "references": {"question_id": number, "answers": [text], "question_type": text, "answer_type": text},
        }
        return evaluate.MetricInfo(
            description=str(__doc__), citation="Goyal et al. 2017", features=datasets.Features(features)
        )

    def _compute(self, *, predictions: list[dict[str, Any]], references: list[dict[str, Any]]) -> dict[str, Any]:
        ids = require_distinct([each["question_id"] for each in references], "references")
        predicted = require_distinct([each["question_id"] for each in predictions], "predictions")
        without = [each["question_id"] for each in references if not each["answers"]]
        if ids != predicted or not ids or without:
            raise WrongUseError(
                "expected references with answers, and a prediction for each; "
                f"found {len(ids):,} references, {len(without):,} of them without answers and "
                f"{len(ids - predicted):,} without a prediction, and {len(predicted - ids):,} other predictions"
            )
        answers = {each["question_id"]: each["answer"] for each in predictions}
        known = [
            Annotation(
                id=each["question_id"], question_type=each["question_type"], answer_type=each["answer_type"],
                answers=tuple(each["answers"]), common=max(each["answers"], key=each["answers"].count),
            )
            for each in references
        ]  # fmt: skip
        return score(answers, known, RULES[self.config_name])

"""The official scores of SQuAD as a metric of the evaluate library. It downloads nothing."""

import math
from typing import Any

import datasets
import evaluate  # type: ignore[import-untyped]

from seqarena.common.errors import WrongUseError, require_distinct
from seqarena.qa.data.squad import Question, Questions
from seqarena.qa.official import evaluate as official
from seqarena.qa.run import VERSIONS


class SquadMetric(evaluate.Metric):  # type: ignore[misc]
    """Exact match and F1 of SQuAD: ``SquadMetric("squad1")`` or ``SquadMetric("squad2")``.

    Predictions have id, prediction_text, and for squad2 no_answer_probability. References have id and answers {text,
    answer_start}. The result has exact and f1 in per cent, total, and for squad2 also the scores of answerable and
    unanswerable questions and of the best thresholds.
    """

    def __init__(self, config_name: str = "squad2", **settings: Any) -> None:
        if config_name not in VERSIONS:
            raise WrongUseError(f"expected {' or '.join(VERSIONS)}, found {config_name}")
        super().__init__(config_name=config_name, **settings)

    def _info(self) -> evaluate.MetricInfo:
        prediction = {"id": datasets.Value("string"), "prediction_text": datasets.Value("string")}
        if self.config_name == "squad2":
            prediction["no_answer_probability"] = datasets.Value("float64")
        answers = {"text": [datasets.Value("string")], "answer_start": [datasets.Value("int32")]}
        features = {"predictions": prediction, "references": {"id": datasets.Value("string"), "answers": answers}}
        return evaluate.MetricInfo(
            description=str(__doc__), citation="Rajpurkar et al. 2016, 2018", features=datasets.Features(features)
        )

    def _compute(
        self, *, predictions: list[dict[str, Any]], references: list[dict[str, Any]], no_answer_threshold: float = 1.0
    ) -> dict[str, float]:
        version = VERSIONS[self.config_name]
        ids = require_distinct([each["id"] for each in references], "references")
        require_distinct([each["id"] for each in predictions], "predictions")
        without = [each["id"] for each in references if not each["answers"]["text"]]
        if version == "1.1" and without:
            raise WrongUseError(f"references: expected answers to each question of squad1, {without[0]} has none")
        wrong = [each["id"] for each in predictions if not math.isfinite(each.get("no_answer_probability", 0.0))]
        if not ids or wrong:
            found = f"found none for {wrong[0]}" if wrong else "found no references"
            raise WrongUseError(f"expected references, and a finite no_answer_probability for each; {found}")
        texts = {each["id"]: each["prediction_text"] for each in predictions}
        odds = {each["id"]: each["no_answer_probability"] for each in predictions} if version == "2.0" else None
        return official(_questions(references), texts, version, odds, no_answer_threshold)


def _questions(references: list[dict[str, Any]]) -> Questions:
    """Returns the questions of references, on an empty paragraph."""
    questions = [
        Question(
            id=each["id"], text="", context=0,
            answers=tuple(zip(each["answers"]["text"], each["answers"]["answer_start"], strict=True)),
        )
        for each in references
    ]  # fmt: skip
    return Questions(contexts=("",), questions=tuple(questions), source="references")

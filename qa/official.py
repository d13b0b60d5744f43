"""Scores any file of predictions by the rules of SQuAD's official scripts: ``seqarena qa evaluate squad1|squad2``."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seqarena.common.data.readers import read_json
from seqarena.common.errors import BadDataError, WrongUseError, look_up
from seqarena.common.parser import Parser
from seqarena.qa.data.squad import Questions, read
from seqarena.qa.evaluator import ANSWERS, PREDICTIONS
from seqarena.qa.run import VERSIONS
from seqarena.qa.scoring import score, summary_one, summary_two


def parser() -> Parser:
    """Returns the parser of ``seqarena qa evaluate``."""
    made = Parser(prog="seqarena qa evaluate", description=__doc__)
    made.add_argument("task", help="squad1 or squad2: the rules to score by")
    made.add_argument("--predictions", type=Path, required=True, help="JSON: question id -> text, empty for no answer")
    made.add_argument(
        "--gold", type=Path, required=True, help="file of questions with answers, such as dev-v1.1.json, dev-v2.0.json"
    )
    made.add_argument(
        "--null-odds", type=Path,
        help="JSON: question id -> odds of no answer (squad2); use a run's null_odds.json with its answers.json",
    )  # fmt: skip
    made.add_argument(
        "--threshold", type=float, default=1.0,
        help="questions with odds above this count as unanswered (default: 1.0, as in the official script)",
    )  # fmt: skip
    made.add_argument("--json", action="store_true", help="print one JSON object")
    return made


def evaluate(
    questions: Questions, predictions: Mapping[str, str], version: str, null_odds: Mapping[str, float] | None,
    threshold: float,
) -> dict[str, float]:  # fmt: skip
    """Returns exact and f1 in per cent, total, and for 2.0 those of answerable and unanswerable questions."""
    unanswerable = version == "2.0"
    scores = score(questions, predictions, unanswerable=unanswerable)
    if not unanswerable:
        return summary_one(questions, scores)
    return summary_two(questions, scores, predictions, null_odds, threshold)


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena qa evaluate`` and returns its exit code."""
    options = parser().parse_args(arguments)
    if math.isnan(options.threshold):
        raise WrongUseError("--threshold: expected a number, found nan")
    version = look_up(VERSIONS, options.task, "SQuAD task")
    if version == "1.1" and (options.null_odds is not None or options.threshold != parser().get_default("threshold")):
        raise WrongUseError("--null-odds and --threshold apply to unanswerable questions only: use evaluate squad2")
    questions = read(options.gold, "2.0" if version == "2.0" else "1.1", "score")
    if version == "2.0" and all(each.answers for each in questions.questions):
        print(f"{options.gold}: every question has an answer; for SQuAD 1.1 use evaluate squad1", file=sys.stderr)
    predictions = _read_object(options.predictions, str, "text")
    odds = None
    if options.null_odds is not None:
        if options.predictions.name == PREDICTIONS and options.predictions.with_name(ANSWERS).exists():
            raise WrongUseError(
                f"{options.predictions}: the run's own threshold has already emptied these predictions; to apply "
                f"--null-odds, use --predictions {options.predictions.with_name(ANSWERS)}"
            )
        odds = _finite(_read_object(options.null_odds, (int, float), "a number"), options.null_odds)
    ids = {each.id for each in questions.questions}
    if not ids & set(predictions):
        raise BadDataError(f"{options.predictions}: expected ids of questions in {options.gold}, found none of them")
    if odds is not None and (without := set(predictions) & ids - set(odds)):
        raise BadDataError(
            f"{options.null_odds}: expected odds for every prediction, {len(without):,} have none, such as "
            f"{min(without)}"
        )
    found = evaluate(questions, predictions, version, odds, options.threshold)
    missing, more = len(ids - set(predictions)), len(set(predictions) - ids)
    if options.json:
        print(json.dumps(found | {"missing": missing}))
        return 0
    print_scores(found)
    if missing:
        print(f"{missing:,} questions have no prediction: {'skipped' if version == '2.0' else 'counted as wrong'}")
    if more:
        print(f"{more:,} predictions are for other questions: skipped")
    return 0


def print_scores(scores: Mapping[str, float]) -> None:
    """Prints one score per line. Thresholds are printed in full, because rounding would change their effect."""
    for name, value in scores.items():
        exact = name.endswith(("total", "_thresh"))
        print(f"{name:<20} {value:,}" if exact else f"{name:<20} {value:.4f}")


def _read_object(path: Path, kind: type | tuple[type, ...], what: str) -> dict[str, Any]:
    values = read_json(path)
    if not isinstance(values, dict):
        raise BadDataError(f"{path}: expected an object of question id -> {what}, found {type(values).__name__}")
    wrong = next((name for name, value in values.items() if not isinstance(value, kind)), None)
    if wrong is not None:
        raise BadDataError(f"{path}: question {wrong!r}: expected {what}, found {type(values[wrong]).__name__}")
    return values


def _finite(values: Mapping[str, Any], path: Path) -> dict[str, float]:
    try:
        numbers = {name: float(value) for name, value in values.items()}
    except OverflowError as error:
        raise BadDataError(f"{path}: {error}") from error
    wrong = next((name for name, value in numbers.items() if not math.isfinite(value)), None)
    if wrong is not None:
        raise BadDataError(f"{path}: question {wrong!r}: expected a finite number, found {numbers[wrong]}")
    return numbers

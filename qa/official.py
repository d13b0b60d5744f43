"""Scores any predictions file as the official scripts of SQuAD do: ``seqarena qa evaluate squad1|squad2``."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seqarena.common.data.readers import read_json
from seqarena.common.errors import BadDataError, WrongUseError, look_up
from seqarena.common.runs.cli import Parser
from seqarena.qa.data.squad import Questions, read
from seqarena.qa.evaluator import ANSWERS, PREDICTIONS
from seqarena.qa.run import VERSIONS
from seqarena.qa.scoring import score, summary_one, summary_two


def parser() -> Parser:
    """Returns the parser of ``seqarena qa evaluate``."""
    made = Parser(prog="seqarena qa evaluate", description=__doc__)
    made.add_argument("task", help="squad1 or squad2: whose rules")
    made.add_argument("--predictions", type=Path, required=True, help="JSON: question id -> text, empty for no answer")
    made.add_argument("--gold", type=Path, required=True, help="the questions: dev-v1.1.json, dev-v2.0.json")
    made.add_argument(
        "--null-odds", type=Path,
        help="JSON: question id -> odds of no answer (squad2); with a run's null_odds.json goes its answers.json",
    )  # fmt: skip
    made.add_argument(
        "--threshold", type=float, default=1.0, help="odds above which no answer counts (default: 1.0, as theirs)"
    )
    made.add_argument("--json", action="store_true", help="print one JSON object")
    return made


def evaluate(
    questions: Questions, predictions: Mapping[str, str], version: str, null_odds: Mapping[str, float] | None,
    threshold: float,
) -> dict[str, float]:  # fmt: skip
    """Returns exact, f1, total, and of 2.0 the parts with and without answers; in per cent, as the official scripts."""
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
        raise WrongUseError("--null-odds and --threshold are about questions without an answer: evaluate squad2")
    questions = read(options.gold, "2.0" if version == "2.0" else "1.1", "score")
    if version == "2.0" and all(each.answers for each in questions.questions):
        print(f"{options.gold}: every question has an answer; SQuAD 1.1 is scored by evaluate squad1", file=sys.stderr)
    predictions = _of(options.predictions, str, "text")
    odds = None
    if options.null_odds is not None:
        if options.predictions.name == PREDICTIONS and options.predictions.with_name(ANSWERS).exists():
            raise WrongUseError(
                f"{options.predictions}: a run's predictions are empty above its own threshold already; no other can "
                f"be tried on them: --predictions {options.predictions.with_name(ANSWERS)}"
            )
        odds = _finite(_of(options.null_odds, (int, float), "a number"), options.null_odds)
    ids = {each.id for each in questions.questions}
    if not ids & set(predictions):
        raise BadDataError(f"{options.predictions}: no prediction is for a question of {options.gold}")
    if odds is not None and (without := set(predictions) & ids - set(odds)):
        raise BadDataError(f"{options.null_odds}: {len(without):,} predictions have no odds, such as {min(without)}")
    found = evaluate(questions, predictions, version, odds, options.threshold)
    missing, more = len(ids - set(predictions)), len(set(predictions) - ids)
    if options.json:
        print(json.dumps(found | {"missing": missing}))
        return 0
    printed(found)
    if missing:
        print(f"{missing:,} questions have no prediction: {'left out' if version == '2.0' else 'they count as wrong'}")
    if more:
        print(f"{more:,} predictions are for other questions: left out")
    return 0


def printed(scores: Mapping[str, float]) -> None:
    """Prints scores, one a line; thresholds in full, for a rounded one would be another."""
    for name, value in scores.items():
        exact = name.endswith(("total", "_thresh"))
        print(f"{name:<20} {value:,}" if exact else f"{name:<20} {value:.4f}")


def _of(path: Path, kind: type | tuple[type, ...], what: str) -> dict[str, Any]:
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

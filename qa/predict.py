"""Predicts answers for a file with a finished run, and scores them if gold answers exist: ``seqarena qa predict``."""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import nn

from seqarena.common.data.tokenization import Tokenizer, load_from_run
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.files import write_atomically
from seqarena.common.parser import Parser
from seqarena.common.runs.external import add_code_option
from seqarena.common.runs.metrics import accuracy
from seqarena.common.runs.package import VOCABULARY, Evaluation
from seqarena.common.runs.trained import TrainedRun, changed_run, read_trained, require_empty
from seqarena.common.training.processes import Accelerator
from seqarena.common.training.runtime import make_accelerator
from seqarena.qa.data import mnli, squad
from seqarena.qa.data.mnli import LABELS, UNLABELLED, Mnli
from seqarena.qa.data.pairs import encode
from seqarena.qa.data.squad import Squad
from seqarena.qa.data.windows import windows_of
from seqarena.qa.evaluator import Answers, classify, predict_answers
from seqarena.qa.model import PairClassifier, Reader
from seqarena.qa.official import evaluate, print_scores
from seqarena.qa.run import Run
from seqarena.qa.tasks import TASKS

PROG = "seqarena qa predict"
FREE = ("data.null_threshold", "data.n_best", "data.answer_length", "data.windows")
"""Fields that may differ from the run's: they only affect the choice of answers."""
LABEL_TABLE = "predictions.tsv"
"""Table of the index and label of each pair, in the format of GLUE's server."""


def parser() -> Parser:
    """Returns the parser of ``seqarena qa predict``."""
    made = Parser(
        prog=PROG,
        description=f"{__doc__}\nFor SQuAD these options change the choice of answers: --data.null-threshold, "
        "--data.n-best, --data.answer-length, --data.windows.",
    )
    made.add_argument("run", type=Path, help=f"directory of a finished run of {', '.join(TASKS)}")
    add_code_option(made)
    made.add_argument("--file", type=Path, required=True, help="file of questions or pairs, with or without answers, "
                      "in any format that the task reads")  # fmt: skip
    made.add_argument("--out", type=Path, required=True, help="folder for the predictions")
    made.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    return made


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena qa predict`` and returns its exit code."""
    options, fields = parser().parse_known_args(arguments)
    trained = read_trained(options.run, Run, "qa", tuple(TASKS), code=options.code)
    data = changed_run(trained.run, fields, FREE, PROG).data
    if not options.file.exists():
        raise WrongUseError(f"--file {options.file} does not exist; expected a file of questions or pairs")
    require_empty(options.out)
    tokenizer = load_from_run(options.run / VOCABULARY)
    accelerator = make_accelerator(trained.run.train.precision)
    made = (
        _predict_questions(trained, data, tokenizer, options.file, options.out, accelerator)
        if isinstance(data, Squad)
        else _predict_pairs(trained, data, tokenizer, options.file, options.out, accelerator)
    )
    if not accelerator.is_main_process:
        return 0
    count, scores = made
    print(f"{options.out}: {count:,} predictions for {options.file}, with the weights of step {trained.step:,}",
          file=sys.stderr)  # fmt: skip
    if options.json:
        print(json.dumps({"run": str(options.run), "file": str(options.file), "examples": count, "scores": scores}))
    elif not scores:
        print("not scored: the file has no gold answers")
    else:
        print_scores(scores)
    return 0


def _load_model(trained: TrainedRun[Run], model: nn.Module, accelerator: Accelerator) -> nn.Module:
    trained.load(model)
    return model.to(accelerator.device)


def _predict_questions(
    trained: TrainedRun[Run], data: Squad, tokenizer: Tokenizer, file: Path, out: Path, accelerator: Accelerator
) -> tuple[int, dict[str, float]]:
    """Writes the answers to a file's questions. Returns their number, and the official scores over those with golds."""
    questions = squad.read(file, data.version, "predict")
    model = _load_model(trained, Reader(trained.run.model, answerable=data.unanswerable), accelerator)
    answered = predict_answers(model, windows_of(questions, data, tokenizer, all_windows=False), accelerator)
    if any(math.isnan(each.null_odds) for each in answered.values()):
        raise BadDataError(f"{file}: the outputs of the run's model are not finite for these questions")
    if accelerator.is_main_process:
        threshold = data.null_threshold if data.unanswerable else None
        nothing = Evaluation(metrics={}, examples=[])
        Answers(evaluation=nothing, answered=answered, threshold=threshold).write(out)
    golds = questions.some(each for each in questions.questions if each.has_gold)
    if not any(each.answers for each in golds.questions):  # a file without answers may have an empty list of each
        return len(questions), {}
    texts = {each.id: answered[each.id].text for each in golds.questions}
    odds = {each.id: answered[each.id].null_odds for each in golds.questions} if data.unanswerable else None
    return len(questions), evaluate(golds, texts, data.version, odds, data.null_threshold)


def _predict_pairs(
    trained: TrainedRun[Run], data: object, tokenizer: Tokenizer, file: Path, out: Path, accelerator: Accelerator
) -> tuple[int, dict[str, float]]:
    """Writes the labels of a file's pairs. Returns their number, and the accuracy (%) over the labelled pairs."""
    assert isinstance(data, Mnli)
    pairs = encode(mnli.read(file, labelled=False), tokenizer, data.length)
    model = _load_model(trained, PairClassifier(trained.run.model, len(LABELS)), accelerator)
    guesses, _ = classify(model, pairs, accelerator)
    if accelerator.is_main_process:
        rows = "".join(f"{number}\t{LABELS[guess]}\n" for number, guess in enumerate(guesses))
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / LABEL_TABLE, lambda target: target.write(f"index\tprediction\n{rows}".encode()))
    known = pairs.labels != UNLABELLED
    if not known.any():
        return len(pairs), {}
    right = accuracy(np.array(guesses)[known], pairs.labels[known])
    return len(pairs), {"accuracy": 100 * float(right.mean()), "total": len(right)}

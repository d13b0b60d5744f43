"""Scores any answers as VQA v2's server does: ``seqarena vqa evaluate``; and says what a list of answers is worth."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seqarena.common.errors import BadDataError, WrongUseError, look_up
from seqarena.common.files import write_json
from seqarena.common.runs.cli import Parser
from seqarena.vqa.answers import LEAST, ceiling, priors, vocabulary
from seqarena.vqa.data.published import (
    Annotation,
    paired,
    read_annotations,
    read_answers,
    read_pairs,
    read_questions,
    read_submission,
    require_complete,
)
from seqarena.vqa.official import Rules, accuracy, rounded

RULES: Mapping[str, Rules] = {"official": "official", "legacy": "legacy"}


def score(answers: Mapping[int, str], annotations: Sequence[Annotation], rules: Rules = "official") -> dict[str, Any]:
    """Returns overall, per_answer_type and per_question_type in per cent, two digits, as the server rounds."""
    found = {each.id: accuracy(answers[each.id], each.answers, rules) for each in annotations}
    types = {
        f"per_{kind}": {
            name: rounded([found[each.id] for each in annotations if getattr(each, kind) == name])
            for name in sorted({getattr(each, kind) for each in annotations} - {""})
        }
        for kind in ("answer_type", "question_type")
    }
    return {"overall": rounded(list(found.values())), **types}


def consistency(
    answers: Mapping[int, str], annotations: Sequence[Annotation], pairs: Sequence[tuple[int, int]], rules: Rules
) -> float:
    """Returns the share of complementary pairs, in per cent, both of whose questions are answered at least as most do.

    A pair counts where both answers have an accuracy above a half. Pairs of other questions are left out.
    """
    found = {each.id: accuracy(answers[each.id], each.answers, rules) for each in annotations}
    known = [pair for pair in pairs if found.keys() >= set(pair)]
    if not known:
        raise BadDataError(f"none of the {len(pairs):,} pairs is about these questions")
    return rounded([float(min(found[one], found[other]) > 0.5) for one, other in known])


def evaluate_parser() -> Parser:
    """Returns the parser of ``seqarena vqa evaluate``."""
    made = Parser(prog="seqarena vqa evaluate", description=__doc__)
    made.add_argument("--answers", type=Path, required=True, help="JSON: a list of {question_id, answer}")
    made.add_argument("--annotations", type=Path, required=True, help="v2_mscoco_val2014_annotations.json")
    made.add_argument("--questions", type=Path, required=True, help="v2_OpenEnded_mscoco_val2014_questions.json")
    made.add_argument("--pairs", type=Path, help="complementary pairs: the share answered right on both pictures too")
    made.add_argument("--rules", default="official", help="official (since 2021) or legacy (before; P2's)")
    made.add_argument("--json", action="store_true", help="print one JSON object")
    return made


def evaluate(arguments: Sequence[str]) -> int:
    """Runs ``seqarena vqa evaluate`` and returns its exit code."""
    options = evaluate_parser().parse_args(arguments)
    rules = look_up(RULES, options.rules, "rules")
    questions = read_questions(options.questions)
    annotations = paired(questions, read_annotations(options.annotations), str(options.annotations))
    answers = read_submission(options.answers)
    require_complete(answers, [each.id for each in questions], str(options.answers))
    found = score(answers, annotations, rules)
    if options.pairs is not None:
        found["consistency"] = consistency(answers, annotations, read_pairs(options.pairs), rules)
    if options.json:
        print(json.dumps(found))
        return 0
    print(f"accuracy {found['overall']:.2f} on {len(annotations):,} questions, {rules} rules")
    for name, value in found["per_answer_type"].items():
        print(f"  {name:<24} {value:.2f}")
    for name, value in sorted(found["per_question_type"].items(), key=lambda item: -item[1]):
        print(f"    {name:<22} {value:.2f}")
    if "consistency" in found:
        print(f"  both of a pair right     {found['consistency']:.2f}")
    return 0


def answers_parser() -> Parser:
    """Returns the parser of ``seqarena vqa answers``."""
    made = Parser(prog="seqarena vqa answers", description=f"{answers.__doc__}")
    made.add_argument(
        "--annotations", type=Path, nargs="+", required=True, help="files the list is made of or judged on"
    )
    made.add_argument(
        "--list", type=Path, help="a list that goes around: JSON or text (default: made of the annotations)"
    )
    made.add_argument("--least", type=int, default=LEAST, help=f"questions an answer must lead (default: {LEAST})")
    made.add_argument("--out", type=Path, help="write the list there, as JSON")
    return made


def answers(arguments: Sequence[str]) -> int:
    """Makes or reads a list of answers, and prints its ceiling and what the simplest rules score."""
    options = answers_parser().parse_args(arguments)
    if options.least < 1 or (options.out is not None and not options.out.parent.is_dir()):
        raise WrongUseError("expected --least of at least 1, and --out in a folder that is there")
    annotations = [each for path in options.annotations for each in read_annotations(path)]
    if len({each.id for each in annotations}) < len(annotations):
        raise BadDataError("--annotations: a question is in two of the files")
    known = read_answers(options.list) if options.list else vocabulary(annotations, options.least)
    print(f"{len(known):,} answers, such as {', '.join(repr(each) for each in known[:5])}")
    print(f"ceiling {100 * ceiling(annotations, known):.2f} on {len(annotations):,} questions")
    for name, value in priors(annotations, annotations).items():
        print(f"  {name:<36} {100 * value:.2f}")
    if options.out is not None:
        write_json(options.out, known)
    return 0

"""Scores any system's answers by VQA v2's official rules: ``seqarena vqa evaluate``. Evaluates answer lists."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seqarena.common.errors import BadDataError, WrongUseError, look_up
from seqarena.common.files import write_json
from seqarena.common.parser import Parser
from seqarena.vqa.answers import LEAST, ceiling, priors, vocabulary
from seqarena.vqa.data.published import (
    Annotation,
    match_annotations,
    read_annotations,
    read_answers,
    read_pairs,
    read_questions,
    read_submission,
    require_complete,
)
from seqarena.vqa.official import Rules, accuracy, mean_per_cent

RULES: Mapping[str, Rules] = {"official": "official", "legacy": "legacy"}


def score(answers: Mapping[int, str], annotations: Sequence[Annotation], rules: Rules = "official") -> dict[str, Any]:
    """Returns overall, per_answer_type and per_question_type, in per cent with two digits, as on the server."""
    found = {each.id: accuracy(answers[each.id], each.answers, rules) for each in annotations}
    types = {
        f"per_{kind}": {
            name: mean_per_cent([found[each.id] for each in annotations if getattr(each, kind) == name])
            for name in sorted({getattr(each, kind) for each in annotations} - {""})
        }
        for kind in ("answer_type", "question_type")
    }
    return {"overall": mean_per_cent(list(found.values())), **types}


def consistency(
    answers: Mapping[int, str], annotations: Sequence[Annotation], pairs: Sequence[tuple[int, int]], rules: Rules
) -> float:
    """Returns the per cent of complementary pairs of which both answers have an accuracy above a half.

    Pairs with questions that have no annotation here are skipped.
    """
    found = {each.id: accuracy(answers[each.id], each.answers, rules) for each in annotations}
    known = [pair for pair in pairs if found.keys() >= set(pair)]
    if not known:
        raise BadDataError(f"expected pairs of these questions, none of the {len(pairs):,} pairs is about them")
    return mean_per_cent([float(min(found[one], found[other]) > 0.5) for one, other in known])


def evaluate_parser() -> Parser:
    """Returns the parser of ``seqarena vqa evaluate``."""
    made = Parser(prog="seqarena vqa evaluate", description=__doc__)
    made.add_argument("--answers", type=Path, required=True, help="JSON: a list of {question_id, answer}")
    made.add_argument("--annotations", type=Path, required=True, help="v2_mscoco_val2014_annotations.json")
    made.add_argument("--questions", type=Path, required=True, help="v2_OpenEnded_mscoco_val2014_questions.json")
    made.add_argument("--pairs", type=Path, help="file of complementary pairs, to report consistency too")
    made.add_argument("--rules", default="official", help="official (since March 2021) or legacy (before; for P2)")
    made.add_argument("--json", action="store_true", help="print one JSON object")
    return made


def evaluate(arguments: Sequence[str]) -> int:
    """Runs ``seqarena vqa evaluate`` and returns its exit code."""
    options = evaluate_parser().parse_args(arguments)
    rules = look_up(RULES, options.rules, "rules")
    questions = read_questions(options.questions)
    annotations = match_annotations(questions, read_annotations(options.annotations), str(options.annotations))
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
        "--annotations", type=Path, nargs="+", required=True, help="files to build the list from, or to evaluate it on"
    )
    made.add_argument(
        "--list", type=Path, help="an existing answer list, JSON or text (default: built from the annotations)"
    )
    made.add_argument(
        "--least", type=int, default=LEAST,
        help=f"minimum number of questions in which an answer is the most frequent (default: {LEAST})",
    )  # fmt: skip
    made.add_argument("--out", type=Path, help="file to write the list to, as JSON")
    return made


def answers(arguments: Sequence[str]) -> int:
    """Builds or reads an answer list, and prints its maximum accuracy and the scores of simple rules."""
    options = answers_parser().parse_args(arguments)
    if options.least < 1 or (options.out is not None and not options.out.parent.is_dir()):
        raise WrongUseError("expected --least of at least 1, and --out in an existing folder")
    annotations = [each for path in options.annotations for each in read_annotations(path)]
    if len({each.id for each in annotations}) < len(annotations):
        raise BadDataError("--annotations: expected distinct questions, found one in two of the files")
    known = read_answers(options.list) if options.list else vocabulary(annotations, options.least)
    print(f"{len(known):,} answers, such as {', '.join(repr(each) for each in known[:5])}")
    print(f"ceiling {100 * ceiling(annotations, known):.2f} on {len(annotations):,} questions")
    for name, value in priors(annotations, annotations).items():
        print(f"  {name:<36} {100 * value:.2f}")
    if options.out is not None:
        write_json(options.out, known)
    return 0

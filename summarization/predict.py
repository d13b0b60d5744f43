"""Generates headlines for other texts with a finished run, and scores them if references are given."""

import sys
from collections.abc import Sequence
from pathlib import Path

from seqarena.common.data.tokenization import load_from_run
from seqarena.common.errors import BadDataError
from seqarena.common.parser import Parser
from seqarena.common.runs.external import add_code_option
from seqarena.common.runs.package import VOCABULARY
from seqarena.common.runs.trained import changed_run, read_trained, require_empty
from seqarena.common.training.runtime import make_accelerator
from seqarena.summarization import score
from seqarena.summarization.data.layouts import Pair
from seqarena.summarization.evaluator import HYPOTHESES, generate
from seqarena.summarization.model import Summarizer
from seqarena.summarization.run import Run
from seqarena.summarization.tasks import TASKS

PROG = "seqarena summarization predict"
FREE = ("decoding.",)
"""Prefix of the fields that may differ from the run's: the search."""


def parser() -> Parser:
    """Returns the parser of ``seqarena summarization predict``."""
    made = Parser(prog=PROG, description=f"{__doc__}\nSearch settings can be set as in a run: --decoding.beam, ...")
    made.add_argument("run", type=Path, help=f"directory of a finished run of {', '.join(TASKS)}")
    add_code_option(made)
    made.add_argument("--documents", type=Path, required=True, help="texts, one per line")
    made.add_argument(
        "--references", type=Path, help="reference headlines, one per line in the same order, to score by"
    )
    made.add_argument("--out", type=Path, required=True, help="folder for the headlines")
    made.add_argument("--json", action="store_true", help="print the scores as one JSON object")
    return made


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena summarization predict`` and returns its exit code."""
    options, fields = parser().parse_known_args(arguments)
    trained = read_trained(options.run, Run, "summarization", tuple(TASKS), code=options.code)
    its = changed_run(trained.run, fields, FREE, PROG)
    require_empty(options.out)
    documents = score.lines_of(options.documents)
    has_references = options.references is not None
    references = (
        score.lines_of(options.references, (options.documents, len(documents))) if has_references else documents
    )
    tokenizer = load_from_run(options.run / VOCABULARY)
    pairs = [Pair(document=text, summary=title) for text, title in zip(documents, references, strict=True)]
    split = its.data.split(pairs, tokenizer, "predict", verbose=has_references)
    accelerator = make_accelerator(its.train.precision)
    model = Summarizer(its.model)
    trained.load(model)
    headlines = generate(model.to(accelerator.device), split, tokenizer, its.decoding, accelerator)
    if not headlines.is_finite:
        raise BadDataError(f"{options.run}: the outputs of its model are not finite for these documents")
    if not accelerator.is_main_process:
        return 0
    headlines.write(options.out)
    hypotheses = options.out / HYPOTHESES.format("")
    print(
        f"{hypotheses}: {len(documents):,} headlines, weights of step {trained.step:,}; "
        f"{headlines.unended:,} reached the maximum length without an end",
        file=sys.stderr,
    )
    if not has_references:
        return 0
    files = ["--hypotheses", hypotheses, "--references", options.references, "--documents", options.documents]
    return score.run([*map(str, files), *(["--json"] if options.json else [])])

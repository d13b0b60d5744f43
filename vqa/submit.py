"""Writes a finished run's answers to questions in the submission format of VQA's server: ``seqarena vqa submit``."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.parser import Parser
from seqarena.common.runs.external import add_code_option
from seqarena.common.runs.trained import read_trained
from seqarena.common.training.runtime import make_accelerator
from seqarena.vqa.data import Split, VqaData
from seqarena.vqa.data.detected import DetectedViews, Detector, make_views, read_detector
from seqarena.vqa.data.published import read_questions, write_submission
from seqarena.vqa.data.vqa2 import Vqa2
from seqarena.vqa.data.words import tokenize, word_ids
from seqarena.vqa.evaluator import guess
from seqarena.vqa.model import Answerer
from seqarena.vqa.run import Run
from seqarena.vqa.trainer import require_recurrent_layers


def parser() -> Parser:
    """Returns the parser of ``seqarena vqa submit``."""
    made = Parser(prog="seqarena vqa submit", description=__doc__)
    made.add_argument("--run", type=Path, required=True, help="directory of a finished run of vqa2")
    add_code_option(made)
    made.add_argument(
        "--questions", type=Path, required=True, help="v2_OpenEnded_mscoco_test2015_questions.json, plain or .gz"
    )
    made.add_argument(
        "--regions", type=Path, nargs="+", help="one folder per detector, in the run's order (default: the run's)"
    )
    made.add_argument(
        "--missing", type=int, default=0, help="maximum number of pictures without regions, per detector (default: 0)"
    )
    made.add_argument("--data-folder", type=Path, default=Path("data"), help="folder of prepared data")
    made.add_argument("--out", type=Path, required=True, help="file to write: a JSON list of one answer per question")
    return made


def submit(arguments: Sequence[str]) -> int:
    """Runs ``seqarena vqa submit`` and returns its exit code."""
    options = parser().parse_args(arguments)
    if not options.out.parent.is_dir() or options.out.is_dir():
        raise WrongUseError(f"--out {options.out}: expected a file in an existing folder")
    if options.missing < 0:
        raise WrongUseError(f"--missing: expected at least 0, found {options.missing}")
    trained = read_trained(options.run, Run, "vqa", ("vqa2",), code=options.code)
    run = trained.run
    questions = read_questions(options.questions)
    loaded = run.data.load(options.data_folder)
    if loaded.checksum != trained.data_checksum:
        raise BadDataError(
            f"{options.run} was trained on data of sha256 {trained.data_checksum}, the files now have "
            f"{loaded.checksum}: words and answers would not match the model; restore the files named in its run.json"
        )
    known = _detectors(loaded)
    given = [read_detector(each) for each in options.regions] if options.regions else known
    names, theirs = ([each.header.detector for each in some] for some in (given, known))
    if names != theirs:
        raise WrongUseError(
            f"--regions: expected the run's detectors, {', '.join(theirs)}, found regions of {', '.join(names)}"
        )
    assert isinstance(run.data, Vqa2)
    pictures, rows = np.unique([each.picture for each in questions], return_inverse=True)
    count, nothing = len(questions), np.zeros((len(questions), 1))
    split = Split(
        ids=np.array([each.id for each in questions]), pictures=rows.reshape(-1),
        words=word_ids([tokenize(each.text) for each in questions], loaded.words, run.data.length),
        options=np.full((count, 1), -1), people=nothing.astype(np.int64), scores=nothing,
        views=make_views(given, pictures, boxes=run.data.boxes, width=run.data.width, missing=options.missing),
        parts={}, groups={}, pairs=np.zeros((0, 2), dtype=np.int64),
    )  # fmt: skip
    accelerator = make_accelerator(run.train.precision)
    require_recurrent_layers(accelerator)
    model = Answerer(run.model, loaded)
    trained.load(model)
    guesses, _ = guess(model.to(accelerator.device), split, loaded.answers, accelerator)
    said = {int(id): loaded.answers[each] for id, each in zip(split.ids, guesses, strict=True)}
    write_submission(options.out, said, split.ids.tolist())
    print(f"{options.out}: {count:,} answers on {len(pictures):,} pictures, {len(set(said.values())):,} distinct")
    return 0


def _detectors(loaded: VqaData) -> Sequence[Detector]:
    views = loaded.splits["test"].views
    assert isinstance(views, DetectedViews)
    return views.detectors

"""Runs of about a minute on two CPU cores that need no download.

The model is that of Xiong et al., without dropout, on short sequences.
"""

from dataclasses import replace

from seqarena.common.runs.run import Preset
from seqarena.common.training.loop import Train
from seqarena.common.training.optim import Optim, Schedule
from seqarena.lra.data import Data
from seqarena.lra.data.book import Book, Chapters
from seqarena.lra.data.digits import Digits
from seqarena.lra.data.listops import ListOps
from seqarena.lra.data.pathfinder.small import SmallPathfinder
from seqarena.lra.presets import xiong2021
from seqarena.lra.run import Run


def short(
    task: str,
    preset: str,
    data: Data,
    *,
    positions: int,
    lr: float = 2e-3,
    steps: int = 1_000,
    batch_size: int = 64,
    eval_every: int = 200,
) -> Run:
    """Returns a run of Xiong et al.'s model with settings for few steps."""
    return Run(
        task=task,
        preset=preset,
        data=data,
        model=replace(
            xiong2021.MODEL, vocabulary=data.vocabulary, classes=data.classes, max_length=positions, dropout=0.0,
            attention_dropout=0.0,
        ),
        optim=Optim(lr=lr, clip=1.0, bounded_lr_multiplier=5.0, schedule=Schedule(shape="linear", warmup=100)),
        train=Train(steps=steps, batch_size=batch_size, eval_every=eval_every, length_pool=8),
    )  # fmt: skip


def _with_large_embeddings(run: Run) -> Run:
    """Returns the run with embeddings of the same scale as the sinusoidal positions.

    Some tasks need it to learn within a minute.
    """
    return replace(
        run,
        model=replace(run.model, positions="sinusoidal", embedding_std=1.0),
        optim=replace(run.optim, lr=1e-3),
    )


def _preset(run: Run, data_name: str, source: str, data: str, expected: str) -> Preset[Run]:
    return Preset(
        run=run, source=f"ours: {source}", expected=expected, comparable=False, data=data, data_name=data_name,
        cost="a quarter of a minute to seven minutes on one CPU core with softmax, by task",
    )  # fmt: skip


def _for_task(preset: Preset[Run], task: str, data: Data | None = None) -> Preset[Run]:
    """Returns the same run under the name of another task, which has no quick data of its own."""
    return replace(preset, run=replace(preset.run, task=task, data=data or preset.run.data))


BOOK = "the King James Bible, bundled, in the public domain (common/data/corpus)"
LISTOPS = _preset(
    short("listops", "quick", ListOps(longer_than=4, shorter_than=31, max_depth=4, max_arguments=5), positions=32),
    "short expressions",
    "expressions of 5 to 30 symbols, 4 levels, at most 5 arguments",
    "generated; expressions distinct under reordering of arguments, 96,000 / 2,000 / 2,000; no licence needed",
    "softmax 47 % (3 seeds, sd 2); root operator 24 %, nearest training expression 23 %, majority 11 %",
)
TEXT = _preset(
    short("text", "quick", Book(), positions=128, steps=800),
    "passages of the bundled book",
    "passages of 128 bytes of the bundled book: from its first half or its second?",
    f"{BOOK}; train: 80 % of its chapters; validation, test: 10 % each",
    "softmax 64.0 % (3 seeds, sd 0.3); bag of bytes 64 %, of byte pairs 69 %, nearest training text 76 %",
)
RETRIEVAL = _preset(
    _with_large_embeddings(short("retrieval", "quick", Chapters(), positions=128, steps=700)),
    "pairs of passages of the bundled book",
    "pairs of passages of 128 bytes of the bundled book: of one chapter?",
    f"{BOOK}; train: 80 % of its chapters; validation, test: 10 % each",
    "softmax 56 % (3 seeds, sd 1); majority 50 %, shared words 64 %, nearest training pair 54 %",
)
IMAGE = _preset(
    short("image", "quick", Digits(), positions=144),
    "drawn digits",
    "drawn digits of 12 x 12 pixels, with noise",
    "drawn by our generator; no digit of the same height and position is in two splits; no licence needed",
    "softmax 61 % (3 seeds, sd 4); brightness 16 %, nearest training image 30 %",
)
PATHFINDER = _preset(
    _with_large_embeddings(short("pathfinder", "quick", SmallPathfinder(), positions=196)),
    "14 x 14 pixels",
    "our generator at 14 x 14 pixels, contours of 3 dashes, no distractors; marker positions do not predict the label",
    "generated; no pair of marker positions in two splits; 16,000 / 2,000 / 2,000; no licence needed",
    "softmax 78 % (3 seeds, sd 2); majority 50 %, nearest training image 44 %",
)

QUICK = (
    LISTOPS,
    TEXT,
    replace(
        _for_task(TEXT, "text-legacy", Book(validation="test")),
        data=f"{BOOK}; train: 90 % of its chapters; validation and test: the other 10 %",
        expected="softmax 64.0 % (3 seeds, sd 0.3); bag of bytes 64 %, of byte pairs 69 %, nearest training text 77 %",
    ),
    RETRIEVAL,
    _for_task(RETRIEVAL, "retrieval-imdb"),
    IMAGE,
    PATHFINDER,
    _for_task(PATHFINDER, "pathx"),
)

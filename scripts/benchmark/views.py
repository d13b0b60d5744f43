"""How much faster batches are that read each picture once for all its questions than a picture a question, in one run.

Random features on disk, three detectors' boxes, fusion and Pythia: a training step's forward and backward, and the
reading, in alternating rounds.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import open_memmap

from common.attention import find_attention
from common.cli import Parser
from common.runtime import device_name, seed_torch
from scripts.benchmark.chosen import at_least_one
from scripts.tables import render
from vqa.data import Arrays, Loaded, Split
from vqa.data.batches import Asked, Grouped, asked
from vqa.fusion import Fusion
from vqa.model import Answerer, Model
from vqa.trainer import loss

WORDS, LENGTH, ANSWERS = 20_000, 14, 3_129
"""About as many words as VQA v2's questions have; words of a question; answers."""


def random_split(folder: Path, pictures: int, questions: int, sizes: tuple[int, int, int]) -> Split:
    """Returns a split whose features lie on disk, ``questions`` about each picture."""
    generator = np.random.default_rng(0)
    features = open_memmap(folder / "features.npy", mode="w+", dtype=np.float16, shape=(pictures, *sizes))
    for picture in range(pictures):
        features[picture] = generator.standard_normal(sizes, dtype=np.float32)
    features.flush()
    count = pictures * questions
    return Split(
        ids=np.arange(count), words=generator.integers(1, WORDS, (count, LENGTH)),
        pictures=np.arange(count) // questions, options=generator.integers(0, ANSWERS, (count, 1)),
        people=np.full((count, 1), 10), scores=np.ones((count, 1)),
        views=Arrays(
            features=np.load(folder / "features.npy", mmap_mode="r"),
            centres=generator.random((pictures, *sizes[:2], 2), dtype=np.float32),
            saw=np.zeros((pictures, sizes[0] - 1, sizes[1]), dtype=np.int64),
        ),
        parts={}, groups={}, pairs=np.zeros((0, 2), dtype=np.int64),
    )  # fmt: skip


def singly(split: Split, questions: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Asked:
    """Returns the batch with a picture of its own for each question, read anew."""
    parts = [asked(split, questions[at : at + 1], ANSWERS) for at in range(len(questions))]
    joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in ("words", "targets", "features",
                                                                                   "centres", "real")}  # fmt: skip
    return Asked(**joined, picture=torch.arange(len(questions)))


def parser() -> Parser:
    """Returns the parser of ``seqarena benchmark views``."""
    made = Parser(prog="seqarena benchmark views", description=__doc__)
    made.add_argument("--attention", default="dnas", help="the fusion's variant (default: dnas)")
    made.add_argument("--questions", type=int, default=64, help="of a batch (default: 64)")
    made.add_argument("--each", type=int, default=5, help="questions about a picture (default: 5; VQA v2: 5.4)")
    made.add_argument("--boxes", type=int, default=100, help="of each of three views (default: 100)")
    made.add_argument("--width", type=int, default=2048, help="numbers of a box (default: 2048)")
    made.add_argument("--joint-dim", type=int, default=5000, help="width of Pythia's products (default: 5000)")
    made.add_argument("--repeats", type=int, default=3, help="rounds after one that does not count (default: 3)")
    return made


def measure(options: argparse.Namespace, folder: Path) -> dict[str, list[float]]:
    """Returns the seconds of each round, grouped and singly."""
    given = vars(options)
    sizes = (3, given["boxes"], given["width"])
    split = random_split(folder, -(-given["questions"] * (given["repeats"] + 1) // given["each"]), given["each"], sizes)
    seed_torch(0)
    names = [str(number) for number in range(WORDS)]
    model = Answerer(
        Model(fusion=Fusion(), attention=find_attention(given["attention"]), joint_dim=given["joint_dim"]),
        Loaded(splits={"train": split}, answers=names[:ANSWERS], words=names, checksum=""),
    )
    order = Grouped(pictures=split.pictures, batch_size=given["questions"], seed=0)
    seconds: dict[str, list[float]] = {"grouped": [], "singly": []}
    for step in range(given["repeats"] + 1):
        losses = []
        for name, taken in seconds.items():
            started = time.perf_counter()
            batch = asked(split, order[step], ANSWERS) if name == "grouped" else singly(split, order[step])
            value = loss(model, batch)
            model.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            taken.append(time.perf_counter() - started)
            losses.append(value.item())
        assert abs(losses[0] - losses[1]) < 1e-4 * abs(losses[0]), losses  # the same questions, the same answers
    return {name: each[1:] for name, each in seconds.items()}


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena benchmark views`` and returns its exit code."""
    options = parser().parse_args(arguments)
    for name in ("questions", "each", "boxes", "width", "joint_dim", "repeats"):
        at_least_one(options, name)
    with tempfile.TemporaryDirectory() as folder:
        seconds = measure(options, Path(folder))
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    rows = [
        [name, f"{options.questions / median:.1f}", f"{medians['singly'] / median:.2f}"]
        for name, median in medians.items()
    ]
    notes = [
        f"{options.questions} questions a batch, {options.each} about a picture, 3 x {options.boxes} x {options.width} "
        f"features on disk; medians of {options.repeats} rounds; {device_name(torch.device('cpu'))}"
    ]
    print(
        render(
            f"fusion by {options.attention} and Pythia", ["batches", "questions/s", "times"], rows, notes, "terminal"
        )
    )
    return 0

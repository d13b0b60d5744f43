"""Compares batches that read each picture once for all its questions with batches that read it once per question.

A round is reading, forward and backward of a training step, with random features on disk, boxes of three detectors,
fusion and Pythia. Rounds of both alternate.
"""

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from seqarena.common.attention import find_attention
from seqarena.common.parser import Parser, at_least_one
from seqarena.common.saved_table import add_output_options, print_table
from seqarena.common.training.runtime import device_name, seed_torch
from seqarena.vqa.data import Split, VqaData
from seqarena.vqa.data.batches import PictureOrder, QuestionBatch, unread_batch
from seqarena.vqa.data.detected import DetectedViews, make_views, read_detector
from seqarena.vqa.fusion import Fusion
from seqarena.vqa.model import Answerer, Model
from seqarena.vqa.regions import PictureRegions, read_rows, write
from seqarena.vqa.trainer import loss

CPU = torch.device("cpu")
WORDS, LENGTH, ANSWERS = 20_000, 14, 3_129
"""About the number of words in VQA v2's questions; words per question; number of answers."""


def random_split(folder: Path, pictures: int, questions: int, sizes: tuple[int, int, int]) -> Split:
    """Returns a split with regions on disk, as in a run, and ``questions`` questions per picture."""
    views, boxes, width = sizes
    generator = np.random.default_rng(0)

    def found() -> Iterator[PictureRegions]:
        for picture in range(pictures):
            corners = generator.random((boxes, 2)) / 2
            yield PictureRegions(
                id=picture, size=(1, 1), boxes=np.concatenate([corners, corners + 0.5], axis=1),
                features=generator.standard_normal((boxes, width), dtype=np.float32),
            )  # fmt: skip

    detectors = []
    for view in range(views):
        path = folder / f"{view}"
        write(path, found(), detector=path.name, pictures=pictures, boxes=boxes, width=width, source="random")
        detectors.append(read_detector(path))
    count = pictures * questions
    return Split(
        ids=np.arange(count), words=generator.integers(1, WORDS, (count, LENGTH)),
        pictures=np.arange(count) // questions, options=generator.integers(0, ANSWERS, (count, 1)),
        people=np.full((count, 1), 10), scores=np.ones((count, 1)),
        views=make_views(detectors, np.arange(pictures), boxes=boxes, width=width, missing=0),
        parts={}, groups={}, pairs=np.zeros((0, 2), dtype=np.int64),
    )  # fmt: skip


def memory_growth(split: Split, *, mapped: bool) -> float:
    """Returns the growth of resident memory in MiB after all features were read, picture by picture."""
    assert isinstance(split.views, DetectedViews)
    before = _resident()
    for detector in split.views.detectors:
        for part in detector.parts:
            for row in range(len(part.features)):
                if mapped:
                    found = part.features[row]
                else:
                    found = np.empty_like(part.features[row])
                    read_rows(part.features, np.array([row]), [found])
                assert found.any()
    return (_resident() - before) / 2**20


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def singly(split: Split, questions: np.ndarray[tuple[int], np.dtype[np.int64]]) -> QuestionBatch:
    """Returns a batch that reads the picture anew for each question."""
    parts = [unread_batch(split, questions[at : at + 1], ANSWERS).to(CPU) for at in range(len(questions))]
    joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in ("words", "targets", "features",
                                                                                   "centres", "real")}  # fmt: skip
    return QuestionBatch(**joined, picture=torch.arange(len(questions)))


def parser() -> Parser:
    """Returns the parser of ``seqarena benchmark views``."""
    made = Parser(prog="seqarena benchmark views", description=__doc__)
    made.add_argument("--attention", default="dnas", help="attention of the fusion (default: dnas)")
    made.add_argument("--questions", type=int, default=64, help="questions per batch (default: 64)")
    made.add_argument("--each", type=int, default=5, help="questions per picture (default: 5; VQA v2: 5.4)")
    made.add_argument("--boxes", type=int, default=100, help="boxes in each of three views (default: 100)")
    made.add_argument("--width", type=int, default=2048, help="features per box (default: 2048)")
    made.add_argument("--joint-dim", type=int, default=5000, help="width of Pythia's products (default: 5000)")
    made.add_argument("--repeats", type=int, default=3, help="timed rounds, after a warm-up round (default: 3)")
    add_output_options(made)
    return made


def measure(options: argparse.Namespace, folder: Path) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Returns the seconds of each round, grouped and singly, and the growth of memory in MiB by way of reading."""
    values = vars(options)
    sizes = (3, values["boxes"], values["width"])
    split = random_split(
        folder, -(-values["questions"] * (values["repeats"] + 1) // values["each"]), values["each"], sizes
    )
    seed_torch(0)
    names = [str(number) for number in range(WORDS)]
    model = Answerer(
        Model(fusion=Fusion(), attention=find_attention(values["attention"]), joint_dim=values["joint_dim"]),
        VqaData(splits={"train": split}, answers=names[:ANSWERS], words=names, checksum=""),
    )
    order = PictureOrder(pictures=split.pictures, batch_size=values["questions"], seed=0)
    seconds: dict[str, list[float]] = {"grouped": [], "singly": []}
    for step in range(values["repeats"] + 1):
        losses = []
        for name, rounds in seconds.items():
            started = time.perf_counter()
            if name == "grouped":
                batch = unread_batch(split, order[step], ANSWERS).to(CPU)
            else:
                batch = singly(split, order[step])
            value = loss(model, batch)
            model.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            rounds.append(time.perf_counter() - started)
            losses.append(value.item())
        assert abs(losses[0] - losses[1]) < 1e-4 * abs(losses[0]), losses  # both read the same questions
    memory = {
        name: memory_growth(split, mapped=mapped) for name, mapped in (("read by themselves", False), ("mapped", True))
    }
    return {name: each[1:] for name, each in seconds.items()}, memory


def run(arguments: Sequence[str]) -> int:
    """Runs ``seqarena benchmark views`` and returns its exit code."""
    options = parser().parse_args(arguments)
    for name in ("questions", "each", "boxes", "width", "joint_dim", "repeats"):
        at_least_one(options, name)
    with tempfile.TemporaryDirectory() as folder:
        seconds, memory = measure(options, Path(folder))
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    rows = [
        [name, f"{options.questions / median:.1f}", f"{medians['singly'] / median:.2f}"]
        for name, median in medians.items()
    ]
    notes = [
        f"{options.questions} questions per batch, {options.each} per picture, 3 x {options.boxes} x {options.width} "
        f"features on disk; medians of {options.repeats} rounds; {device_name(torch.device('cpu'))}",
        "growth of memory after reading all pictures: "
        + ", ".join(f"{size:,.0f} MiB ({name})" for name, size in memory.items()),
    ]
    title, headings = f"fusion by {options.attention} and Pythia", ["batches", "questions/s", "speedup"]
    print_table(options, parser().prog, arguments, title, headings, rows, notes, device_name(CPU))
    return 0

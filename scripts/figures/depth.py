"""P3's depth experiment at a size that runs here: one narrow Transformer-XL, ever deeper, under every norm."""

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from seqarena.common.model.blocks import Deescalated, NormConfig, PostNorm, PreNorm
from seqarena.common.model.diagnostics import diagnose
from seqarena.common.training.log import with_progress
from seqarena.common.training.loop import Train
from seqarena.common.training.optim import Optim, Schedule
from seqarena.common.training.runtime import make_accelerator, seed_torch
from seqarena.common.training.step import Stepper
from seqarena.pretraining.transformer_xl import Model, TransformerXL
from seqarena.pretraining.wikitext.data import EncodedText, WikiText
from seqarena.pretraining.wikitext.run import Segments
from seqarena.pretraining.wikitext.streams import SegmentBatch, Streams
from seqarena.pretraining.wikitext.trainer import RememberingLoss
from seqarena.scripts.figures.drawing import Drawing, FigureResult, Finding, Line, Look, Panel
from seqarena.scripts.figures.trainings import curve, end_of, kept

STREAMS, LENGTH, LOOKS = 16, 32, 6
"""Streams side by side, tokens of a segment and of the memory, how often layers are looked at."""
VERSION = 1
"""Raised whenever a trial would go otherwise, so that what was kept is not taken for it."""
WARMUP = 0.2
"""Share of the steps, in the arm that has a warm-up."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A norm, and whether the rate is warmed up."""

    label: str
    norm: NormConfig
    warmed: bool = False
    lr: float = 1e-3
    """Highest learning rate of Adam."""


POST, PRE, RUNNING = PostNorm(), PreNorm(final=False), Deescalated(mean="running")
ARMS = (
    Arm(label="post", norm=POST),
    Arm(label="post, warm-up", norm=POST, warmed=True),
    Arm(label="pre", norm=PRE),
    Arm(label="de-escalated, running", norm=RUNNING),
    Arm(label="de-escalated, prefix", norm=Deescalated(mean="prefix")),
    Arm(label="de-escalated, leaky: sees the future", norm=Deescalated(leaky=True)),
)
FAR = 0.3
"""Nats by which an arm must be behind another to have failed."""
LOW = 2.5e-4
"""Transformer-XL's rate, and so perhaps P3's, which states none."""
SLOWER = (
    Arm(label="post, 2.5e-4", norm=POST, lr=LOW),
    Arm(label="pre, 2.5e-4", norm=PRE, lr=LOW),
    Arm(label="de-escalated, running, 2.5e-4", norm=RUNNING, lr=LOW),
)


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is trained."""

    depths: tuple[int, ...]
    """Numbers of layers."""
    seeds: tuple[int, ...]
    """How many trainings, of each depth."""
    steps: int
    """Of each training."""
    dim: int
    """Width of the model."""


FULL = Size(depths=(4, 12, 24, 48), seeds=(3, 3, 1, 1), steps=400, dim=64)
QUICK = Size(depths=(2, 6), seeds=(1, 1), steps=30, dim=32)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """All that a training depends on."""

    arm: Arm
    depth: int
    """Layers."""
    seed: int
    steps: int
    dim: int
    text: str
    """Checksum of the text."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """How one training went; it is short where the loss was no number any more."""

    losses: Sequence[float]
    """Loss of each step, in nats."""
    looked: Sequence[int]
    """Steps after which layers were looked at."""
    similarity: Sequence[Sequence[float]]
    """Token similarity of each layer's output, then."""
    gradient: Sequence[Sequence[float]]
    """Norm of each layer's gradient, of the step before."""

    @property
    def end(self) -> float:
        """The mean loss of the last tenth of the steps; infinite where training broke off."""
        return end_of(self.losses)


Courses = dict[tuple[str, int], list[Course]]
"""By arm and depth, a training a seed."""


def train(trial: Trial, text: EncodedText) -> Course:
    """Trains one model by Adam and a cosine, no dropout, no clipping (P3, section 3.4)."""
    seed_torch(trial.seed, 0)
    model = TransformerXL(
        Model(
            vocabulary=text.vocabulary, layers=trial.depth, dim=trial.dim, heads=4, ffn_dim=2 * trial.dim,
            norm=trial.arm.norm,
            dropout=0.0, cutoffs=tuple(cut for cut in (1_000, 4_000) if cut < text.vocabulary),
        )
    )  # fmt: skip
    warmup = round(WARMUP * trial.steps) if trial.arm.warmed else 0
    optim = Optim(name="adam", lr=trial.arm.lr, schedule=Schedule(shape="cosine", warmup=warmup))
    how = Train(steps=trial.steps, batch_size=STREAMS, eval_every=trial.steps)
    loss = RememberingLoss(Segments(length=LENGTH, memory=LENGTH))
    stepper = how.stepper(model, loss, optim, trial.seed, make_accelerator("float32"))
    batches = Streams(ids=text.ids["train"], count=STREAMS, length=LENGTH)
    due = {round(trial.steps * (number + 1) / LOOKS) for number in range(LOOKS)} | {1}
    losses: list[float] = []
    looks: dict[int, tuple[list[float], list[float]]] = {}
    label = f"{trial.arm.label}, {trial.depth} layers, seed {trial.seed}"
    for step in with_progress(range(trial.steps), label, trial.steps):
        losses.append(float(stepper.take(batches[step], step)[0]))
        if not math.isfinite(losses[-1]):
            break
        if step + 1 in due:
            gradient = [_gradient(layer) for layer in model.layers]
            looks[step + 1] = _similarity(stepper, model, batches[0]), gradient
    similarity, gradients = zip(*looks.values(), strict=True) if looks else ((), ())
    return Course(losses=losses, looked=list(looks), similarity=similarity, gradient=gradients)


def _gradient(layer: object) -> float:
    parameters = layer.parameters()  # type: ignore[attr-defined]
    return float(sum(each.grad.square().sum() for each in parameters if each.grad is not None) ** 0.5)


def _similarity(stepper: Stepper, model: TransformerXL, batch: SegmentBatch) -> list[float]:
    model.eval()
    return diagnose(model, lambda: stepper.forward(model, batch.rows(0, 4)))["token_similarity"]


def read(look: Look) -> EncodedText:
    """Returns WikiText-2 where its path is given, else the bundled text."""
    return WikiText(path=look.wikitext, unknown="replace").load(look.data, "wikitext2", told=look.wikitext is not None)


def courses_of(look: Look) -> tuple[Courses, Size]:
    """Returns every training, by arm and depth; those that were kept are not repeated."""
    size, text = QUICK if look.quick else FULL, read(look)
    courses: Courses = {}
    for depth, seeds in zip(size.depths, size.seeds, strict=True):
        for arm in (*ARMS, *SLOWER):
            trials = [
                Trial(arm=arm, depth=depth, seed=seed, steps=size.steps, dim=size.dim, text=text.checksum)
                for seed in range(seeds)
            ]
            courses[arm.label, depth] = [
                kept(look.trainings, f"depth-{VERSION}", trial, Course, functools.partial(train, trial, text))
                for trial in trials
            ]
    return courses, size


def make(look: Look) -> FigureResult:
    """Returns the losses; a quick look is too short to tell."""
    courses, size = courses_of(look)
    panels = [_losses(courses, depth, arms, title) for arms, title in ((ARMS, ""), (SLOWER, ", lower rate"))
              for depth in size.depths]  # fmt: skip
    return FigureResult(panels=panels, findings=[] if look.quick else _findings(courses, size))  # 30 steps tell nothing


def layers(look: Look) -> FigureResult:
    """Returns similarity and gradient by layer of the deepest models of the first seed, as training goes on."""
    courses, size = courses_of(look)
    deepest, panels = size.depths[-1], []
    for arm in (*ARMS, *SLOWER):
        course = courses[arm.label, deepest][0]
        title = f"{arm.label}, {deepest} layers"
        panels.append(
            Panel(
                title=title,
                x="layer",
                y="token similarity, 0 to 1",
                limits=(0.0, 1.0),
                lines=_by_layer(course.similarity, course),
            )
        )
        panels.append(
            Panel(title=title, x="layer", y="gradient norm", log_y=True, lines=_by_layer(course.gradient, course))
        )
    return FigureResult(panels=panels, findings=[])


def _losses(courses: Courses, depth: int, arms: Sequence[Arm], title: str) -> Panel:
    """Returns training loss against steps, the means of the seeds."""
    lines = [curve(arm.label, [each.losses for each in courses[arm.label, depth]]) for arm in arms]
    return Panel(title=f"{depth} layers{title}", x="step", y="training loss, nats per word", lines=lines)


def _by_layer(values: Sequence[Sequence[float]], course: Course) -> list[Line]:
    return [
        Line(label=f"step {step}", x=range(1, len(each) + 1), y=each)
        for step, each in zip(course.looked, values, strict=True)
    ]


def _findings(courses: Courses, size: Size) -> list[Finding]:
    shallowest, deepest = size.depths[0], size.depths[-1]
    ends = {key: statistics.fmean(each.end for each in seeds) for key, seeds in courses.items()}
    seeds = f"one seed of {deepest} layers" if size.seeds[-1] == 1 else f"{size.seeds[-1]} seeds"

    def told(depth: int, *arms: Arm) -> str:
        return f"{depth} layers: " + ", ".join(f"{arm.label} {ends[arm.label, depth]:.3f}" for arm in arms)

    def fails(depth: int, arm: Arm, other: Arm) -> bool:
        return ends[arm.label, depth] > ends[other.label, depth] + FAR

    post, warmed, pre, running, prefix, leaky = ARMS
    causal = min(ends[each.label, deepest] for each in (running, prefix))
    slow_post, slow_pre, slow_running = SLOWER
    return [
        Finding(claim=f"post-norm fails with {deepest} layers", found=f"{told(deepest, post, pre)}; {seeds}",
                agrees=fails(deepest, post, pre)),
        Finding(claim=f"and not with {shallowest}", found=told(shallowest, post, pre),
                agrees=not fails(shallowest, post, pre)),
        Finding(claim="with a warm-up too, which P3 did not try", found=told(deepest, warmed, pre),
                agrees=fails(deepest, warmed, pre)),
        Finding(claim="at a lower rate too", found=told(deepest, slow_post, slow_pre),
                agrees=fails(deepest, slow_post, slow_pre)),
        *(
            Finding(claim=f"{arm.label}: trains like pre-norm", found=told(deepest, arm, other),
                    agrees=not fails(deepest, arm, other))
            for arm, other in ((running, pre), (prefix, pre), (slow_running, slow_pre))
        ),
        Finding(claim="the leaky form owes nothing to the future", found=told(deepest, leaky, running, prefix),
                agrees=ends[leaky.label, deepest] > causal - 0.05),
    ]  # fmt: skip


DRAWINGS = (
    Drawing(name="depth", source="P3, sections 3.3 and 3.4, small", make=make, check=read,
            shows="one narrow Transformer-XL, ever deeper, under post-norm, pre-norm and causal de-escalation"),
    Drawing(name="depth-layers", source="P3, sections 3.3 and 3.4, small", make=layers, check=read,
            shows="similarity and gradient by layer of the deepest of them, as training goes on"),
)  # fmt: skip

"""P3's depth experiment at a small size: one narrow Transformer-XL at several depths, with every norm."""

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from seqarena.common.model.diagnostics import diagnose
from seqarena.common.model.norms import NORMS
from seqarena.common.model.norms.base import NormConfig
from seqarena.common.model.norms.deescalated import Deescalated
from seqarena.common.model.norms.post import PostNorm
from seqarena.common.model.norms.pre import PreNorm
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
from seqarena.scripts.figures.drawing import Drawing, FigureOptions, FigureResult, Finding, Line, Panel
from seqarena.scripts.figures.trainings import cached, curve, end_of

STREAMS, LENGTH, LOOKS = 16, 32, 6
"""Parallel streams, tokens per segment and memory, and number of evaluations of the layers."""
VERSION = 1
"""Raised whenever a trial would give another result, so that older cached results are not used."""
WARMUP = 0.2
"""Fraction of the steps that are warm-up, in the arm with warm-up."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A norm, and whether the learning rate has a warm-up."""

    label: str
    norm: NormConfig
    warmed: bool = False
    lr: float = 2.5e-4
    """Peak learning rate of Adam. P3's section 3.4 keeps that of Dai et al. 2019."""


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
"""Difference in nats above which an arm counts as having failed against another."""
HIGH = 1e-3
"""Our own learning rate, for comparison."""
FASTER = (
    Arm(label="post, 1e-3", norm=POST, lr=HIGH),
    Arm(label="pre, 1e-3", norm=PRE, lr=HIGH),
    Arm(label="de-escalated, running, 1e-3", norm=RUNNING, lr=HIGH),
)
"""Three arms at our own rate, with one seed."""
RIVALS = tuple(Arm(label=name, norm=NORMS[name]) for name in ("rezero", "admin", "b2t", "deepnorm", "peri"))
"""Other techniques for deep models, at P3's rate."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """Depths, seeds and length of the trainings."""

    depths: tuple[int, ...]
    """Numbers of layers."""
    seeds: tuple[int, ...]
    """Number of trainings per depth."""
    steps: int
    """Steps per training."""
    dim: int
    """Width of the model."""


FULL = Size(depths=(4, 12, 24, 48), seeds=(3, 3, 3, 3), steps=400, dim=64)
QUICK = Size(depths=(2, 6), seeds=(1, 1), steps=30, dim=32)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Everything that a training depends on."""

    arm: Arm
    depth: int
    """Number of layers."""
    seed: int
    steps: int
    dim: int
    text: str
    """Checksum of the text."""


@dataclass(frozen=True, kw_only=True)
class TrainingRecord:
    """Record of one training, which ends early if the loss is not finite."""

    losses: Sequence[float]
    """Loss of each step, in nats."""
    looked: Sequence[int]
    """Steps after which the layers were evaluated."""
    similarity: Sequence[Sequence[float]]
    """Token similarity of each layer's output, per evaluation."""
    gradient: Sequence[Sequence[float]]
    """Norm of each layer's gradient in the latest step, per evaluation."""

    @property
    def end(self) -> float:
        """The mean loss of the last tenth of the steps; infinite if the loss was not finite."""
        return end_of(self.losses)


Records = dict[tuple[str, int], list[TrainingRecord]]
"""(Arm, depth) -> one training per seed."""


def train(trial: Trial, text: EncodedText) -> TrainingRecord:
    """Trains one model with Adam and a cosine schedule, without dropout or clipping (P3, section 3.4)."""
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
        losses.append(float(stepper.take(stepper.share(batches[step]), step)[0]))
        if not math.isfinite(losses[-1]):
            break
        if step + 1 in due:
            gradient = [_gradient(layer) for layer in model.layers]
            looks[step + 1] = _similarity(stepper, model, batches[0]), gradient
    similarity, gradients = zip(*looks.values(), strict=True) if looks else ((), ())
    return TrainingRecord(losses=losses, looked=list(looks), similarity=similarity, gradient=gradients)


def _gradient(layer: object) -> float:
    parameters = layer.parameters()  # type: ignore[attr-defined]
    return float(sum(each.grad.square().sum() for each in parameters if each.grad is not None) ** 0.5)


def _similarity(stepper: Stepper, model: TransformerXL, batch: SegmentBatch) -> list[float]:
    model.eval()
    found = diagnose(model, lambda: stepper.forward(model, batch.rows(0, 4)))["token_similarity"]
    return [math.nan if each is None else each for each in found]


def read(settings: FigureOptions) -> EncodedText:
    """Returns WikiText-2 if its path is given, else the bundled text."""
    return WikiText(path=settings.wikitext, unknown="replace").load(
        settings.data, "wikitext2", report_differences=settings.wikitext is not None
    )


def courses_of(settings: FigureOptions) -> tuple[Records, Size]:
    """Returns every training, by arm and depth; cached ones are not repeated."""
    size, text = QUICK if settings.quick else FULL, read(settings)
    courses: Records = {}
    for depth, seeds in zip(size.depths, size.seeds, strict=True):
        for arm in (*ARMS, *FASTER, *RIVALS):
            trials = [
                Trial(arm=arm, depth=depth, seed=seed, steps=size.steps, dim=size.dim, text=text.checksum)
                for seed in range(1 if arm in FASTER else seeds)
            ]
            courses[arm.label, depth] = [
                cached(
                    settings.trainings, f"depth-{VERSION}", trial, TrainingRecord, functools.partial(train, trial, text)
                )
                for trial in trials
            ]
    return courses, size


def make(settings: FigureOptions) -> FigureResult:
    """Returns the losses, with findings unless the trainings are too short for them (--quick)."""
    courses, size = courses_of(settings)
    groups = ((ARMS, ""), (FASTER, ", rate 1e-3"), (RIVALS, ", other techniques"))
    panels = [_losses(courses, depth, arms, title) for arms, title in groups for depth in size.depths]
    return FigureResult(panels=panels, findings=[] if settings.quick else _findings(courses, size))


def layers(settings: FigureOptions) -> FigureResult:
    """Returns similarity and gradient by layer of the deepest models with the first seed, at several steps."""
    courses, size = courses_of(settings)
    deepest, panels = size.depths[-1], []
    for arm in (*ARMS, *FASTER, *RIVALS):
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


def _losses(courses: Records, depth: int, arms: Sequence[Arm], title: str) -> Panel:
    """Returns training loss by step, averaged over seeds."""
    lines = [curve(arm.label, [each.losses for each in courses[arm.label, depth]]) for arm in arms]
    return Panel(title=f"{depth} layers{title}", x="step", y="training loss, nats per word", lines=lines)


def _by_layer(values: Sequence[Sequence[float]], course: TrainingRecord) -> list[Line]:
    return [
        Line(label=f"step {step}", x=range(1, len(each) + 1), y=each)
        for step, each in zip(course.looked, values, strict=True)
    ]


def _findings(courses: Records, size: Size) -> list[Finding]:
    shallowest, deepest = size.depths[0], size.depths[-1]
    ends = {key: statistics.fmean(each.end for each in seeds) for key, seeds in courses.items()}
    seeds = f"one seed of {deepest} layers" if size.seeds[-1] == 1 else f"{size.seeds[-1]} seeds"

    def losses_of(depth: int, *arms: Arm) -> str:
        return f"{depth} layers: " + ", ".join(f"{arm.label} {ends[arm.label, depth]:.3f}" for arm in arms)

    def fails(depth: int, arm: Arm, other: Arm) -> bool:
        return ends[arm.label, depth] > ends[other.label, depth] + FAR

    post, warmed, pre, running, prefix, leaky = ARMS
    causal = min(ends[each.label, deepest] for each in (running, prefix))
    fast_post, fast_pre, fast_running = FASTER
    return [
        Finding(claim=f"post-norm fails with {deepest} layers", found=f"{losses_of(deepest, post, pre)}; {seeds}",
                agrees=fails(deepest, post, pre)),
        Finding(claim=f"ours: post-norm does not fail with {shallowest}", found=losses_of(shallowest, post, pre),
                agrees=not fails(shallowest, post, pre)),
        Finding(claim="ours: post-norm fails with a warm-up too, which P3's setting does not have",
                found=losses_of(deepest, warmed, pre), agrees=fails(deepest, warmed, pre)),
        Finding(claim="ours: post-norm fails at a higher rate too", found=losses_of(deepest, fast_post, fast_pre),
                agrees=fails(deepest, fast_post, fast_pre)),
        *(
            Finding(claim=f"{arm.label}: trains like pre-norm", found=losses_of(deepest, arm, other),
                    agrees=not fails(deepest, arm, other))
            for arm, other in ((running, pre), (prefix, pre), (leaky, pre), (fast_running, fast_pre))
        ),
        Finding(claim="ours: the leaky form gains nothing from the future",
                found=losses_of(deepest, leaky, running, prefix),
                agrees=ends[leaky.label, deepest] > causal - 0.05),
    ]  # fmt: skip


DRAWINGS = (
    Drawing(name="depth", source="P3, section 3.4, small", make=make, check=read,
            shows="training loss of one narrow Transformer-XL by depth: post-norm, pre-norm and causal de-escalation",
            duration="three hours on one core, with depth-layers"),
    Drawing(name="depth-layers", source="P3, section 3.4, small", make=layers, check=read,
            shows="similarity and gradient by layer of the deepest of these models, at several steps",
            duration="three hours on one core, with depth"),
)  # fmt: skip

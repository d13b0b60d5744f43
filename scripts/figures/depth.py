"""P3's depth experiment at a size that runs here: one narrow Transformer-XL, ever deeper, under every norm."""

import functools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from common.blocks import Deescalated, NormConfig, PostNorm, PreNorm
from common.diagnostics import diagnose
from common.log import tracked
from common.optim import Optim, Schedule
from common.runtime import make_accelerator, seed_torch
from common.step import Stepper
from common.training import Train
from pretraining.transformer_xl import Model, TransformerXL
from pretraining.wikitext.data import EncodedText, WikiText
from pretraining.wikitext.run import Segments
from pretraining.wikitext.streams import SegmentBatch, Streams
from pretraining.wikitext.trainer import RememberingLoss
from scripts.figures.drawing import Drawing, Drawn, Finding, Line, Look, Panel
from scripts.figures.trainings import kept

STREAMS, LENGTH, LOOKS = 16, 32, 6
"""Streams side by side, tokens of a segment and of the memory, how often layers are looked at."""
WARMUP = 0.2
"""Share of the steps, in the arm that has a warm-up."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A norm, and whether the rate is warmed up."""

    label: str
    norm: NormConfig
    warmed: bool = False


ARMS = (
    Arm(label="post", norm=PostNorm()),
    Arm(label="post, warm-up", norm=PostNorm(), warmed=True),
    Arm(label="pre", norm=PreNorm(final=False)),
    Arm(label="de-escalated, running", norm=Deescalated(mean="running")),
    Arm(label="de-escalated, prefix", norm=Deescalated(mean="prefix")),
    Arm(label="de-escalated, leaky: sees the future", norm=Deescalated(leaky=True)),
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
    """How one training went."""

    losses: Sequence[float]
    """Of each step, in nats."""
    looked: Sequence[int]
    """Steps after which layers were looked at."""
    similarity: Sequence[Sequence[float]]
    """Token similarity of each layer's output, then."""
    gradient: Sequence[Sequence[float]]
    """Norm of each layer's gradient, of the step before."""

    @property
    def end(self) -> float:
        """The mean loss of the last tenth of the steps."""
        return statistics.fmean(self.losses[-max(len(self.losses) // 10, 1) :])


Courses = dict[tuple[str, int], list[Course]]
"""By arm and depth, a training a seed."""


def train(trial: Trial, text: EncodedText) -> Course:
    """Trains one model, Adam at 1e-3 and a cosine, no dropout, no clipping (P3, section 3.4)."""
    seed_torch(trial.seed, 0)
    model = TransformerXL(
        Model(
            vocabulary=text.vocabulary, layers=trial.depth, dim=trial.dim, heads=4, ffn_dim=2 * trial.dim,
            norm=trial.arm.norm,
            dropout=0.0, cutoffs=tuple(cut for cut in (1_000, 4_000) if cut < text.vocabulary),
        )
    )  # fmt: skip
    warmup = round(WARMUP * trial.steps) if trial.arm.warmed else 0
    optim = Optim(name="adam", lr=1e-3, schedule=Schedule(shape="cosine", warmup=warmup))
    how = Train(steps=trial.steps, batch_size=STREAMS, eval_every=trial.steps)
    loss = RememberingLoss(Segments(length=LENGTH, memory=LENGTH))
    stepper = how.stepper(model, loss, optim, trial.seed, make_accelerator("float32"))
    batches = Streams(ids=text.ids["train"], count=STREAMS, length=LENGTH)
    due = {round(trial.steps * (number + 1) / LOOKS) for number in range(LOOKS)} | {1}
    losses: list[float] = []
    looks: dict[int, tuple[list[float], list[float]]] = {}
    label = f"{trial.arm.label}, {trial.depth} layers, seed {trial.seed}"
    for step in tracked(range(trial.steps), label, trial.steps):
        losses.append(float(stepper.take(batches[step], step)[0]))
        if step + 1 in due:
            gradient = [_gradient(layer) for layer in model.layers]
            looks[step + 1] = _similarity(stepper, model, batches[0]), gradient
    similarity, gradients = zip(*looks.values(), strict=True)
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


def make(look: Look) -> Drawn:
    """Returns the figure; a quick look is too short to tell."""
    size, text = QUICK if look.quick else FULL, read(look)
    courses: Courses = {}
    for depth, seeds in zip(size.depths, size.seeds, strict=True):
        for arm in ARMS:
            trials = [
                Trial(arm=arm, depth=depth, seed=seed, steps=size.steps, dim=size.dim, text=text.checksum)
                for seed in range(seeds)
            ]
            courses[arm.label, depth] = [
                kept(look.trainings, "depth", trial, Course, functools.partial(train, trial, text)) for trial in trials
            ]
    panels = [_losses(courses, depth, size) for depth in size.depths]
    deepest = size.depths[-1]
    for arm in ARMS:
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
    return Drawn(panels=panels, findings=[] if look.quick else _findings(courses, size))  # 30 steps tell nothing


def _losses(courses: Courses, depth: int, size: Size) -> Panel:
    """Returns training loss against steps, means of ten steps over the seeds."""
    lines = []
    width = max(size.steps // 40, 1)
    for arm in ARMS:
        seeds = courses[arm.label, depth]
        mean = [statistics.fmean(values) for values in zip(*(each.losses for each in seeds), strict=True)]
        steps = range(width, size.steps + 1, width)
        lines.append(Line(label=arm.label, x=list(steps), y=[statistics.fmean(mean[at - width : at]) for at in steps]))
    return Panel(title=f"{depth} layers", x="step", y="training loss, nats per word", lines=lines)


def _by_layer(values: Sequence[Sequence[float]], course: Course) -> list[Line]:
    layers = range(1, len(values[0]) + 1)
    return [Line(label=f"step {step}", x=layers, y=each) for step, each in zip(course.looked, values, strict=True)]


def _findings(courses: Courses, size: Size) -> Sequence[Finding]:
    deepest = size.depths[-1]
    ends = {key: statistics.fmean(each.end for each in seeds) for key, seeds in courses.items()}
    post, warmed, pre, running, prefix, leaky = (ends[arm.label, deepest] for arm in ARMS)
    told = ", ".join(f"{arm.label} {ends[arm.label, deepest]:.3f}" for arm in ARMS)
    best = min(running, prefix)
    return [
        Finding(claim=f"{deepest} layers: post-norm fails", found=told, agrees=post > pre + 0.3),
        Finding(claim="also with a warm-up, which P3 did not try", agrees=warmed > pre + 0.3,
                found=f"{warmed:.3f} with, {post:.3f} without"),
        Finding(claim="de-escalated post-norm trains like pre-norm", agrees=abs(best - pre) < 0.2,
                found=f"{best:.3f} in its better causal form, pre-norm {pre:.3f}"),
        Finding(claim="the leaky form is no better than the causal ones", agrees=leaky > best - 0.05,
                found=f"{leaky:.3f}, causal {best:.3f}"),
    ]  # fmt: skip


DRAWING = Drawing(
    name="depth", source="P3, sections 3.3 and 3.4, small", make=make, check=read,
    shows="one narrow Transformer-XL, ever deeper, under post-norm, pre-norm and causal de-escalation",
)  # fmt: skip

"""Gain of doubly-normalised attention by the primary detector's recall: our experiment, after P2's."""

import functools
import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from seqarena.common.attention import find_attention
from seqarena.common.attention.base import AttentionConfig
from seqarena.common.attention.softmax import Softmax
from seqarena.common.training.runtime import make_accelerator, seed_torch
from seqarena.scripts.figures.drawing import Drawing, FigureOptions, FigureResult, Finding, Line, Panel
from seqarena.scripts.figures.trainings import cached
from seqarena.vqa.data import scenes
from seqarena.vqa.data.scenes import Scenes
from seqarena.vqa.presets import PRESETS
from seqarena.vqa.run import Run
from seqarena.vqa.trainer import assemble

VERSION = 1
"""Raised whenever a trial would give another result, so that older cached results are not used."""
RECALLS = (0.5, 0.7, 1.0)
ARMS = ("softmax", "dnas")
SEEDS = (0, 1, 2)
MISSED = "material_missed"
GROUPS = {"all questions": "accuracy", "material of what A missed": MISSED, "material of what A saw": "material_seen"}
LEVEL = 0.02
"""Differences in accuracy below it count as none: about three times the variation over seeds."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Everything that a training depends on."""

    attention: AttentionConfig = field(default_factory=Softmax)
    """Attention of the fusion."""
    seed: int
    """Seed of weights and order; the scenes are always the same."""
    recall: float
    """Fraction of the objects that detector A finds."""
    scenes: int
    """Number of training scenes."""
    tested: int
    """Number of test scenes."""
    steps: int
    """Number of training steps."""


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Test accuracies of a training."""

    accuracy: float
    """Accuracy on all questions."""
    material_missed: float | None
    """Accuracy on the material of objects that A missed; None if it missed none."""
    material_seen: float
    """Accuracy on the material of objects that A found."""


ScoresByArm = Mapping[tuple[str, float], Sequence[Scores]]
"""(Variant, recall) -> scores of each seed."""


def train(scene: Scene, settings: FigureOptions) -> Scores:
    """Trains the preset ``toy`` of vqa scenes with this variant and recall, and returns its final test scores.

    Half of its steps, as in ``quick``, are too few: with some seeds the model learns to match objects later than
    that.
    """
    toy = PRESETS["scenes"]["toy"].run
    assert isinstance(toy.data, Scenes)
    run: Run = replace(
        toy, seed=scene.seed,
        data=replace(toy.data, recall=scene.recall, scenes=scene.scenes, held_out=scene.tested),
        model=replace(toy.model, attention=scene.attention), train=replace(toy.train, steps=scene.steps),
        optim=replace(toy.optim, schedule=replace(toy.optim.schedule, warmup=min(500, scene.steps - 1))),
    )  # fmt: skip
    run.check()
    accelerator = make_accelerator("float32")
    seed_torch(run.seed, 0)
    assembly = assemble(run, settings.data, accelerator)
    stepper = run.train.stepper(assembly.model, assembly.loss, run.optim, run.seed, accelerator)
    for step in range(scene.steps):
        stepper.take(stepper.share(assembly.batches[step]), step)
    found = assembly.test(assembly.model).metrics
    return Scores(
        accuracy=found["accuracy"], material_missed=found.get("material_missed"), material_seen=found["material_seen"]
    )


def make(settings: FigureOptions) -> FigureResult:
    """Returns accuracy and gain by the primary's recall."""
    recalls, seeds = ((0.5, 1.0), (0,)) if settings.quick else (RECALLS, SEEDS)
    count, tested, steps = (100, 40, 20) if settings.quick else (20_000, 3_400, 6_000)

    def scored(arm: str, recall: float, seed: int) -> Scores:
        scene = Scene(
            attention=find_attention(arm), seed=seed, recall=recall, scenes=count, tested=tested, steps=steps
        )  # fmt: skip
        name = f"recall-{VERSION}-{scenes.VERSION}"
        return cached(settings.trainings, name, scene, Scores, functools.partial(train, scene, settings))

    found = {(arm, recall): [scored(arm, recall, seed) for seed in seeds] for recall in recalls for arm in ARMS}
    panels = [
        Panel(
            title=title, x="fraction of objects that A finds", y="accuracy, 0 to 1", limits=(0.0, 1.0),
            lines=[
                _line(arm, {at: [getattr(each, name) for each in found[arm, at]] for at in recalls
                            if name != MISSED or at < 1})
                for arm in ARMS
            ],
        )
        for title, name in GROUPS.items()
    ]  # fmt: skip
    panels.append(
        Panel(title="gain of dnas", x="fraction of objects that A finds", y="accuracy of dnas minus softmax's",
              lines=[_line("all questions", {at: _gains(found, at) for at in recalls})])
    )  # fmt: skip
    return FigureResult(panels=panels, findings=[] if settings.quick else findings(found))


def _line(label: str, points: Mapping[float, Sequence[float]]) -> Line:
    """Returns means over seeds, with standard deviations if there are several."""
    spread = [statistics.stdev(each) for each in points.values()] if len(next(iter(points.values()))) > 1 else None
    return Line(label=label, x=list(points), y=[statistics.fmean(each) for each in points.values()], spread=spread)


def _gains(found: ScoresByArm, recall: float) -> list[float]:
    """Returns the gain of dnas over softmax for each seed."""
    return [
        one.accuracy - other.accuracy
        for one, other in zip(found["dnas", recall], found["softmax", recall], strict=True)
    ]


def findings(found: ScoresByArm) -> list[Finding]:
    """Returns the predictions of P2's account of explaining away, and the results."""
    recalls = sorted({recall for _, recall in found})
    gains = [statistics.fmean(_gains(found, each)) for each in recalls]
    spelled = ", ".join(f"{100 * gain:.1f} at {recall:g}" for gain, recall in zip(gains, recalls, strict=True))
    lowest = recalls[0]
    missed = [statistics.fmean(each.material_missed or 0.0 for each in found[arm, lowest]) for arm in ARMS]
    saw = [statistics.fmean(each.material_seen for each in found[arm, lowest]) for arm in ARMS]
    return [
        Finding(
            claim="the more the primary misses, the more dnas gains", found=f"{spelled} points",
            agrees=gains[0] > gains[-1] + LEVEL
            and all(one > other for one, other in itertools.pairwise(gains)),
        ),
        Finding(
            claim="if it misses nothing, dnas gains nothing", found=f"{100 * gains[-1]:.1f} points",
            agrees=abs(gains[-1]) < LEVEL,
        ),
        Finding(
            claim="the gain is on what the primary missed",
            found=f"at {lowest:g}: missed {100 * missed[0]:.1f} and {100 * missed[1]:.1f}, seen {100 * saw[0]:.1f} and "
            f"{100 * saw[1]:.1f} (softmax, dnas)",
            agrees=missed[1] - missed[0] > max(saw[1] - saw[0], LEVEL),
        ),
    ]  # fmt: skip


DRAWING = Drawing(
    name="p2-recall",
    duration="half an hour",
    source="ours, after P2 5.1",
    shows="gain of dnas over softmax by the recall of the primary detector (vqa scenes)",
    make=make,
)

"""P1's trained figures: norms of attention, weights of heads, and the best scale by length."""

import functools
import math
import statistics
from collections.abc import Callable, Sequence

from seqarena.common.attention import find_attention
from seqarena.common.attention.base import AttentionConfig
from seqarena.common.attention.elementwise import Elementwise
from seqarena.scripts.figures import p1_runs, vision
from seqarena.scripts.figures.drawing import Drawing, FigureOptions, FigureResult, Finding, Line, Matrix, Panel
from seqarena.scripts.figures.trainings import cached, curve
from seqarena.scripts.figures.vision import Pictures, TrainingRecord, Trial

ARMS = {
    "softmax": find_attention("softmax"),
    "x^3 / sqrt N": find_attention("x3"),
    "x / sqrt N": find_attention("x1"),
    "x^3, unscaled": find_attention("x3-raw"),
    "x, unscaled": find_attention("x1-raw"),
}
POWERS = ("x^3", "x")
HEADS = ("softmax", "x^3 / sqrt N", "x / sqrt N")
"""Variants whose heads are drawn."""
PATCHES = {8: (8, 16), 16: (8, 8), 64: (4, 4), 256: (2, 2)}
"""Length -> rows and columns of a patch."""
SCALES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Divisors of x^3."""
Records = dict[str, list[TrainingRecord]]


def _train_all(settings: FigureOptions, pictures: Pictures, trials: Sequence[Trial]) -> list[TrainingRecord]:
    return [
        cached(
            settings.trainings,
            f"vision-{vision.VERSION}",
            trial,
            TrainingRecord,
            functools.partial(vision.train, trial, pictures),
        )
        for trial in trials
    ]


def _arms(settings: FigureOptions) -> tuple[Records, int]:
    """Returns the trainings of every arm, with 64 patches of 4 x 4, and the number of layers."""
    pictures = vision.load(settings)
    layers, dim, steps, looks, seeds = (2, 32, 30, 3, 1) if settings.quick else (4, 64, 400, 10, 3)

    def trials(attention: AttentionConfig) -> list[Trial]:
        return [
            Trial(
                attention=attention, seed=seed, steps=steps, layers=layers, dim=dim, looks=looks, data=pictures.checksum
            )
            for seed in range(seeds)
        ]

    return {name: _train_all(settings, pictures, trials(attention)) for name, attention in ARMS.items()}, layers


def norms(settings: FigureOptions) -> FigureResult:
    """Returns Figures 2 to 5: norms of each layer's attention and of its derivative by the scores."""
    if settings.runs:
        return p1_runs.norms(settings)
    courses, layers = _arms(settings)
    panels = [
        Panel(
            title=f"{name}, layer {layer + 1} of {layers}", x="step", y="Frobenius norm", log_y=True,
            lines=[_over_steps(label, seeds, field, layer) for label, seeds in courses.items()],
        )
        for field, name in (("norm", "attention"), ("jacobian", "derivative by the scores"))
        for layer in range(layers)
    ]  # fmt: skip
    panels.append(
        Panel(title="training", x="step", y="training loss, nats",
              lines=[curve(label, [each.losses for each in seeds]) for label, seeds in courses.items()])
    )  # fmt: skip
    panels.append(
        Panel(title="test pictures", x="step", y="accuracy, 0 to 1",
              lines=[_accuracy(label, seeds) for label, seeds in courses.items()])
    )  # fmt: skip
    return FigureResult(panels=panels, findings=[] if settings.quick else _findings(courses))


def _over_steps(label: str, seeds: list[TrainingRecord], field: str, layer: int) -> Line:
    """Returns a layer's norm by step: the geometric mean over the seeds still training."""
    longest = max(seeds, key=lambda each: len(each.looked))
    values = [
        [getattr(each, field)[at][layer] for each in seeds if at < len(each.looked)]
        for at in range(len(longest.looked))
    ]
    return Line(label=label, x=longest.looked, y=[statistics.geometric_mean(some) for some in values])


def _accuracy(label: str, seeds: list[TrainingRecord]) -> Line:
    looks = min(len(each.looked) for each in seeds)
    scores = [[each.accuracy[at] for each in seeds] for at in range(looks)]
    return Line(
        label=label, x=seeds[0].looked[:looks], y=[statistics.fmean(some) for some in scores],
        spread=[statistics.stdev(some) if len(some) > 1 else 0.0 for some in scores],
    )  # fmt: skip


def _largest(seeds: list[TrainingRecord], field: str) -> float:
    """Returns the largest final norm of any layer: the geometric mean over seeds."""
    return statistics.geometric_mean(max(getattr(each, field)[-1]) for each in seeds)


def _findings(courses: Records) -> list[Finding]:
    found = []
    # The derivative of x by the scores is the constant scale, so only x^3 is checked.
    for field, name, bound, powers in (
        ("norm", "attention", 8.0, POWERS),
        ("jacobian", "its derivative", 16.0, POWERS[:1]),
    ):
        size = {label: _largest(seeds, field) for label, seeds in courses.items()}
        norms_found = ", ".join(f"{label} {value:.3g}" for label, value in size.items())
        smaller = all(size[f"{x}, unscaled"] > 3 * size[f"{x} / sqrt N"] for x in powers)
        found.append(Finding(claim=f"without the scale {name} is several times as large", agrees=smaller,
                             found=f"largest norm of a layer at the end: {norms_found}"))  # fmt: skip
        found += [
            Finding(claim=f"ours: {name} of {x} / sqrt N stays below softmax's bound", agrees=value <= bound,
                    found=f"{value:.3g}, {bound:g}")
            for x, value in ((x, size[f"{x} / sqrt N"]) for x in powers)
        ]  # fmt: skip
    found += [_better(f"{x} learns better scaled", courses[f"{x} / sqrt N"], courses[f"{x}, unscaled"]) for x in POWERS]
    found.append(_better("x^3 / sqrt N learns as well as softmax", courses[HEADS[1]], courses["softmax"], less=0.02))
    return found


def _better(claim: str, ones: list[TrainingRecord], others: list[TrainingRecord], less: float = 0.0) -> Finding:
    """Returns whether every seed's accuracy is above the same seed's of the others, minus ``less``."""
    apart = [one.accuracy[-1] - other.accuracy[-1] for one, other in zip(ones, others, strict=True)]
    means = [statistics.fmean(each.accuracy[-1] for each in some) for some in (ones, others)]
    by_seed = ", ".join(f"{difference:+.3f}" for difference in apart)
    return Finding(claim=claim, agrees=min(apart) > -less,
                   found=f"accuracy {means[0]:.3f} and {means[1]:.3f}, by seed {by_seed}")  # fmt: skip


def heads(settings: FigureOptions) -> FigureResult:
    """Returns Figures 6 and 7: the first head of the first and last layer, means over test pictures."""
    if settings.runs:
        return p1_runs.heads(settings)
    courses, layers = _arms(settings)
    panels: list[Matrix] = []
    negative: dict[str, list[float]] = {name: [] for name in HEADS}
    for number, layer in enumerate((1, layers)):
        for name in HEADS:
            weights = courses[name][0].heads[number]
            share = statistics.fmean(value < 0 for row in weights for value in row)
            negative[name].append(share)
            panels.append(Matrix(title=f"{name}, layer {layer}: {share:.0%} negative", x="key, a patch", y="query",
                                 values=weights))  # fmt: skip
    most = {name: max(shares) for name, shares in negative.items()}
    signs = most["softmax"] == 0 and all(0.05 < most[name] < 0.95 for name in HEADS[1:])
    finding = Finding(
        claim="ours: weights of powers have both signs, softmax's one", agrees=signs,
        found="negative in the first and the last layer: "
        + ", ".join(f"{name} {' and '.join(f'{share:.0%}' for share in shares)}" for name, shares in negative.items()),
    )  # fmt: skip
    return FigureResult(panels=panels, findings=[] if settings.quick else [finding])


def scales(settings: FigureOptions) -> FigureResult:
    """Returns Figures 1 and 10: the best divisor of x^3 by length, and its effect."""
    if settings.runs:
        return p1_runs.scales(settings)
    pictures = vision.load(settings)
    steps, seeds, tried = (10, 1, SCALES[::3]) if settings.quick else (300, 3, SCALES)
    lengths = (16, 64) if settings.quick else tuple(PATCHES)
    courses: dict[int, list[list[TrainingRecord]]] = {
        length: [
            _train_all(settings, pictures, [
                Trial(attention=Elementwise(power=3, scale=scale), patch=PATCHES[length], seed=seed, steps=steps,
                      layers=2, dim=32, looks=1, data=pictures.checksum)
                for seed in range(seeds)
            ])
            for scale in tried
        ]
        for length in lengths
    }  # fmt: skip
    ends = {length: [[each.end for each in some] for some in by_scale] for length, by_scale in courses.items()}
    best = {
        length: [tried[min(range(len(tried)), key=lambda at: by_scale[at][seed])] for seed in range(seeds)]
        for length, by_scale in ends.items()
    }
    middle = {length: statistics.geometric_mean(some) for length, some in best.items()}
    panels = [
        Panel(title="best divisor", x="length N", y="divisor of x^3", log_x=True, log_y=True, lines=[
            Line(label="best of each seed", x=[length for length in lengths for _ in range(seeds)],
                 y=[scale for length in lengths for scale in best[length]], dots=True),
            Line(label="their geometric mean", x=lengths, y=list(middle.values())),
            Line(label="sqrt N", x=lengths, y=[length**0.5 for length in lengths]),
        ]),
        Panel(title="training", x="divisor of x^3", y="loss of the last tenth minus the seed's mean, nats",
              log_x=True, lines=[_by_scale(f"{length} patches", tried, values) for length, values in ends.items()]),
        Panel(title="test pictures", x="divisor of x^3", y="accuracy minus the seed's mean", log_x=True, lines=[
            _by_scale(f"{length} patches", tried, [[each.accuracy[-1] for each in some] for some in by_scale])
            for length, by_scale in courses.items()
        ]),
    ]  # fmt: skip
    return FigureResult(panels=panels, findings=[] if settings.quick else _on_scales(middle, courses))


def _by_scale(label: str, tried: Sequence[float], values: list[list[float]]) -> Line:
    """Returns values minus the mean over all scales of the same seed."""
    known = {scale: some for scale, some in zip(tried, values, strict=True) if all(map(math.isfinite, some))}
    means = [statistics.fmean(each) for each in zip(*known.values(), strict=True)]
    apart = [[value - mean for value, mean in zip(some, means, strict=True)] for some in known.values()]
    return Line(
        label=label, x=list(known), y=[statistics.fmean(some) for some in apart],
        spread=[statistics.stdev(some) if len(some) > 1 else 0.0 for some in apart],
    )  # fmt: skip


def _on_scales(middle: dict[int, float], courses: dict[int, list[list[TrainingRecord]]]) -> list[Finding]:
    longest = max(courses)
    scores = [statistics.fmean(each.accuracy[-1] for each in some) for some in courses[longest]]
    around = [score for scale, score in zip(SCALES, scores, strict=True) if 8 <= scale <= 25]
    return [
        Finding(claim="longer sequences need a larger divisor", agrees=middle[longest] > 1.5 * middle[min(middle)],
                found=", ".join(f"N {length}: {scale:.3g}" for length, scale in middle.items())),
        Finding(claim=f"at N = {longest} divisors from 8 to 25 all do well", agrees=max(scores) - min(around) < 0.02,
                found="accuracy " + ", ".join(f"{score:.3f} at {scale:g}"
                                              for scale, score in zip(SCALES, scores, strict=True))),
    ]  # fmt: skip


def _check(of_runs: Callable[[FigureOptions], object]) -> Callable[[FigureOptions], object]:
    """Returns the check of a figure's inputs: the runs, if folders of runs are named, else the pictures."""
    return lambda settings: of_runs(settings) if settings.runs else vision.load(settings)


DRAWINGS = (
    Drawing(name="p1-norms", duration="minutes", source="P1, Figures 2 to 5 and 11 to 14", make=norms,
            check=_check(p1_runs.runs_with_norms),
            shows="norms while a small vision transformer trains: several times as large without 1 / sqrt N"),
    Drawing(name="p1-heads", duration="minutes", source="P1, Figures 6 and 7", make=heads,
            check=_check(p1_runs.runs_with_heads),
            shows="weights of trained heads: yellow positive, blue negative, grey zero"),
    Drawing(name="p1-scales", duration="20 minutes", source="P1, Figures 1 and 10", make=scales,
            check=_check(p1_runs.runs_with_scales),
            shows="the best divisor of x^3, by the length of the sequence"),
)  # fmt: skip

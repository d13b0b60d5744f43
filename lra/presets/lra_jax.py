"""The runs of Tay et al. 2021 (google-research/long-range-arena at its last commit), with one model per task."""

from dataclasses import replace
from typing import Literal

from seqarena.common.model.norms.pre import PreNorm
from seqarena.common.runs.run import Preset
from seqarena.common.training.loop import Train
from seqarena.common.training.optim import Optim, Schedule
from seqarena.lra.data import Data
from seqarena.lra.data.image import Image
from seqarena.lra.data.listops import ListOps
from seqarena.lra.data.pathfinder import Pathfinder
from seqarena.lra.data.retrieval import Retrieval, RetrievalImdb
from seqarena.lra.data.text import Text
from seqarena.lra.model import Model
from seqarena.lra.run import Legacy, Run

MODEL = Model(
    vocabulary=257, max_length=1, classes=2, positions="sinusoidal", embedding_std=1.0, pooling="cls", layers=4,
    dim=256, heads=4, ffn_dim=1024, norm=PreNorm(), activation="gelu_tanh", projection_bias=False, norm_eps=1e-6,
)  # fmt: skip
"""Settings shared by all configs of Tay et al."""
RETRIEVAL_MODEL = replace(
    MODEL, max_length=4000, pooling="first", pairing="concat", head_dims=(512, 256), dim=128, ffn_dim=512
)

SOURCE = "Tay et al. 2021 (google-research/long-range-arena at its last commit)"
DEPARTURES = "no weight decay on biases and norms, no first step at rate 0"
TEXT_DEPARTURES = (
    f"{DEPARTURES}, validation on 5,000 of the 25,000 training reviews (theirs: all are trained on, text-legacy)"
)
CLS_DEPARTURE = "the class token is always visible (theirs: only if the first pixel is not black)"
MEAN_DEPARTURE = "the mean is over pixels that are not black (theirs: over all)"
IMAGE_DEPARTURES = (
    f"{DEPARTURES}, the cosine ends at 0 (theirs: at 6e-5 of the peak), black pixels are tokens (theirs: padding)"
)


def _preset(
    task: str,
    data: Data,
    model: Model,
    *,
    lr: float,
    shape: Literal["rsqrt", "cosine"],
    warmup: int,
    steps: int,
    batch_size: int,
    eval_every: int,
    clip: float | None = None,
    departures: str = DEPARTURES,
    expected: str,
    cost: str,
) -> Preset[Run]:
    run = Run(
        task=task,
        preset="lra-jax",
        data=data,
        model=model,
        optim=Optim(
            lr=lr, bounded_lr_multiplier=6.0, betas=(0.9, 0.98), eps=1e-9,
            weight_decay=0.1 if shape == "rsqrt" else 0.0, clip=clip, schedule=Schedule(shape=shape, warmup=warmup),
        ),
        train=Train(steps=steps, batch_size=batch_size, eval_every=eval_every, select="last"),
    )  # fmt: skip
    return Preset(run=run, source=SOURCE, departures=departures, expected=expected, cost=cost, comparable=True)


def _for_task(preset: Preset[Run], task: str, data: Data, *, expected: str) -> Preset[Run]:
    """Returns the same run on a related task."""
    return replace(preset, run=replace(preset.run, task=task, data=data), departures=DEPARTURES, expected=expected)


def _legacy(preset: Preset[Run]) -> Preset[Run]:
    """Returns the run with black pixels as padding."""
    run = replace(preset.run, preset="lra-jax-legacy", legacy=Legacy(zero_is_padding=True))
    departures = f"{DEPARTURES}, {CLS_DEPARTURE if run.model.pooling == 'cls' else MEAN_DEPARTURE}"
    return replace(preset, run=run, source=f"{SOURCE}, with black pixels as padding", departures=departures)


LISTOPS = _preset(
    "listops", ListOps(), replace(MODEL, vocabulary=16, classes=10, max_length=2001, dim=512, heads=8),
    lr=0.05 / 1_000**0.5, shape="rsqrt", warmup=1_000, steps=5_000, batch_size=32, eval_every=50,
    expected="softmax 36.4 % in print", cost="8.9M parameters, 5,000 steps of 32: a GPU",
)  # fmt: skip
TEXT = _preset(
    "text", Text(length=1_000), replace(MODEL, max_length=1001),
    lr=0.05 / 8_000**0.5, shape="rsqrt", warmup=8_000, steps=20_000, batch_size=32, eval_every=100,
    departures=TEXT_DEPARTURES,
    expected="softmax 64.3 % in print, the best of four lengths", cost="3.5M parameters, 20,000 steps of 32: a GPU",
)  # fmt: skip
RETRIEVAL = _preset(
    "retrieval", Retrieval(), RETRIEVAL_MODEL,
    lr=0.05 / 8_000**0.5, shape="rsqrt", warmup=8_000, steps=5_000, batch_size=32, eval_every=100,
    expected="softmax 57.5 % in print", cost="1.1M parameters, 5,000 steps, all warm-up, of 32 pairs: a GPU",
)  # fmt: skip
IMAGE = _preset(
    "image", Image(),
    replace(MODEL, max_length=1025, classes=10, positions="learned", layers=1, dim=128, attention_dim=64, heads=8,
            ffn_dim=128, dropout=0.3, attention_dropout=0.2),
    lr=5e-4, shape="cosine", warmup=175, steps=35_000, batch_size=256, eval_every=175, departures=IMAGE_DEPARTURES,
    expected="softmax 42.4 % in print", cost="35,000 steps of 256 images: a GPU",
)  # fmt: skip
PATHFINDER = _preset(
    "pathfinder", Pathfinder(),
    replace(MODEL, max_length=1024, pooling="mean", dim=32, attention_dim=16, ffn_dim=32, dropout=0.2),
    lr=1e-3, shape="cosine", warmup=312, steps=62_400, batch_size=512, eval_every=312, departures=IMAGE_DEPARTURES,
    expected="softmax 71.4 % in print", cost="62,400 steps of 512 images: a GPU",
)  # fmt: skip
PATHX = _preset(
    "pathx", Pathfinder(size=128),
    replace(MODEL, max_length=16_384, positions="learned", pooling="mean", layers=1, dim=32, attention_dim=16, heads=2,
            ffn_dim=32),
    lr=1e-3, shape="cosine", warmup=2_500, steps=500_000, batch_size=64, eval_every=2_500, clip=1.0,
    departures=IMAGE_DEPARTURES,
    expected="softmax fails in print: 50 %", cost="500,000 steps of 64 images of 16,384 pixels: a GPU",
)  # fmt: skip

LRA_JAX = (
    LISTOPS,
    TEXT,
    _for_task(TEXT, "text-legacy", Text(length=1_000, validation="test"), expected=TEXT.expected),
    RETRIEVAL,
    _for_task(RETRIEVAL, "retrieval-imdb", RetrievalImdb(), expected="nothing in print: the task is ours"),
    IMAGE,
    PATHFINDER,
    PATHX,
    *(_legacy(preset) for preset in (IMAGE, PATHFINDER, PATHX)),
)

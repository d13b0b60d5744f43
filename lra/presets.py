"""The runs that have a name: typed values, each with its source, the score expected and its cost."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from common.blocks import PreNorm
from common.errors import WrongUseError
from common.optim import Optim, Schedule
from common.run import BaseRun, Preset
from common.training import Train
from lra.data import Data
from lra.data.book import Book, Chapters
from lra.data.digits import Digits
from lra.data.image import Image
from lra.data.listops import ListOps
from lra.data.pathfinder import Pathfinder
from lra.data.retrieval import Retrieval, RetrievalImdb
from lra.data.text import Text
from lra.model import Model


@dataclass(frozen=True, kw_only=True)
class Legacy:
    """Traps of the published code, to re-derive its numbers; all off by default."""

    padded_pooling: bool = False
    """Mean pooling divides by model.max_length, not by the number of real tokens (Xiong et al.)."""
    drop_tail: bool = False
    """Evaluation leaves out the last examples that do not fill a batch of train.batch_size (Xiong et al.)."""
    zero_is_padding: bool = False
    """Black pixels count as padding, as token 0 did (Tay et al., Xiong et al.)."""


@dataclass(frozen=True, kw_only=True)
class Run(BaseRun):
    """One training on a task of Long Range Arena."""

    data: Data
    model: Model
    legacy: Legacy = field(default_factory=Legacy)

    def check(self) -> None:
        """Raises a ``WrongUseError`` for a run that could not work, before anything is loaded."""
        super().check()
        self.data.check()
        self.model.check_task(self.data, longest=self.data.longest)
        if self.data.sequences == 1 and self.model.pairing != "product":
            raise WrongUseError("model.pairing is for tasks that compare two documents")
        if self.legacy.padded_pooling and self.model.pooling != "mean":
            raise WrongUseError("legacy.padded_pooling belongs to model.pooling mean")


def _xiong2021(
    task: str, data: Data, *, positions: int, batch_size: int, warmup: int, steps: int, eval_every: int
) -> Run:
    """Returns the run of Xiong et al. 2021 (LRA/code/lra_config.py): one small model and one cycle for all tasks."""
    return Run(
        task=task,
        preset="xiong2021",
        data=data,
        model=Model(
            vocabulary=data.vocabulary, max_length=positions, classes=data.classes, layers=2, dim=64, heads=2,
            ffn_dim=128, norm=PreNorm(),
        ),
        optim=Optim(
            lr=1e-4, bounded_lr_multiplier=100.0, eps=1e-6, schedule=Schedule(shape="one_cycle", warmup=warmup)
        ),
        train=Train(steps=steps, batch_size=batch_size, eval_every=eval_every, length_pool=8),
    )  # fmt: skip


XIONG2021: Mapping[str, Run] = MappingProxyType(
    {
        run.task: run
        for run in (
            _xiong2021("listops", ListOps(), positions=2048, batch_size=32, warmup=1_000, steps=5_000, eval_every=50),
            _xiong2021("text", Text(), positions=4096, batch_size=32, warmup=8_000, steps=20_000, eval_every=500),
            _xiong2021(
                "text-legacy",
                Text(validation="test"),
                positions=4096,
                batch_size=32,
                warmup=8_000,
                steps=20_000,
                eval_every=500,
            ),
            _xiong2021(
                "retrieval-imdb",
                RetrievalImdb(),
                positions=4096,
                batch_size=32,
                warmup=800,
                steps=30_000,
                eval_every=300,
            ),
            _xiong2021(
                "retrieval", Retrieval(), positions=4096, batch_size=32, warmup=800, steps=30_000, eval_every=300
            ),
            # Not in their code: Pathfinder's run on larger images.
            _xiong2021(
                "pathx",
                Pathfinder(size=128),
                positions=16_384,
                batch_size=256,
                warmup=312,
                steps=62_400,
                eval_every=312,
            ),
            _xiong2021("image", Image(), positions=1024, batch_size=256, warmup=175, steps=35_000, eval_every=175),
            _xiong2021(
                "pathfinder", Pathfinder(), positions=1024, batch_size=256, warmup=312, steps=62_400, eval_every=312
            ),
        )
    }
)


XIONG2021_1K = replace(
    XIONG2021["text"],
    preset="xiong2021-1k",
    data=Text(length=1_000),
    model=replace(XIONG2021["text"].model, max_length=1024),
)
"""What the script of Xiong et al. really read, whatever their table says."""


def _lra_jax(
    task: str,
    data: Data,
    model: Model,
    *,
    lr: float,
    shape: Literal["rsqrt", "cosine"],
    warmup: int,
    train: Train,
    clip: float | None = None,
) -> Run:
    """Returns the run of Tay et al. 2021 (configs of google-research/long-range-arena at its last commit)."""
    return Run(
        task=task,
        preset="lra-jax",
        data=data,
        model=model,
        optim=Optim(
            lr=lr, bounded_lr_multiplier=6.0, betas=(0.9, 0.98), eps=1e-9,
            weight_decay=0.1 if shape == "rsqrt" else 0.0, clip=clip, schedule=Schedule(shape=shape, warmup=warmup),
        ),
        train=train,
    )  # fmt: skip


JAX_MODEL = Model(
    vocabulary=257, max_length=1, classes=2, positions="sinusoidal", embedding_std=1.0, pooling="cls", layers=4,
    dim=256, heads=4, ffn_dim=1024, norm=PreNorm(), activation="gelu_tanh", projection_bias=False, norm_eps=1e-6,
)  # fmt: skip
"""What the configs of Tay et al. share."""


def _train(steps: int, batch_size: int, eval_every: int) -> Train:
    return Train(steps=steps, batch_size=batch_size, eval_every=eval_every, select="last")


LRA_JAX: Mapping[str, Run] = MappingProxyType(
    {
        run.task: run
        for run in (
            _lra_jax(
                "listops",
                ListOps(),
                replace(JAX_MODEL, vocabulary=16, classes=10, max_length=2001, dim=512, heads=8),
                lr=0.05 / 1_000**0.5, shape="rsqrt", warmup=1_000, train=_train(5_000, 32, 50),
            ),
            _lra_jax(
                "text",
                Text(length=1_000),
                replace(JAX_MODEL, max_length=1001),
                lr=0.05 / 8_000**0.5, shape="rsqrt", warmup=8_000, train=_train(20_000, 32, 100),
            ),
            _lra_jax(
                "retrieval",
                Retrieval(),
                replace(JAX_MODEL, max_length=4000, pooling="first", pairing="concat", head_dims=(512, 256), dim=128,
                        ffn_dim=512),
                # Its warm-up of 8,000 steps never ends: this is its first 5,000.
                lr=0.05 / 8_000**0.5 * 5_000 / 8_000, shape="rsqrt", warmup=4_999, train=_train(5_000, 32, 100),
            ),
            _lra_jax(
                "image",
                Image(),
                replace(JAX_MODEL, max_length=1025, classes=10, positions="learned", layers=1, dim=128,
                        attention_dim=64, heads=8, ffn_dim=128, dropout=0.3, attention_dropout=0.2),
                lr=5e-4, shape="cosine", warmup=175, train=_train(35_000, 256, 175),
            ),
            _lra_jax(
                "pathfinder",
                Pathfinder(),
                replace(JAX_MODEL, max_length=1024, pooling="mean", dim=32, attention_dim=16, ffn_dim=32, dropout=0.2),
                lr=1e-3, shape="cosine", warmup=312, train=_train(62_400, 512, 312),
            ),
            _lra_jax(
                "pathx",
                Pathfinder(size=128),
                replace(JAX_MODEL, max_length=16_384, positions="learned", pooling="mean", layers=1, dim=32,
                        attention_dim=16, heads=2, ffn_dim=32),
                lr=1e-3, shape="cosine", warmup=2_500, train=_train(500_000, 64, 2_500), clip=1.0,
            ),
        )
    }
)  # fmt: skip


LRA_JAX_ALIKE: Mapping[str, Run] = MappingProxyType(
    {
        "text-legacy": replace(LRA_JAX["text"], task="text-legacy", data=Text(length=1_000, validation="test")),
        "retrieval-imdb": replace(LRA_JAX["retrieval"], task="retrieval-imdb", data=RetrievalImdb()),
    }
)
"""The runs of two tasks for their near kin."""


def _quick(task: str, data: Data, *, positions: int, lr: float = 2e-3, steps: int = 1_000, batch_size: int = 64) -> Run:
    """Returns a run of about a minute: the small model without dropout, on short sequences."""
    model = XIONG2021["listops"].model
    return Run(
        task=task,
        preset="quick",
        data=data,
        model=replace(
            model, vocabulary=data.vocabulary, classes=data.classes, max_length=positions, dropout=0.0,
            attention_dropout=0.0,
        ),
        optim=Optim(lr=lr, clip=1.0, bounded_lr_multiplier=5.0, schedule=Schedule(shape="linear", warmup=100)),
        train=Train(steps=steps, batch_size=batch_size, eval_every=200, length_pool=8),
    )  # fmt: skip


def _large(run: Run) -> Run:
    """Returns a run with embeddings as large as the sinusoids beside them; some tasks need it to learn in a minute."""
    return replace(
        run,
        model=replace(run.model, positions="sinusoidal", embedding_std=1.0),
        optim=replace(run.optim, lr=1e-3),
    )


SHORT_PATHS = Pathfinder(size=12, contour_length=3, distractors=0, examples=20_000)
QUICK: Mapping[str, Run] = MappingProxyType(
    {
        run.task: run
        for run in (
            _quick("listops", ListOps(longer_than=4, shorter_than=31, max_depth=4, max_arguments=5), positions=32),
            _quick("text", Book(), positions=128, steps=800),
            _quick("text-legacy", Book(), positions=128, steps=800),
            _large(_quick("retrieval", Chapters(), positions=128, steps=700)),
            _large(_quick("retrieval-imdb", Chapters(), positions=128, steps=700)),
            _quick("image", Digits(), positions=144),
            _large(_quick("pathfinder", SHORT_PATHS, positions=144)),
            _large(_quick("pathx", replace(SHORT_PATHS, size=16), positions=256, steps=1_500)),
        )
    }
)

XIONG_SOURCE = (
    "Xiong et al. 2021 (mlpen/Nystromformer, LRA/code), but pooling over real tokens, whole evaluation sets, beta1 "
    "fixed (theirs: --optim.schedule.cycle-betas), no unused token (theirs: a vocabulary of 32 or 512), and batches "
    "cut by length, eight at a time (theirs: --train.length-pool 1)"
)
JAX_SOURCE = (
    "Tay et al. 2021 (google-research/long-range-arena at its last commit), but no weight decay on biases and norms, "
    "and no first step at rate 0"
)


MINUTE = "about a minute on 2 CPU cores"


def _quick_preset(task: str, source: str, expected: str, cost: str = MINUTE) -> Preset:
    return Preset(run=QUICK[task], source=f"ours: {source}", expected=expected, cost=cost, comparable=False)


def _xiong_preset(run: Run, expected: str, cost: str, also: str = "", first: str = "") -> Preset:
    return Preset(run=run, source=f"{first}{XIONG_SOURCE}{also}", expected=expected, cost=cost, comparable=True)


def _jax_preset(task: str, expected: str, cost: str, also: str = "") -> Preset:
    run = LRA_JAX[task] if task in LRA_JAX else LRA_JAX_ALIKE[task]
    return Preset(run=run, source=f"{JAX_SOURCE}{also}", expected=expected, cost=cost, comparable=True)


PIXELS = "; black pixels are tokens (theirs: padding)"
EVERY = (
    _quick_preset(
        "listops",
        "expressions of 5 to 30 symbols, 4 levels, at most 5 arguments",
        "softmax, dnas, hnas 50 to 51 %, x3 48 % (3 seeds); root operator 25 %, majority 12 %",
    ),
    _xiong_preset(
        XIONG2021["listops"],
        "softmax 36 to 38.5 % in print",
        "5,000 steps of 32 expressions of 1,034 symbols on average: more than a day on 2 CPU cores",
    ),
    _jax_preset("listops", "softmax 36.4 % in print", "8.9M parameters, 5,000 steps of 32: a GPU"),
    _quick_preset(
        "text",
        "passages of 128 bytes of the bundled book: from its first half or its second?",
        "softmax 64 % (seed 0); bag of bytes 64 %, of byte pairs 69 %",
    ),
    _xiong_preset(
        XIONG2021["text"],
        "softmax 62 to 65 % in print",
        "20,000 steps of 32 reviews of 1,300 bytes on average: a GPU",
        ", and validation on 5,000 training reviews (theirs: the test set)",
    ),
    _xiong_preset(
        XIONG2021_1K,
        "softmax 62 to 65 % in print, said to be at 4,000 bytes",
        "20,000 steps of 32 reviews of at most 1,000 bytes: days on 2 CPU cores",
        ", and validation on 5,000 training reviews (theirs: the test set)",
        "the 1,000 bytes that the script really read: ",
    ),
    _jax_preset(
        "text", "softmax 64.3 % in print, the best of four lengths", "3.2M parameters, 20,000 steps of 32: a GPU"
    ),
    _quick_preset("text-legacy", "as text's", "softmax 64 % (seed 0); bag of bytes 64 %, of byte pairs 69 %"),
    _xiong_preset(
        XIONG2021["text-legacy"], "softmax 62 to 65 % in print", "20,000 steps of 32 reviews of 1,300 bytes: a GPU"
    ),
    _jax_preset("text-legacy", "softmax 64.3 % in print, the best of four lengths", "3.2M parameters: a GPU"),
    _quick_preset(
        "retrieval",
        "pairs of passages of 128 bytes of the bundled book: of one chapter?",
        "softmax 60 % (seed 0); majority 50 %, shared words 68 %",
    ),
    _xiong_preset(
        XIONG2021["retrieval"], "softmax 79 to 81 % in print", "30,000 steps of 32 pairs of 4,000 bytes: a GPU"
    ),
    _jax_preset(
        "retrieval",
        "softmax 57.5 % in print",
        "0.8M parameters, 5,000 steps of 32 pairs of 4,000 bytes: a GPU",
        "; its warm-up of 8,000 steps is cut off at 5,000, like theirs",
    ),
    _quick_preset("retrieval-imdb", "as retrieval's", "softmax 60 % (seed 0); majority 50 %, shared words 68 %"),
    _xiong_preset(
        XIONG2021["retrieval-imdb"],
        "nothing in print: the task is ours",
        "30,000 steps of 32 pairs of 1,300 bytes on average: a GPU",
    ),
    _jax_preset(
        "retrieval-imdb", "nothing in print: the task is ours", "0.8M parameters, 5,000 steps of 32 pairs: a GPU"
    ),
    _quick_preset(
        "image", "drawn digits of 12 x 12 pixels, with noise", "softmax 72 % (seed 0); majority 11 %, brightness 20 %"
    ),
    _xiong_preset(
        XIONG2021["image"], "softmax 38 to 43 % in print", "35,000 steps of 256 images of 1,024 pixels: a GPU", PIXELS
    ),
    _jax_preset("image", "softmax 42.4 % in print", "35,000 steps of 256 images: a GPU", PIXELS),
    _quick_preset(
        "pathfinder",
        "our generator at 12 x 12 pixels, contours of 3 dashes, no distractors",
        "softmax 74 % (seed 0); majority and brightness 50 %",
    ),
    _xiong_preset(
        XIONG2021["pathfinder"],
        "softmax 65 to 74 % in print",
        "62,400 steps of 256 images of 1,024 pixels: a GPU",
        PIXELS,
    ),
    _jax_preset("pathfinder", "softmax 71.4 % in print", "62,400 steps of 512 images: a GPU", PIXELS),
    _quick_preset(
        "pathx",
        "our generator at 16 x 16 pixels, contours of 3 dashes, no distractors",
        "softmax 73 % (seed 0); majority 50 %, brightness 51 %",
        "three minutes on 2 CPU cores",
    ),
    _xiong_preset(
        XIONG2021["pathx"],
        "nothing in print: their code has no Path-X",
        "62,400 steps of 256 images of 16,384 pixels: days on a GPU",
        PIXELS,
    ),
    _jax_preset("pathx", "softmax fails in print: 50 %", "500,000 steps of 64 images of 16,384 pixels: a GPU", PIXELS),
)

PRESETS: Mapping[str, Mapping[str, Preset]] = MappingProxyType(
    {
        task: MappingProxyType({preset.run.preset: preset for preset in EVERY if preset.run.task == task})
        for task in dict.fromkeys(preset.run.task for preset in EVERY)
    }
)

"""The runs that have a name: typed values, each with its source, the score expected and its cost."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from common.blocks import PreNorm
from common.errors import WrongUseError
from common.optim import Optim, Schedule
from common.run import BaseRun, Preset
from common.training import Train
from lra.data.listops.generator import ListOps
from lra.data.listops.language import CLASSES, SYMBOLS
from lra.model import Model


@dataclass(frozen=True, kw_only=True)
class Legacy:
    """Traps of the published code, to re-derive its numbers; all off by default."""

    padded_pooling: bool = False
    """Mean pooling divides by model.max_length, not by the number of real tokens (Xiong et al.)."""
    drop_tail: bool = False
    """Evaluation leaves out the last examples that do not fill a batch of train.batch_size (Xiong et al.)."""


@dataclass(frozen=True, kw_only=True)
class Run(BaseRun):
    """One training on a task of Long Range Arena."""

    data: ListOps
    model: Model
    legacy: Legacy = field(default_factory=Legacy)

    def check(self) -> None:
        """Raises a ``WrongUseError`` for a run that could not work, before anything is loaded."""
        super().check()
        self.data.check()
        longest = 0 if self.data.path is not None else self.data.shorter_than - 1
        self.model.check_task(longest=longest, symbols=len(SYMBOLS), classes=CLASSES)
        if self.legacy.padded_pooling and self.model.pooling != "mean":
            raise WrongUseError("legacy.padded_pooling belongs to model.pooling mean")


XIONG2021 = Run(
    task="listops",
    preset="xiong2021",
    data=ListOps(),
    model=Model(
        vocabulary=len(SYMBOLS),
        max_length=2048,
        classes=CLASSES,
        layers=2,
        dim=64,
        heads=2,
        ffn_dim=128,
        norm=PreNorm(),
    ),
    optim=Optim(
        lr=1e-4,
        bounded_lr_multiplier=100.0,
        eps=1e-6,
        schedule=Schedule(shape="one_cycle", warmup=1_000),
    ),
    train=Train(steps=5_000, batch_size=32, eval_every=50),
)

LRA_JAX = Run(
    task="listops",
    preset="lra-jax",
    data=ListOps(),
    model=Model(
        vocabulary=len(SYMBOLS),
        max_length=2001,
        classes=CLASSES,
        positions="sinusoidal",
        embedding_std=1.0,
        pooling="cls",
        layers=4,
        dim=512,
        heads=8,
        ffn_dim=1024,
        norm=PreNorm(),
        activation="gelu_tanh",
        projection_bias=False,
        norm_eps=1e-6,
    ),
    optim=Optim(
        lr=0.05 / 1_000**0.5,
        bounded_lr_multiplier=6.0,
        betas=(0.9, 0.98),
        eps=1e-9,
        weight_decay=0.1,
        schedule=Schedule(shape="rsqrt", warmup=1_000),
    ),
    train=Train(steps=5_000, batch_size=32, eval_every=50, select="last"),
)

QUICK = replace(
    XIONG2021,
    preset="quick",
    data=ListOps(longer_than=4, shorter_than=31, max_depth=4, max_arguments=5),
    model=replace(XIONG2021.model, max_length=32, dropout=0.0, attention_dropout=0.0),
    optim=Optim(lr=2e-3, clip=1.0, bounded_lr_multiplier=5.0, schedule=Schedule(shape="linear", warmup=100)),
    train=Train(steps=1_000, batch_size=64, eval_every=200, length_pool=8),
)

PRESETS: Mapping[str, Mapping[str, Preset]] = MappingProxyType(
    {
        "listops": MappingProxyType(
            {
                "quick": Preset(
                    run=QUICK,
                    source="ours: expressions of 5 to 30 symbols, 4 levels, at most 5 arguments",
                    expected="softmax, dnas, hnas 50 to 51 %, x3 48 % (3 seeds); root operator 25 %, majority 12 %",
                    cost="half a minute on 2 CPU cores",
                    comparable=False,
                ),
                "xiong2021": Preset(
                    run=XIONG2021,
                    source="Xiong et al. 2021 (mlpen/Nystromformer, LRA/code), but pooling over real tokens, whole "
                    "evaluation sets, beta1 fixed (theirs: --optim.schedule.cycle-betas), vocabulary 16 (theirs: 32)",
                    expected="softmax 36 to 38.5 % in print",
                    cost="5,000 steps of 32 expressions of 1,034 symbols on average: more than a day on 2 CPU cores",
                    comparable=True,
                ),
                "lra-jax": Preset(
                    run=LRA_JAX,
                    source="Tay et al. 2021 (google-research/long-range-arena at its last commit), but no weight decay "
                    "on biases and norms, and no first step at rate 0",
                    expected="softmax 36.4 % in print",
                    cost="8.9M parameters, 5,000 steps of 32: a GPU",
                    comparable=True,
                ),
            }
        )
    }
)

"""Optimiser and learning-rate schedule: their configs, and pure functions of the step."""

import bisect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import nn

from seqarena.common.errors import WrongUseError
from seqarena.common.model.bounded import bounded_modules


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The learning rate over the steps, as a multiple of the peak rate."""

    shape: Literal["constant", "linear", "cosine", "rsqrt", "one_cycle"] = "constant"
    """After warm-up: constant; linear or cosine towards 0 at the end; rsqrt falls as 1/sqrt(step); one_cycle is
    PyTorch's OneCycleLR with linear annealing: up from 1/25 of the peak, down to 1/250,000."""
    warmup: int = 0
    """Steps of linear warm-up; the first step is never at rate 0."""
    cycle_betas: bool = False
    """Whether one_cycle also moves Adam's first beta from 0.95 to 0.85 and back, as PyTorch's default does."""

    def check(self, steps: int) -> None:
        """Raises a ``WrongUseError`` if warm-up does not fit into the steps; rsqrt is defined without an end."""
        if self.warmup < 0 or (self.warmup >= steps and self.shape != "rsqrt"):
            raise WrongUseError(
                f"optim.schedule.warmup {self.warmup} does not fit into train.steps {steps}: expected 0 to {steps - 1}"
            )
        if self.cycle_betas and self.shape != "one_cycle":
            raise WrongUseError(f"optim.schedule.cycle_betas belongs to shape one_cycle; shape is {self.shape}")
        if self.shape == "one_cycle" and self.warmup < 2:
            raise WrongUseError("optim.schedule.shape one_cycle needs a warmup of at least 2 steps")

    def shortened(self, before: int, after: int) -> "Schedule":
        """Returns the schedule of fewer steps: the warm-up keeps its share of them."""
        return replace(self, warmup=self._warmup_of(before, after))

    def _warmup_of(self, before: int, after: int) -> int:
        least = min(2, self.warmup) if self.shape == "one_cycle" else 0
        return max(least, self.warmup * after // before)


@dataclass(frozen=True, kw_only=True)
class Stepped(Schedule):
    """Warm-up from a share of the peak, then down at some steps: Pythia's (Jiang et al. 2018, v0.1)."""

    warmup_from: float = 0.2
    """Share of the peak at the first step."""
    milestones: tuple[int, ...]
    """Steps, counted from 0, from which on the rate is lower."""
    factor: float = 0.1
    """By how much, each time."""

    def check(self, steps: int) -> None:
        """Raises a ``WrongUseError`` for steps that are no sequence behind the warm-up, or a rate that never falls."""
        super().check(steps)
        if self.shape != "constant":
            raise WrongUseError(f"optim.schedule.shape {self.shape}: with optim.schedule.milestones it is constant")
        if not 0 < self.factor < 1 or not 0 < self.warmup_from <= 1:
            raise WrongUseError(
                "expected optim.schedule.factor between 0 and 1 and warmup_from above 0, at most 1; found "
                f"{self.factor} and {self.warmup_from}"
            )
        grows = list(self.milestones) == sorted(set(self.milestones)) and len(self.milestones) > 0
        if not grows or self.milestones[0] < self.warmup or self.milestones[-1] >= steps:
            raise WrongUseError(
                f"optim.schedule.milestones: expected steps that grow, from the {self.warmup} of warm-up to below the "
                f"{steps} of train.steps; found {self.milestones}"
            )

    def shortened(self, before: int, after: int) -> "Stepped":
        """Returns the schedule of fewer steps: warm-up and milestones keep their shares of them."""
        milestones = dict.fromkeys(min(step * after // before, after - 1) for step in self.milestones)
        return replace(self, warmup=self._warmup_of(before, after), milestones=tuple(milestones))


def fitted(schedule: Schedule, before: int, after: int) -> Schedule:
    """Returns a schedule for so many steps ``before``, shortened where it does not fit into those ``after``."""
    try:
        schedule.check(after)
    except WrongUseError:
        return schedule.shortened(before, after) if 0 < after < before else schedule
    return schedule


def height(schedule: Schedule, step: int, steps: int) -> tuple[float, bool]:
    """Returns how high one_cycle is, from 0 to 1 at its peak, and whether it rises; steps count from 0."""
    top, last = schedule.warmup - 1, steps - 1
    if step <= top:
        return step / top, True
    return 1 - min((step - top) / (last - top), 1.0), False


def rate(schedule: Schedule, step: int, steps: int) -> float:
    """Returns the learning rate of a step (from 0) of ``steps``, as a multiple of the peak rate."""
    if isinstance(schedule, Stepped):
        warm = min(step / schedule.warmup, 1.0) if schedule.warmup else 1.0
        lowered = schedule.factor ** bisect.bisect_right(schedule.milestones, step)
        return lowered * (schedule.warmup_from * (1 - warm) + warm)
    if schedule.shape == "one_cycle":
        high, rises = height(schedule, step, steps)
        low = 1 / 25 if rises else 1 / 250_000
        return low + (1 - low) * high
    warmup = schedule.warmup
    if step < warmup:
        return (step + 1) / warmup
    if schedule.shape == "rsqrt":
        return math.sqrt(max(warmup, 1) / (step + 1))
    progress = (step - warmup) / max(steps - warmup, 1)
    if schedule.shape == "linear":
        return 1 - progress
    return 0.5 * (1 + math.cos(math.pi * progress)) if schedule.shape == "cosine" else 1.0


def first_beta(schedule: Schedule, beta: float, step: int, steps: int) -> float:
    """Returns Adam's first beta at a step: ``beta``, or one_cycle's 0.95 -> 0.85 -> 0.95."""
    if not (schedule.cycle_betas and schedule.shape == "one_cycle"):
        return beta
    return 0.95 - 0.1 * height(schedule, step, steps)[0]


OPTIMIZERS: Mapping[str, type[torch.optim.Optimizer]] = MappingProxyType(
    {"adamw": torch.optim.AdamW, "bert_adam": torch.optim.AdamW, "adam": torch.optim.Adam, "adamax": torch.optim.Adamax}
)


@dataclass(frozen=True, kw_only=True)
class Optim:
    """The optimiser, its peak learning rate and its schedule."""

    name: Literal["adamw", "bert_adam", "adam", "adamax", "lamb"] = "adamw"
    """Optimiser; adamw decays weights apart from the gradient, adam and adamax through it; bert_adam is adamw without
    bias correction, as Google's BERT has it, which makes the first steps of a finetuning too long; lamb (ALBERT's, for
    large batches) adds the decay to a step that it makes as long as the weights of its tensor."""
    lr: float
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of the two running means."""
    eps: float = 1e-8
    """Added to the root of the second running mean."""
    weight_decay: float = 0.0
    """Weight decay of matrices and embeddings; never of biases, norms or bounded numbers."""
    clip: float | None = None
    """Largest global gradient norm; none: no clipping."""
    bounded_lr_multiplier: float = 100.0
    """Multiplies lr for u of hnas and a learnable tau: clamped numbers that must cross their range in a run."""
    schedule: Schedule = field(default_factory=Schedule)
    """The learning rate over the steps."""

    def check(self) -> None:
        """Raises a ``WrongUseError`` for values no optimiser can use."""
        if self.lr <= 0 or self.bounded_lr_multiplier <= 0:
            raise WrongUseError("optim.lr and optim.bounded_lr_multiplier: expected numbers above 0")
        if self.eps <= 0 or self.weight_decay < 0:
            raise WrongUseError("expected optim.eps above 0 and optim.weight_decay of at least 0")
        if self.clip is not None and self.clip <= 0:
            raise WrongUseError(f"optim.clip: expected a number above 0 or none, found {self.clip}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise WrongUseError(f"optim.betas: expected two numbers from 0 up to below 1, found {self.betas}")


class ScaledLayer(nn.Sequential):
    """Layers that learn at a multiple of the rate, such as those that come trained."""

    def __init__(self, *layers: nn.Module, multiplier: float) -> None:
        super().__init__(*layers)
        self.multiplier = multiplier


def build_optimizer(optim: Optim, model: nn.Module) -> torch.optim.Optimizer:
    """Returns the optimiser over three groups: decayed, not decayed, bounded; each knows its rate's ``multiplier``.

    Layers of a ``ScaledLayer`` have groups of their own.
    """
    multipliers = {id(module.raw): optim.bounded_lr_multiplier for _, module in bounded_modules(model)}
    bounded = set(multipliers)
    for module in model.modules():
        if isinstance(module, ScaledLayer):
            multipliers |= {id(parameter): module.multiplier for parameter in module.parameters()}
    whole = (("decayed", 1.0), ("plain", 1.0), ("bounded", optim.bounded_lr_multiplier))
    groups: dict[tuple[str, float], list[nn.Parameter]] = {key: [] for key in whole}  # in this order in a checkpoint
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_matrix = parameter.ndim > 1 and not name.endswith("bias")  # Transformer-XL's have several dimensions
            kind = "bounded" if id(parameter) in bounded else "decayed" if is_matrix else "plain"
            groups.setdefault((kind, multipliers.get(id(parameter), 1.0)), []).append(parameter)
    settings: list[dict[str, Any]] = [
        {
            "params": parameters,
            "weight_decay": optim.weight_decay if kind == "decayed" else 0.0,
            "decay": optim.weight_decay if kind == "decayed" else 0.0,
            "multiplier": multiplier,
            **({"adam": kind != "decayed"} if optim.name == "lamb" else {}),
        }
        for (kind, multiplier), parameters in groups.items()
        if parameters
    ]
    if optim.name == "lamb":
        return _lamb(settings, optim)
    # One kernel for all parameters instead of a dozen operators for each; its last bits differ from the others'.
    further: Any = {} if optim.name == "adamax" else {"fused": True}
    return OPTIMIZERS[optim.name](settings, lr=optim.lr, betas=optim.betas, eps=optim.eps, **further)  # type: ignore[call-arg]


def _lamb(settings: list[dict[str, Any]], optim: Optim) -> torch.optim.Optimizer:
    """Returns LAMB (You et al. 2020) as ALBERT's code has it.

    No bias correction, the ratio of lengths not cut off (``eps`` added below it, unlike there), and for biases, norms
    and bounded numbers no such ratio.

    Raises:
        WrongUseError: its package is not installed.
    """
    try:
        from pytorch_optimizer import Lamb  # noqa: PLC0415  # an extra, and it takes seconds
    except ImportError as error:
        raise WrongUseError("optim.name lamb needs a package: pip install pytorch-optimizer") from error
    made: torch.optim.Optimizer = Lamb(
        settings, lr=optim.lr, betas=optim.betas, eps=optim.eps, weight_decouple=False, adam_debias=True
    )
    made.clamp = math.inf  # type: ignore[attr-defined]  # the paper's bound of 10 is below the norm of BERT's embeddings
    return made


def set_rate(optimizer: torch.optim.Optimizer, optim: Optim, step: int, steps: int) -> None:
    """Gives the optimiser the learning rate and first beta of a step (from 0)."""
    factor = rate(optim.schedule, step, steps)
    beta = first_beta(optim.schedule, optim.betas[0], step, steps)
    for group in optimizer.param_groups:
        group["lr"] = optim.lr * factor * group["multiplier"]
        group["betas"] = (beta, group["betas"][1])
        if optim.name == "bert_adam":
            _undo_correction(group, optim, step)


def _undo_correction(group: dict[str, Any], optim: Optim, step: int) -> None:
    """Changes rate, eps and decay so that a step of PyTorch's AdamW is the one without bias correction."""
    first, second = (1 - beta ** (step + 1) for beta in optim.betas)
    longer = first / math.sqrt(second)
    group["lr"] *= longer
    group["eps"] = optim.eps / math.sqrt(second)
    group["weight_decay"] = group["decay"] / longer

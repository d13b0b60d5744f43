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

LINEAR_DEPARTURE = (
    "the rate decays after its warm-up (theirs: from the first step, so that it drops as the warm-up ends)"
)
"""Difference between the schedule ``linear`` and that of Google's BERT and ALBERT, for the presets that follow them."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Learning-rate schedule: the rate at each step, as a multiple of the peak rate."""

    shape: Literal["constant", "linear", "cosine", "rsqrt", "one_cycle"] = "constant"
    """Shape after warm-up. constant; linear or cosine: down to 0 at the end; rsqrt: proportional to 1/sqrt(step);
    one_cycle: PyTorch's OneCycleLR with linear annealing, up from 1/25 of the peak and down to 1/250,000."""
    warmup: int = 0
    """Steps of linear warm-up. The rate of the first step is above 0."""
    cycle_betas: bool = False
    """Whether one_cycle also moves Adam's first beta from 0.95 to 0.85 and back, which is PyTorch's default."""

    def check(self, steps: int) -> None:
        """Raises a ``WrongUseError`` if the warm-up does not fit into the steps (rsqrt may end during warm-up)."""
        if self.shape == "one_cycle" and steps < 3:
            raise WrongUseError(f"optim.schedule.shape one_cycle: expected train.steps of at least 3, found {steps}")
        if self.warmup < 0 or (self.warmup >= steps and self.shape != "rsqrt"):
            raise WrongUseError(
                f"optim.schedule.warmup {self.warmup} does not fit into train.steps {steps}: expected 0 to {steps - 1}"
            )
        if self.cycle_betas and self.shape != "one_cycle":
            raise WrongUseError(f"optim.schedule.cycle_betas belongs to shape one_cycle; shape is {self.shape}")
        if self.shape == "one_cycle" and self.warmup < 2:
            raise WrongUseError("optim.schedule.shape one_cycle needs a warmup of at least 2 steps")

    def shortened(self, before: int, after: int) -> "Schedule":
        """Returns the schedule for fewer steps, with the warm-up in proportion."""
        return replace(self, warmup=self._warmup_of(before, after))

    def _warmup_of(self, before: int, after: int) -> int:
        least = min(2, self.warmup) if self.shape == "one_cycle" else 0
        return max(least, self.warmup * after // before)


@dataclass(frozen=True, kw_only=True)
class Stepped(Schedule):
    """Warm-up from a fraction of the peak, then step decay at milestones, as in Pythia (Jiang et al. 2018, v0.1)."""

    warmup_from: float = 0.2
    """Fraction of the peak at the first step."""
    milestones: tuple[int, ...]
    """Steps, counted from 0, from which on the rate is multiplied by ``factor`` once more."""
    factor: float = 0.1
    """Factor of the rate at each milestone."""

    def check(self, steps: int) -> None:
        """Raises a ``WrongUseError`` if milestones do not increase from the warm-up on, or if the rate never falls."""
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
                f"optim.schedule.milestones: expected increasing steps, from the {self.warmup} of warm-up to below the "
                f"{steps} of train.steps; found {self.milestones}"
            )

    def shortened(self, before: int, after: int) -> "Stepped":
        """Returns the schedule for fewer steps, with warm-up and milestones in proportion."""
        milestones = dict.fromkeys(min(step * after // before, after - 1) for step in self.milestones)
        return replace(self, warmup=self._warmup_of(before, after), milestones=tuple(milestones))


def fit_schedule(schedule: Schedule, before: int, after: int) -> Schedule:
    """Returns a schedule made for ``before`` steps, shortened if it does not fit into ``after`` steps."""
    try:
        schedule.check(after)
    except WrongUseError:
        return schedule.shortened(before, after) if 0 < after < before else schedule
    return schedule


def height(schedule: Schedule, step: int, steps: int) -> tuple[float, bool]:
    """Returns the height of one_cycle, from 0 to 1 at its peak, and whether it rises; steps count from 0."""
    top, last = schedule.warmup - 1, steps - 1
    if step <= top:
        return step / top, True
    return 1 - min((step - top) / (last - top), 1.0), False


def rate(schedule: Schedule, step: int, steps: int) -> float:
    """Returns the learning rate at a step (from 0) of ``steps``, as a multiple of the peak rate."""
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
    """Optimiser, peak learning rate and schedule."""

    name: Literal["adamw", "bert_adam", "adam", "adamax", "lamb"] = "adamw"
    """Optimiser. adamw: weight decay apart from the gradient; adam, adamax: weight decay added to the gradient;
    bert_adam: adamw without bias correction, as in Google's BERT, which makes the first steps of a finetuning too
    long; lamb (ALBERT's, for large batches): the update with its decay is scaled to the norm of the weights, tensor
    by tensor."""
    lr: float
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of the two moment estimates."""
    eps: float = 1e-8
    """Added to the root of the second moment estimate."""
    weight_decay: float = 0.0
    """Weight decay of matrices and embeddings. Biases, norms and bounded parameters have none."""
    clip: float | None = None
    """Maximum global gradient norm; none: no clipping."""
    bounded_lr_multiplier: float = 100.0
    """Multiplies lr for u of hnas and a learnable tau: clamped parameters that must cross their range within a run."""
    schedule: Schedule = field(default_factory=Schedule)
    """Learning-rate schedule."""

    def check(self) -> None:
        """Raises a ``WrongUseError`` for invalid values."""
        for name in ("lr", "bounded_lr_multiplier", "eps"):
            if getattr(self, name) <= 0:
                raise WrongUseError(f"optim.{name}: expected a number above 0, found {getattr(self, name)}")
        if self.weight_decay < 0:
            raise WrongUseError(f"optim.weight_decay: expected a number of at least 0, found {self.weight_decay}")
        if self.clip is not None and self.clip <= 0:
            raise WrongUseError(f"optim.clip: expected a number above 0 or none, found {self.clip}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise WrongUseError(f"optim.betas: expected two numbers from 0 up to below 1, found {self.betas}")


class ScaledLayer(nn.Sequential):
    """Layers whose learning rate has a multiplier, such as pretrained ones."""

    def __init__(self, *layers: nn.Module, multiplier: float) -> None:
        super().__init__(*layers)
        self.multiplier = multiplier


def build_optimizer(optim: Optim, model: nn.Module) -> torch.optim.Optimizer:
    """Returns the optimiser with three parameter groups: decayed, not decayed, bounded. Each has a rate ``multiplier``.

    Without weight decay the first two are one, except in LAMB: each group has kernels of its own. Layers of a
    ``ScaledLayer`` have their own groups.
    """
    multipliers = {id(module.raw): optim.bounded_lr_multiplier for _, module in bounded_modules(model)}
    bounded = set(multipliers)
    for module in model.modules():
        if isinstance(module, ScaledLayer):
            multipliers |= {id(parameter): module.multiplier for parameter in module.parameters()}
    decays = optim.weight_decay > 0 or optim.name == "lamb"
    whole = (("decayed", 1.0), ("plain", 1.0), ("bounded", optim.bounded_lr_multiplier))
    groups: dict[tuple[str, float], list[nn.Parameter]] = {key: [] for key in whole}  # checkpoints rely on this order
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_matrix = parameter.ndim > 1 and not name.endswith("bias")  # Transformer-XL's have several dimensions
            kind = "bounded" if id(parameter) in bounded else "decayed" if is_matrix and decays else "plain"
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
    # One kernel for all parameters instead of a dozen operators for each. Its last bits differ from theirs.
    further: Any = {} if optim.name == "adamax" else {"fused": True}
    return OPTIMIZERS[optim.name](settings, lr=optim.lr, betas=optim.betas, eps=optim.eps, **further)  # type: ignore[call-arg]


def _lamb(settings: list[dict[str, Any]], optim: Optim) -> torch.optim.Optimizer:
    """Returns LAMB (You et al. 2020) as in ALBERT's code.

    It has no bias correction and no upper bound on the ratio of norms. Unlike in ALBERT's code, ``eps`` is added to
    the denominator of that ratio. Updates of biases, norms and bounded parameters are not scaled.

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
    """Sets the optimiser's learning rate and first beta for a step (from 0)."""
    factor = rate(optim.schedule, step, steps)
    beta = first_beta(optim.schedule, optim.betas[0], step, steps)
    for group in optimizer.param_groups:
        group["lr"] = optim.lr * factor * group["multiplier"]
        group["betas"] = (beta, group["betas"][1])
        if optim.name == "bert_adam":
            _undo_correction(group, optim, step)


def _undo_correction(group: dict[str, Any], optim: Optim, step: int) -> None:
    """Changes rate, eps and decay so that a step of PyTorch's AdamW equals the step without bias correction."""
    first, second = (1 - beta ** (step + 1) for beta in group["betas"])  # the first may be cycled
    longer = first / math.sqrt(second)
    group["lr"] *= longer
    group["eps"] = optim.eps / math.sqrt(second)
    group["weight_decay"] = group["decay"] / longer

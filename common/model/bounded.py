"""Trained parameters clamped between two bounds: the mixing weight u of hnas, the de-escalation strength tau."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn


class Bounded(nn.Module):
    """A parameter that ``clamp_`` clips to the range from ``low`` to ``high`` after each optimiser step.

    The optimiser gives these parameters their own learning-rate multiplier and no weight decay
    (``seqarena.common.training.optim``). The loop clamps them, and logs them at every evaluation
    (``seqarena.common.training.loop``).
    """

    def __init__(self, initial: Tensor, *, low: float, high: float) -> None:
        super().__init__()
        self.low, self.high = low, high
        self.initial = initial
        self.raw = nn.Parameter(initial.to(torch.get_default_dtype(), copy=True))

    def forward(self) -> Tensor:
        """Returns the value, in the shape of ``initial``."""
        return self.raw

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Resets the parameter to its initial value, in its current precision."""
        self.raw.copy_(self.initial)

    @torch.no_grad()
    def clamp_(self) -> None:
        """Clips the parameter to its bounds."""
        self.raw.clamp_(self.low, self.high)


def bounded_modules(model: nn.Module) -> Iterator[tuple[str, Bounded]]:
    """Yields the bounded parameters of a model with their names, in the order of the layers."""
    return ((name, module) for name, module in model.named_modules() if isinstance(module, Bounded))

"""The interface between a variant and the blockwise engine: weights of a block of scores, and their gradient."""

import json
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from seqarena.common.runs.config import to_json

HIDDEN = -1e30
"""Score of a hidden pair: vanishes beside any other, and unlike minus infinity never makes a NaN. A score that a bias
makes as small, by minus infinity or the least number of a type, hides its pair too."""
NOTHING = -1e29
"""Least logarithm of a mass: a hidden score stays hidden after it is subtracted."""


class Scratch:
    """Buffers for tiles, used over and over: a tile fresh from the allocator is cold in every cache.

    Two tensors that live at the same time need different names.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.buffers: dict[tuple[str, torch.dtype], Tensor] = {}
        self.views: dict[tuple[str, tuple[int, ...], torch.dtype], Tensor] = {}

    def tile(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Returns an uninitialised contiguous tensor; the name's earlier one is overwritten with it."""
        found = self.views.get((name, shape, dtype))
        if found is None:
            size, buffer = math.prod(shape), self.buffers.get((name, dtype))
            if buffer is None or buffer.numel() < size:
                buffer = self.buffers[name, dtype] = torch.empty(size, dtype=dtype, device=self.device)
                self.views = {key: view for key, view in self.views.items() if key[0] != name}
            found = self.views[name, shape, dtype] = buffer[:size].view(shape)
        return found

    def like(self, name: str, tensor: Tensor) -> Tensor:
        """Returns one of the shape and type of another."""
        return self.tile(name, tensor.shape, tensor.dtype)


class ScoreGradient(NamedTuple):
    """Gradients of one block."""

    scores: Tensor | None
    """Gradient of the scores; G R W. None where all of it passes through ``doubly``."""
    doubly: Tensor | None = None
    """Gradient of the doubly-normalised weights; G R W."""
    share: Tensor | None = None
    """Gradient of the mixing weight, summed over each row; G R 1."""
    factor: float = 1.0
    """Constant factor of ``scores``, folded into the next matrix product."""


@dataclass(frozen=True, kw_only=True)
class Rule(ABC):
    """One variant's weights, block by block.

    A block has the shape G R W: some heads of the batch, some queries, some keys. ``doubly`` holds the block's
    doubly-normalised weights, which the engine computes for variants that are made of them; ``share`` a mixing share
    (G 1 1); each None where the variant has none. Both methods may overwrite the tensors they are given, and take the
    room for others from ``scratch``.
    """

    whole_rows: ClassVar[bool] = True
    """Whether the weights of a row depend on all of its scores; then those of hidden pairs are ``HIDDEN``. Otherwise
    theirs are 0, and the engine sets their weights to 0."""
    reads_scores: ClassVar[bool] = True
    """Whether ``apply`` looks at the scores themselves; if not, they may have been overwritten."""
    is_mixture: ClassVar[bool] = False
    """Whether the weights are the softmax of the scores, the doubly-normalised ones, or what ``share`` mixes of both:
    then diagnostics know the norm of their derivative."""
    rounds: int = 0
    """Rounds of Sinkhorn's algorithm in the doubly-normalised weights; 0: the variant has none of them."""
    recency: bool = False
    """Whether log(i - j + 1), for query i and an earlier key j, is subtracted from the scores."""

    text: ClassVar[str]
    """The rule as JSON: operators take no other objects. Written once, here, where no compiler is looking."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", json.dumps(to_json(self)))

    def row_divisor(self, counts: Tensor) -> Tensor | None:
        """Returns what each row is divided by, given how many keys it sees; None: nothing."""
        return None

    @abstractmethod
    def apply(
        self, scores: Tensor, doubly: Tensor | None, share: Tensor | None, scratch: Scratch
    ) -> tuple[Tensor, Any]:
        """Returns the weights, and whatever ``pull`` wants to have kept."""

    @abstractmethod
    def pull(self, kept: Any, grad: Tensor, scratch: Scratch) -> ScoreGradient:
        """Returns the gradients, given that of the weights."""


def softmax_(scores: Tensor) -> Tensor:
    """Returns the softmax over the last axis, in place of the scores."""
    return torch.softmax(scores, dim=-1, out=scores)


def pull_softmax_(weights: Tensor, grad: Tensor) -> Tensor:
    """Returns the gradient of the scores of a softmax over the last axis, in place of that of its weights."""
    pulled: Tensor = torch.ops.aten._softmax_backward_data.out(grad, weights, -1, weights.dtype, grad_input=grad)
    return pulled

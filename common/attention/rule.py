"""Interface between a variant and the blockwise engine: weights of a block of scores, and their gradient."""

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from seqarena.common.runs.config import to_json

HIDDEN = -1e30
"""Score of a hidden pair: its exponential is 0, and unlike minus infinity it never produces a NaN. A bias that lowers a
score to this or below, such as minus infinity or the lowest number of a dtype, hides its pair too."""
EMPTY_LOGSUMEXP = -1e29
"""Lowest value of a column logsumexp, larger than ``HIDDEN``: a hidden score minus this is still hidden."""


@runtime_checkable
class Scratch(Protocol):
    """Memory that a rule may use for further tensors of a block; the engine's ``Call``."""

    def like(self, name: str, tensor: Tensor) -> Tensor:
        """Returns an uninitialised tensor with the shape and dtype of ``tensor``, in the memory of that name."""
        ...


class ScoreGradient(NamedTuple):
    """Gradients of one block."""

    scores: Tensor | None
    """Gradient of the scores; G R W. None if it flows through ``doubly`` alone."""
    doubly: Tensor | None = None
    """Gradient of the doubly-normalised weights; G R W."""
    mixing_weight: Tensor | None = None
    """Gradient of the mixing weight, summed over each row; G R 1."""
    factor: float = 1.0
    """Constant factor of ``scores``, folded into the next matrix product."""


@dataclass(frozen=True, kw_only=True)
class Rule(ABC):
    """One variant's weights, block by block.

    A block has the shape G R W: G of the B H heads, R queries, W keys. ``doubly`` is the block's doubly-normalised
    weights, computed by the engine for variants that use them; ``mixing_weight`` is G 1 1. Each is None for other
    variants. ``apply`` and ``backward`` may overwrite their arguments, and allocate further tensors in ``scratch``.
    """

    whole_rows: ClassVar[bool] = True
    """Whether the weights of a row depend on all of its scores. If so, scores of hidden pairs are ``HIDDEN``. Otherwise
    they are 0, and the engine sets the weights of hidden pairs to 0."""
    reads_scores: ClassVar[bool] = True
    """Whether ``apply`` reads ``scores``. If not, the engine may have overwritten them."""
    is_mixture: ClassVar[bool] = False
    """Whether the weights are the softmax, the doubly-normalised weights, or their mixture. Diagnostics can compute the
    norm of the derivative of these."""
    rounds: int = 0
    """Rounds of Sinkhorn's algorithm in the doubly-normalised weights; 0 if the variant does not use them."""
    recency: bool = False
    """Whether log(i - j + 1), for query i and an earlier key j, is subtracted from the scores."""

    text: ClassVar[str]
    """The rule as JSON, because operators accept no other objects; made at construction, outside compiled code."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", json.dumps(to_json(self)))

    def row_divisor(self, counts: Tensor) -> Tensor:
        """Returns the divisor of each row, given its number of visible keys; of rules that need no whole rows."""
        raise AssertionError

    @abstractmethod
    def apply(
        self, scores: Tensor, doubly: Tensor | None, mixing_weight: Tensor | None, scratch: Scratch
    ) -> tuple[Tensor, Any]:
        """Returns the weights, and the values to save for ``backward``."""

    @abstractmethod
    def backward(self, saved: Any, grad: Tensor, scratch: Scratch) -> ScoreGradient:
        """Returns the gradients, given the values that ``apply`` saved and the gradient of the weights."""


def softmax_backward_(weights: Tensor, grad: Tensor) -> Tensor:
    """Computes the gradient of the scores of a softmax over the last axis, in place of the weights' gradient."""
    grad_scores: Tensor = torch.ops.aten._softmax_backward_data.out(grad, weights, -1, weights.dtype, grad_input=grad)
    return grad_scores

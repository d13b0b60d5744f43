"""Interface of a block normalisation: its config, and the residual block that it builds for each layer."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from seqarena.common.attention.visibility import Order, Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.model.deescalation import DeescalationState
from seqarena.common.runs.roles import added
from seqarena.common.shapes import Context, Hidden

Sublayer = Callable[[Tensor], Tensor]
SublayerName = Literal["attention", "cross", "feed_forward"]


class Sublayers(NamedTuple):
    """Functions of a layer that its residual block adds to the stream."""

    attention: Sublayer
    feed_forward: Sublayer
    cross: Sublayer | None = None
    """Attention of a decoder layer to the encoder's stream, between the two."""


@dataclass(frozen=True, kw_only=True)
class LayerPosition:
    """Position of a layer in its stack of layers."""

    number: int = 0
    """Index of the layer, from 0 at the input."""
    depth: int = 1
    """Number of layers of the stack."""
    encoder_depth: int = 0
    """Layers of the encoder that a decoder's stack reads; 0: it reads none."""
    decoder_depth: int = 0
    """Layers of the decoder that reads an encoder's stack; 0: none."""

    @property
    def sublayers(self) -> int:
        """Number of residual sums of the stack: two per layer, three where layers also attend to an encoder."""
        return self.depth * (3 if self.encoder_depth else 2)


class Residual(nn.Module, ABC):
    """Residual block of one layer, which adds its sublayers to the stream. Norm-specific, attention-agnostic."""

    def memory_input(self, stream: Context) -> Context:
        """Returns the input of attention for tokens of an earlier segment, given this layer's input for them."""
        return stream

    @abstractmethod
    def forward(
        self, hidden: Hidden, sublayers: Sublayers, visibility: Visibility, state: DeescalationState | None = None
    ) -> tuple[Hidden, DeescalationState | None]:
        """Returns the layer's output and the next state of the norm."""


@dataclass(frozen=True, kw_only=True)
class NormConfig(ABC):
    """Config of a block normalisation. Builds the residual block and the norm after the last layer."""

    alpha: float = field(default=1.0, metadata=added(3))
    """Weight of the output of attention in the residual sum (P3, Algorithm 1). P3 uses 1."""

    def __post_init__(self) -> None:
        if not self.alpha >= 0:
            raise WrongUseError(f"alpha: expected a number of at least 0, found {self.alpha}")

    def check(self, *, order: Order, mean_pooled: bool) -> None:  # noqa: B027  # most norms work in every model
        """Checks, before anything is loaded, that this norm can work in the model."""

    def causal(self) -> "NormConfig":
        """Returns the same norm in a form that cannot access future tokens."""
        return self

    def build_residual(self, dim: int, eps: float, position: LayerPosition) -> Residual:
        """Returns ``residual``. If that draws random numbers, the other weights of a model remain as they are."""
        with torch.random.fork_rng(devices=[]):
            return self.residual(dim, eps, position)

    def build_final_norm(self, dim: int, eps: float) -> nn.Module:
        """Returns ``final_norm``, in the same way."""
        with torch.random.fork_rng(devices=[]):
            return self.final_norm(dim, eps)

    @abstractmethod
    def residual(self, dim: int, eps: float, position: LayerPosition) -> Residual:
        """Returns the residual block of the layer at ``position``."""

    def final_norm(self, dim: int, eps: float) -> nn.Module:
        """Returns the module that normalises the stream after the last layer."""
        return nn.Identity()

    def initial_scale(self, position: LayerPosition) -> float:
        """Returns the factor of the initial weights of a layer's feed-forward and of its value and output matrices."""
        return 1.0


@torch.no_grad()
def scale_initial_weights(model: nn.Module) -> None:
    """Multiplies the initial weights of every layer in a model by the factor of its norm. Call it once they are drawn.

    These are the matrices of the feed-forward, and the value and output matrices of attention (DeepNet, section 4).
    """
    for layer in model.modules():
        factor = getattr(layer, "initial_scale", 1.0)
        if factor == 1:
            continue
        attentions = [each for name, each in layer.named_children() if name in ("attention", "cross")]
        matrices: list[nn.Module] = [matrix for each in attentions for matrix in each.residual_matrices]  # type: ignore[union-attr]
        matrices += [each for each in layer.feed_forward.children() if isinstance(each, nn.Linear)]  # type: ignore[union-attr]
        for matrix in matrices:
            matrix.weight.mul_(factor)  # type: ignore[operator]

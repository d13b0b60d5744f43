"""Feed-forward network, and the residual block around it and attention: post-norm, pre-norm, de-escalated."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from torch import Tensor, nn

from seqarena.common.attention.visibility import Order, Visibility
from seqarena.common.errors import WrongUseError, look_up
from seqarena.common.model.deescalation import LEAK, Deescalation, DeescalationState, Mean
from seqarena.common.runs.named import name_in
from seqarena.common.shapes import Context, Hidden

Activation = Literal["gelu", "gelu_tanh", "relu"]
Sublayer = Callable[[Tensor], Tensor]

ACTIVATIONS: Mapping[str, Callable[[], nn.Module]] = MappingProxyType(
    {"gelu": nn.GELU, "gelu_tanh": lambda: nn.GELU(approximate="tanh"), "relu": nn.ReLU}
)


def feed_forward(dim: int, hidden_dim: int, activation: Activation, dropout: float) -> nn.Sequential:
    """Returns Linear, activation, dropout, Linear. Dropout of the output is left to the layer."""
    return nn.Sequential(
        nn.Linear(dim, hidden_dim), ACTIVATIONS[activation](), nn.Dropout(dropout), nn.Linear(hidden_dim, dim)
    )


class Residual(nn.Module, ABC):
    """Residual block of one layer, which adds its sublayers to the stream. Norm-specific, attention-agnostic.

    A decoder layer has a third sublayer between the two, ``cross``: attention to the encoder's stream.
    """

    def memory_input(self, stream: Context) -> Context:
        """Returns the input of attention for tokens of an earlier segment, given this layer's input for them."""
        return stream

    @abstractmethod
    def forward(
        self,
        hidden: Hidden,
        attention: Sublayer,
        feed_forward: Sublayer,
        visibility: Visibility,
        state: DeescalationState | None = None,
        cross: Sublayer | None = None,
    ) -> tuple[Hidden, DeescalationState | None]:
        """Returns the layer's output and the next state of the norm."""


class PostNormResidual(Residual):
    """Post-norm block (P3, Algorithm 1): Y2 = LN(X + attention(X)); Y4 = LN(Y2 + feed_forward(Y2)).

    With cross-attention, Y2 becomes LN(Y2 + cross(Y2)) in between.
    """

    def __init__(self, dim: int, eps: float, *, cross: bool) -> None:
        super().__init__()
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(dim, eps=eps), nn.LayerNorm(dim, eps=eps)
        self.cross_norm = nn.LayerNorm(dim, eps=eps) if cross else nn.Identity()

    def apply_attention(self, hidden: Hidden, attention: Sublayer, cross: Sublayer | None) -> Hidden:
        """Returns Y2, the input of the feed-forward."""
        hidden = self.attention_norm(hidden + attention(hidden))
        if cross is not None:
            hidden = self.cross_norm(hidden + cross(hidden))
        return hidden

    def forward(
        self,
        hidden: Hidden,
        attention: Sublayer,
        feed_forward: Sublayer,
        visibility: Visibility,
        state: DeescalationState | None = None,
        cross: Sublayer | None = None,
    ) -> tuple[Hidden, DeescalationState | None]:
        """Returns Y4."""
        hidden = self.apply_attention(hidden, attention, cross)
        return self.feed_forward_norm(hidden + feed_forward(hidden)), state


class PreNormResidual(PostNormResidual):
    """Pre-norm block: Y2 = X + attention(LN(X)); Y4 = Y2 + feed_forward(LN(Y2))."""

    def memory_input(self, stream: Context) -> Context:
        """Returns LN(X)."""
        normalized: Tensor = self.attention_norm(stream)
        return normalized

    def forward(
        self,
        hidden: Hidden,
        attention: Sublayer,
        feed_forward: Sublayer,
        visibility: Visibility,
        state: DeescalationState | None = None,
        cross: Sublayer | None = None,
    ) -> tuple[Hidden, DeescalationState | None]:
        """Returns Y4."""
        hidden = hidden + attention(self.attention_norm(hidden))
        if cross is not None:
            hidden = hidden + cross(self.cross_norm(hidden))
        return hidden + feed_forward(self.feed_forward_norm(hidden)), state


class DeescalatedResidual(PostNormResidual):
    """Post-norm block that subtracts the mean of the tokens at one position; see ``Deescalated``."""

    def __init__(self, config: "Deescalated", dim: int, eps: float, *, cross: bool) -> None:
        super().__init__(dim, eps, cross=cross)
        self.where = config.where
        self.deescalation = Deescalation(
            tau=config.tau, learnable=config.learnable, mean=config.mean, leaky=config.leaky
        )

    def forward(
        self,
        hidden: Hidden,
        attention: Sublayer,
        feed_forward: Sublayer,
        visibility: Visibility,
        state: DeescalationState | None = None,
        cross: Sublayer | None = None,
    ) -> tuple[Hidden, DeescalationState | None]:
        """Returns Y4."""
        hidden = self.apply_attention(hidden, attention, cross)
        if self.where == "ffn_stream":
            hidden, state = self.deescalation(hidden, visibility, state)
        branch = hidden
        if self.where == "ffn_branch":
            branch, state = self.deescalation(hidden, visibility, state)
        hidden = self.feed_forward_norm(hidden + feed_forward(branch))
        if self.where == "block_output":
            hidden, state = self.deescalation(hidden, visibility, state)
        return hidden, state


@dataclass(frozen=True, kw_only=True)
class NormConfig(ABC):
    """Config of a block normalisation. Builds the residual block and the norm after the last layer."""

    def check(self, *, order: Order, mean_pooled: bool) -> None:  # noqa: B027  # most norms work in every model
        """Checks, before anything is loaded, that this norm can work in the model."""

    def causal(self) -> "NormConfig":
        """Returns the same norm in a form that cannot access future tokens."""
        return self

    @abstractmethod
    def residual(self, dim: int, eps: float, *, cross: bool = False) -> Residual:
        """Returns one layer's residual block. ``cross``: the layer also attends to another stream."""

    def final_norm(self, dim: int, eps: float) -> nn.Module:
        """Returns the module that normalises the stream after the last layer."""
        return nn.Identity()


@dataclass(frozen=True, kw_only=True)
class PostNorm(NormConfig):
    """LayerNorm after each residual sum, as in the original Transformer (P3, Algorithm 1)."""

    def residual(self, dim: int, eps: float, *, cross: bool = False) -> Residual:
        """Returns one layer's residual block."""
        return PostNormResidual(dim, eps, cross=cross)


@dataclass(frozen=True, kw_only=True)
class PreNorm(NormConfig):
    """LayerNorm before each sublayer, and one after the last layer."""

    final: bool = True
    """Whether the stream is normalised after the last layer."""

    def residual(self, dim: int, eps: float, *, cross: bool = False) -> Residual:
        """Returns one layer's residual block."""
        return PreNormResidual(dim, eps, cross=cross)

    def final_norm(self, dim: int, eps: float) -> nn.Module:
        """Returns the last LayerNorm, or nothing."""
        return nn.LayerNorm(dim, eps=eps) if self.final else nn.Identity()


@dataclass(frozen=True, kw_only=True)
class Deescalated(NormConfig):
    """Post-norm with de-escalation Y = X - tau * mean of the real tokens (P3, eq. 21)."""

    tau: float = 1.0
    """Fraction of the mean that is subtracted, above 0 and up to 1. P3 uses 1."""
    learnable: bool = False
    """Whether each layer trains its own tau, clamped to (0, 1]."""
    where: Literal["ffn_stream", "ffn_branch", "block_output"] = "ffn_stream"
    """Position of the subtraction. ffn_stream: the stream before each feed-forward (P3's Transformer-XL); ffn_branch:
    the feed-forward's input but not the residual (has almost no effect, for comparison); block_output: the end of
    each block (P3's ViT)."""
    mean: Mean = "sequence"
    """Tokens of the mean: sequence (all); or for causal models prefix (those before each token) or running (prefix,
    continued across the segments of a memory)."""
    leaky: bool = False
    """Allows the sequence mean in a causal model, which includes future tokens. Results are marked non-causal."""

    def __post_init__(self) -> None:
        if not 0 < self.tau <= 1:
            raise WrongUseError(f"tau: expected a number above 0 and up to 1, found {self.tau}")

    def check(self, *, order: Order, mean_pooled: bool) -> None:
        """Raises a ``WrongUseError`` for a mean-pooled vector that is always 0, or a leak undeclared or needless."""
        if mean_pooled and self.where == "block_output" and self.mean == "sequence" and self.tau == 1:
            raise WrongUseError(
                "de-escalation at block_output with tau 1 makes the mean of the tokens 0, so mean pooling returns "
                "exactly 0 always; use --model.norm.tau below 1, --model.norm.where ffn_stream, or another pooling"
            )
        if order != "none" and self.mean == "sequence" and not self.leaky:
            raise WrongUseError(LEAK)
        if self.leaky and (order == "none" or self.mean != "sequence"):
            raise WrongUseError("leaky applies only to the sequence mean of a causal model; leave it out")

    def causal(self) -> "Deescalated":
        """Returns the norm with the prefix mean in place of the sequence mean."""
        return replace(self, mean="prefix") if self.mean == "sequence" else self

    def residual(self, dim: int, eps: float, *, cross: bool = False) -> Residual:
        """Returns one layer's residual block."""
        return DeescalatedResidual(self, dim, eps, cross=cross)


NORMS: Mapping[str, NormConfig] = MappingProxyType({"post": PostNorm(), "pre": PreNorm(), "deescalated": Deescalated()})


def find_norm(name: str) -> NormConfig:
    """Returns the norm of that name. Raises a ``WrongUseError`` that suggests the nearest names."""
    return look_up(NORMS, name, "norm")


def norm_name(config: NormConfig) -> str:
    """Returns the norm's name in the table, with the fields that differ: ``deescalated[tau=0.5]``."""
    return name_in(NORMS, config)

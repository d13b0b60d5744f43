"""The feed-forward network, and the residual block around it and attention: post-norm, pre-norm, de-escalated."""

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
    """Returns Linear, activation, dropout, Linear; the block drops its output."""
    return nn.Sequential(
        nn.Linear(dim, hidden_dim), ACTIVATIONS[activation](), nn.Dropout(dropout), nn.Linear(hidden_dim, dim)
    )


class Residual(nn.Module, ABC):
    """How one layer joins its sublayers to the stream. Norm-specific, attention-agnostic.

    A decoder's layer has a third one between the two, ``cross``: attention to the encoder's stream.
    """

    def recalled(self, stream: Context) -> Context:
        """Returns what attention reads of tokens that this layer read in an earlier segment."""
        return stream

    @abstractmethod
    def forward(
        self,
        hidden: Hidden,
        attention: Sublayer,
        feed_forward: Sublayer,
        visibility: Visibility,
        carried: DeescalationState | None = None,
        cross: Sublayer | None = None,
    ) -> tuple[Hidden, DeescalationState | None]:
        """Returns the layer's output, and what a mean over the past carries on."""


class PostNormResidual(Residual):
    """Algorithm 1 of P3: Y2 = LN(X + attention(X)); Y4 = LN(Y2 + feed_forward(Y2)); in between LN(Y + cross(Y))."""

    def __init__(self, dim: int, eps: float, *, cross: bool) -> None:
        super().__init__()
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(dim, eps=eps), nn.LayerNorm(dim, eps=eps)
        self.cross_norm = nn.LayerNorm(dim, eps=eps) if cross else nn.Identity()

    def attended(self, hidden: Hidden, attention: Sublayer, cross: Sublayer | None) -> Hidden:
        """Returns Y2, the stream that the feed-forward reads."""
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
        carried: DeescalationState | None = None,
        cross: Sublayer | None = None,
    ) -> tuple[Hidden, DeescalationState | None]:
        """Returns Y4."""
        hidden = self.attended(hidden, attention, cross)
        return self.feed_forward_norm(hidden + feed_forward(hidden)), carried


class PreNormResidual(PostNormResidual):
    """Y2 = X + attention(LN(X)); Y4 = Y2 + feed_forward(LN(Y2))."""

    def recalled(self, stream: Context) -> Context:
        """Returns LN(X)."""
        normalized: Tensor = self.attention_norm(stream)
        return normalized

    def forward(
        self,
        hidden: Hidden,
        attention: Sublayer,
        feed_forward: Sublayer,
        visibility: Visibility,
        carried: DeescalationState | None = None,
        cross: Sublayer | None = None,
    ) -> tuple[Hidden, DeescalationState | None]:
        """Returns Y4."""
        hidden = hidden + attention(self.attention_norm(hidden))
        if cross is not None:
            hidden = hidden + cross(self.cross_norm(hidden))
        return hidden + feed_forward(self.feed_forward_norm(hidden)), carried


class DeescalatedResidual(PostNormResidual):
    """Post-norm with the mean of the tokens subtracted at one place; see ``Deescalated``."""

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
        carried: DeescalationState | None = None,
        cross: Sublayer | None = None,
    ) -> tuple[Hidden, DeescalationState | None]:
        """Returns Y4."""
        hidden = self.attended(hidden, attention, cross)
        if self.where == "ffn_stream":
            hidden, carried = self.deescalation(hidden, visibility, carried)
        branch = hidden
        if self.where == "ffn_branch":
            branch, carried = self.deescalation(hidden, visibility, carried)
        hidden = self.feed_forward_norm(hidden + feed_forward(branch))
        if self.where == "block_output":
            hidden, carried = self.deescalation(hidden, visibility, carried)
        return hidden, carried


@dataclass(frozen=True, kw_only=True)
class NormConfig(ABC):
    """How a layer is normalised; builds the residual block and the stream's last norm."""

    def check(self, *, order: Order, mean_pooled: bool) -> None:  # noqa: B027  # most norms work in every model
        """Refuses, before anything is loaded, a model in which this norm cannot work."""

    def causal(self) -> "NormConfig":
        """Returns the same norm in a form that keeps the future out."""
        return self

    @abstractmethod
    def residual(self, dim: int, eps: float, *, cross: bool = False) -> Residual:
        """Returns one layer's residual block; ``cross``: of a layer that attends to another stream too."""

    def final_norm(self, dim: int, eps: float) -> nn.Module:
        """Returns what normalises the stream after the last layer."""
        return nn.Identity()


@dataclass(frozen=True, kw_only=True)
class PostNorm(NormConfig):
    """LayerNorm after each residual sum, as the first Transformer had it (P3, Algorithm 1)."""

    def residual(self, dim: int, eps: float, *, cross: bool = False) -> Residual:
        """Returns one layer's residual block."""
        return PostNormResidual(dim, eps, cross=cross)


@dataclass(frozen=True, kw_only=True)
class PreNorm(NormConfig):
    """LayerNorm at the head of each sublayer, and one after the last layer."""

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
    """Share of the mean that is subtracted, above 0 and up to 1; P3 uses 1."""
    learnable: bool = False
    """Whether each layer trains its tau, kept in (0, 1]."""
    where: Literal["ffn_stream", "ffn_branch", "block_output"] = "ffn_stream"
    """ffn_stream: replaces the stream before each feed-forward (P3's Transformer-XL); ffn_branch: only what the
    feed-forward reads, the residual keeps X (does almost nothing; for comparison); block_output: the end of each block
    (P3's ViT)."""
    mean: Mean = "sequence"
    """sequence; or for causal models prefix (tokens before this one) or running (carried on with the memory)."""
    leaky: bool = False
    """Allows the sequence mean in a causal model, which then sees the future; its results say non-causal."""

    def __post_init__(self) -> None:
        if not 0 < self.tau <= 1:
            raise WrongUseError(f"tau: expected a number above 0 and up to 1, found {self.tau}")

    def check(self, *, order: Order, mean_pooled: bool) -> None:
        """Refuses a mean-pooled vector that is exactly 0, and a leak that was not asked for."""
        if mean_pooled and self.where == "block_output" and self.mean == "sequence" and self.tau == 1:
            raise WrongUseError(
                "de-escalation at block_output with tau 1 leaves tokens of mean 0, so mean pooling gives exactly 0 "
                "whatever the input; use --model.norm.tau below 1, --model.norm.where ffn_stream, or another pooling"
            )
        if order != "none" and self.mean == "sequence" and not self.leaky:
            raise WrongUseError(LEAK)
        if self.leaky and (order == "none" or self.mean != "sequence"):
            raise WrongUseError(
                "leaky belongs to the sequence mean of a causal model; nothing leaks here, leave it out"
            )

    def causal(self) -> "Deescalated":
        """Returns de-escalation by the mean of the tokens before each, where it was that of the sequence."""
        return replace(self, mean="prefix") if self.mean == "sequence" else self

    def residual(self, dim: int, eps: float, *, cross: bool = False) -> Residual:
        """Returns one layer's residual block."""
        return DeescalatedResidual(self, dim, eps, cross=cross)


NORMS: Mapping[str, NormConfig] = MappingProxyType({"post": PostNorm(), "pre": PreNorm(), "deescalated": Deescalated()})


def find_norm(name: str) -> NormConfig:
    """Returns the norm of that name; raises a ``WrongUseError`` that names the nearest ones."""
    return look_up(NORMS, name, "norm")


def norm_name(config: NormConfig) -> str:
    """Returns the norm's name in the table, with what differs from it: ``deescalated[tau=0.5]``."""
    return name_in(NORMS, config)

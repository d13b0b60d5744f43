"""Post-norm with de-escalation (P3, eq. 21); ``common/model/deescalation.py`` computes it."""

from dataclasses import dataclass, replace
from typing import Literal

from seqarena.common.attention.visibility import Order, Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.model.deescalation import LEAK, Deescalation, DeescalationState, Mean
from seqarena.common.model.norms.base import LayerPosition, NormConfig, Residual, Sublayers
from seqarena.common.model.norms.post import PostNormResidual
from seqarena.common.shapes import Hidden


class DeescalatedResidual(PostNormResidual):
    """Post-norm block that subtracts the mean of the tokens at one position; see ``Deescalated``."""

    def __init__(self, config: "Deescalated", dim: int, eps: float, position: LayerPosition) -> None:
        super().__init__(config, dim, eps, position)
        self.where = config.where
        self.deescalation = Deescalation(
            tau=config.tau, learnable=config.learnable, mean=config.mean, leaky=config.leaky
        )

    def forward(
        self, hidden: Hidden, sublayers: Sublayers, visibility: Visibility, state: DeescalationState | None = None
    ) -> tuple[Hidden, DeescalationState | None]:
        """Returns Y4."""
        hidden = self.apply_attention(hidden, sublayers)
        if self.where == "ffn_stream":
            hidden, state = self.deescalation(hidden, visibility, state)
        branch = hidden
        if self.where == "ffn_branch":
            branch, state = self.deescalation(hidden, visibility, state)
        hidden = self.feed_forward_norm(self.add(hidden, sublayers.feed_forward(branch), "feed_forward"))
        if self.where == "block_output":
            hidden, state = self.deescalation(hidden, visibility, state)
        return hidden, state


@dataclass(frozen=True, kw_only=True)
class Deescalated(NormConfig):
    """Post-norm with de-escalation Y = X - tau * mean of the real tokens (P3, eq. 21)."""

    tau: float = 1.0
    """Fraction of the mean that is subtracted, above 0 and up to 1. P3 uses 1."""
    learnable: bool = False
    """Whether each layer trains its own tau, clamped to (0, 1]."""
    where: Literal["ffn_stream", "ffn_branch", "block_output"] = "ffn_stream"
    """Position of the subtraction. ffn_stream: the stream before each feed-forward (P3's Transformer-XL, as we read
    it); ffn_branch: the feed-forward's input but not the residual (has almost no effect, for comparison);
    block_output: the end of each block (P3's ViT)."""
    mean: Mean = "sequence"
    """Tokens of the mean: sequence (all); or for causal models prefix (those before each token) or running (prefix,
    continued across the segments of a memory)."""
    leaky: bool = False
    """Allows the sequence mean in a causal model, which includes future tokens. Results are marked non-causal."""

    def __post_init__(self) -> None:
        super().__post_init__()
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
        """Returns the norm with the prefix mean in place of the sequence mean, unless it is declared leaky."""
        return replace(self, mean="prefix") if self.mean == "sequence" and not self.leaky else self

    def residual(self, dim: int, eps: float, position: LayerPosition) -> Residual:
        """Returns the residual block of the layer at ``position``."""
        return DeescalatedResidual(self, dim, eps, position)

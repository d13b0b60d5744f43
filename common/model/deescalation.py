"""De-escalation (P3, eq. 21): Y = (I - tau P) X with P the mean over tokens, and its masked and causal forms.

P3 = "Why 'Classic' Transformers Are Shallow and A Depth-Enabling Technique". Token similarity, the fraction of X that
its mean explains, grows from layer to layer of a post-norm Transformer. Subtracting the mean removes it.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.model.bounded import Bounded
from seqarena.common.shapes import Hidden

Mean = Literal["sequence", "prefix", "running"]

LEAK = (
    "the sequence mean gives a causal model access to future tokens; set the norm's mean to 'prefix' or 'running', "
    "or set its field leaky, and every result is marked non-causal"
)


class DeescalationState(NamedTuple):
    """State of a mean over earlier tokens: their sum ``total`` (B, C) and their number ``seen`` (B, 1)."""

    total: Tensor
    seen: Tensor


class Deescalation(nn.Module):
    """Subtracts ``tau`` times a mean of real tokens from every token. Padding stays unchanged.

    ``sequence``: the mean of all tokens. ``prefix``: the mean of the tokens before each one, without access to the
    future (the first token is unchanged; if the mean included the token itself, it would become exactly 0).
    ``running``: the prefix mean, continued across the segments of a stream that has a memory. The two causal forms
    differ only in the ``state`` that a model passes: both get one between decoding steps of a sequence, only
    ``running`` between segments.
    """

    def __init__(self, *, tau: float, learnable: bool, mean: Mean, leaky: bool) -> None:
        super().__init__()
        self.mean, self.leaky = mean, leaky
        self.tau = Bounded(torch.tensor(tau), low=torch.finfo(torch.float32).tiny, high=1.0) if learnable else tau

    def forward(
        self, hidden: Hidden, visibility: Visibility, state: DeescalationState | None = None
    ) -> tuple[Hidden, DeescalationState | None]:
        """Returns the tokens with the mean subtracted, and the next state (of ``prefix`` and ``running`` only).

        Raises:
            WrongUseError: packed segments, whose means would mix; or a sequence mean in a causal model that is not
                declared leaky.
        """
        if visibility.segments is not None:
            raise WrongUseError(
                "de-escalation does not support packed segments, since their means would mix; do not pack"
            )
        if visibility.order != "none" and self.mean == "sequence" and not self.leaky:
            raise WrongUseError(LEAK)
        tau = self.tau() if isinstance(self.tau, Bounded) else self.tau
        real = visibility.query_real
        if real is None:
            real = torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
        mask = real[..., None]  # B T 1
        wide = torch.promote_types(hidden.dtype, torch.float32)
        tokens = hidden.to(wide).masked_fill(~mask, 0.0)  # removes NaNs in padding too
        if self.mean == "sequence":
            mean = tokens.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
        else:
            # Sums over the tokens before each one. Subtracting a token from a sum would lose much smaller terms.
            total = nn.functional.pad(tokens[:, :-1].cumsum(dim=1), (0, 0, 1, 0))
            count = mask.cumsum(dim=1) - mask.long()
            if state is not None:
                total, count = total + state.total[:, None], count + state.seen[:, None]
            mean = total / count.clamp(min=1)
            state = DeescalationState((total[:, -1] + tokens[:, -1]).detach(), count[:, -1] + mask[:, -1].long())
        return torch.where(mask, hidden - tau * mean.to(hidden.dtype), hidden), state

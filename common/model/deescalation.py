"""De-escalation (P3, eq. 21): Y = (I - tau P) X, P the mean over tokens; its masked and causal forms.

P3 = "Why 'Classic' Transformers Are Shallow and A Depth-Enabling Technique". Token similarity, the share of X that
its mean explains, grows from layer to layer of a post-norm Transformer; subtracting the mean takes it away.
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
    "the mean over the sequence lets a causal model see the future; use the norm's mean 'prefix' or 'running', "
    "or set its field leaky, and every result says non-causal"
)


class DeescalationState(NamedTuple):
    """State of a running mean over earlier segments: the sum of their tokens (B, C) and their number (B, 1)."""

    total: Tensor
    seen: Tensor


class Deescalation(nn.Module):
    """Subtracts ``tau`` times a mean of real tokens from every token; padding stays as it is.

    The mean is that of the ``sequence``; or, letting nothing of the future through, of the ``prefix`` before each token
    (the first is untouched: including itself it would become exactly 0); or ``running``: the prefix, carried on over
    the segments of a stream beside its memory. The two differ in what a model hands over as ``carried``: from one step
    of the same sequence to the next both, from segment to segment ``running`` alone.
    """

    def __init__(self, *, tau: float, learnable: bool, mean: Mean, leaky: bool) -> None:
        super().__init__()
        self.mean, self.leaky = mean, leaky
        self.tau = Bounded(torch.tensor(tau), low=torch.finfo(torch.float32).tiny, high=1.0) if learnable else tau

    def forward(
        self, hidden: Hidden, visibility: Visibility, carried: DeescalationState | None = None
    ) -> tuple[Hidden, DeescalationState | None]:
        """Returns the tokens with the mean subtracted, and of ``prefix`` and ``running`` what to carry on.

        Raises:
            WrongUseError: packed segments, whose means would mix; or a sequence mean in a causal model not declared
                leaky.
        """
        if visibility.segments is not None:
            raise WrongUseError("de-escalation has no form for packed segments: their means would mix; do not pack")
        if visibility.order != "none" and self.mean == "sequence" and not self.leaky:
            raise WrongUseError(LEAK)
        tau = self.tau() if isinstance(self.tau, Bounded) else self.tau
        real = visibility.query_real
        if real is None:
            real = torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
        mask = real[..., None]  # B T 1
        wide = torch.promote_types(hidden.dtype, torch.float32)
        tokens = hidden.to(wide).masked_fill(~mask, 0.0)  # of padding not even a NaN
        if self.mean == "sequence":
            mean = tokens.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
        else:
            # Those before each token. A sum less the token itself would lose what is small beside the token.
            total = nn.functional.pad(tokens[:, :-1].cumsum(dim=1), (0, 0, 1, 0))
            count = mask.cumsum(dim=1) - mask.long()
            if carried is not None:
                total, count = total + carried.total[:, None], count + carried.seen[:, None]
            mean = total / count.clamp(min=1)
            carried = DeescalationState((total[:, -1] + tokens[:, -1]).detach(), count[:, -1] + mask[:, -1].long())
        return torch.where(mask, hidden - tau * mean.to(hidden.dtype), hidden), carried

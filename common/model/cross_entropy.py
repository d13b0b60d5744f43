"""Cross-entropy over a vocabulary, computed for some positions at a time."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from seqarena.common.shapes import PerToken, Picked, Table, TokenIds, Total

CHUNK = 1_024
"""Positions whose scores over the vocabulary exist at once: 1,024 x 30,522 in float32 take 119 MiB."""


class ChunkedCrossEntropy(torch.autograd.Function):
    """Sum of smoothed cross-entropies. Scores and their gradient exist for one chunk of positions at a time."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, table: Tensor, bias: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        """Returns the sum over positions. Saves the gradients of the inputs that need one, not the scores."""
        wide = torch.promote_types(hidden.dtype, torch.float32)
        total = hidden.new_zeros((), dtype=wide)
        needed = ctx.needs_input_grad
        grad_hidden = torch.empty_like(hidden) if needed[0] else None
        grad_table = torch.zeros_like(table, dtype=wide) if needed[1] else None
        grad_bias = torch.zeros_like(bias, dtype=wide) if needed[2] else None
        for start in range(0, len(hidden), CHUNK):
            part = slice(start, start + CHUNK)
            scores = F.linear(hidden[part], table, bias).to(wide)
            log_total = scores.logsumexp(dim=-1)
            label_scores = scores.gather(1, labels[part, None])[:, 0]
            total += (log_total - (1 - smoothing) * label_scores - smoothing * scores.mean(dim=-1)).sum()
            if not any(needed):
                continue
            grad = scores.sub_(log_total[:, None]).exp_().sub_(smoothing / scores.shape[1])
            rows = torch.arange(len(grad), device=grad.device)
            grad[rows, labels[part]] -= 1 - smoothing
            if grad_hidden is not None:
                grad_hidden[part] = (grad.to(hidden.dtype) @ table.to(hidden.dtype)).to(hidden.dtype)
            if grad_table is not None:
                grad_table += grad.to(hidden.dtype).T @ hidden[part]
            if grad_bias is not None:
                grad_bias += grad.sum(dim=0)
        ctx.save_for_backward(grad_hidden, grad_table, grad_bias)
        ctx.kinds = hidden.dtype, table.dtype, bias.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Returns the saved gradients times the gradient of the sum."""
        found = [
            None if saved is None else (saved * grads[0]).to(kind)
            for saved, kind in zip(ctx.saved_tensors, ctx.kinds, strict=True)
        ]
        return *found, None, None


def chunked_cross_entropy(
    hidden: Picked, table: Table, bias: PerToken, labels: TokenIds, smoothing: float = 0.0
) -> Total:
    """Returns the sum over positions of -(1 - e) log p(label) - e/V sum_v log p(v), p = softmax(table hidden + bias).

    e is ``smoothing``, spread over the whole vocabulary as in PyTorch's ``label_smoothing``. For the mean per token,
    divide by the number of positions of all processes.
    """
    inputs = hidden, table, bias
    if not torch.is_grad_enabled():  # needs_input_grad ignores no_grad
        inputs = hidden.detach(), table.detach(), bias.detach()
    found: Tensor = ChunkedCrossEntropy.apply(*inputs, labels, smoothing)  # type: ignore[no-untyped-call]
    return found

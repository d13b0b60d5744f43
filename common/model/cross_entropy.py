"""Cross-entropy over a vocabulary, some positions at a time."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from seqarena.common.shapes import PerToken, Picked, Table, TokenIds, Total

CHUNK = 1_024
"""Positions whose scores of all tokens exist at once: 1,024 x 30,522 in float32 are 119 MiB."""


class ChunkedCrossEntropy(torch.autograd.Function):
    """The sum of smoothed cross-entropies; scores and their gradient exist for a chunk of positions at a time."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, table: Tensor, bias: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        """Returns the sum over positions; keeps the gradient of what needs one, not the scores."""
        wide = torch.promote_types(hidden.dtype, torch.float32)
        total = hidden.new_zeros((), dtype=wide)
        wanted = ctx.needs_input_grad
        of_hidden = torch.empty_like(hidden) if wanted[0] else None
        of_table = torch.zeros_like(table, dtype=wide) if wanted[1] else None
        of_bias = torch.zeros_like(bias, dtype=wide) if wanted[2] else None
        for start in range(0, len(hidden), CHUNK):
            part = slice(start, start + CHUNK)
            scores = F.linear(hidden[part], table, bias).to(wide)
            every = scores.logsumexp(dim=-1)
            right = scores.gather(1, labels[part, None])[:, 0]
            total += (every - (1 - smoothing) * right - smoothing * scores.mean(dim=-1)).sum()
            if not any(wanted):
                continue
            grad = scores.sub_(every[:, None]).exp_().sub_(smoothing / scores.shape[1])
            rows = torch.arange(len(grad), device=grad.device)
            grad[rows, labels[part]] -= 1 - smoothing
            if of_hidden is not None:
                of_hidden[part] = (grad.to(hidden.dtype) @ table.to(hidden.dtype)).to(hidden.dtype)
            if of_table is not None:
                of_table += grad.to(hidden.dtype).T @ hidden[part]
            if of_bias is not None:
                of_bias += grad.sum(dim=0)
        ctx.save_for_backward(of_hidden, of_table, of_bias)
        ctx.kinds = hidden.dtype, table.dtype, bias.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Returns what was kept times the gradient of the sum."""
        found = [
            None if kept is None else (kept * grads[0]).to(kind)
            for kept, kind in zip(ctx.saved_tensors, ctx.kinds, strict=True)
        ]
        return *found, None, None


def chunked_cross_entropy(
    hidden: Picked, table: Table, bias: PerToken, labels: TokenIds, smoothing: float = 0.0
) -> Total:
    """Returns the sum over positions of -(1 - e) log p(label) - e/V sum_v log p(v), p = softmax(table hidden + bias).

    e is ``smoothing``, over all tokens of the vocabulary, as PyTorch's ``label_smoothing`` has it; divide by the
    number of positions, of all processes, for the mean a token.
    """
    inputs = hidden, table, bias
    if not torch.is_grad_enabled():  # inside, nobody knows that the gradient is not wanted
        inputs = hidden.detach(), table.detach(), bias.detach()
    found: Tensor = ChunkedCrossEntropy.apply(*inputs, labels, smoothing)  # type: ignore[no-untyped-call]
    return found

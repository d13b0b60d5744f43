"""The adaptive softmax of Transformer-XL against its formula, written out."""

import pytest
import torch
from torch.nn import functional as F

from seqarena.pretraining.adaptive_softmax import AdaptiveSoftmax


def written_out(softmax: AdaptiveSoftmax, hidden: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Log probabilities of all words at each position."""
    first = F.linear(
        hidden, torch.cat([table[:4], softmax.clusters]), torch.cat([softmax.bias[:4], softmax.cluster_bias])
    )
    frequent = first.log_softmax(-1)
    parts = [frequent[:, :4]]
    for number, (start, stop) in enumerate(((4, 7), (7, 11))):
        inside = F.linear(hidden, table[start:stop], softmax.bias[start:stop]).log_softmax(-1)
        parts.append(frequent[:, 4 + number, None] + inside)
    return torch.cat(parts, dim=1)


def test_the_adaptive_softmax_is_a_distribution_and_its_losses_keep_their_order() -> None:
    torch.manual_seed(3)
    softmax = AdaptiveSoftmax(11, 8, (4, 7)).double()
    hidden, table = (torch.randn(count, 8, dtype=torch.float64, requires_grad=True) for count in (40, 11))
    with torch.no_grad():
        for parameter in softmax.parameters():
            parameter.normal_()
    targets = torch.randint(11, (40,))
    expected = written_out(softmax, hidden, table)
    torch.testing.assert_close(expected.exp().sum(-1), torch.ones(40, dtype=torch.float64))
    each = -expected[torch.arange(40), targets]
    torch.testing.assert_close(softmax.losses(hidden, table, targets).double(), each, rtol=1e-5, atol=1e-5)
    total = softmax(hidden, table, targets)
    assert total.item() == pytest.approx(each.sum().item(), rel=1e-6)
    inputs = [hidden, table, *softmax.parameters()]
    for ours, theirs in zip(torch.autograd.grad(total, inputs), torch.autograd.grad(each.sum(), inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)

"""De-escalation's means: nothing of padding in them, and no digits lost where they run."""

import itertools

import pytest
import torch

from seqarena.common.attention.visibility import Visibility
from seqarena.common.model.bounded import Bounded
from seqarena.common.model.deescalation import Deescalation, DeescalationState, Mean

MEANS: tuple[Mean, ...] = ("sequence", "prefix", "running")


def made(mean: Mean, tau: float = 1.0) -> Deescalation:
    return Deescalation(tau=tau, learnable=False, mean=mean, leaky=False)


def visibility(mean: Mean, real: torch.Tensor | None = None) -> Visibility:
    return Visibility(query_real=real, key_real=real, order="none" if mean == "sequence" else "causal")


@pytest.mark.parametrize("mean", MEANS)
def test_it_subtracts_the_mean_of_the_real_tokens(mean: Mean) -> None:
    hidden, real = torch.randn(2, 6, 3, dtype=torch.float64), torch.tensor([[True] * 6, [True, True, False] * 2])
    found, _ = made(mean, tau=0.7)(hidden, visibility(mean, real))
    for example, token in itertools.product(range(2), range(6)):
        others = range(6) if mean == "sequence" else range(token)
        those = [hidden[example, other] for other in others if real[example, other]]
        less = 0.7 * sum(those) / max(len(those), 1) if real[example, token] else 0.0
        torch.testing.assert_close(found[example, token], hidden[example, token] - less)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("worst", [float("nan"), float("inf")])
def test_padding_that_is_no_number_reaches_no_real_token(mean: Mean, worst: float) -> None:
    """Neither the tokens forward nor their gradients backward; padding itself stays as it is."""
    hidden, real = torch.randn(2, 5, 3), torch.tensor([[True] * 5, [False, True, True, False, True]])
    padding = ~real[..., None]
    leaves = [hidden.requires_grad_(), hidden.detach().masked_fill(padding, worst).requires_grad_()]
    (clean, spoilt), seen = (made(mean)(leaf, visibility(mean, real))[0] for leaf in leaves), ~padding.expand(2, 5, 3)
    assert torch.equal(clean[seen], spoilt[seen])
    torch.testing.assert_close(spoilt[~seen], leaves[1][~seen], equal_nan=True)
    direction = torch.randn_like(hidden)
    (wanted,) = torch.autograd.grad(clean, leaves[0], direction)
    (found,) = torch.autograd.grad(spoilt, leaves[1], direction.masked_fill(padding, worst))
    assert torch.equal(found[seen], wanted[seen])


@pytest.mark.parametrize("mean", ["prefix", "running"])
def test_a_large_token_does_not_take_the_digits_of_the_mean_before_it(mean: Mean) -> None:
    """The gradient of tau is that mean, less its sign: read off at each token in its turn."""
    hidden = torch.rand(1, 6, 1)
    module = Deescalation(tau=1.0, learnable=True, mean=mean, leaky=False)
    assert isinstance(module.tau, Bounded)
    for large in range(1, 6):
        tokens = hidden.clone()
        tokens[:, large] = 1e7
        output, _ = module(tokens, visibility(mean))
        (found,) = torch.autograd.grad(output[:, large].sum(), module.tau.raw)
        torch.testing.assert_close(-found, hidden[0, :large].mean(), rtol=1e-6, atol=0)


def test_what_is_carried_is_the_sum_of_all_tokens() -> None:
    hidden = torch.randn(2, 4, 3)
    for length in (1, 4):
        _, carried = made("running")(hidden[:, :length], visibility("running"))
        assert isinstance(carried, DeescalationState)
        torch.testing.assert_close(carried.total, hidden[:, :length].sum(dim=1))
        assert carried.seen.tolist() == [[length]] * 2

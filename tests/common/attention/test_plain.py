"""A kernel without a rule: what the formula on the full matrix does where the engine would have done it."""

from dataclasses import replace

import pytest
import torch

from seqarena.common.attention import ATTENTIONS
from seqarena.common.attention.base import Kernel
from seqarena.common.attention.rule import EMPTY_LOGSUMEXP
from tests.common.attention.cases import VARIANTS, case


def plain(name: str) -> Kernel:
    """Returns a variant's kernel as its author first writes it."""
    kernel = ATTENTIONS[name].build(heads=2, dropout=0.5)
    evaluate = kernel._evaluate
    kernel._evaluate = lambda _, *given: evaluate(None, *given)
    return kernel


@pytest.mark.parametrize(("name", "order"), VARIANTS)
def test_weights_are_dropped_in_training_alone(name: str, order: str) -> None:
    each = case(order)
    kernel, values = plain(name), torch.eye(each.key.shape[2], dtype=torch.float64).expand(2, 2, -1, -1)
    weights = kernel.weights(each.query, each.key, each.visibility)
    found = torch.stack([kernel.reference(each.query, each.key, values, each.visibility, None) for _ in range(50)])
    kept = found != 0
    torch.testing.assert_close(found[kept], (2 * weights).expand_as(found)[kept])
    assert 0.4 < kept[:, weights != 0].double().mean() < 0.6
    torch.testing.assert_close(kernel.eval().reference(each.query, each.key, values, each.visibility, None), weights)


@pytest.mark.parametrize("name", ["dnas", "hnas"])
@pytest.mark.parametrize("known", [1, 2, 3, 5])
def test_a_state_may_know_fewer_keys_than_the_memory_has(name: str, known: int) -> None:
    """It knows the newest of them; the others start with no mass, by the formula and by the engine."""
    each = case("causal", memory=3)
    state = torch.randn(2, 2, known, dtype=torch.float64)
    none = torch.full((2, 2, max(0, 3 - known)), EMPTY_LOGSUMEXP, dtype=torch.float64)
    whole = torch.cat([none, state[..., -3:]], dim=2)
    for kernel in (ATTENTIONS[name].build(heads=2), plain(name).eval()):
        found, last = kernel.step(state, each.query, each.key, each.value, each.visibility)
        same, again = kernel.step(whole, each.query, each.key, each.value, each.visibility)
        torch.testing.assert_close(found, same, rtol=0, atol=1e-12)
        torch.testing.assert_close(last, again, rtol=0, atol=1e-12)
        # Key j, seen by query i: its mass is what the state knows of it and the exponentials of queries up to i.
        scores = each.query @ each.key.mT / 2
        seen = torch.ones(5, 8, dtype=torch.bool).tril(3)
        mass = (scores.exp() * seen).cumsum(dim=2)
        mass[..., :3] += whole.exp()[..., None, :]
        xi = (scores.exp() / mass).where(seen, 0.0)
        doubly = xi / xi.sum(dim=3, keepdim=True)
        softmax = scores.masked_fill(~seen, float("-inf")).softmax(dim=3)
        u = 1.0 if name == "dnas" else 0.5
        torch.testing.assert_close(found, (u * doubly + (1 - u) * softmax) @ each.value, rtol=0, atol=1e-10)
        torch.testing.assert_close(last, mass[:, :, -1].log(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["dnas", "hnas"])
def test_the_formulas_state_has_no_gradient(name: str) -> None:
    each = case("ordered_queries")
    first = replace(each, query=each.query.requires_grad_())
    _, state = plain(name).step(None, first.query, first.key, first.value, first.visibility)
    assert state is not None
    assert not state.requires_grad

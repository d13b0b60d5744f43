"""DNAS as a mixture of Gaussians: densities written down number by number, padding, what is refused."""

import itertools
import math

import pytest
import torch

from seqarena.common.attention.doubly_normalized import DoublyNormalized
from seqarena.common.attention.gaussian import GaussianKernel
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError

SETTINGS = [("uniform", "one"), ("uniform", "estimated"), ("query_norm", "estimated")]


def responsibilities(query: list[list[float]], key: list[list[float]], beta: str, variance: float) -> list[list[float]]:
    """P(query i | key j) under Gaussians around the queries, [j][i]."""
    root = len(query[0]) ** 0.25
    found = []
    for y in key:
        joint = []
        for x in query:
            distance = sum((a / root - b / root) ** 2 for a, b in zip(x, y, strict=True))
            prior = math.exp(sum(a * a for a in x) / root**2 / (2 * variance)) if beta == "query_norm" else 1.0
            joint.append(prior * math.exp(-distance / (2 * variance)))
        found.append([each / sum(joint) for each in joint])
    return found


def expected_weights(query: list[list[float]], key: list[list[float]], beta: str, variance: str) -> list[list[float]]:
    sigma, root, width = 1.0, len(query[0]) ** 0.25, len(query[0])
    if variance == "estimated":
        first = responsibilities(query, key, beta, 1.0)
        total = sum(
            first[j][i] * sum((a - b) ** 2 for a, b in zip(query[i], key[j], strict=True)) / root**2
            for i, j in itertools.product(range(len(query)), range(len(key)))
        )
        sigma = total / len(key) / width
    final = responsibilities(query, key, beta, sigma)
    rows = [[final[j][i] for j in range(len(key))] for i in range(len(query))]
    return [[each / sum(row) for each in row] for row in rows]


@pytest.mark.parametrize(("beta", "variance"), SETTINGS)
def test_weights_are_those_of_the_mixture(beta: str, variance: str) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 1, count, 4, dtype=torch.float64) for count in (5, 7, 7))
    kernel = DoublyNormalized(beta=beta, variance=variance).build(1).eval()  # type: ignore[arg-type]
    expected = torch.tensor([[expected_weights(query[0, 0].tolist(), key[0, 0].tolist(), beta, variance)]]).double()
    torch.testing.assert_close(kernel.weights(query, key, Visibility()), expected)
    torch.testing.assert_close(kernel(query, key, value, Visibility()), expected @ value)
    for implementation in ("blockwise", "reference"):
        torch.testing.assert_close(kernel.compute(implementation, query, key, value, Visibility()), expected @ value)
    rows = torch.cat([each.weights for each in kernel.weight_rows(query, key, Visibility())], dim=1)
    torch.testing.assert_close(rows[None], expected)


@pytest.mark.parametrize(("beta", "variance"), SETTINGS)
def test_padding_changes_nothing_and_gradients_are_right(beta: str, variance: str) -> None:
    torch.manual_seed(1)
    kernel = DoublyNormalized(beta=beta, variance=variance).build(2).double()  # type: ignore[arg-type]
    short = [torch.randn(2, 2, 4, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    longer = [torch.cat([each, torch.full((2, 2, 2, 3), torch.nan)], dim=2) for each in short]
    real = (torch.arange(6) < 4).expand(2, -1)
    visibility = Visibility(query_real=real, key_real=real)
    found = kernel(*longer, visibility)
    torch.testing.assert_close(found[:, :, :4], kernel(*short, Visibility()))
    assert not found[:, :, 4:].any()
    assert torch.autograd.gradcheck(lambda *inputs: kernel(*inputs, Visibility()), short)


def test_what_it_takes() -> None:
    config = DoublyNormalized(beta="uniform")
    assert isinstance(config.build(1), GaussianKernel)
    assert not isinstance(DoublyNormalized().build(1), GaussianKernel)
    assert config.orders == ("none",)
    tokens = torch.randn(1, 1, 3, 4)
    with pytest.raises(WrongUseError, match="not defined for order"):
        config.build(1)(tokens, tokens, tokens, Visibility(order="causal"))
    packed = Visibility(segments=torch.zeros(1, 3, dtype=torch.long))
    with pytest.raises(WrongUseError, match="packed segments"):
        DoublyNormalized(variance="estimated").build(1)(tokens, tokens, tokens, packed)
    assert "segments" not in DoublyNormalized(variance="estimated").supports
    nothing = Visibility(query_real=torch.zeros(1, 3, dtype=torch.bool))
    assert not DoublyNormalized(variance="estimated").build(1)(tokens, tokens, tokens, nothing).any()
    halves = config.build(1)(tokens.bfloat16(), tokens.bfloat16(), tokens.bfloat16(), Visibility())
    assert halves.dtype == torch.bfloat16
    assert config.build(1).explain(tokens, tokens, tokens, Visibility()).implementation == "blockwise"

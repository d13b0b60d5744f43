import pytest
import torch

from seqarena.common.attention import ATTENTIONS
from seqarena.common.attention.doubly_normalized import DoublyNormalized
from tests.common.attention.cases import VARIANTS, cases, naive_weights


@pytest.mark.parametrize(("name", "order"), VARIANTS)
def test_weights_and_outputs_are_the_definition(name: str, order: str) -> None:
    config = ATTENTIONS[name]
    kernel = config.build(heads=2)
    for each in cases(order):
        bias = torch.randn(*each.query.shape[:3], each.key.shape[2], dtype=torch.float64)
        for some_bias in (None, bias):
            expected = naive_weights(config, each, some_bias)
            found = kernel.weights(each.query, each.key, each.visibility, some_bias)
            torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
            output = kernel(each.query, each.key, each.value, each.visibility, some_bias)
            torch.testing.assert_close(output, expected @ each.value, rtol=1e-10, atol=1e-11)


def test_bias_is_broadcast() -> None:
    each = cases("none")[1]
    bias = torch.randn(1, 2, 1, 6, dtype=torch.float64)
    for name in ("softmax", "dnas", "hnas", "x3"):
        kernel = ATTENTIONS[name].build(heads=2)
        whole = kernel(each.query, each.key, each.value, each.visibility, bias.expand(2, 2, 5, 6))
        torch.testing.assert_close(kernel(each.query, each.key, each.value, each.visibility, bias), whole)


def test_many_iterations_make_both_margins_uniform() -> None:
    each = cases("causal")[0]
    square = cases("none")[0]
    weights = DoublyNormalized(iterations=200).build(heads=2).weights(each.query, each.key, square.visibility)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 2, 5, dtype=torch.float64))
    torch.testing.assert_close(weights.sum(dim=-2), torch.ones(2, 2, 5, dtype=torch.float64))

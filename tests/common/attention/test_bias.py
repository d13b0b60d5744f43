"""Biases that hide: minus infinity and the least number of a type, in every path of the variants that normalise."""

import itertools

import pytest
import torch

from seqarena.common.attention import ATTENTIONS, Visibility
from seqarena.common.attention.base import IMPLEMENTATIONS, Kernel
from seqarena.common.attention.doubly_normalized import DoublyNormalized
from tests.common.attention.cases import Case, cases, naive_weights

NORMALISED = [(name, order) for name in ("softmax", "recency", "dnas", "hnas") for order in ATTENTIONS[name].orders]
HIDING = [float("-inf"), torch.finfo(torch.float32).min]


def hiding(each: Case, fill: float) -> torch.Tensor:
    """Returns a bias (2, 2, 5, M) that hides all from query 1, all but one key from query 3, and key 2 from all."""
    bias = torch.randn(2, 2, 5, each.key.shape[2], dtype=each.query.dtype)
    bias[:, :, 1], bias[:, :, 3, 1:], bias[..., 2] = fill, fill, fill
    return bias


def outputs(kernel: Kernel, each: Case, value: torch.Tensor, bias: torch.Tensor) -> list[torch.Tensor]:
    """Returns what each implementation gives without gradients."""
    with torch.no_grad():
        found = [kernel.compute(which, each.query, each.key, value, each.visibility, bias) for which in IMPLEMENTATIONS]
    return [output for output in found if output is not None]


def gradients(kernel: Kernel, each: Case, bias: torch.Tensor) -> list[list[torch.Tensor]]:
    """Returns the output of each implementation, and the gradients of its inputs and of the bias."""
    leaves = [tensor.clone().requires_grad_() for tensor in (each.query, each.key, each.value, bias)]
    direction, found = torch.randn_like(each.query), []
    for which in IMPLEMENTATIONS:
        output = kernel.compute(which, *leaves[:3], each.visibility, leaves[3])
        if output is not None:
            found.append([output, *torch.autograd.grad((output * direction).sum(), leaves)])
    return found


@pytest.mark.parametrize(("name", "order"), NORMALISED)
@pytest.mark.parametrize("fill", HIDING)
def test_what_is_hidden_has_no_weight_and_every_path_agrees(name: str, order: str, fill: float) -> None:
    """The values are unit vectors, so that outputs are weights: nothing of the future, other segments or padding."""
    for each in cases(order):
        bias = hiding(each, fill)
        eye = torch.eye(each.key.shape[2], dtype=torch.float64).expand(2, 2, -1, -1)
        expected = naive_weights(ATTENTIONS[name], each, bias)
        kernel = ATTENTIONS[name].build(heads=2).double()
        weights = kernel.weights(each.query, each.key, each.visibility, bias)
        for found in (weights, *outputs(kernel, each, eye, bias)):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
            assert (found[expected == 0] == 0).all()
        for blocks, formula in itertools.combinations(gradients(kernel, each, bias), 2):
            for one, other in zip(blocks, formula, strict=True):
                torch.testing.assert_close(one, other, rtol=0, atol=1e-11)
            assert all((gradient[:, :, 1] == 0).all() for gradient in (formula[1], formula[4]))


@pytest.mark.parametrize("fill", HIDING)
@pytest.mark.parametrize("shape", [(2, 2, 5, 4), (2, 1, 1, 4), (1, 1, 5, 4)])
def test_fused_softmax_gives_rows_without_a_key_nothing(fill: float, shape: tuple[int, ...]) -> None:
    """Both fused forms, as wide as the heads are, with padded keys and without."""
    query, key = torch.randn(2, 2, 5, 4), torch.randn(2, 2, 4, 4)
    eye = torch.eye(4).expand(2, 2, -1, -1).contiguous()
    real = torch.tensor([[True] * 4, [True, False, True, True]])
    for key_real in (None, real):
        bias = torch.randn(shape)
        bias[:1, :, :2, [0, 2, 3]] = fill
        if key_real is None:
            bias[:1, :, :2] = fill
        each = Case(query=query, key=key, value=eye, visibility=Visibility(key_real=key_real))
        kernel = ATTENTIONS["softmax"].build(heads=2)
        weights = kernel.weights(query, key, each.visibility, bias)
        fused = kernel.compute("fused", query, key, eye, each.visibility, bias)
        assert (fused is None) == (key_real is not None and shape[2] > 1)
        if fused is not None:
            torch.testing.assert_close(fused, weights, rtol=0, atol=1e-6)
            assert (fused[weights == 0] == 0).all()


@pytest.mark.parametrize("fill", HIDING)
def test_what_a_bias_hides_takes_no_part_in_column_sums(fill: float) -> None:
    """dnas: the pairs that are left have the weights of the definition, also after several iterations."""
    each = cases("none")[0]
    bias = hiding(each, fill)
    kept = [0, 2, 3, 4]
    for iterations in (1, 3):
        kernel = DoublyNormalized(iterations=iterations).build(heads=2)
        bias[:, :, 3] = 0.0
        bias[..., 2] = fill
        found = kernel.weights(each.query, each.key, each.visibility, bias)
        keys = [0, 1, 3, 4, 5]
        parts = each.query[:, :, kept], each.key[:, :, keys], each.visibility, bias[:, :, kept][..., keys]
        torch.testing.assert_close(found[:, :, kept][..., keys], kernel.weights(*parts), rtol=0, atol=1e-12)


@pytest.mark.parametrize("config", [DoublyNormalized(), DoublyNormalized(iterations=2)])
def test_dnas_does_not_see_a_constant_that_is_added_to_a_key(config: DoublyNormalized) -> None:
    """As docs/attention.md says: such a bias hides nothing, unless it is minus infinity."""
    each = cases("none")[1]
    kernel = config.build(heads=2)
    constant = torch.tensor([0.0, -100.0, 3.0, 0.0, -7.0, 50.0], dtype=torch.float64)[None, None, None]
    plain = kernel.weights(each.query, each.key, each.visibility)
    torch.testing.assert_close(kernel.weights(each.query, each.key, each.visibility, constant), plain)
    constant[..., 1] = float("-inf")
    assert (kernel.weights(each.query, each.key, each.visibility, constant)[..., 1] == 0).all()

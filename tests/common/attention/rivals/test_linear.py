"""Linear and low-rank mechanisms against their formulas with the full matrix, in float64."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from seqarena.common.attention import attend
from seqarena.common.attention.rivals.convolution import Convolution
from seqarena.common.attention.rivals.cosformer import CosFormer
from seqarena.common.attention.rivals.linear import Average, FeatureKernel, Linear
from seqarena.common.attention.rivals.nystromformer import Nystromformer
from seqarena.common.attention.rivals.performer import Performer, _directions, random_directions
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from tests.common.attention.cases import Case, case


def expected_output(each: Case, similarity: torch.Tensor) -> torch.Tensor:
    """Returns the averages of the values with weights proportional to a similarity; B H N M."""
    seen = each.visibility.pairs(each.query.shape[2], each.key.shape[2], similarity.device)
    weights = similarity * seen
    return weights / weights.sum(dim=-1, keepdim=True).clamp(min=1e-300) @ each.value


@pytest.mark.parametrize("order", ["none", "causal", "ordered_queries"])
@pytest.mark.parametrize("padded", [False, True])
def test_elu_features(order: str, padded: bool) -> None:
    each = case(order, padded=padded, memory=2 if order == "causal" else 0)
    query, key = (torch.where(x > 0, x + 1, x.exp()) for x in (each.query / 2**0.5, each.key / 2**0.5))  # 4^(1/4)
    found = Linear().build(heads=2)(each.query, each.key, each.value, each.visibility)
    torch.testing.assert_close(found, expected_output(each, query @ key.mT))


@pytest.mark.parametrize("order", ["none", "causal", "ordered_queries"])
def test_average(order: str) -> None:
    each = case(order, padded=True)
    found = Average().build(heads=2)(each.query, each.key, each.value, each.visibility)
    ones = torch.ones(*each.query.shape[:3], each.key.shape[2], dtype=torch.float64)
    torch.testing.assert_close(found, expected_output(each, ones))


@pytest.mark.parametrize("order", ["none", "causal"])
def test_cosformer(order: str) -> None:
    each = case("causal", padded=True)
    each = Case(query=each.query, key=each.key, value=each.value,
                visibility=Visibility(order=order, key_real=each.visibility.key_real,
                                      query_real=each.visibility.query_real))  # fmt: skip
    longest = torch.tensor([5.0, 3.0]) if order == "none" else torch.tensor([9.0, 9.0])
    distance = (torch.arange(5)[:, None] - torch.arange(5)).double()
    reweighting = (math.pi / 2 * distance / longest[:, None, None, None]).cos()
    kernel = CosFormer(length=None if order == "none" else 9).build(heads=2)
    found = kernel(each.query, each.key, each.value, each.visibility)
    expected = expected_output(each, (each.query.relu() @ each.key.relu().mT) * reweighting)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("order", ["none", "causal"])
def test_a_query_without_any_weight_has_a_gradient(order: str) -> None:
    """Its features max(q, 0) are all 0, and so are its output and its part in every gradient."""
    each = case("causal")
    query = each.query.clone()
    query[0, 0, 2] = -1.0
    leaves = [tensor.requires_grad_() for tensor in (query, each.key, each.value)]
    output = CosFormer(length=9).build(heads=2)(*leaves, Visibility(order=order))
    (100 * output).sum().backward()  # type: ignore[no-untyped-call]
    assert not output[0, 0, 2].any()
    for leaf in leaves:
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("memory", [0, 3])
@pytest.mark.parametrize("is_padded", [False, True])
def test_random_features_that_underflow_are_computed_from_logarithms(memory: int, is_padded: bool) -> None:
    """In order 'causal', for keys that no training with finite losses has; 0 would be taken for an output."""
    torch.manual_seed(0)
    length, width = 37, 64
    sizes = 10 ** torch.linspace(1.6, 0.0, memory + length, dtype=torch.float64)[:, None]  # the first are the longest
    query = (torch.randn(2, 1, length, width, dtype=torch.float64) / 20).requires_grad_()
    key = (sizes * torch.randn(2, 1, memory + length, width, dtype=torch.float64)).requires_grad_()
    value = torch.randn(2, 1, memory + length, 2, dtype=torch.float64).requires_grad_()
    real = torch.rand(2, memory + length) < (0.7 if is_padded else 1.0)
    visibility = Visibility(query_real=real[:, memory:], key_real=real, order="causal", memory=memory)
    kernel = Performer(features=8).build(heads=1)
    assert isinstance(kernel, FeatureKernel)
    told = FeatureKernel.attend(kernel, query, key, value, visibility, None)  # as on a GPU
    assert told.isnan().any()
    assert not told[:, :, -1].isnan().any()
    directions = random_directions(query.detach(), width, 8, 0)
    logarithms = [
        x @ directions.mT - x.square().sum(dim=-1, keepdim=True) / 2 for x in (query / width**0.25, key / width**0.25)
    ]
    logits = (logarithms[0][:, :, :, None] + logarithms[1][:, :, None]).logsumexp(dim=-1)
    seen = visibility.pairs(length, memory + length, query.device)
    weights = logits.masked_fill(~seen, -1e30).softmax(dim=-1) * seen
    found, expected = kernel(query, key, value, visibility), weights @ value
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    weight = torch.randn_like(expected)
    for one, other in zip(
        torch.autograd.grad((found * weight).sum(), (query, key, value), retain_graph=True),
        torch.autograd.grad((expected * weight).sum(), (query, key, value)), strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("order", ["none", "causal", "ordered_queries"])
def test_random_features_are_those_of_the_formula(order: str) -> None:
    each = case(order, padded=True)
    kernel = Performer(features=7, seed=3).build(heads=2)
    directions = random_directions(each.query, 4, 7, 3)
    query, key = (x / 2**0.5 for x in (each.query, each.key))
    features = [(x @ directions.mT - x.square().sum(dim=-1, keepdim=True) / 2).exp() for x in (query, key)]
    found = kernel(each.query, each.key, each.value, each.visibility)
    torch.testing.assert_close(found, expected_output(each, features[0] @ features[1].mT))


@pytest.mark.parametrize("width", [16, 128, 256])
def test_causal_random_features_do_not_underflow(width: int) -> None:
    """The average of equal values is the value, in float32 too. Features of wide heads are as small as exp(-100)."""
    generator = torch.Generator().manual_seed(0)
    query, key = (2 * torch.randn(1, 1, 20, width, generator=generator) for _ in range(2))
    ones = torch.ones(1, 1, 20, width)
    torch.testing.assert_close(Performer().build(heads=1)(query, key, ones, Visibility(order="causal")), ones)


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacfwd, torch.vmap])
def test_directions_drawn_inside_a_transform_outlive_it(transform: Callable[..., Any]) -> None:
    _directions.cache_clear()
    each, kernel = case("none"), Performer().build(heads=2)
    transform(lambda query: kernel(query[None], each.key[:1], each.value[:1], Visibility()).sum())(
        each.query if transform is torch.vmap else each.query[0]
    )
    assert not torch._C._functorch.is_functorch_wrapped_tensor(_directions(4, kernel.count, kernel.seed))


def test_random_directions_are_orthogonal_in_blocks_and_repeatable() -> None:
    directions = random_directions(torch.zeros(1, dtype=torch.float64), 8, 20, 0)
    product = directions[:8] @ directions[:8].mT
    torch.testing.assert_close(product, product.diagonal().diag())
    again = random_directions(torch.zeros(1, dtype=torch.float64), 8, 20, 0)
    assert torch.equal(directions, again)
    assert directions.data_ptr() != again.data_ptr()  # a compiled graph may write to its own copy
    assert not torch.equal(directions, random_directions(torch.zeros(1, dtype=torch.float64), 8, 20, 1))


def test_many_random_features_approach_softmax() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (0.5 * torch.randn(1, 1, 6, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    errors = [
        float((Performer(features=count).build(heads=1)(query, key, value, Visibility()) - expected).norm())
        for count in (16, 16_384)
    ]
    assert errors[1] < errors[0] / 8  # the error falls with the root of the number of features: by 32


@pytest.mark.parametrize("padding", [0, 5])
def test_nystromformer(padding: int) -> None:
    """The authors' formula: means of equal segments, six iterations; padding after the end changes nothing."""
    generator = torch.Generator().manual_seed(1)
    tokens, landmarks = 12, 4
    query, key, value = (
        torch.randn(2, 2, tokens + padding, 4, generator=generator, dtype=torch.float64) for _ in range(3)
    )
    config = Nystromformer(landmarks=landmarks, convolution=3)
    kernel = config.build(heads=2).double()
    real = torch.arange(tokens + padding).expand(2, -1) < tokens
    found = kernel(query, key, value, Visibility(query_real=real, key_real=real))[:, :, :tokens]
    q, k, v = query[:, :, :tokens] / 2**0.5, key[:, :, :tokens] / 2**0.5, value[:, :, :tokens]
    q_mean, k_mean = (x.reshape(2, 2, landmarks, 3, 4).mean(dim=3) for x in (q, k))
    first, middle, last = (
        (one @ other.mT).softmax(dim=-1) for one, other in ((q, k_mean), (q_mean, k_mean), (q_mean, k))
    )
    expected = torch.empty_like(v)
    for b, h in ((0, 0), (0, 1), (1, 0), (1, 1)):
        a, eye = middle[b, h], torch.eye(landmarks, dtype=torch.float64)
        z = a.T / a.sum(dim=0).max()  # the rows sum to 1
        for _ in range(6):
            z = z @ (13 * eye - a @ z @ (15 * eye - a @ z @ (7 * eye - a @ z))) / 4
        expected[b, h] = first[b, h] @ z @ last[b, h] @ v[b, h]
    assert kernel.convolution is not None
    weights = kernel.convolution.weight[:, 0, :, 0]
    for i in range(tokens):
        for k_index in range(3):
            if 0 <= i + k_index - 1 < tokens:
                expected[:, :, i] += weights[:, k_index, None] * v[:, :, i + k_index - 1]
    torch.testing.assert_close(found, expected)


def test_nystromformer_with_many_iterations_and_a_landmark_per_token_is_softmax() -> None:
    generator = torch.Generator().manual_seed(2)
    query, key, value = (torch.randn(1, 1, 6, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    kernel = Nystromformer(landmarks=8, convolution=None, iterations=60).build(heads=1)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(kernel(query, key, value, Visibility()), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("order", ["none", "causal"])
def test_convolution(order: str) -> None:
    each = case("causal", padded=True)
    kernel = Convolution(width=3).build(heads=2).double()
    with torch.no_grad():
        kernel.raw.copy_(torch.randn(2, 3))
    real = each.visibility.key_real
    assert real is not None
    found = kernel(each.query, each.key, each.value, Visibility(order=order, key_real=real, query_real=real))
    shift = 1 if order == "none" else 2
    expected = torch.zeros_like(found)
    for b, h, i, k in torch.cartesian_prod(*map(torch.arange, (2, 2, 5, 3))).tolist():
        j = i + k - shift
        if 0 <= j < 5 and real[b, j] and real[b, i]:
            expected[b, h, i] += kernel.raw.softmax(dim=-1)[h, k] * each.value[b, h, j]
    torch.testing.assert_close(found, expected)


def test_a_layer_that_begins_at_random_is_not_attended_by() -> None:
    tokens = torch.randn(1, 2, 9, 4)
    with pytest.raises(WrongUseError, match=r"nystromformer has a layer that begins at random"):
        attend("nystromformer", tokens, tokens, tokens)
    assert attend(Nystromformer(convolution=None), tokens, tokens, tokens).shape == tokens.shape

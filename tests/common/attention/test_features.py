"""The linear forms of x1 and x2 against the formula."""

from typing import Any

import pytest
import torch
from torch import nn

from seqarena.common.attention import conditions, features
from seqarena.common.attention.base import Kernel
from seqarena.common.attention.conditions import Inputs
from seqarena.common.attention.elementwise import Elementwise, ElementwiseKernel
from seqarena.common.attention.features import power_features
from seqarena.common.attention.visibility import Visibility
from tests.common.attention.cases import Case, cases


def assert_alike(kernel: Kernel, each: Case) -> None:
    assert isinstance(kernel, ElementwiseKernel)
    tensors = [tensor.clone().requires_grad_() for tensor in (each.query, each.key, each.value)]
    expected = kernel.reference(*tensors, each.visibility, None)
    found = kernel.features(*tensors, each.visibility, None)
    direction = torch.randn_like(expected)
    wanted = [expected, *torch.autograd.grad((expected * direction).sum(), tensors)]
    got = [found, *torch.autograd.grad((found * direction).sum(), tensors)]
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11)


@pytest.mark.parametrize("order", ["none", "causal", "ordered_queries"])
@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("scale", [None, 14.0])
def test_features_give_what_the_formula_gives(order: str, power: int, scale: float | None) -> None:
    kernel = Elementwise(power=power, scale=scale).build(heads=2)
    for each in cases(order):
        if each.visibility.segments is None and each.visibility.window is None:
            assert_alike(kernel, each)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize(("queries", "memory"), [(150, 0), (70, 130), (64, 64), (1, 200)])
def test_chunks_of_a_causal_sequence_join(
    power: int, queries: int, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "FEATURE_NUMBERS", 1)
    query = torch.randn(2, 2, queries, 3, dtype=torch.float64)
    key, value = (torch.randn(2, 2, queries + memory, 3, dtype=torch.float64) for _ in range(2))
    real = torch.rand(2, queries + memory) < 0.8
    visibility = Visibility(order="causal", memory=memory, key_real=real, query_real=real[:, memory:])
    assert_alike(
        Elementwise(power=power).build(heads=2), Case(query=query, key=key, value=value, visibility=visibility)
    )


def test_values_may_have_another_width() -> None:
    query, key = (torch.randn(1, 2, 9, 3, dtype=torch.float64) for _ in range(2))
    each = Case(query=query, key=key, value=torch.randn(1, 2, 9, 5, dtype=torch.float64), visibility=Visibility())
    for power in (1, 2):
        assert_alike(Elementwise(power=power).build(heads=2), each)


@pytest.mark.parametrize("offset", [0.0, 30.0, 100.0, 1000.0])
@pytest.mark.parametrize("order", ["none", "causal"])
def test_a_direction_that_all_keys_share_costs_no_digits(offset: float, order: str) -> None:
    """Queries are orthogonal to it: output and gradients in float32 are as exact as those of the formula."""
    query, key, value = (torch.randn(1, 3, 120, 8) for _ in range(3))
    direction = nn.functional.normalize(torch.randn(8), dim=0)
    query -= (query @ direction)[..., None] * direction
    key[:, 1:] += offset * direction  # the first head's keys share nothing
    kernel, visibility = Elementwise(power=2).build(heads=3), Visibility(order=order)
    weight = torch.randn(1, 3, 120, 8, dtype=torch.float64)
    found = []
    for which, dtype in (("exact", torch.float64), ("reference", torch.float32), ("features", torch.float32)):
        leaves = [each.to(dtype).requires_grad_() for each in (query, key, value)]
        output = (kernel.features if which == "features" else kernel.reference)(*leaves, visibility, None)
        found.append([output, *torch.autograd.grad((output * weight.to(dtype)).sum(), leaves)])
    for exact, formula, linear in zip(*found, strict=True):
        for head in range(3):
            error, own = ((each - exact)[:, head].norm() / exact[:, head].norm() for each in (linear, formula))
            assert error <= 2 * own + 1e-6


@pytest.mark.parametrize("factor", [0.0, 1000.0])
@pytest.mark.parametrize("own", [300, 150])
def test_later_keys_do_not_change_earlier_outputs(factor: float, own: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor their gradients: keys that share a direction are seen, large ones that share none come later."""
    monkeypatch.setattr(features, "FEATURE_NUMBERS", 1)  # chunks of 64
    query, key, value = (torch.randn(1, 2, 300, 8) for _ in range(3))
    direction = nn.functional.normalize(torch.randn(8), dim=0)
    query -= (query @ direction)[..., None] * direction
    key[:, :, :200] += 1000 * direction
    later = key.clone()
    later[:, :, 200:] *= factor
    kernel = Elementwise(power=2).build(heads=2)
    visibility, seen = Visibility(order="causal", memory=300 - own), slice(0, own - 100)
    found = []
    for keys, dtype in ((key, torch.float64), (key, torch.float32), (later, torch.float32)):
        leaves = [each.to(dtype).requires_grad_() for each in (query[:, :, -own:], keys, value)]
        output = kernel.features(*leaves, visibility, None)[:, :, seen]
        found.append([output, *(each[:, :, :200] for each in torch.autograd.grad(output.sum(), leaves))])
    for exact, before, after in zip(*found, strict=True):
        assert (after - before).norm() <= 1e-6 * exact.norm()
        assert (after - exact).norm() <= 1e-4 * exact.norm()  # of rounding the scaled query


def test_few_earlier_keys_are_no_reason_for_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind padding on the left: a query that is orthogonal to the one key of a state sees others too."""
    monkeypatch.setattr(torch.Tensor, "double", lambda _: pytest.fail("float64"))
    query, key, value = torch.zeros(3, 1, 300, 2)
    query[:, :, 1], value[:] = 1.0, 1.0
    key[:, 64, 0], key[:, 128:, 1] = 1.0, 1.0
    monkeypatch.setattr(features, "FEATURE_NUMBERS", 1)  # chunks of 64
    output = power_features(query, key, value, 2, 300)
    assert output[0, :, 0].tolist() == pytest.approx([0.0] * 128 + list(range(1, 173)))


def test_features_are_taken_where_they_are_less_work_and_can_be() -> None:
    def against(power: int, head_dim: int, keys: int, phi: str = "x", dropout: float = 0.0, **given: Any) -> str:
        query, key = torch.empty(1, 1, 3, head_dim), torch.empty(1, 1, keys, head_dim)
        visibility, bias = given.get("visibility", Visibility()), given.get("bias")
        return conditions.features(Inputs(query, key, key, visibility, bias, dropout), phi, power) or ""

    assert against(1, 32, 100) == against(2, 16, 512) == ""
    assert "1.5 head_dim^1 keys" in against(1, 32, 40)
    assert "1.5 head_dim^2 keys" in against(2, 64, 4096)
    for refused in (against(3, 4, 10**6), against(1, 4, 200, phi="relu")):
        assert refused == "only x and x^2 have a linear form"
    assert "drop" in against(1, 4, 200, dropout=0.5)
    assert "bias" in against(1, 4, 200, bias=torch.zeros(1, 1, 1, 1))
    for visibility in (
        Visibility(segments=torch.zeros(1, 200, dtype=torch.long)),
        Visibility(order="causal", window=3),
    ):
        assert "segments" in against(1, 4, 200, visibility=visibility)
    tensors = [torch.randn(1, 1, 200, 4) for _ in range(3)]
    linear = Elementwise(power=1).build(heads=1, dropout=0.5)
    assert linear.explain(*tensors, Visibility()).implementation == "blockwise"
    assert linear.eval().explain(*tensors, Visibility()).implementation == "features"


def test_the_operator_keeps_the_rules_of_operators() -> None:
    tensors = [torch.randn(2, 70, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    for power, own in ((1, 0), (2, 70)):
        torch.library.opcheck(power_features, (*tensors, power, own))

"""Which implementation computes a call, and why each other does not."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

from seqarena.common.attention import PAPERS, Kernel, Visibility, conditions, elementwise, fallback, find_attention
from seqarena.common.attention.base import IMPLEMENTATIONS
from seqarena.common.attention.conditions import Inputs
from tests.common.attention.cases import cases

PLAIN = Visibility()
SOFTMAX_REASONS = (
    ({"key": torch.float32}, "torch.float64, torch.float32, torch.float64"),
    ({"width": 5}, "as wide as keys"),
    ({"dropout": 0.1}, "dropout on a CPU"),
    ({"visibility": Visibility(segments=torch.zeros(2, 9, dtype=torch.long))}, "segments need a mask"),
    ({"visibility": Visibility(order="causal", key_real=torch.ones(2, 9, dtype=torch.bool))}, "in order 'causal'"),
    ({"visibility": Visibility(order="causal", memory=2)}, "in order 'causal'"),
    ({"visibility": Visibility(order="causal", window=2)}, "in order 'causal'"),
    ({"visibility": Visibility(order="causal"), "bias": torch.zeros(1, 1, 1, 9)}, "a bias with an order"),
    ({"visibility": Visibility(query_real=torch.ones(2, 9, dtype=torch.bool)), "bias": torch.zeros(1, 1, 9, 1)}, "NaN"),
    ({"bias": torch.zeros(1, 1, 1, 9, requires_grad=True)}, "the bias is trained"),
)


def inputs(**changes: Any) -> Inputs:
    query, key = (torch.zeros(2, 3, 9, 4, dtype=torch.float64) for _ in range(2))
    value = torch.zeros(2, 3, 9, changes.get("width", 4), dtype=torch.float64)
    visibility, bias = changes.get("visibility", PLAIN), changes.get("bias")
    return Inputs(query, key.to(changes.get("key", key.dtype)), value, visibility, bias, changes.get("dropout", 0.0))


@pytest.mark.parametrize(("changes", "words"), SOFTMAX_REASONS)
def test_each_reason_against_fused_softmax_is_told(changes: dict[str, Any], words: str) -> None:
    assert conditions.fused_softmax(inputs()) is None
    assert words in str(conditions.fused_softmax(inputs(**changes)))


@pytest.mark.parametrize(("changes", "words"), [
    ({"bias": torch.zeros(1, 3, 9, 9)}, "needs a bias over all pairs"),
    ({"key": torch.float32}, "different dtypes"),
    ({"width": 5}, "as wide as keys"),
    ({"visibility": Visibility(key_real=torch.ones(2, 9, dtype=torch.bool))}, "padding"),
    ({"dropout": 0.5}, "no dropout and no gradients"),
    ({"bias": torch.zeros(2, 3, 9, 9, requires_grad=True)}, "no dropout and no gradients"),
])  # fmt: skip
def test_each_reason_against_a_bias_over_all_pairs_is_told(changes: dict[str, Any], words: str) -> None:
    whole = {"bias": torch.zeros(2, 3, 9, 9)}
    assert conditions.biased_softmax(inputs(**whole)) is None
    assert words in str(conditions.biased_softmax(inputs(**{**whole, **changes})))


def variants() -> Iterator[Any]:
    for name, config in PAPERS.items():
        for order in config.orders:
            yield pytest.param(name, order, id=f"{name}-{order}")


@pytest.mark.parametrize(("name", "order"), list(variants()))
def test_what_is_explained_is_what_runs(name: str, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that is named computes the call, none before it does, and each that has nothing against it can."""
    kernel = find_attention(name).build(heads=2)
    ran: list[str] = []
    computed = Kernel._run

    def watched(self: Kernel, implementation: Any, *given: Any) -> Any:
        ran.append(implementation)
        return computed(self, implementation, *given)

    monkeypatch.setattr(Kernel, "_run", watched)
    for each in cases(order):
        given = each.query, each.key, each.value, each.visibility
        chosen, others = kernel.explain(*given)
        kernel(*given)
        assert ran == [chosen]
        assert {chosen, *others} == set(IMPLEMENTATIONS)
        first = IMPLEMENTATIONS.index(chosen)
        assert all(others[before] != f"{chosen} comes first" for before in IMPLEMENTATIONS[:first])
        for other, reason in others.items():
            assert (kernel.compute(other, *given) is not None) == (reason == f"{chosen} comes first")
        ran.clear()


def test_arguments_are_checked_once_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    times = []
    check = Kernel.check
    monkeypatch.setattr(Kernel, "check", lambda self, *given, **more: times.append(1) or check(self, *given, **more))
    kernel, tensors = find_attention("dnas").build(heads=2), torch.randn(3, 1, 2, 5, 4)
    kernel(*tensors, PLAIN)
    assert len(times) == 1


def test_a_variant_without_a_rule_and_derivatives_say_why() -> None:
    kernel, tensors = find_attention("x3").build(heads=2), torch.randn(3, 1, 2, 5, 4)
    assert kernel.explain(*tensors, PLAIN).others["fused"] == "not available for this variant"
    assert kernel.explain(*tensors, PLAIN).others["chunked"] == "all queries fit into one chunk"
    assert "depend on all queries" in find_attention("dnas").build(heads=2).explain(*tensors, PLAIN).others["chunked"]
    with forward_ad.dual_level():
        chosen, others = kernel.explain(*tensors, PLAIN)
    assert chosen == "reference"
    assert set(others.values()) == {"only the formula computes forward-mode derivatives and transforms of torch.func"}


def test_a_slow_implementation_on_a_gpu_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only of variants that have a Triton kernel, and not where a faster form runs or the full matrix is small."""

    monkeypatch.setattr(Kernel, "_run", lambda _self, _implementation, _query, _key, value, *_: value)
    monkeypatch.setattr(conditions, "INSTALLED", True)

    class OnGpu(torch.Tensor):
        is_cuda = True  # type: ignore[assignment]

    def said(name: str, width: int = 4, length: int = 600, visibility: Visibility = PLAIN, **changes: Any) -> list[str]:
        told: list[str] = []
        monkeypatch.setattr("seqarena.common.attention.base.warn_of_fallback", lambda reason, *_: told.append(reason))
        query, others = torch.randn(1, 2, length, width).as_subclass(OnGpu), torch.randn(2, 1, 2, length, width)
        find_attention(name).build(heads=2, **changes)(query, *others, visibility)
        return told

    assert said("x3", width=144) == ["heads are 144 and 144 wide, expected 1 to 128"]
    assert said("dnas", width=150, visibility=Visibility(order="causal")) == [
        "heads are 150 and 150 wide, expected 1 to 128"
    ]
    assert said("x3", width=144, length=64) == []
    query, key, value = torch.randn(3, 1, 2, 64, 144)
    assert find_attention("x3").build(heads=2).explain(query.as_subclass(OnGpu), key, value, PLAIN)[0] == "reference"
    assert find_attention("x3").build(heads=2).explain(query, key, value, PLAIN)[0] == "blockwise"
    assert said("x1") == said("softmax") == said("softmax", dropout=0.1) == []


def test_the_warning_has_the_price_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the random numbers of the training are those that they would be without it."""
    monkeypatch.setattr(fallback, "WARNED", set())
    given = inputs_of(list(torch.randn(3, 2, 1, 40, 8)))
    calls = []

    def call() -> None:
        calls.append(torch.is_grad_enabled())
        torch.rand(1)

    state = torch.get_rng_state()
    with pytest.warns(
        UserWarning, match=r"a reason; its forward pass takes [\d.,]+ times .* \(2 x 1 heads, 40 queries"
    ):
        fallback.warn_of_fallback("a reason", given, call)
    fallback.warn_of_fallback("a reason", given, call)
    assert calls == [False, False]
    assert torch.equal(torch.get_rng_state(), state)

    def fails() -> None:
        raise torch.OutOfMemoryError

    with pytest.warns(UserWarning, match="another$"):
        fallback.warn_of_fallback("another", given, fails)


def test_the_price_is_the_time_over_that_of_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.0, 6.0, 7.0, 9.0])
    monkeypatch.setattr(fallback.time, "perf_counter", lambda: next(seconds))
    assert fallback.slowdown(inputs_of(list(torch.randn(3, 1, 1, 8, 8))), lambda: None) == 3.0


@pytest.mark.parametrize(("keys", "expected"), [(4_096, "triton"), (32_768, "triton"), (32_769, "features")])
def test_on_a_gpu_a_kernel_over_scores_comes_before_many_launches(
    keys: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a kernel, features are used as on a CPU, and x1, whose features take few launches, always has them."""
    monkeypatch.setattr(conditions, "INSTALLED", True)
    monkeypatch.setattr(elementwise, "fault_of", lambda _rule, _inputs: None)
    with FakeTensorMode():
        tensors = [torch.empty(1, 2, keys, 32, device="cuda") for _ in range(3)]
    assert find_attention("x2").build(heads=2)._choose(inputs_of(tensors)) == expected
    assert find_attention("x1").build(heads=2)._choose(inputs_of(tensors)) == "features"
    monkeypatch.setattr(conditions, "INSTALLED", False)
    assert find_attention("x2").build(heads=2)._choose(inputs_of(tensors)) == "features"


def inputs_of(tensors: list[torch.Tensor]) -> Inputs:
    query, key, value = tensors
    return Inputs(query, key, value, PLAIN, None, 0.0)

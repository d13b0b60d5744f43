"""The formula some queries at a time is the formula: every variant, order and mask, gradients, dropout, memory."""

import contextlib

import pytest
import torch

from seqarena.common.attention import ATTENTIONS, chunked
from seqarena.common.attention.base import AttentionConfig, Kernel
from seqarena.common.attention.doubly_normalized import DoublyNormalized
from seqarena.common.attention.reference import lowest, prefix_normalized
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import ColumnLse, EarlierLse, Pairs, Scores, Weights
from tests.common.attention.cases import VARIANTS, Case, case, cases


@pytest.fixture(autouse=True)
def of_two_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked, "CHUNK_BYTES", 0)
    monkeypatch.setattr(chunked, "LEAST_QUERIES", 2)


def outcome(kernel: Kernel, each: Case, which: str, bias: torch.Tensor | None) -> list[torch.Tensor] | None:
    """Returns the output and all gradients; None where that implementation cannot express the case."""
    given = [tensor.clone().requires_grad_() for tensor in (each.query, each.key, each.value)]
    output = kernel.compute(which, *given, each.visibility, bias)  # type: ignore[arg-type]
    if output is None:
        return None
    wanted = [*given, *kernel.parameters(), *([] if bias is None else [bias])]
    return [output, *torch.autograd.grad(output.square().sum(), wanted, allow_unused=True, materialize_grads=True)]


@pytest.mark.parametrize(("name", "order"), VARIANTS)
def test_chunks_give_the_formula_and_its_gradients(name: str, order: str) -> None:
    config = ATTENTIONS[name]
    kernel = config.build(heads=2).double()
    for each in cases(order):
        keys = each.key.shape[2]
        for bias in (None, *(torch.randn(s, dtype=torch.float64) for s in ((2, 2, 5, keys), (1, 2, 1, keys)))):
            found = outcome(kernel, each, "chunked", None if bias is None else bias.requires_grad_())
            if order not in config.stepwise or (order == "none" and each.visibility.segments is not None):
                assert found is None
                continue
            assert found is not None
            wanted = outcome(kernel, each, "reference", bias)
            assert wanted is not None
            for one, other in zip(found, wanted, strict=True):
                torch.testing.assert_close(one, other)


def test_dropout_is_drawn_alike_for_the_gradient() -> None:
    """The output is linear in the values: with the same pairs dropped, their gradient gives the output back."""
    each = case("causal")
    value = each.value.clone().requires_grad_()
    kernel = ATTENTIONS["softmax"].build(heads=2, dropout=0.5).train()
    output = kernel.compute("chunked", each.query, each.key, value, each.visibility)
    assert output is not None
    (grad,) = torch.autograd.grad(output.sum(), value)
    torch.testing.assert_close((grad * value).sum(), output.sum())


class ColumnSoftmax(AttentionConfig):
    """Normalised over queries, and silent about it."""

    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        return ColumnKernel(self, dropout)


class ColumnKernel(Kernel):
    def normalize(
        self, scores: Scores, visible: Pairs, visibility: Visibility, state: EarlierLse | None
    ) -> tuple[Weights, ColumnLse | None]:
        return scores.masked_fill(~visible, lowest(scores)).softmax(dim=-2) * visible, None


@pytest.mark.parametrize("order", ["none", "causal"])
def test_a_formula_that_needs_all_queries_and_does_not_say_so_is_refused(order: str) -> None:
    each = case(order)
    with pytest.raises(WrongUseError, match=r"ColumnKernel: a query's weights depend on other queries"):
        ColumnSoftmax().build(heads=2)(each.query, each.key, each.value, each.visibility)


class CausalColumnKernel(Kernel):
    """A softmax without an order, and normalised over queries in causal order."""

    def normalize(
        self, scores: Scores, visible: Pairs, visibility: Visibility, state: EarlierLse | None
    ) -> tuple[Weights, ColumnLse | None]:
        dim = -1 if visibility.order == "none" else -2
        return scores.masked_fill(~visible, lowest(scores)).softmax(dim=dim) * visible, None


def test_each_order_is_checked_by_itself() -> None:
    kernel = CausalColumnKernel(ColumnSoftmax(), 0.0)
    for order in ("none", "causal"):
        each = case(order)
        refused = pytest.raises(WrongUseError, match="depend on other queries")
        with contextlib.nullcontext() if order == "none" else refused:
            kernel(each.query, each.key, each.value, each.visibility)


class PrefixKernel(Kernel):
    def normalize(
        self, scores: Scores, visible: Pairs, visibility: Visibility, state: EarlierLse | None
    ) -> tuple[Weights, ColumnLse | None]:
        return prefix_normalized(scores, visible, state, visibility.memory)


def test_the_state_after_a_step_carries_no_gradient_but_that_between_chunks_does() -> None:
    each, kernel = case("causal"), PrefixKernel(DoublyNormalized(), 0.0).double()
    query = each.query.clone().requires_grad_()
    output, state = kernel.step(None, query, each.key, each.value, each.visibility)
    assert output.requires_grad
    assert state is not None
    assert not state.requires_grad
    (found,) = torch.autograd.grad(kernel(query, each.key, each.value, each.visibility).square().sum(), query)
    (wanted,) = torch.autograd.grad(output.square().sum(), query)
    torch.testing.assert_close(found, wanted)


def test_a_variant_without_a_rule_keeps_no_matrix() -> None:
    class Plain(ColumnKernel):
        def normalize(
            self, scores: Scores, visible: Pairs, visibility: Visibility, state: EarlierLse | None
        ) -> tuple[Weights, ColumnLse | None]:
            return scores.sigmoid() * visible, None

    each = case("none")
    kept: list[int] = []
    kernel = Plain(ColumnSoftmax(), 0.0)
    query = each.query.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()) or tensor, lambda x: x):
        kernel(query, each.key, each.value, each.visibility)
    pairs = each.query.shape[:3].numel() * each.key.shape[2]
    assert kept
    assert max(kept) < pairs

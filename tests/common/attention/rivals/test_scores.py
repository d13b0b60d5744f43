"""Mechanisms of other papers whose weights are a function of the scores: their formulas, row by row."""

import math
from collections.abc import Callable

import pytest
import torch

from seqarena.common.attention.base import AttentionConfig, Kernel
from seqarena.common.attention.rivals import RIVALS
from seqarena.common.attention.rivals.cosine import Cosine
from seqarena.common.attention.rivals.entmax import Entmax
from seqarena.common.attention.rivals.sink import SinkSoftmax
from seqarena.common.attention.rivals.sinkhorn import Sinkhorn
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from tests.common.attention.cases import Case, cases


def sparse(scores: list[float], alpha: float) -> list[float]:
    """Entmax by bisection on its threshold."""
    low, high = max(scores) * (alpha - 1) - 1, max(scores) * (alpha - 1)
    for _ in range(200):
        middle = (low + high) / 2
        total = sum(max(0.0, (alpha - 1) * s - middle) ** (1 / (alpha - 1)) for s in scores)
        low, high = (middle, high) if total > 1 else (low, middle)
    return [max(0.0, (alpha - 1) * s - low) ** (1 / (alpha - 1)) for s in scores]


def softmax_with(extra: float) -> Callable[[list[float]], list[float]]:
    return lambda row: [math.exp(s) / (extra + sum(map(math.exp, row))) for s in row]


ROWS: dict[str, Callable[[list[float]], list[float]]] = {
    "relu-n": lambda row: [max(0.0, s) / len(row) for s in row],
    "relu2-n": lambda row: [max(0.0, s) ** 2 / len(row) for s in row],
    "sigmoid": lambda row: [1 / (1 + len(row) * math.exp(-s)) for s in row],
    "softmax1": softmax_with(1.0),
    "sink": softmax_with(1.0),
    "entmax": lambda row: sparse(row, 1.5),
    "sparsemax": lambda row: sparse(row, 2.0),
}
"""Weights of the keys that a query sees, given their scores."""
ORDERED = [(name, order) for name in ROWS for order in RIVALS[name].orders]


def by_rows(each: Case, row: Callable[[list[float]], list[float]]) -> torch.Tensor:
    """Returns the weights of all rows; 0 where a pair is hidden."""
    scores = each.query @ each.key.mT / each.query.shape[-1] ** 0.5
    seen = each.visibility.pairs(each.query.shape[2], each.key.shape[2], scores.device).expand_as(scores)
    weights = torch.zeros_like(scores)
    for index in torch.cartesian_prod(*map(torch.arange, scores.shape[:3])):
        at = tuple(index.tolist())
        if seen[at].any():
            weights[at][seen[at]] = torch.tensor(row(scores[at][seen[at]].tolist()), dtype=torch.float64)
    return weights


def require_weights(config: AttentionConfig, each: Case, expected: torch.Tensor) -> None:
    kernel: Kernel = config.build(heads=2).double()
    torch.testing.assert_close(kernel.weights(each.query, each.key, each.visibility), expected, rtol=1e-9, atol=1e-10)
    output = kernel(each.query, each.key, each.value, each.visibility)
    torch.testing.assert_close(output, expected @ each.value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("name", "order"), ORDERED)
def test_formula(name: str, order: str) -> None:
    for each in cases(order):
        require_weights(RIVALS[name], each, by_rows(each, ROWS[name]))


@pytest.mark.parametrize("order", ["none", "causal", "ordered_queries"])
def test_cosine(order: str) -> None:
    for each in cases(order):
        norms = [tensor.norm(dim=-1, keepdim=True) for tensor in (each.query, each.key)]
        scaled = Case(query=each.query / norms[0] * 2, key=each.key / norms[1], value=each.value,
                      visibility=each.visibility)  # fmt: skip  # the scores are divided by sqrt(4)
        require_weights(Cosine(initial=1.0), each, by_rows(scaled, softmax_with(0.0)))


def test_sinkhorn() -> None:
    for each in cases("none"):
        scores = each.query @ each.key.mT / each.query.shape[-1] ** 0.5
        seen = each.visibility.pairs(scores.shape[2], scores.shape[3], scores.device)
        weights = scores.exp() * seen
        for axis in (-1, -2, -1):
            weights = weights / weights.sum(dim=axis, keepdim=True).clamp(min=1e-300)
        require_weights(Sinkhorn(), each, weights)


def test_many_normalizations_make_both_margins_uniform() -> None:
    each = cases("causal")[0]
    weights = Sinkhorn(normalizations=201).build(heads=2).weights(each.query, each.key, Visibility())
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 2, 5, dtype=torch.float64))
    torch.testing.assert_close(weights.sum(dim=-2), torch.ones(2, 2, 5, dtype=torch.float64))


def test_a_large_sink_takes_everything() -> None:
    each = cases("none")[0]
    weights = SinkSoftmax(initial=50.0).build(heads=2).weights(each.query, each.key, each.visibility)
    assert float(weights.max()) < 1e-10


@pytest.mark.parametrize("alpha", [1.5, 2.0])
@pytest.mark.parametrize("size", [0.1, 1.0, 30.0, 1e4])
def test_sparse_weights_sum_to_one(alpha: float, size: float) -> None:
    scores = size * torch.randn(1, 1, 40, 300)
    scores[..., 0, :] = 1.0  # ties
    visible = torch.rand(1, 1, 40, 300) < 0.5
    weights, _ = Entmax(alpha=alpha).build(heads=1).normalize(scores, visible, Visibility(), None)
    assert (weights >= 0).all()
    assert (weights[~visible] == 0).all()
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(1, 1, 40), rtol=0, atol=2e-5)


@pytest.mark.parametrize("alpha", [1.5, 2.0])
@pytest.mark.parametrize("keys", [2, 33, 128, 390, 1023, 2054])
def test_a_row_with_one_weight_has_no_gradient(alpha: float, keys: int) -> None:
    """All other scores are more than 1 / (alpha - 1) below the largest, so their weights are exactly 0."""
    scores = torch.rand(8, 1, 4, keys) / 2 - 5
    scores[..., -1] = 4.0
    scores.requires_grad_()
    visible = torch.ones(8, 1, 4, keys, dtype=torch.bool)
    weights, _ = Entmax(alpha=alpha).build(heads=1).normalize(scores, visible, Visibility(), None)
    weights.backward(torch.randn_like(weights))  # type: ignore[no-untyped-call]
    assert torch.equal(weights.detach(), torch.nn.functional.one_hot(torch.full((8, 1, 4), keys - 1), keys).float())
    assert scores.grad is not None
    assert not scores.grad.any()


def test_a_score_at_the_threshold_has_no_part_in_the_gradient() -> None:
    """Sparsemax of (1, 1, 1/2, 1/2): the threshold is 1/2, and the two lower scores reach it without a weight."""
    scores = torch.tensor([[[[1.0, 1.0, 0.5, 0.5]]]], dtype=torch.float64, requires_grad=True)
    weights, _ = Entmax(alpha=2.0).build(heads=1).normalize(scores, torch.ones(1, 1, 1, 4) > 0, Visibility(), None)
    assert weights.flatten().tolist() == [0.5, 0.5, 0.0, 0.0]
    (gradient,) = torch.autograd.grad(weights[..., 0].sum(), scores)
    assert gradient.flatten().tolist() == [0.5, -0.5, 0.0, 0.0]


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_a_score_of_nan_gives_nan(alpha: float) -> None:
    """So that a training is recorded as diverged."""
    scores = torch.randn(1, 1, 2, 5)
    scores[0, 0, 1, 3] = torch.nan
    visible = torch.ones(1, 1, 2, 5, dtype=torch.bool)
    weights, _ = Entmax(alpha=alpha).build(heads=1).normalize(scores, visible, Visibility(), None)
    assert weights[0, 0, 0].isfinite().all()
    assert weights[0, 0, 1].isnan().any()


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_gradient_of_sparse_weights(alpha: float) -> None:
    kernel = Entmax(alpha=alpha).build(heads=1)
    scores = torch.randn(2, 1, 3, 7, dtype=torch.float64, requires_grad=True)
    visible = torch.ones(1, 1, 3, 7, dtype=torch.bool)
    assert torch.autograd.gradcheck(lambda s: kernel.normalize(s, visible, Visibility(), None)[0], scores)


@pytest.mark.parametrize(
    "wrong",
    [lambda: Entmax(alpha=1.2), lambda: Sinkhorn(normalizations=2), lambda: Cosine(initial=0.0)],
)
def test_settings_without_meaning_are_refused(wrong: Callable[[], AttentionConfig]) -> None:
    with pytest.raises(WrongUseError, match="expected"):
        wrong()


@pytest.mark.parametrize("name", ["sink", "cosine", "convolution", "nystromformer"])
def test_another_number_of_heads_is_refused(name: str) -> None:
    each = cases("none")[0]
    with pytest.raises(WrongUseError, match="built for 3 heads; query has 2"):
        RIVALS[name].build(heads=3)(each.query, each.key, each.value, each.visibility)

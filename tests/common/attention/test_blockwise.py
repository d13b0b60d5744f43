"""The blockwise engine against the formulas: every variant, order, mask, bias and blocking, values and gradients."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from unittest import mock

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch.utils._python_dispatch import TorchDispatchMode

from seqarena.common.attention import ATTENTIONS, column_logsumexp
from seqarena.common.attention.base import Kernel
from seqarena.common.attention.doubly_normalized import DoublyNormalized
from seqarena.common.attention.hybrid import Hybrid
from seqarena.common.attention.operators import Arguments, attend_blockwise, backward_operator, forward_operator
from seqarena.common.attention.rule import Rule
from seqarena.common.attention.tiles import Blocking
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from tests.common.attention.cases import RULED, Case, case, cases

BLOCKINGS = (None, Blocking(heads=1, rows=1, keys=2), Blocking(heads=3, rows=2, keys=3))


@contextlib.contextmanager
def blocked(blocking: Blocking | None) -> Iterator[None]:
    """Takes tiles of this size; None: of the engine's own."""

    def choose(rule: Rule, heads: int, queries: int, keys: int, *given: object) -> Blocking:
        assert blocking is not None
        return replace(blocking, keys=keys) if rule.whole_rows else blocking

    with mock.patch.object(Blocking, "choose", choose) if blocking else contextlib.nullcontext():
        yield


def assert_alike(kernel: Kernel, each: Case, bias: torch.Tensor | None, blocking: Blocking | None) -> None:
    """Output and every gradient, to 1e-9 of the largest."""
    tensors = [tensor.clone().requires_grad_() for tensor in (each.query, each.key, each.value)]
    leaves = [*tensors, *kernel.parameters(), *([] if bias is None else [bias])]
    assert kernel.rule is not None
    expected = kernel.reference(*tensors, each.visibility, bias)
    assert expected is not None
    direction = torch.randn_like(expected)
    wanted = [expected, *torch.autograd.grad((expected * direction).sum(), leaves)]
    with blocked(blocking):
        found, _ = attend_blockwise(kernel.rule, *tensors, each.visibility, bias, mixing_weight=kernel.mixing_weight())
        got = [found, *torch.autograd.grad((found * direction).sum(), leaves)]
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9 * (1 + float(other.detach().abs().max())))


@pytest.mark.parametrize(("name", "order"), RULED)
def test_blocks_give_what_the_formula_gives(name: str, order: str) -> None:
    kernel = ATTENTIONS[name].build(heads=2).double()
    for each in cases(order):
        for blocking in BLOCKINGS:
            assert_alike(kernel, each, None, blocking)


@pytest.mark.parametrize(("name", "order"), [each for each in RULED if "-" not in each[0]])
def test_blocks_give_a_bias_its_gradient_whatever_it_is_shared_over(name: str, order: str) -> None:
    kernel = ATTENTIONS[name].build(heads=2).double()
    each = cases(order)[1]
    keys = each.key.shape[2]
    for shape in ((1, 1, 1, 1), (2, 2, 5, keys), (1, 2, 1, keys), (2, 1, 5, 1)):
        bias = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        assert_alike(kernel, each, bias, BLOCKINGS[2])


@pytest.mark.parametrize("config", [DoublyNormalized(iterations=3), Hybrid(u=0.3, per_head=True)])
def test_blocks_of_other_parameters(config: DoublyNormalized | Hybrid) -> None:
    for each in cases("none"):
        for blocking in BLOCKINGS:
            assert_alike(config.build(heads=2).double(), each, None, blocking)


@given(
    st.sampled_from([each for each in RULED if "-" not in each[0] and each[0] != "exp"]),
    st.integers(1, 70),
    st.integers(0, 9),
    st.sampled_from([0.3, 2.0, 12.0]),
    st.integers(1, 33),
    st.integers(0, 2**31),
)
@settings(max_examples=60)
def test_blocks_of_any_size_at_scores_of_any_size(
    variant: tuple[str, str], length: int, memory: int, size: float, rows: int, seed: int
) -> None:
    """Scores up to some hundreds: columns whose logsumexps range over more than float64 can hold as sums."""
    torch.manual_seed(seed)
    name, order = variant
    memory = memory if order == "causal" else 0
    query, key, value = (
        size * torch.randn(2, 1, each, 3, dtype=torch.float64) for each in (length, length + memory, length + memory)
    )
    query_real, key_real = torch.rand(2, length) < 0.8, torch.rand(2, length + memory) < 0.8
    visibility = Visibility(query_real=query_real, key_real=key_real, order=order, memory=memory)
    each = Case(query=query, key=key, value=value, visibility=visibility)
    kernel = ATTENTIONS[name].build(heads=1).double()
    assert_alike(kernel, each, None, Blocking(heads=1, rows=rows, keys=7))


@pytest.mark.parametrize(("name", "order"), RULED)
@pytest.mark.parametrize("half", [torch.float32, torch.bfloat16, torch.float16])
def test_blocks_round_no_more_than_the_formula(name: str, order: str, half: torch.dtype) -> None:
    """Values and gradients: at most twice the formula's error in the same precision, and a few units of rounding."""
    each = case(order, padded=True)
    kernel = ATTENTIONS[name].build(heads=2)
    tensors = [tensor.to(half).requires_grad_() for tensor in (each.query, each.key, each.value)]
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    wanted = ATTENTIONS[name].build(heads=2).double().reference(*exact, each.visibility, None)
    assert wanted is not None
    goals = [wanted, *torch.autograd.grad(wanted.square().sum(), exact)]
    errors = []
    for form in (kernel.blockwise, kernel.reference):
        output = form(*tensors, each.visibility, None)
        assert output is not None
        found = [output, *torch.autograd.grad(output.double().square().sum(), tensors)]
        pairs = zip(found, goals, strict=True)
        errors.append(
            [float((one.detach().double() - goal.detach()).norm() / goal.detach().norm()) for one, goal in pairs]
        )
    for blocks, formula in zip(*errors, strict=True):
        assert blocks <= 2 * formula + 8 * torch.finfo(half).eps


OURS = {
    torch.ops.seqarena.attend_blockwise: forward_operator,
    torch.ops.seqarena.attend_blockwise_backward: backward_operator,
}


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operator makes, inside the engine's own operators too."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func.overloadpacket in OURS:
            with self:
                return OURS[func.overloadpacket]._init_fn(*args, **(kwargs or {}))
        found = func(*args, **(kwargs or {}))
        for each in found if isinstance(found, tuple | list) else [found]:
            if isinstance(each, torch.Tensor):
                self.numbers = max(self.numbers, each.untyped_storage().nbytes() // each.element_size())
        return found


@pytest.mark.parametrize(("name", "order"), [each for each in RULED if "-" not in each[0]])
@pytest.mark.parametrize(
    ("dropout", "mode"),
    [
        *((0.0, mode) for mode in ("plain", "padded", "bias", "narrow values", "strided")),
        (0.1, "plain"),
        *(pytest.param(0.1, mode, marks=pytest.mark.extras) for mode in ("padded", "bias", "narrow values", "strided")),
    ],
)
def test_no_form_makes_a_full_matrix(name: str, order: str, dropout: float, mode: str) -> None:
    """What ``forward`` chooses, forward and backward, at a length whose matrix is far larger than all else."""
    length, memory = (1000, 100) if order == "causal" else (750, 0)  # a causal tile is as wide as its last query sees
    query = torch.randn(1, 2, 2, length).transpose(2, 3).requires_grad_(mode == "strided")
    key = torch.randn(1, 2, length + memory, 2, requires_grad=True)
    value = torch.randn(1, 2, length + memory, 1 if mode == "narrow values" else 2, requires_grad=True)
    if mode != "strided":
        query = query.contiguous().requires_grad_()
    real = {}
    if mode == "padded":
        real = {"query_real": torch.arange(length)[None] < 450, "key_real": torch.arange(length + memory)[None] < 500}
    bias = torch.randn(1, 1, 1, length + memory, requires_grad=True) if mode == "bias" else None
    kernel = ATTENTIONS[name].build(heads=2, dropout=dropout)
    with Largest() as largest:
        output = kernel(query, key, value, Visibility(order=order, memory=memory, **real), bias)
        output.square().sum().backward()
    assert largest.numbers < length * (length + memory) * 2 / 2
    if mode == "plain" and not dropout:  # a full matrix is noticed; neither its dropout nor the values play a part
        with Largest() as largest:
            kernel.weights(query, key, Visibility(order=order, memory=memory))
        assert largest.numbers >= length * (length + memory) * 2


@pytest.mark.parametrize(("name", "order"), [each for each in RULED if "-" not in each[0]])
def test_dropout_is_a_function_of_its_seed_alone(name: str, order: str) -> None:
    """The same whatever the blocking, and the same again in the backward pass."""
    each = case(order, padded=True)
    kernel = ATTENTIONS[name].build(heads=2).double()
    assert kernel.rule is not None

    def run(blocking: Blocking | None) -> torch.Tensor:
        torch.manual_seed(3)
        tensors = each.query, each.key, each.value, each.visibility
        with blocked(blocking):
            return attend_blockwise(kernel.rule, *tensors, mixing_weight=kernel.mixing_weight(), dropout=0.4)[0]

    for blocking in BLOCKINGS:
        torch.testing.assert_close(run(blocking), run(None), rtol=0, atol=1e-12)
    for tensor in (each.query, each.key, each.value):
        tensor.requires_grad_()

    def again(*tensors: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return attend_blockwise(
            kernel.rule, *tensors, each.visibility, mixing_weight=kernel.mixing_weight(), dropout=0.4
        )[0]

    inputs = each.query, each.key, each.value
    with blocked(BLOCKINGS[2]):
        assert torch.autograd.gradcheck(again, inputs, atol=1e-4 if name == "exp" else 1e-5, fast_mode=True)


def test_dropout_drops_each_weight_on_its_own() -> None:
    """Share, and the correlation of neighbours along queries, keys, heads and seeds, within 4 standard errors."""
    length, heads = 500, 4
    query = torch.zeros(1, heads, length, 1)
    value = torch.eye(length).expand(1, heads, length, length)
    rule = ATTENTIONS["softmax"].build(heads=heads).rule
    assert rule is not None
    kept = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        kept.append(attend_blockwise(rule, query, query, value, Visibility(), dropout=0.3)[0][0] != 0)
    first, second = (each.double() - 0.7 for each in kept)
    error = 0.21 / (heads * length * length) ** 0.5
    assert abs(float(first.mean())) < 4 * (0.21 / (heads * length * length)) ** 0.5
    shifted = [(first[:, 1:], first[:, :-1]), (first[:, :, 1:], first[:, :, :-1]), (first[1:], first[:-1])]
    for one, other in [*shifted, (first, second), (first[:, 2:, 2:], first[:, :-2, :-2])]:
        assert abs(float((one * other).mean())) < 4 * error * 1.2
    # A query and the key at its own place, and pairs that mirror each other.
    diagonal = first.diagonal(dim1=1, dim2=2)
    assert abs(float(diagonal.mean())) < 4 * (0.21 / (heads * length)) ** 0.5
    assert abs(float((first * first.mT)[:, *torch.triu_indices(length, length, 1)].mean())) < 4 * error * 1.7
    # Four corners of a rectangle: what a sum of one number a query and one a key would get wrong.
    corners = first[:, 1:, 1:] * first[:, 1:, :-1] * first[:, :-1, 1:] * first[:, :-1, :-1]
    assert abs(float(corners.mean())) < 4 * 0.21**2 / (heads * length * length) ** 0.5 * 1.2


@pytest.mark.parametrize("name", ["dnas", "hnas"])
def test_carried_masses_are_computed_again_when_they_do_not_fit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    each = cases("causal")[3]
    kernel = ATTENTIONS[name].build(heads=2).double()
    for stretch in (1, 2, 3):
        size = 8 * each.key.shape[2]
        monkeypatch.setattr("seqarena.common.attention.blockwise.STATE_BYTES", stretch * size)
        assert_alike(kernel, each, None, Blocking(heads=1, rows=1, keys=1))


def test_a_column_of_any_range_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums of exponentials and the cumulative logsumexp are the same where both can be taken."""
    kernel = ATTENTIONS["dnas"].build(heads=2).double()
    for order in ("causal", "ordered_queries"):
        each = case(order, padded=True)
        for limit in (-1.0, 1.0, 60.0):
            monkeypatch.setattr(column_logsumexp, "RANGE", limit)
            assert_alike(kernel, replace(each), None, Blocking(heads=2, rows=3, keys=1))


@pytest.mark.parametrize("order", ["causal", "ordered_queries"])
def test_a_column_that_rises_far_keeps_its_early_rows(order: str) -> None:
    """In float32 the sum up to an early query is nothing beside the column's largest exponential."""
    each = case(order)
    query, key = each.query.clone(), each.key.clone()
    query[..., 0], key[..., 0] = torch.arange(5.0) * 50, 2.0  # scores rise by 50 a query
    exact = replace(each, query=query, key=key)
    single = replace(exact, query=query.float(), key=key.float(), value=each.value.float())
    for name in ("dnas", "hnas"):
        kernel = ATTENTIONS[name].build(heads=2)
        found = kernel.blockwise(single.query, single.key, single.value, each.visibility, None)
        wanted = kernel.double().reference(exact.query, exact.key, exact.value, each.visibility, None)
        torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["softmax", "dnas", "hnas", "x1", "x2", "x3", "exp"])
def test_nothing_that_stands_in_padding_spreads(name: str) -> None:
    """Not even numbers that are none."""
    each = case("none", padded=True)
    real = each.visibility
    assert real.query_real is not None
    assert real.key_real is not None
    nan = float("nan")
    spoilt = [
        tensor.masked_fill(~mask[:, None, :, None], nan)
        for tensor, mask in ((each.query, real.query_real), (each.key, real.key_real), (each.value, real.key_real))
    ]
    kernel = ATTENTIONS[name].build(heads=2).double()
    for form in (kernel, kernel.blockwise):
        found, wanted = form(*spoilt, real, None), form(each.query, each.key, each.value, real, None)
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    ("name", "order"), [("softmax", "none"), ("dnas", "causal"), ("hnas", "none"), ("x3", "causal")]
)
def test_the_operator_keeps_the_rules_of_operators(name: str, order: str) -> None:
    each = case(order, padded=True)
    kernel = ATTENTIONS[name].build(heads=2).double()
    assert kernel.rule is not None
    real, bias = each.visibility, torch.randn(1, 2, 1, each.key.shape[2], dtype=torch.float64, requires_grad=True)
    tensors = [tensor.requires_grad_() for tensor in (each.query, each.key, each.value)]
    arguments = Arguments(
        *tensors, bias, real.query_real, real.key_real, None, None, kernel.mixing_weight(), torch.tensor(7),
        kernel.rule.text, order, 0, 0, 0.2,
    )  # fmt: skip
    with blocked(Blocking(heads=1, rows=2, keys=2)):
        torch.library.opcheck(forward_operator, tuple(arguments))


@pytest.mark.parametrize(("name", "order"), [each for each in RULED if "-" not in each[0]])
def test_autocast_leaves_the_engine_alone(name: str, order: str) -> None:
    """Values and gradients at a length of several blocks, x1 and x2 by features too."""
    kernel = ATTENTIONS[name].build(heads=1)
    tensors = [torch.randn(1, 1, 600, 4, requires_grad=True) for _ in range(3)]
    direction = torch.randn(1, 1, 600, 4)
    results = []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            output = kernel(*tensors, Visibility(order=order))
            results.append([output, *torch.autograd.grad((output * direction).sum(), tensors)])
    for one, other in zip(*results, strict=True):
        assert (one - other).norm() <= 1e-5 * one.norm()


@pytest.mark.parametrize("name", ["softmax", "dnas", "hnas", "x1", "x2", "x3"])
def test_a_second_derivative_is_refused_not_forgotten(name: str) -> None:
    kernel = ATTENTIONS[name].build(heads=1)
    tensors = [torch.randn(1, 1, 60, 2, requires_grad=True) for _ in range(3)]
    gradients = torch.autograd.grad(kernel(*tensors, Visibility()).square().sum(), tensors, create_graph=True)
    with pytest.raises((WrongUseError, RuntimeError)):
        torch.autograd.grad(sum(each.square().sum() for each in gradients), tensors)


@pytest.mark.parametrize(
    ("name", "order"), [("softmax", "none"), ("dnas", "causal"), ("x1", "none"), ("exp", "causal")]
)
@pytest.mark.parametrize("whole", [None, "query_real", "key_real"])
def test_what_a_bias_says_of_padding_is_not_read(name: str, order: str, whole: str | None) -> None:
    """Padding among queries, among keys, among both: ``whole`` names the side that has none."""
    each = case(order, padded=True)
    visibility = each.visibility if whole is None else replace(each.visibility, **{whole: None})
    kernel = ATTENTIONS[name].build(heads=2).double()
    bias = torch.randn(2, 1, each.query.shape[2], each.key.shape[2], dtype=torch.float64)
    seen = replace(visibility, order="none").pairs(each.query.shape[2], each.key.shape[2], bias.device)
    tensors = [tensor.requires_grad_() for tensor in (each.query, each.key, each.value)]
    results = []
    for some in (bias, bias.masked_fill(~seen, float("nan"))):
        output = kernel(*tensors, visibility, some)
        results.append([output, *torch.autograd.grad(output.sum(), tensors)])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["softmax", "dnas", "hnas", "x1"])
@pytest.mark.parametrize("padded", ["query_real", "key_real"])
def test_a_bias_of_nothing_but_padding_is_not_read(name: str, padded: str) -> None:
    """A single query that is padding; no key that is none."""
    query, key, value = (torch.randn(2, 2, length, 4, requires_grad=True) for length in (1, 3, 3))
    real = torch.tensor([[True], [False]]).expand(2, 1 if padded == "query_real" else 3)
    visibility = replace(Visibility(), **{padded: real})  # type: ignore[arg-type]
    bias = torch.randn(2, 1, 1, 3)
    bias[1] = float("nan")
    output = ATTENTIONS[name].build(heads=2)(query, key, value, visibility, bias)
    for each in (output, *torch.autograd.grad(output.sum(), (query, key, value))):
        assert each.isfinite().all()
        assert (each[1] == 0).all()


@pytest.mark.unhooked
@pytest.mark.parametrize("length", [300, 100])
def test_compiled_gradients_have_the_strides_they_promise(length: int) -> None:
    for name in ("x3", "x2", "dnas"):
        kernel = ATTENTIONS[name].build(heads=1)
        tensors = [torch.randn(1, 1, length, 4, requires_grad=True) for _ in range(3)]
        torch.compiler.reset()
        compiled = torch.compile(kernel, fullgraph=True, backend="aot_eager")
        found = torch.autograd.grad(compiled(*tensors, Visibility(order="causal")).square().sum(), tensors)
        expected = torch.autograd.grad(kernel(*tensors, Visibility(order="causal")).square().sum(), tensors)
        for one, other in zip(found, expected, strict=True):
            assert one.is_contiguous()
            torch.testing.assert_close(one, other)
    rule = ATTENTIONS["x3"].build(heads=1).rule
    assert rule is not None
    query = torch.randn(1, 1, length, 4)
    arguments = Arguments(
        query, query, query, None, None, None, None, None, None, torch.tensor(0), rule.text, "none", 0, 0, 0.0
    )
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        backward_operator, (query, query.new_empty(1, 0, length), False, *arguments), test_utils=checks
    )

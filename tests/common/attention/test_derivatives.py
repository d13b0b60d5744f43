"""Forward-mode derivatives and transforms of ``torch.func`` through every variant, against reverse mode in float64."""

from collections.abc import Callable

import pytest
import torch
from torch.autograd import forward_ad

from seqarena.common.attention import ATTENTIONS, PAPERS, attend
from seqarena.common.attention.base import Kernel
from seqarena.common.attention.mixer import MixerConfig
from seqarena.common.attention.visibility import Visibility, needs_formula
from tests.common.attention.cases import Case, case

Attend = Callable[..., torch.Tensor]
KERNELS = {name: config for name, config in ATTENTIONS.items() if not isinstance(config, MixerConfig)}
"""Every variant that has derivatives by queries, keys and values."""


def attention(kernel: Kernel, each: Case) -> Attend:
    return lambda *tensors: kernel(*tensors, each.visibility)


def inputs(each: Case) -> tuple[torch.Tensor, ...]:
    return each.query, each.key, each.value


def jacobian(attend: Attend, tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Returns the derivative of the output (rows) by all inputs (columns), a row at a time by ``backward``."""
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    rows = [
        torch.autograd.grad(one, leaves, retain_graph=True, allow_unused=True, materialize_grads=True)
        for one in attend(*leaves).flatten()
    ]
    return torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")  # of torch.func.linearize itself
@pytest.mark.parametrize(("name", "order"), [(name, order) for name, each in KERNELS.items() for order in each.orders])
def test_forward_mode_is_the_transpose_of_reverse_mode(name: str, order: str) -> None:
    each = case(order, padded=True)
    attend = attention(ATTENTIONS[name].build(heads=2).double(), each)
    tensors, tangents = inputs(each), tuple(torch.randn_like(tensor) for tensor in inputs(each))
    output, found = torch.func.jvp(attend, tensors, tangents)
    torch.testing.assert_close(output, attend(*tensors), rtol=0, atol=1e-12)
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    for _ in range(3):  # along directions of every element
        direction = torch.randn_like(output)
        gradients = torch.autograd.grad(attend(*leaves), leaves, direction, allow_unused=True, materialize_grads=True)
        wanted = sum((one * other).sum() for one, other in zip(gradients, tangents, strict=True))
        torch.testing.assert_close((found * direction).sum(), wanted, rtol=1e-9, atol=1e-9)
    if name in PAPERS and ("-" not in name or name == "x3-14"):  # other numbers for the scale give the same graph
        torch.testing.assert_close(torch.func.linearize(attend, *tensors)[1](*tangents), found)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(*pair) for pair in zip(tensors, tangents, strict=True)]
        torch.testing.assert_close(forward_ad.unpack_dual(attend(*duals)).tangent, found)


@pytest.mark.parametrize("name", list(KERNELS))
def test_transforms_of_torch_func_give_the_jacobian(name: str) -> None:
    each = case(ATTENTIONS[name].orders[0])
    attend = attention(ATTENTIONS[name].build(heads=2).double(), each)
    tensors = inputs(each)
    wanted = jacobian(attend, tensors)[:, : each.query.numel()]
    for transform in (torch.func.jacfwd, torch.func.jacrev):
        torch.testing.assert_close(transform(attend)(*tensors).reshape(wanted.shape), wanted, rtol=1e-9, atol=1e-9)
    gradient = torch.func.grad(lambda *tensors: attend(*tensors).sum())(*tensors)
    torch.testing.assert_close(gradient.flatten(), wanted.sum(dim=0), rtol=1e-9, atol=1e-9)
    examples = torch.vmap(lambda *tensors: attend(*(tensor[None] for tensor in tensors))[0])(*tensors)
    torch.testing.assert_close(examples, attend(*tensors), rtol=0, atol=1e-12)


def test_the_mixing_weight_has_a_forward_derivative_too() -> None:
    each, kernel = case("none"), ATTENTIONS["hnas"].build(heads=2).double()
    dnas, softmax = (ATTENTIONS[name].build(heads=2) for name in ("dnas", "softmax"))

    def output(u: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(kernel, {"u.raw": u}, (*inputs(each), each.visibility))

    u = kernel.u.raw.detach()
    _, found = torch.func.jvp(output, (u,), (torch.ones_like(u),))
    difference = dnas(*inputs(each), each.visibility) - softmax(*inputs(each), each.visibility)
    torch.testing.assert_close(found, difference, rtol=0, atol=1e-12)


@pytest.mark.parametrize("order", ["none", "causal", "ordered_queries"])
def test_only_the_formula_takes_part(order: str) -> None:
    """A faster form that is asked for by name says that it cannot; a step goes by the formula."""
    each = case(order)
    for name in ("softmax", "dnas", "x1", "x3"):
        kernel = ATTENTIONS[name].build(heads=2)
        with forward_ad.dual_level():
            assert needs_formula()
            for implementation in ("features", "triton", "fused", "blockwise"):
                assert kernel.compute(implementation, *inputs(each), each.visibility) is None
            if order in kernel.stepwise:
                dual = forward_ad.make_dual(each.value, torch.ones_like(each.value))
                output, _ = kernel.step(None, each.query, each.key, dual, each.visibility)
                rows = kernel.weights(each.query, each.key, each.visibility).sum(dim=3)
                tangent = forward_ad.unpack_dual(output).tangent
                torch.testing.assert_close(tangent, rows[..., None].expand_as(tangent), rtol=0, atol=1e-12)
        assert not needs_formula()


@pytest.mark.unhooked
@pytest.mark.parametrize("name", ["softmax", "dnas", "x3"])
def test_compiled_derivatives_are_the_same(name: str) -> None:
    each = case("none", padded=True, dtype=torch.float32)
    kernel, tangent = ATTENTIONS[name].build(heads=2), torch.randn(2, 2, 5, 4)
    attend = attention(kernel, each)

    def derivative(query: torch.Tensor) -> torch.Tensor:
        return torch.func.jvp(lambda query: attend(query, each.key, each.value), (query,), (tangent,))[1]

    torch.compiler.reset()
    compiled = torch.compile(derivative, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(each.query), derivative(each.query))


def test_masks_and_float16_are_no_obstacle() -> None:
    each = case("none", dtype=torch.float16)
    spoilt = each.value.clone()
    spoilt[:, :, -1] = float("nan")
    real = torch.tensor([[True] * 5 + [False]] * 2)
    for name in ("x3", "hnas"):
        attend = ATTENTIONS[name].build(heads=2)
        visibility = Visibility(key_real=real)
        found = torch.func.jvp(
            lambda query, attend=attend, visibility=visibility: attend(query, each.key, spoilt, visibility),
            (each.query,),
            (each.query,),
        )
        assert all(part.isfinite().all() for part in found)


@pytest.mark.parametrize("name", [*PAPERS])
def test_attend_can_be_transformed(name: str) -> None:
    """By vmap, and by both directions of derivatives: also hnas, whose mixing weight is a parameter elsewhere."""
    queries, key, value = (torch.randn(*shape, 1, 2, 4, 3, dtype=torch.float64) for shape in ((3,), (), ()))

    def attended(query: torch.Tensor) -> torch.Tensor:
        return attend(name, query, key, value, causal=True)

    each = torch.stack([attended(query) for query in queries])
    torch.testing.assert_close(torch.vmap(attended)(queries), each, rtol=0, atol=1e-12)
    backward, forward = (derive(attended)(queries[0]) for derive in (torch.func.jacrev, torch.func.jacfwd))
    torch.testing.assert_close(backward, forward, rtol=0, atol=1e-10)
    rows = torch.arange(4)
    later = rows[:, None] < rows  # no query moves what an earlier one gets
    assert not backward.movedim((2, 6), (0, 1))[later].any()

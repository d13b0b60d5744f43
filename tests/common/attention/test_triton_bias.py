"""The kernels of the elementwise variants with a bias, through Triton's interpreter: against float64 formulas."""

import pytest
import torch

from seqarena.common.attention import Visibility, conditions, find_attention
from seqarena.common.attention.conditions import Inputs
from seqarena.pretraining.transformer_xl import Shift
from tests.common.attention.test_triton import (
    INTERPRETED,
    ORDERS,
    both,
    exact,
    inputs,
    padded,
    poisoned,
    require_close,
    require_no_worse_than_plain,
    require_same_dropout,
)

pytestmark = INTERPRETED


def bias_of(
    kind: str, rows: int, keys: int, visibility: Visibility, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Returns a trained bias of all pairs, its columns stored one after the other, or a fixed one of all heads.

    It is NaN where padding stands.
    """
    generator = torch.Generator().manual_seed(9)
    if kind == "shared":
        return torch.randn(1, 1, rows, keys, generator=generator).to(dtype)
    assert visibility.query_real is not None
    assert visibility.key_real is not None
    bias = torch.randn(2, 2, keys, rows, generator=generator).mT.to(dtype)
    real = visibility.query_real[:, None, :, None] & visibility.key_real[:, None, None]
    return bias.masked_fill_(~real, torch.nan).requires_grad_()


@pytest.mark.parametrize("name", ["x1", "x3", "gelu", "exp"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", ["trained", "shared"])
def test_elementwise_with_a_bias_is_the_formula(name: str, order: str, kind: str) -> None:
    kernel, memory = find_attention(name).build(heads=2), 5 if order == "causal" else 0
    rows, keys = 70, 70 + memory if order == "causal" else 45
    visibility = padded(rows, keys, order, memory)
    given = [*poisoned(inputs(rows, keys, times=0.5), visibility), bias_of(kind, rows, keys, visibility)]
    found = both(kernel, given, visibility)
    assert len(found) == (5 if kind == "trained" else 4)
    require_close(found, exact(kernel, given, visibility), 5e-6)
    assert (found[0] - both(kernel, given[:3], visibility)[0]).abs().max() > 1e-3


def test_a_shifted_bias_is_read_as_it_is_stored() -> None:
    """A Transformer-XL's bias overlaps itself: rows begin one entry after the other."""
    kernel, visibility = find_attention("x3").build(heads=2), Visibility(order="causal", memory=20)
    products = torch.randn(2, 2, 33, 53, generator=torch.Generator().manual_seed(0))
    bias = Shift.apply(products)
    assert bias.stride() == (2 * 33 * 53, 33 * 53, 52, 1)
    given = [*inputs(33, 53), bias]
    require_close(both(kernel, given, visibility), exact(kernel, given, visibility))
    learning = products.clone().requires_grad_()
    wide = products.double().requires_grad_()
    for form, tensors, some in (("triton", given[:3], learning), ("reference", [t.double() for t in given[:3]], wide)):
        output = kernel.compute(form, *tensors, visibility, Shift.apply(some))  # type: ignore[arg-type]
        assert output is not None
        output.pow(2).sum().backward()
    require_close([learning.grad], [wide.grad], 5e-6)  # type: ignore[list-item]


def test_dropout_with_a_bias_drops_what_blockwise_drops() -> None:
    kernel, visibility = find_attention("gelu").build(heads=2, dropout=0.4), padded(40, 45, "causal", 5)
    require_same_dropout(kernel, [*inputs(40, 45), bias_of("trained", 40, 45, visibility)], visibility)


@pytest.mark.parametrize("name", ["x3", "gelu"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_with_a_bias_is_no_worse_than_the_plain_form(name: str, dtype: torch.dtype) -> None:
    visibility = padded(64, 64)
    bias = bias_of("trained", 64, 64, visibility, dtype).detach().nan_to_num(0.0).requires_grad_()
    given = [*inputs(64, 64, width=32, dtype=dtype), bias]
    require_no_worse_than_plain(find_attention(name).build(heads=2), given, visibility)


@pytest.mark.parametrize("trained", [True, False])
def test_the_operator_with_a_bias_passes_pytorchs_own_check(trained: bool) -> None:
    from seqarena.common.attention.triton import operators  # noqa: PLC0415

    bias, real = torch.randn(2, 2, 20, 20, requires_grad=trained), torch.ones(2, 20, dtype=torch.bool)
    torch.library.opcheck(
        operators.elementwise_forward,
        (*inputs(20, 20), bias, torch.ones(2, 20), None, real, None, torch.tensor(7), 0.0, "x", 3, True, 0, 0),
    )


def test_a_bias_that_they_cannot_take_is_refused_with_a_reason() -> None:
    (query, key, value), plain = inputs(20, 20), Visibility()
    x3, dnas = (find_attention(name).build(heads=2) for name in ("x3", "dnas"))
    shared = torch.zeros(1, 1, 20, 20)
    assert dnas.compute("triton", query, key, value, plain, shared) is None
    assert x3.compute("triton", query, key, value, plain, shared) is not None
    for bias, words in (
        (shared.double(), "a bias in torch.float64"), (shared.requires_grad_(), "a trained bias of several heads"),
        (torch.empty_strided((1, 1, 20, 20), (0, 0, 2**27, 1), device="meta"), "2^31 elements"),
    ):  # fmt: skip
        reason = conditions.triton_with_bias(Inputs(query, key, value, plain, bias, 0.0))
        assert reason is not None
        assert words in reason
    many, keys = (torch.empty(1, 1, 1, 16).expand(1, 1, length, 16) for length in (2**16, 2**15))
    trained = torch.empty(1, requires_grad=True).expand(1, 1, 2**16, 2**15)
    reason = conditions.triton_with_bias(Inputs(many, keys, keys, plain, trained, 0.0))
    assert reason == "the gradient of a head of the bias has 2^31 elements or more"

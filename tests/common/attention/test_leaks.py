"""Padding and the future: nothing of either may reach a real output, in any variant, in any order."""

import copy
import functools
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from seqarena.common.attention import ATTENTIONS, attend, conditions
from seqarena.common.attention.base import IMPLEMENTATIONS
from seqarena.common.attention.hybrid import Hybrid
from seqarena.common.attention.visibility import Order, Visibility
from tests.common.attention.cases import VARIANTS, Case, case, cases

ORDERED = [(name, order) for name, order in VARIANTS if order != "none"]
UNORDERED = [name for name, order in VARIANTS if order == "none"]


def output(name: str, each: Case) -> torch.Tensor:
    return ATTENTIONS[name].build(heads=2)(each.query, each.key, each.value, each.visibility)


@pytest.mark.parametrize(("name", "order"), VARIANTS)
def test_padded_keys_and_queries_get_exactly_nothing(name: str, order: str) -> None:
    each = case(order, padded=True)
    weights = ATTENTIONS[name].build(heads=2).weights(each.query, each.key, each.visibility)
    assert each.visibility.key_real is not None
    assert each.visibility.query_real is not None
    assert (weights.transpose(1, 3)[~each.visibility.key_real] == 0).all()
    assert (weights.transpose(1, 2)[~each.visibility.query_real] == 0).all()
    assert (output(name, each).transpose(1, 2)[~each.visibility.query_real] == 0).all()


@pytest.mark.parametrize(("name", "order"), VARIANTS)
def test_what_stands_in_padding_changes_nothing(name: str, order: str) -> None:
    each = case(order, padded=True)
    real = each.visibility
    assert real.query_real is not None
    assert real.key_real is not None

    def spoilt(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.where(mask[:, None, :, None], tensor, 30 * torch.randn_like(tensor))

    other = replace(
        each,
        query=spoilt(each.query, real.query_real),
        key=spoilt(each.key, real.key_real),
        value=spoilt(each.value, real.key_real),
    )
    torch.testing.assert_close(output(name, other), output(name, each), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "order"), VARIANTS)
def test_adding_padding_moves_no_real_output(name: str, order: str) -> None:
    each = case(order)
    extra_queries, extra_keys = (3, 3) if order == "causal" else (3, 2)

    def longer(tensor: torch.Tensor, extra: int) -> torch.Tensor:
        return torch.cat([tensor, 5 * torch.randn(2, 2, extra, 4, dtype=tensor.dtype)], dim=2)

    def mask(length: int, extra: int) -> torch.Tensor:
        return (torch.arange(length + extra) < length).expand(2, -1)

    padded = Case(
        query=longer(each.query, extra_queries),
        key=longer(each.key, extra_keys),
        value=longer(each.value, extra_keys),
        visibility=Visibility(
            query_real=mask(each.query.shape[2], extra_queries),
            key_real=mask(each.key.shape[2], extra_keys),
            order=order,
        ),
    )
    torch.testing.assert_close(output(name, padded)[:, :, :5], output(name, each), rtol=0, atol=1e-12)


def test_layers_share_masks_that_are_made_once() -> None:
    real = torch.tensor([[True, True, False]])
    visibility, tensor = Visibility(query_real=real, key_real=real), torch.ones(1, 1, 3, 1)
    elsewhere = real.to("meta")
    first = visibility.share(("padding",), elsewhere, lambda: ~elsewhere)
    assert first is visibility.share(("padding",), elsewhere, lambda: ~elsewhere)
    elsewhere[0, 1] = False
    assert first is not visibility.share(("padding",), elsewhere, lambda: ~elsewhere)
    segments = torch.zeros(1, 3, dtype=torch.long, device="meta")
    both = visibility.share(("both",), elsewhere, lambda: elsewhere & (segments == 0), segments)
    assert both is visibility.share(("both",), elsewhere, lambda: elsewhere & (segments == 0), segments)
    segments[0, 2] = 1
    assert both is not visibility.share(("both",), elsewhere, lambda: elsewhere & (segments == 0), segments)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        assert visibility.clear_output(tensor.to(dtype)).flatten().tolist() == [1, 1, 0]
    other = replace(visibility, query_real=~real, key_real=~real)
    assert other.clear_output(tensor).flatten().tolist() == [0, 0, 1]
    real[0, 1] = False
    assert visibility.clear_output(tensor).flatten().tolist() == [1, 0, 0]


@pytest.mark.parametrize("name", [each for each, order in VARIANTS if order == "none"])
def test_a_mask_that_numpy_changed_is_read_again(name: str) -> None:
    numbers = np.array([[True, True, False]])
    real = torch.from_numpy(numbers)
    visibility, kernel = Visibility(query_real=real, key_real=real), ATTENTIONS[name].build(heads=1)
    tensors = [torch.randn(1, 1, 3, 2) for _ in range(3)]
    kernel(*tensors, visibility)
    numbers[0, 1] = False
    expected = kernel(*tensors, Visibility(query_real=real, key_real=real))
    assert torch.equal(kernel(*tensors, visibility), expected)


@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_contiguous_inputs_and_gradients_in_the_layout_of_projections(dtype: torch.dtype, is_padded: bool) -> None:
    """As kernels need them and as projections take them: none of the two is copied once more if there is padding."""
    real = torch.arange(5) < torch.tensor([[5], [3]]) if is_padded else None
    visibility = Visibility(query_real=real, key_real=real)
    joint = torch.randn(2, 5, 3 * 8).to(dtype).requires_grad_()
    given = [each.unflatten(2, (2, -1)).transpose(1, 2) for each in joint.split(8, dim=2)]
    found, expected = visibility.clear(given[0], given[1], given[2], contiguous=True), visibility.clear(*given)
    for one, other, source in zip(found, expected, given, strict=True):
        assert one.is_contiguous()
        assert torch.equal(one, other)
        weight = torch.randn_like(one)
        gradients = [torch.autograd.grad(each, source, weight, retain_graph=True)[0] for each in (one, other)]
        assert torch.equal(*gradients)
        assert not is_padded or gradients[0].transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_parts_of_one_product_are_cleared_together_and_not_again(dtype: torch.dtype) -> None:
    real = torch.arange(5) < torch.tensor([[5], [3]])
    visibility = Visibility(query_real=real, key_real=real)
    joint = torch.randn(2, 5, 3, 2, 4).to(dtype)
    joint[1, 4] = torch.nan
    joint.requires_grad_()
    found = visibility.clear_together(joint)
    expected = visibility.clear(*(each.transpose(1, 2) for each in joint.unbind(dim=2)))
    weight = torch.randn(3, 2, 2, 5, 4).to(dtype)
    weight[:, 1, :, 4] = torch.nan
    gradients = []
    for tensors in (found, expected):
        (gradient,) = torch.autograd.grad(tensors, joint, list(weight))
        gradients.append(gradient)
    assert torch.equal(*gradients)
    assert gradients[0].is_contiguous()
    for one, other in zip(found, expected, strict=True):
        assert one.is_contiguous()
        assert torch.equal(one, other)
    assert all(one is other for one, other in zip(visibility.clear(*found, contiguous=True), found, strict=True))


def test_what_was_made_of_cleared_tensors_is_cleared_again() -> None:
    real = torch.tensor([[True, False]])
    visibility = Visibility(query_real=real, key_real=real)
    query, key, value = visibility.clear_together(torch.ones(1, 2, 3, 1, 1))
    with torch.no_grad():
        value += 1
    found = visibility.clear(query + 1, key, value)
    assert [each.flatten().tolist() for each in found] == [[2, 0], [1, 0], [2, 0]]
    other = Visibility(query_real=~real, key_real=~real)
    assert other.clear(query, key, value)[1].flatten().tolist() == [0, 0]


def test_what_clears_together_is_copied_without_tensors_and_has_no_memory_in_inference() -> None:
    real = torch.tensor([[True, False]])
    visibility = Visibility(query_real=real, key_real=real)
    parts = visibility.clear_together(torch.ones(1, 2, 3, 1, 1))
    for other in (copy.deepcopy(visibility), pickle.loads(pickle.dumps(visibility))):
        assert torch.equal(other.key_real, real)
        assert (other._clear, other._shared) == ([], {})
    real[0, 0] = False  # the tensors are those of another mask now
    assert visibility.clear(*parts)[0].flatten().tolist() == [0, 0]
    with torch.inference_mode():
        parts = visibility.clear_together(torch.ones(1, 2, 3, 1, 1))
        assert visibility.clear(*parts)[0].flatten().tolist() == [0, 0]


def test_a_mask_of_another_length_is_left_to_the_check() -> None:
    mask = torch.ones(1, 3, dtype=torch.bool)
    visibility = Visibility(query_real=mask, key_real=mask)
    assert torch.cat(visibility.clear_together(torch.ones(1, 2, 3, 1, 1))).flatten().tolist() == [1] * 6


def test_a_mask_that_numpy_changes_before_the_backward_pass() -> None:
    numbers = np.array([[True, False]])
    real = torch.from_numpy(numbers)
    leaf = torch.ones(1, 1, 2, 1, requires_grad=True)
    output = Visibility(query_real=real, key_real=real).clear_output(leaf)
    numbers[:] = False
    output.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.flatten().tolist() == [1, 0]


@pytest.mark.parametrize("implementation", ["blockwise", "reference"])
@pytest.mark.parametrize(("name", "order"), VARIANTS)
def test_no_gradient_is_of_a_mask_that_numpy_changed(name: str, order: Order, implementation: str) -> None:
    gradients = []
    for changes in (False, True):
        torch.manual_seed(0)
        numbers = np.array([[True, True, True, False]])
        real = torch.from_numpy(numbers)
        kernel, visibility = ATTENTIONS[name].build(heads=1), Visibility(query_real=real, key_real=real, order=order)
        tensors = [torch.randn(1, 1, 4, 2, requires_grad=True) for _ in range(3)]
        output = kernel.compute(implementation, *tensors, visibility)
        numbers[:] ^= changes
        gradients.append(torch.autograd.grad(output.square().sum(), tensors))
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("real", [(None, None), ([[True, True]], [[True, False]])])
def test_parts_without_padding_or_with_two_masks_are_not_cleared_together(real: tuple[Any, Any]) -> None:
    query_real, key_real = (None if each is None else torch.tensor(each) for each in real)
    visibility = Visibility(query_real=query_real, key_real=key_real)
    parts = visibility.clear_together(torch.ones(1, 2, 3, 1, 1))
    assert torch.cat(parts).flatten().tolist() == [1] * 6
    assert visibility.clear(*parts)[1].flatten().tolist() == [1, 1 if key_real is None else 0]


def test_masks_of_an_inference_are_not_kept_for_training() -> None:
    real = torch.tensor([[True, False]])
    visibility, tensor = Visibility(query_real=real, key_real=real), torch.ones(1, 1, 2, 1)
    with torch.inference_mode():
        visibility.clear_output(tensor)
    leaf = tensor.clone().requires_grad_()
    visibility.clear_output(leaf).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.flatten().tolist() == [1, 0]


@pytest.mark.parametrize(("name", "order"), VARIANTS)
def test_a_wholly_padded_row_gives_zeros_and_finite_gradients(name: str, order: str) -> None:
    for hide_queries, hide_keys in ((True, True), (False, True), (True, False)):
        each = case(order, padded=True)
        query_real, key_real = each.visibility.query_real, each.visibility.key_real
        assert query_real is not None
        assert key_real is not None
        query_real[0], key_real[0] = not hide_queries, not hide_keys
        tensors = [tensor.requires_grad_() for tensor in (each.query, each.key, each.value)]
        found = output(name, each)
        assert (found[0] == 0).all()
        gradients = torch.autograd.grad(found.square().sum(), tensors)
        assert all(torch.isfinite(gradient).all() for gradient in gradients)
        assert all((gradient[0] == 0).all() for gradient in gradients)


@pytest.mark.parametrize(("name", "order"), ORDERED)
@pytest.mark.parametrize("memory", [0, 3])
def test_the_future_changes_no_earlier_output(name: str, order: str, memory: int) -> None:
    if order == "ordered_queries" and memory:
        return  # cross-attention has no memory
    each = case(order, memory=memory)
    for now in range(4):
        query = each.query.clone()
        query[:, :, now + 1 :] += 7 * torch.randn_like(query[:, :, now + 1 :])
        key, value = each.key.clone(), each.value.clone()
        if order == "causal":
            key[:, :, memory + now + 1 :] += 7 * torch.randn_like(key[:, :, memory + now + 1 :])
            value[:, :, memory + now + 1 :] += 7 * torch.randn_like(value[:, :, memory + now + 1 :])
        changed = output(name, replace(each, query=query, key=key, value=value))
        torch.testing.assert_close(changed[:, :, : now + 1], output(name, each)[:, :, : now + 1], rtol=0, atol=1e-13)


@pytest.mark.parametrize(("name", "order"), ORDERED)
def test_no_gradient_flows_from_an_earlier_output_to_the_future(name: str, order: str) -> None:
    each = case(order)
    tensors = [tensor.requires_grad_() for tensor in (each.query, each.key, each.value)]
    gradients = torch.autograd.grad(output(name, each)[:, :, :2].sum(), tensors)
    later = gradients if order == "causal" else gradients[:1]
    assert all((gradient[:, :, 2:] == 0).all() for gradient in later)


@pytest.mark.parametrize(("name", "order"), ORDERED)
@pytest.mark.parametrize("scores", ["nan", "inf", "overflow"])
def test_a_later_score_that_is_no_number_changes_no_earlier_output(name: str, order: str, scores: str) -> None:
    """A later query, and in a causal sequence a later key, changes no number before it, in every form."""
    each = case(order, memory=2 if order == "causal" else 0)
    now, memory = 3, each.visibility.memory
    query, key = each.query.clone(), each.key.clone()
    worst = {"nan": float("nan"), "inf": float("inf"), "overflow": 1e200}[scores]
    query[:, :, now:] = worst
    if order == "causal":
        key[:, :, memory + now :] = worst
    for which in ("blockwise", "reference"):
        before, after = (
            ATTENTIONS[name].build(heads=2).compute(which, *tensors, each.value, each.visibility)
            for tensors in ((each.query, each.key), (query, key))
        )
        torch.testing.assert_close(after[:, :, :now], before[:, :, :now], rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["dnas", "hnas"])
@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("lowest", [-10, -25, -40, -55, -100])
def test_a_row_of_low_scores_does_not_depend_on_a_later_row_of_high_ones(
    name: str, is_padded: bool, lowest: int
) -> None:
    """In float32, their exponentials underflow next to that of the later row."""
    scores = torch.tensor([[0.0, 0.0, 0.0], [lowest, lowest + 4, lowest + 9], [0.0, 59.0, 58.0]])
    real = torch.tensor([[True, True, not is_padded]])
    visibility = Visibility(key_real=real, order="ordered_queries")
    key = value = torch.eye(3)[None, None]
    query = (scores * 3**0.5)[None, None].requires_grad_()
    kernel = ATTENTIONS[name].build(heads=1)
    outputs = [
        kernel.compute("blockwise", query, key, value, visibility),
        kernel.compute("blockwise", query[:, :, :2], key, value, visibility),
        kernel.compute("reference", *(each.double() for each in (query, key, value)), visibility),
    ]
    found, before, expected = (each[0, 0, :2] for each in outputs if each is not None)
    torch.testing.assert_close(found, before, rtol=0, atol=2e-5)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-5)
    gradients = [torch.autograd.grad(each[..., 0].sum(), query, retain_graph=True)[0] for each in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=0, atol=2e-5)


@pytest.mark.parametrize(("name", "order"), VARIANTS)
def test_a_gradient_of_padding_that_is_no_number_reaches_no_real_token(
    name: str, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = case(order, padded=True)
    kernel = ATTENTIONS[name].build(heads=2).double()
    real = each.visibility.query_real
    assert real is not None
    tensors = [tensor.requires_grad_() for tensor in (each.query, each.key, each.value)]
    forms = [kernel, *(functools.partial(kernel.compute, which) for which in IMPLEMENTATIONS)]
    monkeypatch.setattr(conditions, "KEYS_PER_FEATURE", 0.0)  # at this length features are not chosen
    for form in forms:
        found = form(*tensors, each.visibility)
        if found is None:
            continue
        direction = torch.randn_like(found)
        spoilt = direction.masked_fill(~real[:, None, :, None], float("nan"))
        leaves = [*tensors, *kernel.parameters()]
        wanted = torch.autograd.grad(found, leaves, direction, retain_graph=True)
        for one, other in zip(torch.autograd.grad(found, leaves, spoilt), wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("name", UNORDERED)
def test_packed_segments_are_separate_sequences(name: str) -> None:
    for order in ATTENTIONS[name].orders:
        if order == "ordered_queries":
            continue
        each = case("causal")
        segments = torch.tensor([[0, 0, 0, 1, 1]] * 2)
        packed = replace(each, visibility=Visibility(order=order, segments=segments))
        apart = [
            output(
                name,
                Case(
                    query=each.query[:, :, part],
                    key=each.key[:, :, part],
                    value=each.value[:, :, part],
                    visibility=Visibility(order=order),
                ),
            )
            for part in (slice(0, 3), slice(3, 5))
        ]
        torch.testing.assert_close(output(name, packed), torch.cat(apart, dim=2), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", UNORDERED)
def test_attend_takes_masks_names_and_configs(name: str) -> None:
    each = cases("none")[1]
    found = attend(
        name, each.query, each.key, each.value,
        query_mask=each.visibility.query_real, key_mask=each.visibility.key_real,
    )  # fmt: skip
    torch.testing.assert_close(found, output(name, each))
    assert torch.equal(
        attend(ATTENTIONS[name], each.query, each.key, each.value), attend(name, each.query, each.key, each.value)
    )


def test_attend_is_fused_softmax_and_drops_when_told() -> None:
    each = case("causal", memory=3)
    last = attend("lnas", each.query, each.key, each.value, causal=True)
    mask = torch.ones(5, 8, dtype=torch.bool).tril(3)
    torch.testing.assert_close(last, F.scaled_dot_product_attention(each.query, each.key, each.value, attn_mask=mask))
    dropped = attend("x3", each.query, each.key, each.value, dropout=0.5)
    assert not torch.allclose(dropped, attend("x3", each.query, each.key, each.value))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_attend_fixes_the_mixture_in_the_precision_of_its_inputs(dtype: torch.dtype) -> None:
    each = case("none", dtype=dtype)
    found = attend(Hybrid(u=0.3), each.query, each.key, each.value)
    assert not found.requires_grad
    dnas, softmax = (attend(name, each.query, each.key, each.value) for name in ("dnas", "softmax"))
    torch.testing.assert_close(found, 0.3 * dnas + 0.7 * softmax, rtol=0, atol=4 * torch.finfo(dtype).eps)
    query = each.query.requires_grad_()
    assert attend("hnas", query, each.key, each.value).requires_grad

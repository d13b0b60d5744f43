"""The CUDA kernels on packed sequences, through Triton's interpreter: against float64 formulas, and with dropout."""

from dataclasses import replace

import pytest
import torch

from seqarena.common.attention import Visibility, find_attention
from tests.common.attention.test_triton import (
    INTERPRETED,
    both,
    exact,
    inputs,
    padded,
    poisoned,
    require_close,
    require_same_dropout,
)

pytestmark = INTERPRETED
LENGTH = 70
CASES = [("x3", "none"), ("x3", "causal"), ("x3-14", "none"), ("gelu", "causal"), ("exp", "none"), ("dnas", "none"),
         ("hnas", "none")]  # fmt: skip


def packed(order: str, memory: int = 0) -> Visibility:
    """Sequences that begin and end within tiles, one of a single token, and padding in both examples."""
    ends = torch.tensor([[1, 18, 40, 41, 60], [15, 16, 33, 50, 51]])
    segments = (torch.arange(LENGTH + memory) >= ends[..., None]).sum(dim=1)
    visibility = padded(LENGTH, LENGTH + memory, order, memory)
    if order == "none":
        visibility = replace(visibility, query_real=visibility.key_real)
    return replace(visibility, segments=segments)


@pytest.mark.parametrize(("name", "order"), CASES)
def test_packed_sequences_are_the_formula(name: str, order: str) -> None:
    kernel, visibility = find_attention(name).build(heads=2), packed(order, 5 if order == "causal" else 0)
    assert visibility.key_real is not None
    given = poisoned(inputs(LENGTH, visibility.key_real.shape[1], times=0.5), visibility)
    tolerance = 2e-5 if name == "hnas" else 3e-6  # u has one gradient, a sum over all pairs
    require_close(both(kernel, given, visibility), exact(kernel, given, visibility), tolerance)


@pytest.mark.parametrize("name", ["x3", "dnas", "hnas"])
def test_a_packed_sequence_is_computed_as_if_alone(name: str) -> None:
    """Nothing of another sequence of the row reaches it, in the output or in a gradient."""
    kernel, (query, key, value) = find_attention(name).build(heads=2), inputs(48, 48)
    segments = (torch.arange(48) >= 20).long().expand(2, -1)
    whole = kernel.compute("triton", query, key, value, Visibility(segments=segments))
    alone = kernel.compute("triton", *(each[:, :, 20:] for each in (query, key, value)), Visibility())
    assert whole is not None
    assert alone is not None
    torch.testing.assert_close(whole[:, :, 20:], alone, rtol=1e-5, atol=1e-5)
    gradients = torch.autograd.grad(whole[:, :, 20:].square().sum(), (query, key, value))
    assert all((each[:, :, :20] == 0).all() for each in gradients)
    expected = torch.autograd.grad(alone.square().sum(), (query, key, value))
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["x3", "gelu", "dnas", "hnas"])
def test_dropout_of_packed_sequences_is_that_of_the_engine(name: str) -> None:
    require_same_dropout(find_attention(name).build(heads=2, dropout=0.4), inputs(LENGTH, LENGTH), packed("none"))


@pytest.mark.parametrize("name", ["x3", "dnas", "hnas"])
def test_half_precision_of_packed_sequences(name: str) -> None:
    kernel, visibility = find_attention(name).build(heads=2), packed("none")
    given = inputs(LENGTH, LENGTH, dtype=torch.bfloat16, times=0.5)
    require_close(both(kernel, given, visibility), exact(kernel, given, visibility), tolerance=3e-2)


@pytest.mark.parametrize("name", ["x3", "dnas"])
def test_any_numbers_name_the_sequences_also_of_an_inference(name: str) -> None:
    """Numbers that are equal in 32 bits are different sequences; a tensor of inference mode is kept as a copy."""
    kernel, given = find_attention(name).build(heads=2), inputs(20, 20)
    with torch.inference_mode():
        segments = (torch.arange(20) >= 7).long().expand(2, -1) * 2**32
    for dtype in (torch.int64, torch.int32, torch.uint8):
        numbers = segments if dtype is torch.int64 else (segments > 0).to(dtype)
        visibility = Visibility(segments=numbers)
        require_close(both(kernel, given, visibility), exact(kernel, given, visibility))


@pytest.mark.parametrize("order", ["none", "causal"])
def test_the_test_before_the_first_use_has_packed_sequences(order: str) -> None:
    from seqarena.common.attention.triton.self_test import find_fault  # noqa: PLC0415

    rule = find_attention("x3").build(heads=2).rule
    assert rule is not None
    assert find_fault(rule, torch.float32, torch.device("cpu"), 16, 16, order, 0.1, packed=True) is None  # type: ignore[arg-type]
    if order == "none":
        of_dnas = find_attention("dnas").build(heads=2).rule
        assert of_dnas is not None
        assert find_fault(of_dnas, torch.float32, torch.device("cpu"), 16, 16, "none", 0.0, packed=True) is None

"""The CUDA kernels on packed sequences and with windows, by Triton's interpreter: against formulas, with dropout."""

import sys
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
from tests.common.attention.test_triton_bias import bias_of

pytestmark = INTERPRETED
LENGTH = 70
CASES = [("x3", "none"), ("x3", "causal"), ("x3-14", "none"), ("gelu", "causal"), ("exp", "none"), ("dnas", "none"),
         ("hnas", "none"), ("dnas", "causal"), ("hnas", "causal")]  # fmt: skip
WINDOWS = (1, 9, 33, 200, sys.maxsize)


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


@pytest.mark.parametrize("name", ["x3", "gelu", "dnas", "hnas"])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("memory", [0, 45])
def test_windows_are_the_formula(name: str, window: int, memory: int) -> None:
    """From the own token alone to no limit, as a user may write it; with memory, keys that no query sees."""
    kernel = find_attention(name).build(heads=2)
    visibility = replace(padded(LENGTH, LENGTH + memory, "causal", memory), window=window)
    given = poisoned(inputs(LENGTH, LENGTH + memory, times=0.5), visibility)
    require_close(both(kernel, given, visibility), exact(kernel, given, visibility), 1e-5)


@pytest.mark.parametrize("name", ["x3", "dnas", "hnas"])
def test_a_bias_and_a_window_are_the_formula(name: str) -> None:
    """As Transformer-XL is scored with ``same_length``."""
    kernel = find_attention(name).build(heads=2)
    visibility = replace(padded(LENGTH, LENGTH + 20, "causal", 20), window=20)
    given = poisoned(inputs(LENGTH, LENGTH + 20, times=0.5), visibility)
    given.append(bias_of("trained", LENGTH, LENGTH + 20, visibility))
    require_close(both(kernel, given, visibility), exact(kernel, given, visibility), 1e-5)


@pytest.mark.parametrize("name", ["dnas", "hnas"])
@pytest.mark.parametrize("kind", ["window", "segments"])
def test_steps_with_a_window_or_packed_sequences_pass_the_state_on(name: str, kind: str) -> None:
    """A text in two pieces is the text in one, also for keys that leave the window in the second piece."""
    kernel, given = find_attention(name).build(heads=2), inputs(LENGTH, LENGTH)
    segments = (torch.arange(LENGTH) // 27).expand(2, -1) if kind == "segments" else None
    whole = Visibility(order="causal", segments=segments, window=25 if kind == "window" else None)
    query, key, value = given
    expected, expected_state = kernel.step(None, query, key, value, whole)
    early = replace(whole, segments=None if segments is None else segments[:, :40])
    first, state = kernel.step(None, query[:, :, :40], key[:, :, :40], value[:, :, :40], early)
    second, last = kernel.step(state, query[:, :, 40:], key, value, replace(whole, memory=40))
    torch.testing.assert_close(torch.cat([first, second], dim=2), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(last, expected_state, rtol=1e-5, atol=1e-5)


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
@pytest.mark.parametrize("kind", ["packed", "packed in order", "window"])
def test_dropout_of_packed_sequences_and_windows_is_that_of_the_engine(name: str, kind: str) -> None:
    window = Visibility(order="causal", window=20)
    visibility = {"packed": packed("none"), "packed in order": packed("causal"), "window": window}[kind]
    require_same_dropout(find_attention(name).build(heads=2, dropout=0.4), inputs(LENGTH, LENGTH), visibility)


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
    assert find_fault(rule, torch.float32, torch.device("cpu"), 16, 16, order, ("dropout", "segments")) is None  # type: ignore[arg-type]
    if order == "none":
        of_dnas = find_attention("dnas").build(heads=2).rule
        assert of_dnas is not None
        assert find_fault(of_dnas, torch.float32, torch.device("cpu"), 16, 16, "none", ("segments",)) is None

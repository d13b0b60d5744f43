from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from seqarena.common.attention import ATTENTIONS
from tests.common.attention.cases import VARIANTS, case


@pytest.mark.parametrize(("name", "order"), [each for each in VARIANTS if each[1] != "none"])
@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_segment_at_a_time_is_one_pass(name: str, order: str, length: int) -> None:
    """With everything kept as memory; also decoding one query at a time."""
    kernel = ATTENTIONS[name].build(heads=2)
    each = case(order)
    whole = kernel(each.query, each.key, each.value, each.visibility)
    state, parts = None, []
    for start in range(0, 5, length):
        stop = min(start + length, 5)
        seen = slice(0, stop) if order == "causal" else slice(None)
        visibility = replace(each.visibility, memory=start if order == "causal" else 0)
        part, state = kernel.step(
            state, each.query[:, :, start:stop], each.key[:, :, seen], each.value[:, :, seen], visibility
        )
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, dim=2), whole, rtol=0, atol=1e-12)


def test_a_step_transforms_its_inputs() -> None:
    """Weights of a formula on normalised queries and keys, as in attention by the cosine."""

    class Cosine(type(ATTENTIONS["softmax"].build(1))):  # type: ignore[misc]
        def transform(self, query, key, value, visibility):  # type: ignore[no-untyped-def]
            return F.normalize(query, dim=-1), F.normalize(key, dim=-1), value

    kernel, each = Cosine(ATTENTIONS["softmax"], 0.0), case("causal")
    inputs = each.query, each.key, each.value, each.visibility
    torch.testing.assert_close(kernel.step(None, *inputs)[0], kernel(*inputs))


def test_a_step_is_zero_at_padded_queries_whatever_their_weights() -> None:
    """Also their gradient: a variant of the user's may give weights to padded queries, even NaN."""

    class Everywhere(type(ATTENTIONS["softmax"].build(1))):  # type: ignore[misc]
        rule = None

        def normalize(self, scores, visible, visibility, state):  # type: ignore[no-untyped-def]
            return torch.where(visible.any(dim=-1, keepdim=True), scores.softmax(dim=-1), torch.nan), None

    kernel, each = Everywhere(ATTENTIONS["softmax"], 0.0), case("causal", padded=True)
    query = each.query.requires_grad_()
    output, _ = kernel.step(None, query, each.key, each.value, each.visibility)
    assert (output[1, :, -2:] == 0).all()
    output.sum().backward()
    assert query.grad is not None
    assert (query.grad[1, :, -2:] == 0).all()
    assert query.grad[:, :, :3].abs().min() > 0


@pytest.mark.parametrize("name", ["dnas", "hnas"])
def test_a_trimmed_memory_keeps_the_masses_of_its_newest_keys(name: str) -> None:
    kernel = ATTENTIONS[name].build(heads=2)
    each = case("causal")
    _, state = kernel.step(None, *(tensor[:, :, :3] for tensor in (each.query, each.key, each.value)), each.visibility)
    assert state is not None
    visibility = replace(each.visibility, memory=2)
    inputs = each.query[:, :, 3:], each.key[:, :, 1:], each.value[:, :, 1:], visibility
    trimmed, _ = kernel.step(state, *inputs)
    same, _ = kernel.step(state[..., 1:], *inputs)
    forgotten, _ = kernel.step(None, *inputs)
    assert torch.equal(trimmed, same)
    assert not torch.allclose(trimmed, forgotten)


def test_the_engine_takes_the_state_of_the_formula() -> None:
    """In it, a key that no query has seen has the lowest number of the dtype."""
    kernel, each = ATTENTIONS["dnas"].build(heads=2), case("causal")
    real = torch.tensor([[False, True, True, True, True], [True] * 5])
    inputs = each.query, each.key, each.value
    whole = kernel(*inputs, replace(each.visibility, query_real=real, key_real=real))
    first = replace(each.visibility, query_real=real[:, :3], key_real=real[:, :3])
    second = replace(each.visibility, memory=3, query_real=real[:, 3:], key_real=real)
    _, state = kernel._run_step("reference", None, *(tensor[:, :, :3] for tensor in inputs), first, None)
    output, _ = kernel.step(state, each.query[:, :, 3:], each.key, each.value, second)
    torch.testing.assert_close(output, whole[:, :, 3:], rtol=0, atol=1e-12)


def test_the_carried_state_has_no_gradient() -> None:
    each = case("causal")
    _, state = (
        ATTENTIONS["dnas"].build(heads=2).step(None, each.query.requires_grad_(), each.key, each.value, each.visibility)
    )
    assert state is not None
    assert not state.requires_grad

"""Precision, dropout, u, bounds, refusals: what every kernel of the table promises."""

import math
import re
import warnings

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

from seqarena.common.attention import (
    ALIASES,
    ATTENTIONS,
    PAPERS,
    attend,
    attention_name,
    find_attention,
    reference,
    require_order,
)
from seqarena.common.attention.base import Kernel
from seqarena.common.attention.doubly_normalized import DoublyNormalized
from seqarena.common.attention.elementwise import Elementwise
from seqarena.common.attention.hybrid import Hybrid, HybridKernel
from seqarena.common.attention.module import MultiHeadAttention
from seqarena.common.attention.softmax import Softmax
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.training.optim import Optim, build_optimizer
from tests.common.attention.cases import VARIANTS, case, cases

few = settings(max_examples=40)


@pytest.mark.parametrize(("name", "order"), VARIANTS)
def test_gradients_are_those_of_float64(name: str, order: str) -> None:
    exact, plain = case(order, padded=True), None
    gradients = []
    for dtype in (torch.float64, torch.float32):
        plain = [tensor.to(dtype).requires_grad_() for tensor in (exact.query, exact.key, exact.value)]
        found = ATTENTIONS[name].build(heads=2)(*plain, exact.visibility)
        gradients.append(torch.autograd.grad(found.square().sum(), plain))
    for one, other in zip(*gradients, strict=True):
        assert (one - other).norm() <= 1e-4 * one.norm()


@pytest.mark.parametrize(("name", "order"), VARIANTS)
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_not_wrong(name: str, order: str, half: torch.dtype) -> None:
    each = case(order, padded=True)
    kernel = ATTENTIONS[name].build(heads=2)
    rounded = [tensor.to(half) for tensor in (each.query, each.key, each.value)]
    expected = kernel(*(tensor.double() for tensor in rounded), each.visibility)
    found = kernel(*rounded, each.visibility)
    assert found.dtype == half
    assert (found.double() - expected).norm() <= 2e-2 * expected.norm()
    assert kernel.weights(*rounded[:2], each.visibility).dtype == torch.float32


@pytest.mark.parametrize("name", ["softmax", "dnas", "hnas", "x3", "exp"])
def test_scores_stay_in_float32_under_autocast(name: str) -> None:
    query, key = ((2 if name == "exp" else 30) * torch.randn(1, 1, 4, 8) for _ in range(2))
    kernel = ATTENTIONS[name].build(heads=1)
    value = torch.randn(1, 1, 4, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = kernel.weights(query, key, Visibility())
        output = kernel(query, key, value, Visibility())
    assert torch.equal(inside, kernel.weights(query, key, Visibility()))
    expected = inside @ value
    assert (output - expected).norm() <= 5e-3 * expected.norm()  # the product with the values may be in bfloat16


class Talking(Kernel):
    """Heads whose scores are mixed by a matrix product."""

    def normalize(self, scores: Tensor, visible: Tensor, visibility: Visibility, state: None) -> tuple[Tensor, None]:
        mixed = torch.einsum("bhnm,hg->bgnm", scores, torch.tensor([[0.9, 0.1], [0.2, 0.8]]))
        return reference.softmax(mixed, visible), None


def test_products_of_a_formula_stay_in_float32_under_autocast() -> None:
    kernel = Talking(Softmax(), 0.0)
    query, key = (3 * torch.randn(1, 2, 4, 8) for _ in range(2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = kernel.weights(query, key, Visibility())
    assert torch.equal(inside, kernel.weights(query, key, Visibility()))


@pytest.mark.parametrize(("name", "order"), VARIANTS)
def test_dropout_drops_weights_and_scales_the_others(name: str, order: str) -> None:
    """One mask on the final weights, the hybrid's mixture included; read off with values that are unit vectors."""
    length = 40
    query, key = (torch.randn(1, 1, length, 4) for _ in range(2))
    value = torch.eye(length)[None, None]
    visibility = Visibility(order=order)
    kernel = ATTENTIONS[name].build(heads=1, dropout=0.25)
    weights = kernel.weights(query, key, visibility)
    dropped = kernel(query, key, value, visibility)
    kept = (dropped != 0) | (weights == 0)
    torch.testing.assert_close(dropped[kept], weights[kept] / 0.75, rtol=1e-4, atol=1e-6)
    share = 1 - kept[weights != 0].float().mean()
    assert 0.18 < share < 0.32
    torch.testing.assert_close(kernel.eval()(query, key, value, visibility), weights, rtol=1e-4, atol=1e-6)


@given(st.integers(1, 12), st.integers(1, 12), st.floats(0.1, 20), st.floats(0, 1), st.integers(0, 2**31))
@few
def test_no_key_is_explained_away(queries: int, keys: int, size: float, u: float, seed: int) -> None:
    """P2, Lemma 1: a key's mass is at least 1 / (real keys); u of that in the mixture."""
    torch.manual_seed(seed)
    query, key = (size * torch.randn(2, 2, length, 3, dtype=torch.float64) for length in (queries, keys))
    query_real, key_real = torch.rand(2, queries) < 0.7, torch.rand(2, keys) < 0.7
    query_real[:, 0] = key_real[:, 0] = True
    visibility = Visibility(query_real=query_real, key_real=key_real)
    floor = 1 / key_real.sum(dim=1)[:, None, None]
    for config, share in ((DoublyNormalized(), 1.0), (Hybrid(u=u), u)):
        mass = config.build(heads=2).weights(query, key, visibility).sum(dim=2)
        assert ((mass >= share * floor * (1 - 1e-6)) | ~key_real[:, None]).all()


@given(st.integers(1, 12), st.integers(0, 4), st.floats(0.1, 20), st.integers(0, 2**31))
@few
def test_no_key_is_explained_away_by_its_prefix(queries: int, memory: int, size: float, seed: int) -> None:
    """Prefix form: xi of a new key is 1, so query i = j gives it at least 1 / (keys it sees)."""
    torch.manual_seed(seed)
    query, key = (size * torch.randn(1, 2, length, 3, dtype=torch.float64) for length in (queries, memory + queries))
    weights = DoublyNormalized().build(heads=2).weights(query, key, Visibility(order="causal", memory=memory))
    for i in range(queries):
        assert (weights[:, :, i, memory + i] >= 1 / (memory + i + 1) - 1e-9).all()


@given(st.integers(1, 12), st.integers(1, 12), st.floats(0.1, 30), st.integers(0, 2**31))
@few
def test_softmax_norm_is_bounded(queries: int, keys: int, size: float, seed: int) -> None:
    """P1, Theorem 4.1: the Frobenius norm is at most sqrt(real queries)."""
    torch.manual_seed(seed)
    query, key = (size * torch.randn(1, 1, length, 3) for length in (queries, keys))
    query_real = torch.rand(1, queries) < 0.7
    weights = ATTENTIONS["softmax"].build(heads=1).weights(query, key, Visibility(query_real=query_real))
    assert weights.norm() <= math.sqrt(int(query_real.sum())) + 1e-5


def test_u_at_its_ends_is_softmax_and_dnas() -> None:
    for order in ("none", "causal", "ordered_queries"):
        each = case(order, padded=True)
        for u, name in ((0.0, "softmax"), (1.0, "dnas")):
            mixed, pure = Hybrid(u=u).build(heads=2), ATTENTIONS[name].build(heads=2)
            inputs = each.query, each.key, each.visibility
            assert torch.equal(mixed.weights(*inputs), pure.weights(*inputs))
            if order == "none":
                tensors = each.query, each.key, each.value, each.visibility
                # The mixture's own pass adds up products in another order.
                torch.testing.assert_close(mixed(*tensors), pure(*tensors), rtol=0, atol=1e-14)


def test_u_crosses_its_range_where_dnas_is_right() -> None:
    """A target made by dnas: u must go from 0.1 past 0.9 within a few hundred steps at an ordinary rate."""
    attention = MultiHeadAttention(Hybrid(u=0.1), dim=8, heads=2, dropout=0.0, projection_bias=True)
    teacher = MultiHeadAttention(DoublyNormalized(), dim=8, heads=2, dropout=0.0, projection_bias=True)
    teacher.load_state_dict(attention.state_dict(), strict=False)
    kernel = attention.kernel
    assert isinstance(kernel, HybridKernel)
    optimizer = build_optimizer(Optim(lr=1e-4, weight_decay=0.1), attention)
    for group in optimizer.param_groups:
        group["lr"] *= group["multiplier"]
    for _ in range(200):
        hidden = 2 * torch.randn(4, 6, 8)
        with torch.no_grad():
            target = teacher(hidden, Visibility())
        optimizer.zero_grad()
        nn.functional.mse_loss(attention(hidden, Visibility()), target).backward()
        optimizer.step()
        kernel.u.clamp_()
    assert kernel.u().item() > 0.9
    assert kernel.u().item() <= 1.0


def test_one_u_a_layer_or_a_head() -> None:
    assert sum(p.numel() for p in Hybrid().build(heads=4).parameters()) == 1
    assert sum(p.numel() for p in Hybrid(per_head=True).build(heads=4).parameters()) == 4


@pytest.mark.parametrize("name", list(PAPERS))
def test_variants_share_every_other_initial_value(name: str) -> None:
    def build(which: str) -> dict[str, torch.Tensor]:
        torch.manual_seed(1)
        config = ATTENTIONS[which]
        return MultiHeadAttention(config, dim=8, heads=2, dropout=0.0, projection_bias=True).state_dict()

    softmax, variant = build("softmax"), build(name)
    assert all(torch.equal(variant[key], softmax[key]) for key in softmax)


def test_names_lead_to_configs_and_back() -> None:
    assert [attention_name(config) for config in ATTENTIONS.values()] == list(ATTENTIONS)
    assert all(find_attention(alias) is ATTENTIONS[name] for alias, name in ALIASES.items())
    assert attention_name(Hybrid(u=0.1)) == "hnas[u=0.1]"
    assert attention_name(Elementwise(power=3, scale=8.0)) in ("x3[scale=8.0]", "x3-14[scale=8.0]")


@pytest.mark.unhooked
def test_refusals_say_what_to_do() -> None:
    each = case("none")
    with pytest.raises(WrongUseError, match="nearest: dnas"):
        attend("dnass", each.query, each.key, each.value)
    with pytest.raises(WrongUseError, match=r"not defined for order 'none'.*softmax, dnas"):
        attend("recency", each.query, each.key, each.value)
    with pytest.raises(WrongUseError, match="not defined for order 'causal'"):
        require_order(DoublyNormalized(iterations=2), "causal")
    with pytest.raises(WrongUseError, match="not defined for order 'causal'"):
        DoublyNormalized(iterations=2).build(heads=2)(each.query, each.query, each.query, Visibility(order="causal"))
    with pytest.raises(
        WrongUseError, match=r"key_real \(key_mask of attend\): expected a bool tensor of shape \(2, 6\).*float32"
    ):
        attend("softmax", each.query, each.key, each.value, key_mask=torch.ones(2, 6))  # type: ignore[arg-type]
    with pytest.raises(WrongUseError, match="expected 5 keys for 5 queries, found 6"):
        ATTENTIONS["softmax"].build(heads=2)(each.query, each.key, each.value, Visibility(order="causal"))
    with pytest.raises(WrongUseError, match="only order 'causal' has a memory"):
        ATTENTIONS["softmax"].build(heads=2)(each.query, each.key, each.value, Visibility(memory=1))
    with pytest.raises(WrongUseError, match="memory: expected at least 0, found -1"):
        attend("dnas", each.key, each.query, each.query, causal=True)
    for wrong in (each.key[:, :1], each.key[:1], each.key[..., :3], each.key[:, :, :0]):
        with pytest.raises(WrongUseError, match=r"expected query \(batch, heads, queries, head_dim\)"):
            attend("dnas", each.query, wrong, wrong)
    with pytest.raises(WrongUseError, match=r"found query .*value \(2, 2, 5, 4\)"):
        attend("softmax", each.query, each.key, each.query)
    with pytest.raises(WrongUseError, match="needs all queries at once in order 'none'"):
        ATTENTIONS["dnas"].build(heads=2).step(None, each.query, each.key, each.value, Visibility())
    segments = torch.zeros(2, 4, dtype=torch.long)
    with pytest.raises(WrongUseError, match=r"segments: expected shape \(2, 6\)"):
        ATTENTIONS["softmax"].build(heads=2)(each.query, each.key, each.value, Visibility(segments=segments))
    for wrong in (lambda: Hybrid(u=1.5), lambda: DoublyNormalized(iterations=0), lambda: Elementwise(scale=0.0)):
        with pytest.raises(WrongUseError, match="expected"):
            wrong()


def test_float16_that_overflows_is_told_once_with_a_scale_that_does_not() -> None:
    query, key, value = (30 * torch.randn(1, 1, 40, 8).half() for _ in range(3))
    kernel = ATTENTIONS["x3"].build(heads=1)
    with pytest.warns(UserWarning, match="overflow float16; use a scale of at least") as told:
        kernel(query, key, value, Visibility())
    found = re.search(r"at least (\S+)", str(told[0].message))
    assert found
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel(query, key, value, Visibility())
        fits = Elementwise(power=3, scale=float(found.group(1))).build(heads=1)
        assert fits(query, key, value, Visibility()).isfinite().all()


@pytest.mark.unhooked
def test_what_no_kernel_can_take_is_refused_before_any_work() -> None:
    each = case("causal", dtype=torch.float32)
    tensors = each.query, each.key, each.value
    for name in ("softmax", "dnas", "x1", "x3"):
        for dropout in (-0.5, 1.0, 1.5):
            with pytest.raises(WrongUseError, match="dropout: expected 0 up to below 1"):
                ATTENTIONS[name].build(heads=2, dropout=dropout)
        kernel = ATTENTIONS[name].build(heads=2)
        with pytest.raises(WrongUseError, match=r"expected floating-point numbers on one device; found torch\.int64"):
            kernel(*(tensor.long() for tensor in tensors), Visibility())
        with pytest.raises(WrongUseError, match=r"on one device; found .* meta"):
            kernel(each.query, each.key.to("meta"), each.value, Visibility())
        with pytest.raises(WrongUseError, match=r"state: expected .* of shape \(2, 2, keys\)"):
            kernel.step(torch.zeros(2, 5), *tensors, each.visibility)
        with pytest.raises(WrongUseError, match=r"state: expected .* on cpu; found .* on meta"):
            kernel.step(torch.zeros(2, 2, 5, device="meta"), *tensors, each.visibility)
        with pytest.raises(WrongUseError, match=r"segments: expected shape .* of integers"):
            kernel(*tensors, Visibility(segments=torch.zeros(2, 5)))
        with pytest.raises(WrongUseError, match=r"of integers .* found torch\.bool"):
            kernel(*tensors, Visibility(segments=torch.zeros(2, 5, dtype=torch.bool)))
        with pytest.raises(WrongUseError, match=r"window: expected a whole number .* found 2\.5"):
            kernel(*tensors, Visibility(order="causal", window=2.5))  # type: ignore[arg-type]
        with pytest.raises(WrongUseError, match=r"key_mask of attend\): expected a tensor, found ndarray"):
            attend(name, *tensors, key_mask=np.ones((2, 5), dtype=bool))  # type: ignore[arg-type]
        with pytest.raises(WrongUseError, match="query, key, value, bias: expected tensors, found list"):
            attend(name, *(tensor.tolist() for tensor in tensors))  # type: ignore[arg-type]
        away = torch.ones(2, 5, dtype=torch.bool, device="meta")
        for wrong, named in (
            (Visibility(query_real=away), r"query_real \(query_mask of attend\)"),
            (Visibility(key_real=away), r"key_real \(key_mask of attend\)"),
            (Visibility(segments=away.long()), "segments"),
        ):
            with pytest.raises(
                WrongUseError, match=f"{named}: expected a tensor on cpu, .* found one on meta: move it"
            ):
                kernel(*tensors, wrong)
    with pytest.raises(WrongUseError, match="built for 3 heads; query has 2"):
        Hybrid(per_head=True).build(heads=3)(*tensors, each.visibility)


@pytest.mark.unhooked
@pytest.mark.parametrize("bias", [torch.zeros(5, 6), torch.zeros(1, 1, 5, 5)])
def test_a_bias_that_does_not_fit_is_refused(bias: torch.Tensor) -> None:
    each = case("none", dtype=torch.float32)
    for name in ("softmax", "dnas", "x1"):
        with pytest.raises(WrongUseError, match=r"bias: expected floating-point numbers of shape \(2, 2, 5, 6\)"):
            ATTENTIONS[name].build(heads=2)(each.query, each.key, each.value, each.visibility, bias)


@pytest.mark.unhooked
@pytest.mark.parametrize(("name", "order"), [each for each in VARIANTS if "-" not in each[0] or each[0] == "x3-14"])
def test_one_graph_under_compile(name: str, order: str) -> None:
    kernel = ATTENTIONS[name].build(heads=2)
    each = case(order, dtype=torch.float32)
    tensors = [tensor.requires_grad_() for tensor in (each.query, each.key, each.value)]
    torch.compiler.reset()  # the table has more entries than one function may have recompilations
    compiled = torch.compile(kernel, fullgraph=True, backend="aot_eager")
    found, expected = (run(*tensors, each.visibility) for run in (compiled, kernel))
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(output.square().sum(), tensors) for output in (found, expected)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.unhooked
@pytest.mark.parametrize("name", [name for name, order in VARIANTS if order == "none" and "-" not in name])
def test_one_graph_of_any_length(name: str) -> None:
    """With ``dynamic=True`` lengths are symbols, and so are numbers that are not integers."""
    kernel = ATTENTIONS[name].build(heads=2)
    torch.compiler.reset()
    compiled = torch.compile(kernel, fullgraph=True, backend="eager", dynamic=True)
    for length in (5, 40):
        tensors = torch.randn(3, 2, 2, length, 4).unbind()
        torch.testing.assert_close(compiled(*tensors, Visibility()), kernel(*tensors, Visibility()))


@pytest.mark.parametrize(("name", "order"), VARIANTS)
def test_without_gradients_the_output_is_the_same(name: str, order: str) -> None:
    for each in cases(order):
        kernel = ATTENTIONS[name].build(heads=2).double()
        expected = kernel(each.query, each.key, each.value, each.visibility)
        with torch.no_grad():
            found = kernel(each.query, each.key, each.value, each.visibility)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_a_window_is_of_one_sequence_in_time() -> None:
    each = case("causal")
    kernel = ATTENTIONS["softmax"].build(heads=2)
    for visibility, message in (
        (Visibility(window=2), "order 'none'"),
        (Visibility(order="causal", window=0), "found 0"),
        (Visibility(order="causal", window=2, segments=torch.zeros(2, 5, dtype=torch.long)), "without segments"),
    ):
        with pytest.raises(WrongUseError, match=message):
            kernel(each.query, each.key, each.value, visibility)
    wide = kernel(each.query, each.key, each.value, Visibility(order="causal", window=5))
    torch.testing.assert_close(wide, kernel(each.query, each.key, each.value, Visibility(order="causal")))

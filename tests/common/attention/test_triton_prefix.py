"""The kernels of prefix-normalised attention, through Triton's interpreter: against float64 formulas."""

import copy
from typing import Any

import pytest
import torch

from seqarena.common.attention import Visibility, find_attention
from seqarena.common.attention.recording import recorded_implementations
from tests.common.attention.test_triton import (
    INTERPRETED,
    both,
    exact,
    inputs,
    padded,
    poisoned,
    require_close,
    require_no_worse_than_plain,
    require_same_dropout,
)
from tests.common.attention.test_triton_bias import bias_of

pytestmark = [
    *INTERPRETED,
    # Exponentials of hidden scores; they are masked.
    pytest.mark.filterwarnings(
        "ignore:overflow encountered", "ignore:invalid value encountered", "ignore:All-NaN slice encountered"
    ),
]
NAMES = ("dnas", "hnas")
PREFIX_ORDERS = ("causal", "ordered_queries")


def given_in(order: str, rows: int = 70, others: int = 45, times: float = 1.0) -> tuple[list[torch.Tensor], Visibility]:
    """Returns inputs of several blocks each way, and their padding, which is NaN; five earlier keys if causal."""
    memory = 5 if order == "causal" else 0
    keys = rows + memory if order == "causal" else others
    visibility = padded(rows, keys, order, memory)
    return poisoned(inputs(rows, keys, width=20, value_width=24, times=times), visibility), visibility


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("order", PREFIX_ORDERS)
@pytest.mark.parametrize("kind", ["none", "trained", "shared"])
def test_prefix_normalized_is_the_formula(name: str, order: str, kind: str) -> None:
    kernel, (given, visibility) = find_attention(name).build(heads=2), given_in(order)
    if kind != "none":
        given.append(bias_of(kind, given[0].shape[2], given[1].shape[2], visibility))
    require_close(both(kernel, given, visibility), exact(kernel, given, visibility), 5e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("order", PREFIX_ORDERS)
def test_columns_of_any_range_keep_their_early_rows(name: str, order: str) -> None:
    """Scores times 40: beside the largest exponential of a column the earlier ones are 0 in float32."""
    kernel, (given, visibility) = find_attention(name).build(heads=2), given_in(order, 34, 33, times=40.0)
    require_close(both(kernel, given, visibility), exact(kernel, given, visibility), 2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_dropout_in_order_drops_what_blockwise_drops(name: str) -> None:
    kernel, (given, visibility) = find_attention(name).build(heads=2, dropout=0.4), given_in("causal", 40)
    require_same_dropout(kernel, given, visibility)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kept", [40, 9])
def test_steps_pass_the_state_on(name: str, kept: int) -> None:
    """A text in two pieces, with all or the newest of the earlier keys as memory: as by the engine in float64."""
    kernel = find_attention(name).build(heads=2)
    given = inputs(70, 70)
    wide = [each.detach().double().requires_grad_() for each in given]
    state = wide_state = None
    for rows, keys in ((slice(0, 40), slice(0, 40)), (slice(40, 70), slice(40 - kept, 70))):
        visibility = Visibility(order="causal", memory=rows.start - keys.start)
        found, expected = (
            some.step(carried, three[0][:, :, rows], three[1][:, :, keys], three[2][:, :, keys], visibility)
            for some, three, carried in ((kernel, given, state), (copy.deepcopy(kernel).double(), wide, wide_state))
        )
        (output, state), (wide_output, wide_state) = found, expected
        assert state is not None
        assert wide_state is not None
        grads, wide_grads = (
            torch.autograd.grad(out.pow(2).sum(), three) for out, three in ((output, given), (wide_output, wide))
        )
        require_close([output.detach(), state, *grads], [wide_output.detach(), wide_state, *wide_grads], 1e-5)


def test_a_step_is_by_the_kernels() -> None:
    kernel, given = find_attention("dnas").build(heads=2), inputs(20, 20)
    with recorded_implementations(kernel) as chosen:
        kernel.step(None, given[0], given[1], given[2], Visibility(order="causal"))
        assert chosen == {"triton"}
        kernel.step(None, *(each.double() for each in given), Visibility(order="causal"))
    assert chosen == {"triton", "blockwise"}


@pytest.mark.parametrize("order", PREFIX_ORDERS)
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_a_later_query_changes_nothing_before_it(order: str, wrong: float) -> None:
    """Not even one whose scores are no numbers, in the same block of queries."""
    kernel = find_attention("dnas").build(heads=2)
    query, key, value = inputs(40, 40)
    before = kernel.compute("triton", query, key, value, Visibility(order=order))  # type: ignore[arg-type]
    with torch.no_grad():
        query[:, :, 20] = wrong
    after = kernel.compute("triton", query, key, value, Visibility(order=order))  # type: ignore[arg-type]
    assert before is not None
    assert after is not None
    torch.testing.assert_close(after[:, :, :20], before[:, :, :20])
    assert not after[:, :, 20:].isfinite().any()  # of this block and of later ones
    _, state = kernel.step(None, query, key, value, Visibility(order=order))  # type: ignore[arg-type]
    is_causal = order == "causal"
    keys, values = (torch.cat([each, each[:, :, :8]], dim=2) if is_causal else each for each in (key, value))
    visibility = Visibility(order=order, memory=40 if is_causal else 0)  # type: ignore[arg-type]
    assert not kernel.step(state, query[:, :, :8], keys, values, visibility)[0].isfinite().any()


@pytest.mark.parametrize("function", ["add_logarithms", "add_spans"])
def test_the_self_test_runs_both_scans(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU on which a scan is wrong must not use the kernels."""
    from seqarena.common.attention.triton import prefix, self_test  # noqa: PLC0415

    monkeypatch.setattr(self_test, "TEST_LENGTHS", ((24, 5), (32, 0)))
    rule = find_attention("dnas").build(heads=2).rule
    assert rule is not None
    right = getattr(prefix, function)

    class Wrong:
        @staticmethod
        def fn(*given: Any) -> Any:
            found = right.fn(*given)
            return tuple(each * 1.5 for each in found) if isinstance(found, tuple) else found * 1.5

        __call__ = fn

    monkeypatch.setattr(prefix, function, Wrong())
    told = self_test.find_fault(rule, torch.float32, torch.device("cpu"), 16, 16, "causal")
    assert "are wrong on this GPU" in str(told)


def test_a_bias_of_minus_infinity_hides_a_pair_in_order() -> None:
    kernel, (given, visibility) = find_attention("hnas").build(heads=2), given_in("causal", 40)
    bias = torch.zeros(1, 1, 40, 45)
    bias[..., 3:9] = -torch.inf
    bias[..., 20, :] = -torch.inf  # a query to which nothing is visible
    given.append(bias)
    found = both(kernel, given, visibility)
    require_close(found, exact(kernel, given, visibility))
    assert not found[0][:, :, 20].any()


def test_examples_of_padding_alone_give_nothing_in_order() -> None:
    real = torch.tensor([[True] * 20, [False] * 20])
    for name in NAMES:
        given, visibility = inputs(20, 20), Visibility(query_real=real, key_real=real, order="causal")
        found = both(find_attention(name).build(heads=2), given, visibility)
        assert all(each.isfinite().all() for each in found)
        assert not any(each[1].any() for each in found[:4])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_in_order_is_no_worse_than_the_plain_form(dtype: torch.dtype) -> None:
    kernel, visibility = find_attention("dnas").build(heads=2), padded(64, 64, "causal")
    require_no_worse_than_plain(kernel, inputs(64, 64, width=32, dtype=dtype), visibility)


@pytest.mark.parametrize("name", NAMES)
def test_prefix_operators_pass_pytorchs_own_check(name: str) -> None:
    from seqarena.common.attention.triton import prefix_operators  # noqa: PLC0415

    query, key, value = inputs(20, 20)
    mixed, real = name == "hnas", torch.ones(2, 20, dtype=torch.bool)
    u = torch.tensor([0.3, 0.6], requires_grad=True) if mixed else torch.zeros(0)
    bias = torch.zeros(2, 2, 20, 20, requires_grad=True)
    segments, seed = torch.arange(40).view(2, 20) // 7, torch.tensor(7)
    for given, dropout, window in (
        ((bias, u, torch.zeros(2, 2, 20), real, real, None), 0.3, 4), ((None, u, None, None, None, segments), 0.0, 0)
    ):  # fmt: skip
        torch.library.opcheck(
            prefix_operators.prefix_forward, (query, key, value, *given, seed, dropout, mixed, True, 0, window)
        )


@pytest.mark.parametrize("name", NAMES)
def test_prefix_kernels_compile_as_one_graph(name: str) -> None:
    torch._dynamo.reset()
    kernel, given = find_attention(name).build(heads=2, dropout=0.2), inputs(20, 20)
    compiled = torch.compile(
        lambda *three: kernel.step(None, *three, Visibility(order="causal"))[0], fullgraph=True, backend="aot_eager"
    )
    torch.manual_seed(3)
    found = compiled(*given)
    torch.manual_seed(3)
    torch.testing.assert_close(found, kernel.step(None, given[0], given[1], given[2], Visibility(order="causal"))[0])

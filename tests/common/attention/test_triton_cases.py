"""The CUDA kernels through Triton's interpreter, at random and where they could go wrong: edges of tiles, tiny scores,
scores without bounds, tensors as they come."""

import itertools
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies

from seqarena.common.attention import Visibility, conditions, find_attention
from seqarena.common.attention.conditions import Inputs
from seqarena.common.data.counter import hash64, hashed_on
from tests.common.attention.test_triton import INTERPRETED, NAMES, both, exact, inputs, poisoned, require_close

pytestmark = [
    *INTERPRETED,
    # Infinities are what a GPU has there too, and are masked.
    pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered"),
]
KERNELS = ("elementwise_forward", "elementwise_backward_keys", "elementwise_backward_queries", "column_logsumexp",
           "normalized_forward", "normalized_backward_keys", "normalized_backward_queries")  # fmt: skip


@pytest.fixture
def tried() -> Iterator[dict[str, Any]]:
    """Tiles to be used, by kernel; small ones to begin with, so that there are many edges."""
    from seqarena.common.attention.triton import launch  # noqa: PLC0415

    use(launch.OVERRIDES, 16, 16)
    yield launch.OVERRIDES
    launch.OVERRIDES.clear()


def use(tried: dict[str, Any], own: int, others: int) -> None:
    from seqarena.common.attention.triton import launch  # noqa: PLC0415

    kinds = [("", f" {kind}") for kind in ("heavy", "causal", "dropout", "mixed")]
    for kernel, dtype, width in itertools.product(KERNELS, ("float32", "float16", "bfloat16"), (16, 32)):
        for words in itertools.product(*kinds):
            tried[f"{kernel} {dtype} {width}{''.join(words)}"] = launch.Tiles(own, others, 4, 2)


@pytest.mark.parametrize("memory", [0, 1, 14, 15, 16, 30, 31])
@pytest.mark.parametrize("tiles", [(16, 16), (16, 32), (32, 16)])
def test_the_first_and_last_of_every_tile_are_seen(memory: int, tiles: tuple[int, int], tried: dict[str, Any]) -> None:
    """In order, with earlier keys or none: no key too many, none too few, at any edge."""
    use(tried, *tiles)
    kernel, visibility = find_attention("x3").build(heads=2), Visibility(order="causal", memory=memory)
    given = inputs(49, 49 + memory)
    require_close(both(kernel, given, visibility), exact(kernel, given, visibility))


@hypothesis.given(
    name=strategies.sampled_from([*NAMES, "dnas", "hnas"]), order=strategies.sampled_from(["none", "causal"]),
    rows=strategies.integers(1, 50), keys=strategies.integers(1, 50), widths=strategies.tuples(
        strategies.integers(16, 32), strategies.integers(16, 32)), seed=strategies.integers(0, 2**31),
    shares=strategies.tuples(strategies.floats(0, 1), strategies.floats(0, 1)),
    times=strategies.sampled_from([0.01, 1.0, 10.0]),
)  # fmt: skip
@hypothesis.settings(max_examples=25, suppress_health_check=list(hypothesis.HealthCheck))
def test_any_case_is_the_formula(
    name: str, order: str, rows: int, keys: int, widths: tuple[int, int], seed: int, shares: tuple[float, float],
    times: float, tried: dict[str, Any],
) -> None:  # fmt: skip
    """Fresh sizes, numbers and padding; padding is NaN, and may be all there is."""
    kernel, memory = find_attention(name).build(heads=2), 0
    if order == "causal":
        memory, keys = keys % 20, rows + keys % 20
    if name == "hnas":
        widths = (widths[0], widths[0])
    generator = torch.Generator().manual_seed(seed)
    key_real = torch.rand(2, keys, generator=generator) < shares[0]
    query_real = key_real[:, memory:] if order == "causal" else torch.rand(2, rows, generator=generator) < shares[1]
    visibility = Visibility(query_real=query_real, key_real=key_real, order=order, memory=memory)  # type: ignore[arg-type]
    times = min(times, 1.0) if name == "exp" else times
    given = poisoned(inputs(rows, keys, *widths, seed=seed, times=times), visibility)
    require_close(both(kernel, given, visibility), exact(kernel, given, visibility), 1e-4)


@pytest.mark.parametrize("name", ["x3", "dnas", "hnas"])
@pytest.mark.parametrize("order", ["none", "causal"])
@pytest.mark.filterwarnings("ignore:All-NaN slice encountered")
def test_a_query_that_is_no_number_gives_none(name: str, order: str, tried: dict[str, Any]) -> None:
    """Zeros instead would hide that a training has diverged."""
    del tried
    given = inputs(20, 20)
    with torch.no_grad():
        given[0][:, :, 7] = torch.nan
    visibility = Visibility(order=order)  # type: ignore[arg-type]
    output = find_attention(name).build(heads=2).compute("triton", *given, visibility)  # type: ignore[arg-type]
    assert output is not None
    assert not output[:, :, 7].isfinite().any()


def test_padding_on_one_side_alone_gives_nothing(tried: dict[str, Any]) -> None:
    """An example whose queries are all padding though its keys are not, and the other way round."""
    del tried
    some, none = torch.ones(20, dtype=torch.bool), torch.zeros(20, dtype=torch.bool)
    for real in (
        (torch.stack([some, none]), torch.stack([some, some])),
        (torch.stack([some, some]), torch.stack([some, none])),
    ):
        for name in ("dnas", "x3", "hnas"):
            visibility = Visibility(query_real=real[0], key_real=real[1])
            kernel, given = find_attention(name).build(heads=2), poisoned(inputs(20, 20), visibility)
            found = both(kernel, given, visibility)
            require_close(found, exact(kernel, given, visibility))
            assert not any(each[1].any() for each in found[:4])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_hidden_may_have_any_score(dtype: torch.dtype, tried: dict[str, Any]) -> None:
    """A later key whose exponential is beyond all numbers changes nothing of the past, nor its gradients."""
    del tried
    kernel, visibility = find_attention("exp").build(heads=2), Visibility(order="causal")
    given = inputs(40, 40, dtype=dtype)
    before = both(kernel, given, visibility)[0][:, :, :20]
    with torch.no_grad():
        given[0][:, :, 3], given[1][:, :, 20] = 0.0, 0.0
        given[0][:, :, 3, 0], given[1][:, :, 20, 0] = 100.0, 100.0
    found = both(kernel, given, visibility)
    assert all(each.isfinite().all() for each in found)
    assert torch.equal(found[0][:, :, 4:20], before[:, :, 4:20])


@pytest.mark.parametrize("name", ["tanh", "elu"])
@pytest.mark.parametrize("times", [1e-5, 1e-3, 0.05, 0.1])
def test_small_scores_keep_their_digits(name: str, times: float, tried: dict[str, Any]) -> None:
    del tried
    kernel = find_attention(name).build(heads=2)
    given = inputs(20, 20, times=times)
    for one, other in zip(both(kernel, given, Visibility()), exact(kernel, given, Visibility()), strict=True):
        assert (one.double() - other).abs().max() <= 3e-6 * other.abs().max()


@pytest.mark.parametrize("name", ["x1", "x3", "gelu"])
def test_float16_keeps_small_gradients(name: str, tried: dict[str, Any]) -> None:
    """No worse than twice the engine's error, with gradients of 1e-4."""
    del tried
    kernel, given = find_attention(name).build(heads=2), inputs(64, 256, width=32, dtype=torch.float16)
    wide = [each.detach().double().requires_grad_() for each in given]
    weight = torch.randn(2, 2, 64, 16, generator=torch.Generator().manual_seed(0)) * 1e-4

    def gradients(form: Any, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        output = kernel.compute(form, *tensors, Visibility())  # type: ignore[arg-type]
        assert output is not None
        return torch.autograd.grad(output, tensors, weight.half().to(output))

    for ours, engine, truth in zip(
        gradients("triton", given), gradients("blockwise", given), gradients("reference", wide), strict=True
    ):
        errors = [float((each.double() - truth).norm() / truth.norm()) for each in (ours, engine)]
        assert errors[0] <= 2 * errors[1] + torch.finfo(torch.float16).eps


@pytest.mark.parametrize("name", ["x3", "dnas", "prefix"])
def test_operators_take_tensors_as_they_come(name: str, tried: dict[str, Any]) -> None:
    """Views, as projections give them, and an expanded gradient."""
    del tried
    from seqarena.common.attention.triton import operators, prefix_operators  # noqa: PLC0415

    def run(given: list[torch.Tensor]) -> list[torch.Tensor]:
        if name == "dnas":
            out = operators.doubly_normalized_forward(
                *given, torch.ones(2), torch.tensor(0), None, torch.zeros(2, 20), torch.zeros(2, 20), 0.0, False
            )[0]
        elif name == "prefix":
            out = prefix_operators.prefix_forward(
                *given, None, torch.ones(2), None, None, None, None, torch.tensor(0), 0.0, False, True, 0, 0
            )[0]
        else:
            out = operators.elementwise_forward(
                *given, None, torch.ones(1, 20).expand(2, 20), None, None, None, torch.tensor(0), 0.0, "x", 3, False,
                0, 0,
            )  # fmt: skip
        return [out, *torch.autograd.grad(out.sum(), given)]

    views = inputs(20, 20)
    whole = [each.detach().contiguous().requires_grad_() for each in views]
    assert not views[0].is_contiguous()
    for one, other in zip(run(views), run(whole), strict=True):
        assert torch.equal(one, other)


def test_bits_of_dropout_are_the_same_on_any_device() -> None:
    heads, positions = torch.arange(5)[:, None], torch.arange(9)
    for seed in (0, 7, 2**62 - 1):
        expected = torch.from_numpy(hash64(seed, 1, heads.numpy(), positions.numpy()).view("int64"))
        assert torch.equal(hashed_on(int(hash64(seed, 1)[0]), heads, positions), expected)


def test_what_the_kernels_have_not_is_refused(tried: dict[str, Any]) -> None:
    del tried
    query, key, value = inputs(20, 20, value_width=24)
    long = torch.empty(1, 1, 1, 16).expand(1, 1, 2**28, 16)
    assert conditions.triton(Inputs(long, key, value, Visibility(), None, 0.0)) == "a head has 2^31 elements or more"
    wide = value[..., :1].expand(-1, -1, -1, 257)
    assert "16 and 257 wide" in str(conditions.triton(Inputs(query, key, wide, Visibility(), None, 0.0)))
    hnas = find_attention("hnas").build(heads=2)
    assert hnas.compute("triton", query, key, value, Visibility()) is not None
    assert hnas.compute("triton", query, key, value, Visibility(), torch.zeros(1, 1, 20, 20)) is None
    twice = type(find_attention("dnas"))(iterations=2).build(heads=2)  # type: ignore[call-arg]
    assert twice.compute("triton", query, key, value, Visibility()) is None


@pytest.mark.parametrize("which", ["output", "query", "key", "value"])
def test_one_wrong_number_is_enough(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its first use a kernel is looked at in all it gives, at lengths for which Triton compiles others."""
    from seqarena.common.attention.triton import self_test  # noqa: PLC0415

    rule, looked = find_attention("dnas").build(heads=2).rule, []
    assert rule is not None
    right = self_test.examples

    def wrong(*given: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
        found = dict(zip(("output", "query", "key", "value"), right(*given), strict=True))
        looked.append(given[4])
        if len(looked) == 2:
            found[which] = (found[which][0] * 1.01, found[which][1])
        return list(found.values())

    monkeypatch.setattr(self_test, "examples", wrong)
    told = self_test.find_fault(rule, torch.float32, torch.device("cpu"), 16, 16, "none")
    assert "are wrong on this GPU" in str(told)
    assert {length % 16 == 0 for length, _ in looked} == {True, False}


def test_what_is_looked_at_is_what_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    from seqarena.common.attention.triton import self_test  # noqa: PLC0415

    asked = []
    monkeypatch.setattr(self_test, "INTERPRETED", False)
    monkeypatch.setattr(self_test, "FAULTS", {})
    monkeypatch.setattr(self_test, "find_fault", lambda _rule, *given: asked.append(given))
    for dtype, order, dropout in (
        (torch.float32, "none", 0.0), (torch.float16, "none", 0.0), (torch.float32, "causal", 0.0),
        (torch.float32, "none", 0.3), (torch.float32, "none", 0.2),
    ):  # fmt: skip
        kernel = find_attention("x3").build(heads=2, dropout=dropout)
        kernel.compute("triton", *inputs(20, 20, value_width=24, dtype=dtype), Visibility(order=order))  # type: ignore[arg-type]
    bias, packed = torch.zeros(2, 2, 20, 20), Visibility(segments=torch.zeros(2, 20, dtype=torch.long))
    find_attention("x3").build(heads=2).compute("triton", *inputs(20, 20, value_width=24), Visibility(), bias)
    find_attention("x3").build(heads=2).compute("triton", *inputs(20, 20, value_width=24), packed)
    window = Visibility(order="causal", window=3)
    find_attention("x3").build(heads=2).compute("triton", *inputs(20, 20, value_width=24), window)
    cpu = torch.device("cpu")
    assert asked == [
        (torch.float32, cpu, 16, 24, "none", ()), (torch.float16, cpu, 16, 24, "none", ()),
        (torch.float32, cpu, 16, 24, "causal", ()), (torch.float32, cpu, 16, 24, "none", ("dropout",)),
        (torch.float32, cpu, 16, 24, "none", ("bias",)), (torch.float32, cpu, 16, 24, "none", ("segments",)),
        (torch.float32, cpu, 16, 24, "causal", ("window",)),
    ]  # fmt: skip

"""The CUDA kernels through Triton's interpreter: against float64 formulas, as operators, where they cannot run."""

import copy
import os
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from seqarena.common.attention import ATTENTIONS, Kernel, Visibility, conditions, find_attention
from seqarena.common.attention.conditions import Inputs
from seqarena.common.attention.elementwise import Elementwise
from seqarena.common.errors import run_command
from seqarena.scripts.seqarena import dispatch

INTERPRETED = [
    pytest.mark.extras,
    pytest.mark.interpreted,
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") != "1", reason="TRITON_INTERPRET=1, as make test-extras has it"
    ),
    pytest.mark.usefixtures("poisoned_memory"),
]
"""Marks of tests that run kernels in Triton's interpreter."""
pytestmark = INTERPRETED
NAMES = [name for name, config in ATTENTIONS.items() if isinstance(config, Elementwise)]
ORDERS = ("none", "causal", "ordered_queries")


def inputs(
    rows: int, keys: int, width: int = 16, value_width: int = 16, dtype: torch.dtype = torch.float32, seed: int = 0,
    times: float = 1.0,
) -> list[torch.Tensor]:  # fmt: skip
    """Views that are not contiguous, as projections give them."""
    generator = torch.Generator().manual_seed(seed)
    made = [
        torch.randn(2, length, 2, size, generator=generator).transpose(1, 2).to(dtype)
        for length, size in ((rows, width), (keys, width), (keys, value_width))
    ]
    made[0] *= times
    return [each.requires_grad_() for each in made]


def padded(rows: int, keys: int, order: str = "none", memory: int = 0) -> Visibility:
    """The second example is shorter; in its own row of the first, one key is missing in the middle."""
    query_real, key_real = torch.ones(2, rows, dtype=torch.bool), torch.ones(2, keys, dtype=torch.bool)
    query_real[1, rows - 3 :], key_real[1, keys - 4 :], key_real[0, 2] = False, False, False
    if order == "causal":
        query_real = key_real[:, memory:].clone()
    return Visibility(query_real=query_real, key_real=key_real, order=order, memory=memory)  # type: ignore[arg-type]


def poisoned(given: list[torch.Tensor], visibility: Visibility) -> list[torch.Tensor]:
    """Returns the inputs with NaN where padding stands."""
    query, key, value = (each.detach().clone() for each in given)
    assert visibility.query_real is not None
    assert visibility.key_real is not None
    query.transpose(1, 2)[~visibility.query_real] = torch.nan
    for each in (key, value):
        each.transpose(1, 2)[~visibility.key_real] = torch.nan
    return [each.requires_grad_() for each in (query, key, value)]


def both(kernel: Kernel, given: list[torch.Tensor], visibility: Visibility, form: str = "triton") -> list[torch.Tensor]:
    """Returns output, gradients of query, key, value, and of u where there is one; a bias may be ``given`` too."""
    kernel.zero_grad()
    for each in given:
        each.grad = None
    output = kernel.compute(form, *given[:3], visibility, *given[3:])  # type: ignore[arg-type]
    assert output is not None
    weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(5)).to(output)
    (output * weight).sum().backward()
    shares = [each.grad for each in kernel.parameters() if each.grad is not None]
    return [output.detach(), *(each.grad for each in given if each.grad is not None), *shares]


def exact(kernel: Kernel, given: list[torch.Tensor], visibility: Visibility) -> list[torch.Tensor]:
    """The same by the formula on the full matrix, in float64."""
    wide = [each.detach().double().nan_to_num(0.0).requires_grad_(each.requires_grad) for each in given]
    return both(copy.deepcopy(kernel).double(), wide, visibility, "reference")


def require_close(found: list[torch.Tensor], expected: list[torch.Tensor], tolerance: float = 3e-6) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.isfinite().all()
        assert (one.double() - other).abs().max() <= tolerance * other.abs().max().clamp(min=1.0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("order", ORDERS)
def test_elementwise_is_the_formula(name: str, order: str) -> None:
    """Several tiles each way, padding that is NaN, heads and values of other widths than a tile's."""
    kernel, memory = find_attention(name).build(heads=2), 5 if order == "causal" else 0
    rows, keys = 70, 70 + memory if order == "causal" else 45
    visibility = padded(rows, keys, order, memory)
    given = poisoned(inputs(rows, keys, width=20, value_width=24, times=0.5), visibility)
    require_close(both(kernel, given, visibility), exact(kernel, given, visibility))


@pytest.mark.parametrize("is_self", [True, False])
def test_layers_of_other_variants_and_widths_share_one_visibility(is_self: bool) -> None:
    """Row scales and offsets are made once for the layers that have the same; again if a mask was changed."""
    real, other = (torch.arange(9) < torch.tensor([[9], [last]]) for last in (6, 4))
    visibility = Visibility(query_real=real, key_real=real if is_self else other)
    for last in (6, 3):
        real[:, last:] = False
        for name, width in (
            ("x3", 16),
            ("x3-14", 16),
            ("x3", 8),
            ("relu", 16),
            ("gelu", 16),
            ("dnas", 16),
            ("hnas", 16),
        ):
            kernel = find_attention(name).build(heads=2)
            given = inputs(9, 9, width=width)
            require_close(both(kernel, given, visibility), exact(kernel, given, visibility))


@pytest.mark.parametrize("name", ["x3", "gelu", "dnas", "hnas"])
def test_dropout_drops_what_blockwise_drops(name: str) -> None:
    kernel = find_attention(name).build(heads=2, dropout=0.4)
    visibility = padded(40, 45, "causal", 5) if name in NAMES else padded(40, 45)
    require_same_dropout(kernel, inputs(40, 45), visibility)


def require_same_dropout(kernel: Kernel, given: list[torch.Tensor], visibility: Visibility) -> None:
    """Compares the kernels with the engine in float64, with the same seed of dropout; without dropout they differ."""
    torch.manual_seed(3)
    found = both(kernel, given, visibility)
    torch.manual_seed(3)
    wide = [each.detach().double().requires_grad_() for each in given]
    require_close(found, both(copy.deepcopy(kernel).double(), wide, visibility, "blockwise"))
    kernel.eval()
    assert (both(kernel, given, visibility)[0] - found[0]).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("rows", "keys", "times"), [(70, 70, 1.0), (33, 90, 1.0), (90, 20, 10.0), (1, 17, 1.0), (40, 40, 40.0)]
)
def test_doubly_normalized_is_the_formula(rows: int, keys: int, times: float) -> None:
    """Scores times 40 too, where a key far under its row's largest must live; one query; padding that is NaN."""
    kernel = find_attention("dnas").build(heads=2)
    visibility = padded(rows, keys) if rows > 3 else Visibility()
    given = inputs(rows, keys, width=24, value_width=16, times=times)
    given = poisoned(given, visibility) if rows > 3 else given
    require_close(both(kernel, given, visibility), exact(kernel, given, visibility), 3e-6 * max(times, 1.0))
    if rows > 3:
        with torch.no_grad():
            ones = torch.ones_like(given[2])
            whole = kernel.compute("triton", given[0], given[1], ones, visibility)
        assert visibility.query_real is not None
        assert whole is not None
        expected = visibility.query_real[:, None, :, None].expand_as(whole).float()
        torch.testing.assert_close(whole, expected)  # weights of a row sum to 1; padded rows are 0


@pytest.mark.parametrize("name", ["x3", "dnas", "hnas"])
@pytest.mark.parametrize("width", [1, 4, 8, 10])
def test_narrow_heads_are_the_formula(name: str, width: int) -> None:
    """Tiles are at least 16 wide: the rest of each is 0."""
    kernel, visibility = find_attention(name).build(heads=2), padded(20, 20)
    given = poisoned(inputs(20, 20, width=width, value_width=width), visibility)
    require_close(both(kernel, given, visibility), exact(kernel, given, visibility))


@pytest.mark.parametrize("times", [10.0, 40.0])
def test_the_halves_of_hybrid_attention_survive_large_scores(times: float) -> None:
    kernel, visibility = find_attention("hnas").build(heads=2), padded(40, 70)
    given = poisoned(inputs(40, 70, times=times), visibility)
    require_close(both(kernel, given, visibility), exact(kernel, given, visibility), 3e-6 * times)


def test_examples_of_nothing_but_padding_give_nothing() -> None:
    real = torch.tensor([[True] * 20, [False] * 20])
    for name in ("dnas", "x3", "hnas"):
        given = inputs(20, 20)
        found = both(find_attention(name).build(heads=2), given, Visibility(query_real=real, key_real=real))
        assert all(each.isfinite().all() for each in found)
        assert not any(each[1].any() for each in found[:4])


@pytest.mark.parametrize("per_head", [False, True])
def test_hybrid_is_the_formula_and_u_learns(per_head: bool) -> None:
    kernel = find_attention("hnas").build(heads=2)
    if per_head:
        kernel = type(find_attention("hnas"))(u=0.3, per_head=True).build(heads=2)
    visibility = padded(40, 40)
    given = poisoned(inputs(40, 40, times=3.0), visibility)
    found, expected = both(kernel, given, visibility), exact(kernel, given, visibility)
    assert len(found) == 5
    require_close(found, expected, 2e-5)


@pytest.mark.parametrize("name", ["x3", "gelu", "dnas"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_no_worse_than_the_plain_form(name: str, dtype: torch.dtype) -> None:
    kernel = find_attention(name).build(heads=2)
    require_no_worse_than_plain(kernel, inputs(64, 64, width=32, dtype=dtype), padded(64, 64))


def require_no_worse_than_plain(kernel: Kernel, given: list[torch.Tensor], visibility: Visibility) -> None:
    """Errors against float64 of the same rounded inputs: at most twice those of the formula in that precision."""
    found, expected = both(kernel, given, visibility), exact(kernel, given, visibility)
    plain = [each.detach().clone().requires_grad_() for each in given]
    query, key, value, *bias = plain
    scores = (query @ key.transpose(-1, -2)) * query.shape[3] ** -0.5 + sum(bias)
    pairs = visibility.pairs(query.shape[2], key.shape[2], scores.device)
    output = kernel.normalize(scores, pairs, visibility, None)[0].to(value.dtype) @ value
    weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(5)).to(output)
    (output * weight).sum().backward()
    for one, other, truth in zip(found, [output, *(each.grad for each in plain)], expected, strict=True):
        assert other is not None
        ours, theirs = ((each.double() - truth).abs().max() for each in (one, other))
        assert ours <= 2 * theirs + torch.finfo(value.dtype).eps * truth.abs().max()


@pytest.mark.parametrize("name", ["x3", "gelu", "dnas"])
def test_operators_pass_pytorchs_own_check(name: str) -> None:
    from seqarena.common.attention.triton import operators  # noqa: PLC0415

    query, key, value = inputs(20, 20)
    if name == "dnas":
        less, u, seed = torch.zeros(2, 20), torch.tensor([0.3, 0.6], requires_grad=True), torch.tensor(7)
        for mixing, dropout, segments in ((torch.zeros(0), 0.0, None), (u, 0.3, torch.arange(40).view(2, 20) // 7)):
            given = (query, key, value, mixing, seed, segments, less, less, dropout, mixing is u)
            torch.library.opcheck(operators.doubly_normalized_forward, given)
        return
    rule: Any = find_attention(name).build(heads=2).rule
    for dropout, segments, window in ((0.0, None, 4), (0.3, torch.arange(40).view(2, 20) // 7, 0)):
        torch.library.opcheck(
            operators.elementwise_forward,
            (query, key, value, None, torch.ones(2, 20), None, None, segments, torch.tensor(7), dropout, rule.phi,
             rule.power, True, 0, window),
        )  # fmt: skip


@pytest.mark.parametrize("name", ["x3", "dnas", "hnas"])
def test_kernels_compile_as_one_graph_and_are_computed_again(name: str) -> None:
    torch._dynamo.reset()
    kernel, visibility = find_attention(name).build(heads=2), padded(20, 20)
    given = inputs(20, 20)
    compiled = torch.compile(
        lambda *three: kernel.compute("triton", *three, visibility), fullgraph=True, backend="aot_eager"
    )
    torch.testing.assert_close(compiled(*given), kernel.compute("triton", *given, visibility))
    dropped = find_attention(name).build(heads=2, dropout=0.2)
    torch.compile(lambda *three: dropped.compute("triton", *three, visibility), fullgraph=True, backend="aot_eager")(
        *given
    )
    whole = both(kernel, given, visibility)
    kernel.zero_grad()
    output = checkpoint(lambda *three: kernel.compute("triton", *three, visibility), *given, use_reentrant=False)
    weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(5))
    again = torch.autograd.grad((output * weight).sum(), given)
    for one, other in zip(again, whole[1:4], strict=True):
        assert torch.equal(one, other)


def test_autocast_gives_half_precision_to_the_kernels() -> None:
    kernel, given = find_attention("x3").build(heads=2), inputs(20, 20, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = kernel.compute("triton", *given, Visibility())
    outside = kernel.compute("triton", *given, Visibility())
    assert inside is not None
    assert outside is not None
    assert inside.dtype == torch.bfloat16
    assert torch.equal(inside, outside)


@pytest.mark.parametrize(("name", "times"), [("x3", 45.0), ("exp", 11.5)])
def test_float16_holds_what_the_engine_holds(name: str, times: float) -> None:
    """A weight before its row is divided may be beyond float16; the output is not."""
    kernel = find_attention(name).build(heads=2)
    query, key, value = inputs(64, 256, dtype=torch.float16)
    with torch.no_grad():
        query.zero_()
        key.zero_()
        query[:, :, 3, 0], key[:, :, 200, 0] = times * 4.0 / 8, 8.0
    given = [query, key, value]
    require_close(both(kernel, given, Visibility()), exact(kernel, given, Visibility()), 2e-3)


def test_where_they_cannot_run_the_reason_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    query, key, value = inputs(20, 20)
    plain = Visibility()
    assert conditions.triton(Inputs(query, key, value, plain, None, 0.0)) is None
    for changed, words in (
        ((query.double(), key, value, plain, None), "torch.float64 is not supported"),
        ((query, key.half(), value, plain, None), "expected one dtype"),
        ((query, key, value.double(), plain, None), "expected one dtype"),
        ((query.repeat(1, 1, 1, 9), key, value, plain, None), "heads are 144 and 16 wide, expected 1 to 128"),
    ):
        reason = conditions.triton(Inputs(*changed, 0.0))
        assert reason is not None
        assert words in reason
    x3 = find_attention("x3").build(heads=2)
    monkeypatch.setattr(conditions, "INTERPRETED", False)
    assert conditions.triton(Inputs(query, key, value, plain, None, 0.0)) == "tensors are on cpu, expected cuda"
    assert x3.compute("triton", query, key, value, plain) is None
    command = ["benchmark", "attention", "--lengths", "64", "--attention", "x3", "--implementations", "triton"]
    assert run_command(dispatch, command) == 2
    assert "triton: tensors are on cpu, expected cuda" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "order"), [("x3", "causal"), ("dnas", "none"), ("hnas", "none"), ("dnas", "causal"), ("hnas", "causal")]
)
def test_a_kernel_that_fails_or_differs_on_a_gpu_is_not_used(
    name: str, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is looked at before the first use on a GPU, here by the interpreter."""
    from seqarena.common.attention.triton import operators, self_test  # noqa: PLC0415

    rule = find_attention(name).build(heads=2).rule
    assert rule is not None
    look = self_test.find_fault
    monkeypatch.setattr(self_test, "TEST_LENGTHS", ((40, 5), (48, 0)))
    given = (torch.float32, torch.device("cpu"), 16, 24, order)
    state = torch.get_rng_state()
    with torch.inference_mode():
        assert look(rule, *given, ("dropout",)) is None
        assert order == "none" or look(rule, *given, ("bias", "window")) is None
    assert torch.equal(state, torch.get_rng_state())
    attend = "attend_elementwise" if name == "x3" else "attend_doubly_normalized"
    right = getattr(operators, attend)

    def wrong(*given: Any) -> Any:
        found = right(*given)
        return found * 1.001 if name == "x3" else (found[0] * 1.001, found[1])

    monkeypatch.setattr(operators, attend, wrong)
    assert "are wrong on this GPU" in look(rule, *given)

    def fails(*_: Any) -> None:
        raise RuntimeError("out of shared memory")

    monkeypatch.setattr(operators, attend, fails)
    assert "fails on this GPU (RuntimeError: out of shared memory)" in look(rule, *given)
    query, key, value = inputs(20, 20)
    monkeypatch.undo()
    monkeypatch.setattr(self_test, "INTERPRETED", False)
    monkeypatch.setattr(self_test, "FAULTS", {})
    monkeypatch.setattr(self_test, "find_fault", lambda *_: f"the kernel of {name} in order {order} is off")
    reason = f"a slower implementation, not a Triton kernel: the kernel of {name} in order {order} is off"
    visibility = Visibility(order=order)  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match=reason):
        assert find_attention(name).build(heads=2).compute("triton", query, key, value, visibility) is None


@pytest.mark.parametrize("name", ["x3", "dnas"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_kernels_are_looked_at_while_a_model_is_compiled(
    name: str, dynamic: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that never ran before it was compiled has them too, and none that is wrong."""
    from seqarena.common.attention.triton import self_test  # noqa: PLC0415

    torch._dynamo.reset()
    monkeypatch.setattr(self_test, "INTERPRETED", False)
    monkeypatch.setattr(self_test, "FAULTS", {})
    kernel, given = find_attention(name).build(heads=2), inputs(20, 20, width=24)

    def attend(*three: torch.Tensor) -> torch.Tensor:
        found = kernel.compute("triton", *three, Visibility())
        return three[0] * torch.nan if found is None else found

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    torch.testing.assert_close(compiled(*given), kernel.compute("triton", *given, Visibility()))
    assert list(self_test.FAULTS.values()) == [None]
    torch._dynamo.reset()
    monkeypatch.setattr(self_test, "FAULTS", {})
    monkeypatch.setattr(self_test, "find_fault", lambda *_: f"the {dynamic} {name} is off")
    with pytest.warns(UserWarning, match=f"the {dynamic} {name} is off"):
        found = torch.compile(attend, fullgraph=True, backend="aot_eager", dynamic=dynamic)(*given)
    assert bool(found.isnan().all())

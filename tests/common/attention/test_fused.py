"""The fused forms against the formula: float64 values and gradients, and what they cannot express."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from seqarena.common.attention import ATTENTIONS, PAPERS, conditions
from seqarena.common.attention.conditions import Inputs
from seqarena.common.attention.doubly_normalized import DoublyNormalized, DoublyNormalizedRule
from seqarena.common.attention.fused import RANGE, FusedArguments, fused_doubly_normalized, fused_passes
from seqarena.common.attention.hybrid import Hybrid, HybridRule
from seqarena.common.attention.softmax import additive_mask, biased_softmax
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError


def inputs(queries: int, keys: int, dim: int, scale: float = 1.0) -> list[torch.Tensor]:
    shapes = (queries, keys, keys)
    return [(scale * torch.randn(2, 3, length, dim, dtype=torch.float64)).requires_grad_() for length in shapes]


def masks(queries: int, keys: int) -> Visibility:
    query_real, key_real = torch.rand(2, queries) < 0.7, torch.rand(2, keys) < 0.7
    query_real[:, 0] = key_real[:, 0] = True
    return Visibility(query_real=query_real, key_real=key_real)


@pytest.mark.parametrize("name", ["softmax", "dnas", "hnas"])
@pytest.mark.parametrize(("queries", "keys", "dim"), [(1, 1, 1), (1, 7, 4), (7, 1, 3), (33, 17, 8), (5, 65, 7)])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scale", [1.0, 6.0])
def test_values_and_gradients_are_the_references(
    name: str, queries: int, keys: int, dim: int, masked: bool, scale: float
) -> None:
    kernel = ATTENTIONS[name].build(heads=3).double()
    tensors = inputs(queries, keys, dim, scale)
    visibility = masks(queries, keys) if masked else Visibility()
    fused = kernel.compute("fused", *tensors, visibility)
    assert fused is not None
    reference = kernel.compute("reference", *tensors, visibility)
    torch.testing.assert_close(fused, reference, rtol=0, atol=1e-10)
    leaves = [*tensors, *kernel.parameters()]
    direction = torch.randn_like(fused)
    found = torch.autograd.grad((fused * direction).sum(), leaves)
    expected = torch.autograd.grad((reference * direction).sum(), leaves)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("lengths", [(9, 9), (9, 4), (1, 0), (0, 0)])
def test_padding_at_the_end_needs_no_mask_in_causal_order(lengths: tuple[int, int]) -> None:
    kernel = ATTENTIONS["softmax"].build(heads=3)
    tensors = inputs(9, 9, 4)
    real = torch.arange(9) < torch.tensor(lengths)[:, None]
    with torch.no_grad():
        for tensor in tensors:
            tensor.masked_fill_(~real[:, None, :, None], math.nan)
    at_end = Visibility(query_real=real, key_real=real, order="causal", padded_at_end=True)
    masked = replace(at_end, padded_at_end=False)
    assert kernel.explain(*tensors, at_end).implementation == "fused"
    assert kernel.compute("fused", *tensors, masked) is None
    found, expected = kernel(*tensors, at_end), kernel.compute("reference", *tensors, masked)
    direction = torch.randn_like(found)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    grads = [torch.autograd.grad((each * direction).sum(), tensors) for each in (found, expected)]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_padding_that_is_not_at_the_end_is_refused() -> None:
    kernel, tensors = ATTENTIONS["softmax"].build(heads=3), inputs(4, 4, 4)
    real = torch.tensor([[True, False, True, False], [True, True, True, True]])
    first = torch.tensor([[True, False, False, False], [True, True, True, True]])
    for changes, words in (
        ({"query_real": real, "key_real": real}, "a real position after padding"),
        ({"query_real": first, "key_real": first.clone()}, "one tensor as query_real"),
        ({"query_real": first, "key_real": first, "order": "none"}, "found order 'none'"),
    ):
        with pytest.raises(WrongUseError, match=words):
            kernel(*tensors, Visibility(**{"order": "causal", "padded_at_end": True, **changes}))


def test_fused_passes_survive_gradcheck() -> None:
    tensors = inputs(5, 4, 3)
    visibility = masks(5, 4)
    u = torch.rand(3, 1, 1, dtype=torch.float64, requires_grad=True)
    assert visibility.query_real is not None
    real = visibility.query_real[:, None, :, None]
    for share in (None, u):
        arguments = (*tensors, visibility.query_real, visibility.key_real, share)
        rule = (DoublyNormalizedRule() if share is None else HybridRule()).text
        assert torch.autograd.gradcheck(lambda *given, rule=rule: fused_passes(*given, rule)[0] * real, arguments)
        tests = ("test_schema", "test_autograd_registration", "test_faketensor")
        torch.library.opcheck(fused_passes, (*arguments, rule), test_utils=tests)


def ranging(spread: float, dtype: torch.dtype) -> list[torch.Tensor]:
    """Returns query, key and value whose c_j range over about ``spread``."""
    query, key, value = (torch.randn(1, 2, 40, 4, dtype=torch.float64) for _ in range(3))
    query[..., 0] = 2.0  # 2 / sqrt(4) times the key's first coordinate
    key[..., 0] = torch.linspace(0, spread, 40)
    return [each.to(dtype).requires_grad_() for each in (query, key, value)]


@pytest.mark.parametrize("name", ["dnas", "hnas"])
@pytest.mark.parametrize("spread", [20.0, 26.0, 60.0, 300.0])
def test_masses_that_range_far_lose_nothing(name: str, spread: float) -> None:
    """On both sides of ``RANGE``: the error in float32 is no more than a few times the formula's own."""
    tensors = ranging(spread, torch.float32)
    mass = (tensors[0].double() @ tensors[1].double().mT / 2).logsumexp(dim=2)
    given = FusedArguments(*tensors, None, None, None, "")
    assert given.ranges_far(mass) == (spread > RANGE)
    single, double = ATTENTIONS[name].build(heads=2), ATTENTIONS[name].build(heads=2).double()
    exact = [each.detach().double().requires_grad_() for each in tensors]
    goals, formula, fused = (
        [output, *torch.autograd.grad(output.square().sum(), leaves)]
        for kernel, leaves, which in (
            (double, exact, "reference"),
            (single, tensors, "reference"),
            (single, tensors, "fused"),
        )
        for output in [kernel.compute(which, *leaves, Visibility())]
    )
    for goal, one, other in zip(goals, formula, fused, strict=True):
        assert (other - goal).norm() <= 4 * (one - goal).norm() + 1e-6 * goal.norm()


@pytest.mark.parametrize("name", ["dnas", "hnas"])
def test_padding_does_not_set_the_size_of_masses(name: str) -> None:
    """Real keys have column sums near exp(150), padded ones near 1: in float32 they have no factor in common."""
    query, key, value = (torch.randn(1, 2, 9, 4) for _ in range(3))
    query[..., 0], key[..., 0] = 10.0, 30.0
    visibility = Visibility(key_real=torch.tensor([[True] * 6 + [False] * 3]))
    kernel = ATTENTIONS[name].build(heads=2)
    fused = kernel.compute("fused", query, key, value, visibility)
    reference = kernel.double().reference(query.double(), key.double(), value.double(), visibility, None)
    assert fused is not None
    torch.testing.assert_close(fused.double(), reference, rtol=0, atol=1e-3)


def test_a_strided_input_is_the_same_input() -> None:
    """Whichever axis lies innermost in memory, or is expanded: the operator underneath reads past the end otherwise."""
    tensors = inputs(6, 6, 4)
    expected = fused_doubly_normalized(DoublyNormalizedRule(), *tensors, Visibility())
    wanted = torch.autograd.grad(expected.square().sum(), tensors)
    for order in itertools.permutations(range(4)):
        back = [order.index(axis) for axis in range(4)]
        strided = [each.detach().permute(order).contiguous().permute(back).requires_grad_() for each in tensors]
        found = fused_doubly_normalized(DoublyNormalizedRule(), *strided, Visibility())
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)
        for one, other in zip(torch.autograd.grad(found.square().sum(), strided), wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    query, key, value = (each.detach() for each in tensors)
    expanded = value[..., :1].expand(-1, -1, -1, 4)
    torch.testing.assert_close(
        fused_doubly_normalized(DoublyNormalizedRule(), query, key, expanded, Visibility()),
        fused_doubly_normalized(DoublyNormalizedRule(), query, key, expanded.contiguous(), Visibility()),
    )


@pytest.mark.parametrize("name", ["softmax", "dnas", "hnas"])
def test_half_precision_is_no_worse_than_the_formula(name: str) -> None:
    """Scores up to some hundreds, a float32 bias of its own size; values and gradients against float64."""
    tensors = [tensor.detach().bfloat16().requires_grad_() for tensor in inputs(32, 32, 16, scale=4.0)]
    kernel = ATTENTIONS[name].build(heads=3)
    for bias in (None, torch.randn(1, 3, 32, 32) - 200):
        errors = []
        exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
        double = ATTENTIONS[name].build(heads=3).double()
        wide = None if bias is None else bias.double()
        wanted = double.compute("reference", *exact, Visibility(), wide)
        goals = [wanted, *torch.autograd.grad(wanted.square().sum(), exact)]
        for output in (kernel(*tensors, Visibility(), bias), kernel.compute("reference", *tensors, Visibility(), bias)):
            found = [output, *torch.autograd.grad(output.float().square().sum(), tensors)]
            errors.append(
                [
                    float((one.detach().double() - goal.detach()).norm() / goal.detach().norm())
                    for one, goal in zip(found, goals, strict=True)
                ]
            )
        for fused, formula in zip(*errors, strict=True):
            assert fused <= 2 * formula + 1e-3


def test_what_a_fused_form_cannot_express_is_left_to_the_blocks() -> None:
    query, key, value = inputs(5, 5, 4)
    bias = torch.zeros(1, 1, 5, 5, dtype=torch.float64)
    packed = Visibility(segments=torch.zeros(2, 5, dtype=torch.long))
    for visibility in (Visibility(order="causal"), packed):
        told = conditions.fused_doubly_normalized(Inputs(query, key, value, visibility, None, 0.0), 1)
        assert told == "fused passes support no order, no segments and no bias"
    told = conditions.fused_doubly_normalized(Inputs(query, key, value, Visibility(), bias, 0.0), 1)
    assert told == "fused passes support no order, no segments and no bias"
    for name in ("softmax", "dnas", "hnas"):
        kernel = ATTENTIONS[name].build(heads=3, dropout=0.5).double()
        assert kernel.compute("fused", query, key, value, Visibility()) is None
        assert kernel.eval().compute("fused", query, key, value, Visibility()) is not None
        assert kernel.compute("fused", query, key, value, packed) is None
    assert DoublyNormalized(iterations=2).build(heads=3).compute("fused", query, key, value, Visibility()) is None
    trained = Inputs(query, key, value, Visibility(), bias.requires_grad_(), 0.0)
    assert conditions.fused_softmax(trained) == "the bias is trained"
    halves = [tensor.detach().bfloat16() for tensor in (query, key, value)]
    told = conditions.fused_softmax(Inputs(*halves, Visibility(), bias.detach().float(), 0.0))
    assert told == "the bias, torch.float32, would be rounded to torch.bfloat16"


def require_same(found: torch.Tensor, expected: torch.Tensor, given: list[torch.Tensor]) -> None:
    """Compares two outputs, and their gradients by what they are computed from, in float64."""
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    direction = torch.randn_like(found)
    gradients = [torch.autograd.grad((each * direction).sum(), given) for each in (found, expected)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("visibility", [
    Visibility(order="causal", memory=4), Visibility(order="causal", memory=4, window=3), Visibility(),
], ids=["memory", "window", "all"])  # fmt: skip
def test_a_bias_over_all_pairs_is_softmax_in_one_call(visibility: Visibility) -> None:
    """Values and every gradient, of heads that are no multiple of 8 wide; and who takes it."""
    query, key, value = (torch.randn(2, 3, n, 5, dtype=torch.float64, requires_grad=True) for n in (6, 10, 10))
    bias = torch.randn(2, 3, 6, 10, dtype=torch.float64, requires_grad=True)
    given = [query, key, value, bias]
    kernel = ATTENTIONS["softmax"].build(heads=3)
    expected = kernel.compute("reference", query, key, value, visibility, bias)
    found = biased_softmax(query, key, value, visibility, bias, 0.0)
    assert expected is not None
    require_same(found, expected, given)
    singles = [each.detach().float() for each in given]
    direct = kernel.compute("fused", *singles[:3], visibility, singles[3])
    assert direct is not None
    torch.testing.assert_close(direct.double(), expected, rtol=0, atol=1e-5)
    assert (
        kernel.compute("fused", query, key, value, Visibility(order="causal", memory=4), bias) is None
    )  # it learns, on a CPU


PADDED = torch.tensor([[True] * 6 + [False] * 2, [False] * 8])
PACKED = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2]] * 2)


@pytest.mark.parametrize("visibility", [
    Visibility(segments=PACKED),
    Visibility(segments=PACKED, query_real=PADDED, key_real=PADDED),
    Visibility(order="causal", segments=PACKED),
    Visibility(order="causal", window=3, query_real=PADDED, key_real=PADDED),
    Visibility(order="causal", query_real=PADDED.flip(1), key_real=PADDED.flip(1)),
], ids=["packed", "padded", "causal", "window", "padded before"])  # fmt: skip
def test_a_mask_over_all_pairs_is_softmax_in_one_call(visibility: Visibility, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients, also of an example without any real token, whose numbers may be anything."""
    real = visibility.key_real
    given = [torch.randn(2, 3, 8, 5, dtype=torch.float64) for _ in range(3)]
    if real is not None:
        given = [each.masked_fill(~real[:, None, :, None], torch.nan) for each in given]
    given = [each.requires_grad_() for each in given]
    kernel = ATTENTIONS["softmax"].build(heads=3)
    expected = kernel.compute("reference", *given, visibility)
    monkeypatch.setattr(conditions, "masked_softmax", lambda _: None)
    assert kernel.explain(*given, visibility).implementation == "fused"
    found = kernel(*given, visibility)
    assert expected is not None
    require_same(found, expected, given)


def test_a_gpu_makes_a_mask_over_all_pairs_if_it_is_small() -> None:
    packed = Visibility(segments=torch.zeros(4, 512, dtype=torch.long))
    with FakeTensorMode():
        query, key, value = (torch.empty(4, 2, 512, 64, device="cuda") for _ in range(3))
        assert conditions.masked_softmax(Inputs(query, key, value, packed, None, 0.1)) is None
        long = [torch.empty(4, 1, 2**13, 64, device="cuda") for _ in range(3)]
        told = conditions.masked_softmax(Inputs(*long, packed, None, 0.1))
        assert told == "a mask over all pairs would have more than 268435456 bytes"
        told = conditions.masked_softmax(Inputs(query, key, value, packed, torch.empty(1, 1, 512, 512), 0.1))
        assert "without a bias" in str(told)
        told = conditions.masked_softmax(Inputs(query.cpu(), key.cpu(), value.cpu(), packed, None, 0.1))
        assert "on a GPU only" in str(told)


@pytest.mark.parametrize("name", list(PAPERS))
def test_a_bias_gets_its_gradient(name: str) -> None:
    order = ATTENTIONS[name].orders[0]
    kernel = ATTENTIONS[name].build(heads=2).double()
    query, key, value = (torch.randn(1, 2, 3, 2, dtype=torch.float64) for _ in range(3))
    bias = torch.randn(1, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda bias: kernel(query, key, value, Visibility(order=order), bias), bias, check_undefined_grad=False
    )


def test_a_hybrid_without_any_dnas_is_softmax_to_the_last_bit() -> None:
    """Where nobody wants a gradient; u itself still gets one, from both halves."""
    query, key, value = (torch.randn(2, 2, 100, 32) for _ in range(3))
    real = torch.arange(100)[None] < torch.tensor([[100], [61]])
    visibility = Visibility(query_real=real, key_real=real)
    hybrid, softmax = Hybrid(u=0.0).build(heads=2), ATTENTIONS["softmax"].build(heads=2)
    expected = softmax(query, key, value, visibility)
    with torch.no_grad():
        assert torch.equal(hybrid(query, key, value, visibility), expected)
    found = hybrid(query, key, value, visibility)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    found.square().sum().backward()
    assert hybrid.u.raw.grad.abs() > 0


@pytest.mark.parametrize("length", [1, 7, 16, 33])
def test_a_mask_for_a_gpu_gives_the_output_of_the_mask_of_booleans(length: int) -> None:
    query, key, value = inputs(5, length, 4)
    seen = (torch.rand(2, length) < 0.5)[:, None, None, :]
    seen[..., 0] = True
    mask = additive_mask(seen, query.dtype)
    assert mask.shape == seen.shape
    assert mask.stride()[0] % 16 == mask.stride()[2] % 16 == 0
    found, expected = (
        torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=each) for each in (mask, seen)
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


@pytest.mark.unhooked
@pytest.mark.parametrize("length", [7, 16])
def test_a_mask_for_a_gpu_is_made_in_one_graph(length: int) -> None:
    seen = (torch.arange(length) < torch.tensor([[length], [3]]))[:, None, None, :]
    compiled = torch.compile(additive_mask, fullgraph=True, backend="eager")
    assert torch.equal(compiled(seen, torch.float32), additive_mask(seen, torch.float32))

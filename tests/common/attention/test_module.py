"""Multi-head attention against PyTorch's own, weights copied."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from seqarena.common.attention import ATTENTIONS, find_attention, module
from seqarena.common.attention.mixer import LayerShape
from seqarena.common.attention.module import MultiHeadAttention, can_be_joint, joint_linear, self_attention
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError


def ours(dropout: float = 0.0) -> MultiHeadAttention:
    return MultiHeadAttention(
        ATTENTIONS["softmax"], dim=8, heads=2, dropout=dropout, projection_bias=True
    ).double()  # fmt: skip


@pytest.mark.parametrize("crossed", [False, True])
def test_softmax_is_pytorchs_multi_head_attention(crossed: bool) -> None:
    made, oracle = ours(), nn.MultiheadAttention(8, 2, batch_first=True).double()
    parts = [made.query, made.key, made.value]
    oracle.in_proj_weight.data = torch.cat([part.weight for part in parts])
    oracle.in_proj_bias.data = torch.cat([part.bias for part in parts])
    oracle.out_proj.load_state_dict(made.output.state_dict())
    hidden = torch.randn(3, 5, 8, dtype=torch.float64)
    context = torch.randn(3, 7, 8, dtype=torch.float64) if crossed else None
    source = hidden if context is None else context
    real = torch.rand(3, source.shape[1]) < 0.7
    real[:, 0] = True
    found = made(hidden, Visibility(key_real=real), context)
    wanted, _ = oracle(hidden, source, source, key_padding_mask=~real)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("has_bias", [False, True])
def test_one_product_computes_all_projections(has_bias: bool) -> None:
    layers = [nn.Linear(4, width, bias=has_bias, dtype=torch.float64) for width in (3, 5, 3)]
    source = torch.randn(2, 6, 4, dtype=torch.float64, requires_grad=True)
    inputs = [source, *(weight for layer in layers for weight in layer.parameters())]
    found, wanted = joint_linear(source, layers).split((3, 5, 3), dim=2), [layer(source) for layer in layers]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    gradients = [
        torch.autograd.grad(sum(each.square().sum() for each in outputs), inputs) for outputs in (found, wanted)
    ]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("variant", "options"),
    [
        (variant, options)
        for variant in ("softmax", "dnas", "hnas", "x3", "cosine", "performer", "linformer")
        for options in ({}, {"positions": "rope"}, {"query_key_norm": True}, {"positions": "alibi"})
        if (variant, options.get("positions")) != ("performer", "alibi")
    ],
)
def test_a_joint_product_gives_the_same_and_stops_what_is_no_number(
    variant: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of variants that transform their queries and keys, and with positions."""
    torch.manual_seed(0)
    shape = LayerShape(dim=8, heads=2, width=8, length=5)
    made = self_attention(find_attention(variant), shape, **options).double()
    real = torch.arange(5) < torch.tensor([[5], [3]])
    hidden = torch.randn(2, 5, 8, dtype=torch.float64)
    hidden[1, 4] = torch.nan
    found = []
    for is_joint in (False, True):
        monkeypatch.setattr(module, "are_joint", lambda _, layers, joint=is_joint: joint and len(layers) > 1)
        made.zero_grad()
        output = made(hidden.requires_grad_(), Visibility(query_real=real, key_real=real))
        weight = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view_as(output) * real[..., None]
        (gradient,) = torch.autograd.grad(output[real].sum() + (output * weight)[real].sum(), hidden)
        found.append((output[real], gradient[real]))
    for one, other in zip(*found, strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_views_of_one_tensor_that_are_leaves_keep_their_gradients() -> None:
    with torch.no_grad():
        parts = list(torch.randn(6, 4).split(2))
    layers = [nn.Linear(4, 2, bias=False) for _ in parts]
    for layer, part in zip(layers, parts, strict=True):
        layer.weight = nn.Parameter(part)
        layer._parameters["weight"] = part.requires_grad_()  # type: ignore[assignment]
    joint_linear(torch.randn(1, 3, 4), layers).sum().backward()
    assert all(part.grad is not None for part in parts)


def test_only_plain_layers_share_a_product() -> None:
    class Adapted(nn.Linear):
        """A layer whose call computes more than its weight."""

    parametrized, pruned, hooked, observed, replaced = (nn.Linear(4, 4) for _ in range(5))
    parametrizations.weight_norm(parametrized)
    prune.random_unstructured(pruned, "weight", 0.5)
    hooked.register_forward_hook(lambda *_: None)
    observed.register_full_backward_hook(lambda *_: None)
    replaced.forward = lambda each: each  # type: ignore[method-assign]
    assert can_be_joint([nn.Linear(4, 4), nn.Linear(4, 2)])
    without_bias = nn.Linear(4, 4, bias=False)
    assert can_be_joint([without_bias, without_bias])
    for other in (Adapted(4, 4), parametrized, pruned, hooked, observed, replaced, without_bias):
        assert not can_be_joint([nn.Linear(4, 4), other])
        assert not can_be_joint([other, nn.Linear(4, 4)])


@pytest.mark.unhooked
def test_the_product_and_its_condition_are_one_graph() -> None:
    """A GPU computes them in a compiled model; this compiles them without one."""
    layers = [nn.Linear(4, 6), nn.Linear(4, 2)]

    def outputs(source: torch.Tensor) -> torch.Tensor:
        assert can_be_joint(layers)
        return joint_linear(source, layers)

    source = torch.randn(2, 3, 4)
    found = torch.compile(outputs, backend="aot_eager", fullgraph=True)(source)
    torch.testing.assert_close(found, outputs(source))


def test_dropout_reaches_the_weights_in_training_alone() -> None:
    made, hidden = ours(dropout=0.5), torch.randn(1, 6, 8, dtype=torch.float64)
    one, other = (made(hidden, Visibility()) for _ in range(2))
    assert not torch.equal(one, other)
    made.eval()
    assert torch.equal(made(hidden, Visibility()), made(hidden, Visibility()))


def test_a_width_of_its_own() -> None:
    made = MultiHeadAttention(
        ATTENTIONS["dnas"], dim=8, heads=2, dropout=0.0, projection_bias=False, attention_dim=6
    )  # fmt: skip
    assert made.query.weight.shape == (6, 8)
    assert made.output.weight.shape == (8, 6)
    assert made.query.bias is None
    assert made(torch.randn(2, 3, 8), Visibility()).shape == (2, 3, 8)


def test_a_name_and_two_numbers_are_enough() -> None:
    made, hidden = MultiHeadAttention("dnas", dim=8, heads=2), torch.randn(2, 3, 8)
    whole = MultiHeadAttention(ATTENTIONS["dnas"], dim=8, heads=2, dropout=0.0, projection_bias=True)
    whole.load_state_dict(made.state_dict())
    assert torch.equal(made(hidden), whole(hidden, Visibility()))


@pytest.mark.parametrize(
    ("variant", "heads", "message"),
    [("dans", 2, r"unknown attention 'dans'; nearest: dnas"), ("dnas", 0, r"heads: expected a divisor"),
     ("dnas", 3, r"heads: expected a divisor of the width 8")],
)  # fmt: skip
def test_what_no_module_can_be_is_refused(variant: str, heads: int, message: str) -> None:
    with pytest.raises(WrongUseError, match=message):
        MultiHeadAttention(variant, dim=8, heads=heads)

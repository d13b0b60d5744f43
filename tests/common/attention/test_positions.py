"""Rotated queries and keys, the bias by distance, and the norm of queries and keys."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from seqarena.common.attention import ATTENTIONS
from seqarena.common.attention.elementwise import Elementwise
from seqarena.common.attention.module import MultiHeadAttention
from seqarena.common.attention.positions import distance_bias, rotated
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.runs.run import row_name, row_of
from seqarena.lra.model import Classifier
from seqarena.lra.presets import PRESETS
from seqarena.scripts.packages import find_package

QUICK = PRESETS["listops"]["quick"]


def test_a_rotation_is_a_product_of_complex_numbers() -> None:
    tokens = torch.randn(1, 2, 5, 6, dtype=torch.float64)
    turned = torch.view_as_complex(rotated(tokens).unflatten(3, (3, 2)).contiguous())
    numbers = torch.view_as_complex(tokens.unflatten(3, (3, 2)).contiguous())
    for t in range(5):
        for i in range(3):
            angle = t / 10_000 ** (2 * i / 6)
            expected = numbers[:, :, t, i] * complex(math.cos(angle), math.sin(angle))
            torch.testing.assert_close(turned[:, :, t, i], expected)


def test_scores_of_rotated_tokens_depend_on_the_distance() -> None:
    query, key = (torch.randn(1, 1, 1, 8, dtype=torch.float64).expand(-1, -1, 7, -1) for _ in range(2))
    scores = (rotated(query) @ rotated(key).mT)[0, 0]
    for distance in range(-6, 7):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    assert float((scores[0, 0] - scores[0, 3]).abs()) > 1e-3


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (1, [2**-8]),
        (2, [2**-4, 2**-8]),
        (3, [2**-4, 2**-8, 2**-2]),
        (4, [2**-2, 2**-4, 2**-6, 2**-8]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
    ],
)
def test_slopes_of_the_bias(heads: int, slopes: list[float]) -> None:
    bias = distance_bias(4, heads, torch.device("cpu"))
    assert bias.shape == (1, heads, 4, 4)
    torch.testing.assert_close(-bias[0, :, 3, 0] / 3, torch.tensor(slopes))
    assert torch.equal(bias, bias.mT)
    assert not bias.diagonal(dim1=2, dim2=3).any()


@pytest.mark.parametrize("positions", ["rope", "alibi"])
@pytest.mark.parametrize("order", ["none", "causal"])
def test_self_attention_with_positions_and_norm(positions: str, order: str) -> None:
    module = MultiHeadAttention(
        "softmax",
        dim=8,
        heads=2,
        positions=positions,
        query_key_norm=True,  # type: ignore[arg-type]
    ).double()
    hidden = torch.randn(2, 5, 8, dtype=torch.float64)
    with torch.no_grad():
        module.query_norm.weight.mul_(1.5)
    query, key, value = (
        layer(hidden).unflatten(2, (2, 4)).transpose(1, 2) for layer in (module.query, module.key, module.value)
    )
    query, key = F.layer_norm(query, (4,)) * 1.5, F.layer_norm(key, (4,))
    bias = torch.zeros(1, 2, 5, 5, dtype=torch.float64)
    if positions == "rope":
        query, key = rotated(query), rotated(key)
    else:
        bias = distance_bias(5, 2, hidden.device).double()
    if order == "causal":
        bias = bias + torch.full((5, 5), -torch.inf, dtype=torch.float64).triu(1)
    expected = module.merge_heads(F.scaled_dot_product_attention(query, key, value, bias))
    torch.testing.assert_close(module(hidden, Visibility(order=order)), expected)


def test_a_bias_is_added_to_that_of_the_distance_and_a_context_is_refused() -> None:
    module = MultiHeadAttention("softmax", dim=8, heads=2, positions="alibi").double()
    hidden, bias = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(1, 2, 5, 5, dtype=torch.float64)
    plain = MultiHeadAttention("softmax", dim=8, heads=2).double()
    plain.load_state_dict(module.state_dict())
    expected = plain(hidden, bias=bias + distance_bias(5, 2, hidden.device))
    torch.testing.assert_close(module(hidden, bias=bias), expected)
    with pytest.raises(WrongUseError, match="expected self-attention, found a context"):
        module(hidden, context=hidden)


def test_tables_name_the_positions() -> None:
    model = replace(QUICK.run.model, relative_positions="rope", query_key_norm=True)
    assert row_name(row_of(replace(QUICK.run, model=model), QUICK)) == "softmax, rope, qk-norm"
    assert row_name(row_of(QUICK.run, QUICK)) == "softmax"


def test_the_other_weights_begin_alike() -> None:
    def build(**settings: object) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        return Classifier(replace(QUICK.run.model, layers=1, max_length=9, **settings)).state_dict()  # type: ignore[arg-type]

    plain, other = build(), build(relative_positions="rope", query_key_norm=True)
    assert all(torch.equal(other[name], plain[name]) for name in plain)
    assert {name.rsplit(".", 2)[1] for name in other.keys() - plain.keys()} == {"query_norm", "key_norm"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention": ATTENTIONS["s4d"], "query_key_norm": True}, "token mixer 's4d'"),
        ({"attention": ATTENTIONS["linear"], "relative_positions": "alibi"}, "does not support bias"),
        ({"heads": 2, "attention_dim": 6, "relative_positions": "rope"}, "even width, found 3"),
    ],
)
def test_what_cannot_have_positions_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(WrongUseError, match=message):
        replace(QUICK.run.model, **settings).check(order="none", mean_pooled=False)  # type: ignore[arg-type]


@pytest.mark.unhooked
def test_a_mistyped_name_of_positions_is_refused() -> None:
    with pytest.raises(WrongUseError, match="positions: expected one of none, rope, alibi, found 'rop'"):
        MultiHeadAttention("dnas", dim=8, heads=2, positions="rop")  # type: ignore[arg-type]


@pytest.mark.parametrize("task", ["mlm", "wikitext2"])
def test_models_without_such_positions_refuse_them(task: str) -> None:
    model = replace(find_package("pretraining").presets[task]["quick"].run.model, relative_positions="rope")
    with pytest.raises(WrongUseError, match=r"model\.relative_positions"):
        model.check()


@pytest.mark.parametrize("length_exponent", [0.0, 0.5, 1.0])
def test_the_divisor_is_a_power_of_the_length(length_exponent: float) -> None:
    query, key = (torch.randn(1, 1, 6, 4, dtype=torch.float64) for _ in range(2))
    kernel = Elementwise(phi="relu", length_exponent=length_exponent).build(heads=1)
    expected = (query @ key.mT / 2).relu() / 6**length_exponent
    torch.testing.assert_close(kernel.weights(query, key, Visibility()), expected)
    torch.testing.assert_close(kernel(query, key, key, Visibility()), expected @ key)

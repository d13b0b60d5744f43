"""Each diagnostic against its definition, and against automatic differentiation where it is a derivative."""

import math
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import nn

from seqarena.common.attention import ATTENTIONS, PAPERS
from seqarena.common.attention.base import AttentionConfig
from seqarena.common.attention.doubly_normalized import DoublyNormalized
from seqarena.common.attention.hybrid import Hybrid
from seqarena.common.attention.module import MultiHeadAttention
from seqarena.common.attention.tiles import Blocking
from seqarena.common.attention.visibility import Visibility
from seqarena.common.model import diagnostics
from seqarena.common.model.attention_maps import attention_maps
from seqarena.common.model.diagnostics import (
    attention_size,
    escalation_rate,
    mean_cosine,
    spectral_gap,
    token_diversity,
    token_similarity,
)
from seqarena.lra.model import Classifier
from seqarena.lra.presets import PRESETS
from seqarena.scripts.curves import _series
from tests.common.attention.cases import RULED, Case, cases
from tests.common.attention.test_blockwise import Largest
from tests.common.runs.toy import TRAIN, toy_fit
from tests.common.training.test_loop import curve, same


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 2**31))
@settings(max_examples=40)
def test_similarity_and_cosine_are_their_definitions_over_real_tokens(tokens: int, width: int, seed: int) -> None:
    torch.manual_seed(seed)
    hidden = torch.randn(2, 6, width, dtype=torch.float64)
    real = torch.arange(6).expand(2, -1) < tokens
    for example in range(2):
        rows = hidden[example, :tokens]
        mean = torch.full((tokens, tokens), 1 / tokens, dtype=torch.float64) @ rows
        similarity = (mean.norm() / rows.norm()) ** 2
        assert float(token_similarity(hidden, real)[example]) == pytest.approx(float(similarity))
        assert float(token_diversity(hidden, real)[example]) == pytest.approx(1 - float(similarity), abs=1e-12)
        pairs = [(i, j) for i in range(tokens) for j in range(tokens) if i != j]
        cosines = [float(torch.cosine_similarity(rows[i], rows[j], dim=0)) for i, j in pairs]
        expected = sum(cosines) / len(pairs) if pairs else 1.0
        assert float(mean_cosine(hidden, real)[example]) == pytest.approx(expected)
    later = torch.randn(2, 6, width, dtype=torch.float64)
    rate = token_diversity(hidden, real) / token_diversity(later, real)
    assert torch.equal(escalation_rate(hidden, later, real).nan_to_num(), rate.nan_to_num())


def test_diversity_is_exact_where_tokens_are_all_but_equal() -> None:
    """1 - similarity in float32 would be rounding alone."""
    hidden = 1 + 1e-5 * torch.randn(1, 50, 8, dtype=torch.float64)
    exact = float(token_diversity(hidden))
    assert float(token_diversity(hidden.float())) == pytest.approx(exact, rel=1e-2)
    assert exact < 1e-9


def test_the_spectral_gap() -> None:
    weights = torch.softmax(torch.randn(2, 3, 7, 7, dtype=torch.float64), dim=-1)
    values = torch.linalg.eigvals(weights).abs().sort(descending=True).values
    torch.testing.assert_close(spectral_gap(weights), 1 - values[..., 1])
    causal = weights.tril() / weights.tril().sum(dim=-1, keepdim=True)
    diagonal = causal.diagonal(dim1=-2, dim2=-1).sort(descending=True).values
    torch.testing.assert_close(spectral_gap(causal), 1 - diagonal[..., 1])
    torch.testing.assert_close(spectral_gap(torch.full((1, 4, 4), 0.25)), torch.ones(1), rtol=0, atol=1e-6)


def jacobian_norm(config: AttentionConfig, each: Case) -> torch.Tensor:
    """By automatic differentiation of the formula with respect to a bias; B H."""
    kernel = config.build(heads=2).double()
    batch, heads, queries, _ = each.query.shape
    bias = torch.zeros(batch, heads, queries, each.key.shape[2], dtype=torch.float64)

    def weights(bias: torch.Tensor) -> torch.Tensor:
        return kernel.weights(each.query, each.key, each.visibility, bias)

    jacobian = torch.autograd.functional.jacobian(weights, bias)  # B H N M B H N M
    own = [[jacobian[b, h, :, :, b, h].norm() for h in range(heads)] for b in range(batch)]
    return torch.tensor(own, dtype=torch.float64)


@pytest.mark.parametrize(
    "config",
    [*(ATTENTIONS[name] for name in PAPERS if "-" not in name), Hybrid(u=0.2), Hybrid(u=1.0), Hybrid(u=0.0)],
)
@pytest.mark.parametrize("rows", [2, 64])
def test_norms_and_masses_are_those_of_the_matrix_and_its_jacobian(
    config: AttentionConfig, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Blocking, "choose", lambda *_: Blocking(heads=3, rows=rows, keys=1))
    for order in config.orders:
        for each in cases(order):
            kernel = config.build(heads=2).double()
            weights = kernel.weights(each.query, each.key, each.visibility)
            size = attention_size(kernel, each.query, each.key, each.visibility)
            torch.testing.assert_close(size.norm, weights.norm(dim=(2, 3)))
            mass = weights.sum(dim=2)
            if each.visibility.key_real is not None:
                mass = mass.masked_fill(~each.visibility.key_real[:, None], math.inf)
            torch.testing.assert_close(size.smallest_key_mass, mass.amin(dim=2))
            if order != "none" and isinstance(config, DoublyNormalized | Hybrid):
                assert size.jacobian_norm is None
            else:
                torch.testing.assert_close(size.jacobian_norm, jacobian_norm(config, each))


@pytest.mark.parametrize("name", [name for name in PAPERS if "-" not in name])
def test_a_formula_without_a_rule_has_the_same_sizes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a variant that is nothing but its formula: all but the norm of its derivative."""
    monkeypatch.setattr("seqarena.common.attention.chunked.LEAST_QUERIES", 2)
    monkeypatch.setattr("seqarena.common.attention.chunked.CHUNK_BYTES", 1)
    for order in ATTENTIONS[name].orders:
        for each in cases(order):
            kernel, plain = (ATTENTIONS[name].build(heads=2).double() for _ in range(2))
            monkeypatch.setattr(plain, "weight_rows", plain._rows_by_formula)
            known, found = (attention_size(some, each.query, each.key, each.visibility) for some in (kernel, plain))
            torch.testing.assert_close(found.norm, known.norm)
            torch.testing.assert_close(found.smallest_key_mass, known.smallest_key_mass)
            assert found.jacobian_norm is None


@pytest.mark.parametrize("name", ["softmax", "hnas", "x3", "sigmoid"])
def test_rows_of_weights_have_no_gradient_and_do_not_need_no_grad(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = ATTENTIONS[name].build(heads=2)
    query, key = (torch.randn(1, 2, 5, 4, requires_grad=True) for _ in range(2))
    for rule in (True, False):
        if not rule:
            monkeypatch.setattr(kernel, "weight_rows", kernel._rows_by_formula)
        found = [each.weights for each in kernel.weight_rows(query, key, Visibility(), None)]
        assert not any(each.requires_grad for each in found)
        torch.testing.assert_close(torch.cat(found, dim=1)[None], kernel.weights(query, key, Visibility()).detach())


def test_a_formula_alone_has_diagnostics_and_a_map(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = ATTENTIONS["softmax"].build(heads=1)
    tensors = [torch.randn(2, 1, 4, 2) for _ in range(3)]
    known = diagnostics.diagnose(kernel, lambda: kernel(*tensors, Visibility()))
    (drawn,) = attention_maps(kernel, lambda: kernel(*tensors, Visibility()))
    monkeypatch.setattr(kernel, "rule", None)
    found = diagnostics.diagnose(kernel, lambda: kernel(*tensors, Visibility()))
    assert known.keys() - found.keys() == {"attention_jacobian_norm"}
    assert found == {name: pytest.approx(known[name], rel=1e-5) for name in found}
    assert attention_maps(kernel, lambda: kernel(*tensors, Visibility())) == [drawn]


@pytest.mark.parametrize(("name", "count"), [("gated", 2), ("differential", 0), ("linformer", 0), ("s4d", 0)])
def test_parts_of_a_token_mixer_are_no_attention_of_a_layer(name: str, count: int) -> None:
    """The two softmaxes of differential attention would be shown as two layers."""
    config = replace(PRESETS["listops"]["quick"].run.model, attention=ATTENTIONS[name], layers=2, max_length=9)
    model = Classifier(config).eval()
    batch = torch.randint(1, 9, (2, 7)), torch.ones(2, 7, dtype=torch.bool)
    found = diagnostics.diagnose(model, lambda: model(*batch))
    assert len(found["token_similarity"]) == 2
    assert len(found.get("attention_norm", [])) == count
    assert len(attention_maps(model, lambda: model(*batch))) == count


@pytest.mark.parametrize(("config", "share"), [(DoublyNormalized(), 1.0), (Hybrid(u=0.25), 0.25)])
def test_no_mass_is_below_its_bound(config: AttentionConfig, share: float) -> None:
    each = cases("none")[1]
    sharp = replace(each, query=each.query * 9)
    size = attention_size(config.build(heads=2).double(), sharp.query, sharp.key, sharp.visibility)
    torch.testing.assert_close(size.key_mass_bound[:, 0], share / torch.tensor([6.0, 4.0], dtype=torch.float64))
    assert (size.smallest_key_mass >= size.key_mass_bound - 1e-12).all()
    softmax = attention_size(ATTENTIONS["softmax"].build(heads=2), sharp.query, sharp.key, sharp.visibility)
    assert (softmax.key_mass_bound == 0).all()


def test_what_is_not_defined_says_so() -> None:
    each = cases("none")[0]
    assert (
        attention_size(
            DoublyNormalized(iterations=2).build(heads=2), each.query, each.key, each.visibility
        ).jacobian_norm
        is None
    )


@pytest.mark.parametrize(("name", "order"), [each for each in RULED if "-" not in each[0]])
def test_sizes_of_a_long_sequence_make_no_full_matrix(name: str, order: str) -> None:
    query, key = (torch.randn(1, 2, 1200, 2) for _ in range(2))
    with Largest() as largest:
        attention_size(ATTENTIONS[name].build(heads=2), query, key, Visibility(order=order))
    assert largest.numbers < 2 * 1200 * 1200 / 2


def test_a_run_with_diagnostics_is_the_same_run_and_tells_more(tmp_path: Path) -> None:
    plain, _ = toy_fit(tmp_path / "plain", train=TRAIN)
    looked, _ = toy_fit(tmp_path / "looked", train=replace(TRAIN, diagnostics=True))
    assert same(plain, looked)
    lines = curve(tmp_path / "looked")
    told = [line.pop("diagnostics") for line in lines if "diagnostics" in line]
    assert lines == curve(tmp_path / "plain")
    assert len(told) == 3
    for each in told:
        assert each["hybrid_weight"] == pytest.approx([each["hybrid_weight"][0]])
        assert each["key_mass_bound"][0] == pytest.approx(each["hybrid_weight"][0] / 4)
        assert each["smallest_key_mass"][0] >= each["key_mass_bound"][0] - 1e-6
        assert set(each) == {
            "attention_norm", "attention_jacobian_norm", "smallest_key_mass", "key_mass_bound", "spectral_gap",
            "hybrid_weight",
        }  # fmt: skip
    assert not looked.attention.kernel._forward_hooks


@pytest.mark.parametrize(
    ("visibility", "has_gap"),
    [
        (Visibility(), True),
        (Visibility(order="causal"), True),
        (Visibility(order="causal", window=1), False),
        (Visibility(key_real=torch.tensor([[True, False, True, True]])), False),
        (Visibility(query_real=torch.tensor([[True] * 3 + [False]])), False),
        (Visibility(segments=torch.tensor([[0, 0, 1, 1]])), False),
    ],
)
def test_only_whole_self_attention_has_a_spectral_gap(visibility: Visibility, has_gap: bool) -> None:
    kernel = ATTENTIONS["softmax"].build(heads=1)
    tensors = [torch.randn(1, 1, 4, 2) for _ in range(3)]
    found = diagnostics.diagnose(kernel, lambda: kernel(*tensors, visibility))
    assert ("spectral_gap" in found) == has_gap
    module, hidden = MultiHeadAttention("softmax", dim=4, heads=2), torch.randn(1, 4, 4)
    for context in (None, hidden):
        found = diagnostics.diagnose(module, lambda context=context: module(hidden, visibility, context))  # type: ignore[misc]
        assert ("spectral_gap" in found) == (has_gap and context is None)
    assert not module._forward_pre_hooks


@pytest.mark.parametrize("size", [1e-23, 1.0, 1e19, 1e30])
def test_similarities_are_the_same_at_any_size(size: float) -> None:
    tokens = torch.randn(2, 5, 8)
    for measured in (mean_cosine, token_similarity, token_diversity):
        torch.testing.assert_close(measured(size * tokens), measured(tokens), rtol=1e-5, atol=1e-7)


def test_the_norm_of_one_large_head_is_in_the_mean() -> None:
    kernel = ATTENTIONS["exp"].build(heads=2)
    query, key = torch.ones(1, 2, 4, 4), torch.ones(1, 2, 4, 4)
    query[:, 1] *= 22
    found = diagnostics.diagnose(kernel, lambda: kernel(query, key, key, Visibility()))
    expected = (
        kernel.double().weights(query.double(), key.double(), Visibility()).square().sum(dim=(2, 3)).sqrt().mean()
    )
    assert found["attention_norm"] == pytest.approx([float(expected)], rel=1e-4)


def test_a_layer_without_a_number_keeps_its_place() -> None:
    """The weights of the first layer do not sum to 1."""
    layers = nn.ModuleList([MultiHeadAttention(name, dim=4, heads=2) for name in ("sigmoid", "softmax")])
    hidden = torch.randn(1, 4, 4)
    found = diagnostics.diagnose(layers, lambda: [layer(hidden) for layer in layers])
    assert found["spectral_gap"][0] is None
    assert found["spectral_gap"][1] is not None
    assert found["attention_jacobian_norm"][0] is None
    record = {"step": 1, "diagnostics": {"spectral_gap": [None, 0.5]}}
    assert list(_series(record)) == [("step", "training", 1), ("spectral gap", "layer 2", 0.5)]


def test_too_long_for_eigenvalues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnostics, "SPECTRUM_LENGTH", 3)
    kernel = ATTENTIONS["softmax"].build(heads=1)
    tensors = [torch.randn(1, 1, 4, 2) for _ in range(3)]
    found = diagnostics.diagnose(kernel, lambda: kernel(*tensors, Visibility(), None))
    assert "spectral_gap" not in found


def test_one_short_example_spoils_no_mean() -> None:
    kernel = ATTENTIONS["dnas"].build(heads=1)
    tensors = [torch.randn(3, 1, 4, 2) for _ in range(3)]
    real = torch.tensor([[True] * 4, [True, False, False, False], [False] * 4])
    visibility = Visibility(query_real=real, key_real=real)
    found = diagnostics.diagnose(kernel, lambda: kernel(*tensors, visibility))
    assert found
    assert all(math.isfinite(number) for values in found.values() for number in values)
    size = attention_size(kernel, tensors[0][:1], tensors[1][:1], Visibility())
    assert found["attention_norm"][0] < 3 * float(size.norm)

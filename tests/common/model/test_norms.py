"""Norms and depth: the formulas, padding, the future, what is refused."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from seqarena.common.attention import ATTENTIONS
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.model.bert.model import Bert, BertConfig
from seqarena.common.model.bounded import bounded_modules
from seqarena.common.model.deescalation import Deescalation, DeescalationState
from seqarena.common.model.norms import NORMS, norm_name
from seqarena.common.model.norms.admin import Admin
from seqarena.common.model.norms.b2t import BottomToTop
from seqarena.common.model.norms.base import LayerPosition, NormConfig, Sublayer, Sublayers
from seqarena.common.model.norms.deepnorm import DeepNorm
from seqarena.common.model.norms.deescalated import Deescalated
from seqarena.common.model.norms.peri import PeriNorm
from seqarena.common.model.norms.post import PostNorm
from seqarena.common.model.norms.pre import PreNorm
from seqarena.common.model.norms.rezero import ReZero
from seqarena.common.model.positions import AbsolutePositions, sinusoids
from seqarena.common.model.transformer import Encoder, Layer
from tests.common.model.configs import ShortEncoderConfig

CONFIG = ShortEncoderConfig(layers=2, dim=8, heads=2, ffn_dim=16, dropout=0.0, attention_dropout=0.0)

CAUSAL_NORMS: list[NormConfig] = [
    PostNorm(),
    PostNorm(alpha=0.5),
    PreNorm(),
    ReZero(),
    Admin(),
    BottomToTop(),
    DeepNorm(),
    PeriNorm(),
    *(Deescalated(mean=mean, where=where) for mean in ("prefix", "running")
      for where in ("ffn_stream", "ffn_branch", "block_output")),
]  # fmt: skip
EVERY_NORM = [*CAUSAL_NORMS, *(Deescalated(where=where) for where in ("ffn_stream", "ffn_branch", "block_output"))]


def encoder(**changes: object) -> Encoder:
    torch.manual_seed(3)
    made = Encoder(replace(CONFIG, **changes)).double()  # type: ignore[arg-type]
    for parameter in made.parameters():  # LayerNorms as they are after training, not ones and zeros
        parameter.data += 0.1 * torch.randn_like(parameter)
    return made


def test_post_norm_is_algorithm_1() -> None:
    torch.manual_seed(0)
    layer = Layer(replace(CONFIG, norm=PostNorm()), LayerPosition())
    x, visibility = torch.randn(2, 5, 8), Visibility()
    y2 = layer.residual.attention_norm(x + layer.attention(x, visibility))
    torch.testing.assert_close(layer(x, visibility), layer.residual.feed_forward_norm(y2 + layer.feed_forward(y2)))


def test_pre_norm_keeps_the_stream_and_ends_normalised() -> None:
    made = encoder(norm=PreNorm(), layers=1)
    x, layer = torch.randn(2, 5, 8, dtype=torch.float64), made.layers[0]
    y2 = x + layer.attention(layer.residual.attention_norm(x), Visibility())
    expected = y2 + layer.feed_forward(layer.residual.feed_forward_norm(y2))
    torch.testing.assert_close(made(x, Visibility()), made.final_norm(expected))
    assert isinstance(encoder(norm=PreNorm(final=False)).final_norm, nn.Identity)


def layer_norm(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(dim=-1, keepdim=True)) / x.var(dim=-1, keepdim=True, unbiased=False).add(1e-5).sqrt()


def expected_output(name: str, x: torch.Tensor, f: Sublayer, g: Sublayer, alpha: float) -> torch.Tensor:
    """Output of the second of 6 layers with untrained norms, written down from the papers."""
    if name == "pre":
        y = x + alpha * f(layer_norm(x))
        return y + g(layer_norm(y))
    if name == "peri":
        y = x + alpha * layer_norm(f(layer_norm(x)))
        return y + layer_norm(g(layer_norm(y)))
    if name == "rezero":  # the trained weight begins at alpha
        y = x + alpha * f(x)
        return y + alpha * g(y)
    weight = {"admin": (13 / math.log(13) - 1) ** 0.5, "deepnorm": 12**0.25}.get(name, 1.0)
    y = layer_norm(weight * x + alpha * f(x))
    return layer_norm(weight * y + g(y) + (x if name == "b2t" else 0))


@pytest.mark.parametrize("alpha", [0.3, 1.0])
@pytest.mark.parametrize("name", [name for name in NORMS if name != "deescalated"])
def test_every_norm_is_its_formula(name: str, alpha: float) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(8, 8, dtype=torch.float64), torch.randn(8, 8, dtype=torch.float64)
    x = torch.randn(2, 5, 8, dtype=torch.float64)

    def f(tokens: torch.Tensor) -> torch.Tensor:
        return torch.tanh(tokens @ a) + tokens.mean(dim=1, keepdim=True)

    def g(tokens: torch.Tensor) -> torch.Tensor:
        return torch.relu(tokens @ b)

    block = replace(NORMS[name], alpha=alpha).residual(8, 1e-5, LayerPosition(number=1, depth=6)).double()
    found, _ = block(x, Sublayers(f, g), Visibility())
    torch.testing.assert_close(found, expected_output(name, x, f, g, alpha), rtol=1e-6, atol=1e-6)


def test_a_norm_is_told_depth_and_layer_number() -> None:
    """Values of the published recipes at 60 layers, and of DeepNet's encoder-decoder."""
    deep = LayerPosition(depth=60)
    assert DeepNorm().stream_weight(deep) == pytest.approx(3.31, abs=5e-3)
    assert 1 / DeepNorm().initial_scale(deep) == pytest.approx(4.68, abs=5e-3)
    assert Admin().initial_omega(deep) == pytest.approx(4.92, abs=5e-3)
    assert BottomToTop().initial_scale(deep) == pytest.approx(0.129, abs=5e-4)
    encoder, decoder = LayerPosition(depth=6, decoder_depth=3), LayerPosition(depth=3, encoder_depth=6)
    assert DeepNorm().stream_weight(encoder) == pytest.approx(0.81 * (6**4 * 3) ** (1 / 16))
    assert DeepNorm().initial_scale(encoder) == pytest.approx(0.87 * (6**4 * 3) ** (-1 / 16))
    assert DeepNorm().stream_weight(decoder) == pytest.approx(9**0.25)
    assert DeepNorm().initial_scale(decoder) == pytest.approx(36**-0.25)
    assert (encoder.sublayers, decoder.sublayers) == (12, 9)
    layers = Encoder(replace(CONFIG, norm=PeriNorm())).layers
    assert [isinstance(layer.residual.input_norm, nn.LayerNorm) for layer in layers] == [True, False]  # type: ignore
    with pytest.raises(WrongUseError, match="alpha"):
        PostNorm(alpha=-1.0)


def test_initial_weights_are_scaled_once() -> None:
    """Also where a model draws its weights anew after its encoder has drawn them, as BERT does."""
    config = BertConfig(layers=2, dim=8, heads=2, ffn_dim=16, vocabulary=20, norm=PostNorm())
    for norm in (DeepNorm(), BottomToTop()):
        factor = norm.initial_scale(LayerPosition(depth=2))
        models = []
        for each in (PostNorm(), norm):
            torch.manual_seed(0)
            models.append(Bert(replace(config, norm=each)).encoder.layers[1])
        plain, scaled = models
        for name in ("attention.value", "attention.output", "feed_forward.0", "feed_forward.3"):
            found, expected = scaled.get_submodule(name).weight, plain.get_submodule(name).weight
            torch.testing.assert_close(found, factor * expected)
        for name in ("attention.query", "attention.key"):
            assert torch.equal(scaled.get_submodule(name).weight, plain.get_submodule(name).weight)


@pytest.mark.parametrize("where", ["ffn_stream", "ffn_branch", "block_output"])
def test_deescalation_stands_where_it_says(where: str) -> None:
    torch.manual_seed(0)
    layer = Layer(replace(CONFIG, norm=Deescalated(where=where, tau=0.6)), LayerPosition())  # type: ignore[arg-type]
    x, visibility = torch.randn(2, 5, 8), Visibility()

    def less(tokens: torch.Tensor) -> torch.Tensor:
        return tokens - 0.6 * tokens.mean(dim=1, keepdim=True)

    y2 = layer.residual.attention_norm(x + layer.attention(x, visibility))
    stream = less(y2) if where == "ffn_stream" else y2
    branch = less(y2) if where == "ffn_branch" else stream
    y4 = layer.residual.feed_forward_norm(stream + layer.feed_forward(branch))
    torch.testing.assert_close(layer(x, visibility), less(y4) if where == "block_output" else y4)


def test_means_are_over_real_tokens_sequence_prefix_and_running() -> None:
    x = torch.randn(2, 6, 3, dtype=torch.float64)
    real = torch.tensor([[True] * 6, [True, True, False, True, False, False]])
    for mean in ("sequence", "prefix", "running"):
        module = Deescalation(tau=0.7, learnable=False, mean=mean, leaky=False)  # type: ignore[arg-type]
        found, _ = module(x, Visibility(query_real=real, order="none" if mean == "sequence" else "causal"))
        for b in range(2):
            for i in range(6):
                seen = [j for j in range(6) if real[b, j] and (mean == "sequence" or j < i)]
                average = torch.stack([x[b, j] for j in seen]).mean(dim=0) if seen else torch.zeros(3)
                expected = x[b, i] - 0.7 * average if real[b, i] else x[b, i]
                torch.testing.assert_close(found[b, i], expected.double())


def test_a_running_mean_over_segments_is_the_prefix_mean_of_the_stream() -> None:
    x = torch.randn(2, 9, 3, dtype=torch.float64, requires_grad=True)
    visibility = Visibility(order="causal")
    whole, _ = Deescalation(tau=1.0, learnable=False, mean="prefix", leaky=False)(x, visibility)
    running = Deescalation(tau=1.0, learnable=False, mean="running", leaky=False)
    carried: DeescalationState | None = None
    parts = []
    for start in (0, 4, 5):
        stop = {0: 4, 4: 5, 5: 9}[start]
        part, carried = running(x[:, start:stop], visibility, carried)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)
    assert carried is not None
    assert not carried.total.requires_grad


@pytest.mark.parametrize("norm", EVERY_NORM, ids=norm_name)
@pytest.mark.parametrize("name", ["softmax", "dnas", "hnas", "x3"])
def test_adding_padding_moves_no_real_token(norm: NormConfig, name: str) -> None:
    made = encoder(norm=norm, attention=ATTENTIONS[name])
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    longer = torch.cat([x, 9 * torch.randn(2, 3, 8, dtype=torch.float64)], dim=1)
    real = (torch.arange(8) < 5).expand(2, -1)
    found = made(longer, Visibility(query_real=real, key_real=real))
    torch.testing.assert_close(found[:, :5], made(x, Visibility()), rtol=0, atol=1e-11)


@pytest.mark.parametrize("norm", CAUSAL_NORMS, ids=norm_name)
@pytest.mark.parametrize("name", ["softmax", "dnas", "hnas", "recency", "x3"])
def test_the_future_moves_no_earlier_token(norm: NormConfig, name: str) -> None:
    made = encoder(norm=norm, attention=ATTENTIONS[name])
    x = torch.randn(2, 6, 8, dtype=torch.float64)
    changed = x.clone()
    changed[:, 3:] += torch.randn(2, 3, 8)
    visibility = Visibility(order="causal")
    torch.testing.assert_close(made(changed, visibility)[:, :3], made(x, visibility)[:, :3], rtol=0, atol=1e-12)


def test_the_leaky_mean_leaks_and_must_be_asked_for() -> None:
    visibility = Visibility(order="causal")
    x = torch.randn(1, 4, 8, dtype=torch.float64)
    changed = x.clone()
    changed[:, 3] += 1
    leaky = encoder(norm=Deescalated(leaky=True))
    assert not torch.allclose(leaky(changed, visibility)[:, :3], leaky(x, visibility)[:, :3])
    with pytest.raises(WrongUseError, match="access to future tokens"):
        encoder(norm=Deescalated())(x, visibility)
    with pytest.raises(WrongUseError, match="access to future tokens"):
        replace(CONFIG, norm=Deescalated()).check(order="causal", mean_pooled=False)
    replace(CONFIG, norm=Deescalated(leaky=True)).check(order="causal", mean_pooled=False)
    with pytest.raises(WrongUseError, match="leaky applies only"):
        replace(CONFIG, norm=Deescalated(leaky=True)).check(order="none", mean_pooled=False)
    replace(CONFIG, norm=Deescalated(mean="running")).check(order="causal", mean_pooled=False)


def test_a_pooled_vector_of_exactly_zero_is_refused() -> None:
    norm = Deescalated(where="block_output")
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    assert encoder(norm=norm)(x, Visibility()).mean(dim=1).abs().max() < 1e-14
    with pytest.raises(WrongUseError, match="exactly 0"):
        replace(CONFIG, norm=norm).check(order="none", mean_pooled=True)
    replace(CONFIG, norm=norm).check(order="none", mean_pooled=False)
    replace(CONFIG, norm=replace(norm, tau=0.9)).check(order="none", mean_pooled=True)


def test_deescalation_removes_token_similarity_and_a_branch_does_not() -> None:
    """At initialisation, depth 80 (P3, Figs 1 and 5): replacing the stream works, feeding the branch only does not."""
    x = torch.randn(1, 16, 32)

    def similarity(norm: NormConfig) -> float:
        torch.manual_seed(0)
        config = ShortEncoderConfig(
            layers=80, dim=32, heads=4, ffn_dim=64, dropout=0.0, attention_dropout=0.0, norm=norm
        )
        with torch.no_grad():
            y = Encoder(config)(x, Visibility())
        return float(16 * y.mean(dim=1).square().sum() / y.square().sum())

    assert similarity(PostNorm()) > 0.9
    assert similarity(Deescalated(where="ffn_branch")) > 0.9
    assert similarity(Deescalated(where="ffn_stream")) < 0.2
    assert similarity(Deescalated(where="block_output")) < 1e-6


def test_a_learnable_tau_is_bounded_and_trains() -> None:
    made = encoder(norm=Deescalated(learnable=True))
    taus = dict(bounded_modules(made))
    assert len(taus) == CONFIG.layers
    made(torch.randn(2, 4, 8, dtype=torch.float64), Visibility()).square().sum().backward()
    for module in taus.values():
        assert module.raw.grad is not None
        for value, kept in ((3.0, 1.0), (-3.0, 0.0)):
            module.raw.data.fill_(value)
            module.clamp_()
            assert module().item() == pytest.approx(kept)
            assert module().item() > 0


def test_packed_segments_are_refused() -> None:
    visibility = Visibility(segments=torch.zeros(1, 4, dtype=torch.long))
    with pytest.raises(WrongUseError, match="packed segments"):
        encoder(norm=Deescalated())(torch.randn(1, 4, 8, dtype=torch.float64), visibility)


def test_impossible_models_are_refused() -> None:
    for changes in (
        {"heads": 3},
        {"heads": 0},
        {"layers": 0},
        {"norm_eps": -1.0},
        {"dropout": 1.0},
        {"attention": ATTENTIONS["recency"]},
    ):
        with pytest.raises(WrongUseError):
            replace(CONFIG, **changes).check(order="none", mean_pooled=False)  # type: ignore[arg-type]
    for tau in (0.0, 1.5):
        with pytest.raises(WrongUseError, match="tau"):
            Deescalated(tau=tau)
    assert [norm_name(norm) for norm in NORMS.values()] == list(NORMS)


def test_positions() -> None:
    table = sinusoids(5, 6)
    assert table[0].tolist() == [0, 1, 0, 1, 0, 1]
    assert table[3, 2].item() == pytest.approx(torch.sin(torch.tensor(3 / 10_000 ** (2 / 6))).item())
    assert sinusoids(3, 5).shape == (3, 5)
    fixed = AbsolutePositions("sinusoidal", length=4, dim=6, std=0.02)
    assert not list(fixed.parameters())
    torch.testing.assert_close(fixed(torch.zeros(1, 3, 6))[0], table[:3])
    learned = AbsolutePositions("learned", length=4, dim=6, std=0.02)
    assert learned(torch.zeros(1, 3, 6)).shape == (1, 3, 6)
    with pytest.raises(WrongUseError, match="longer than the 4 positions"):
        learned(torch.zeros(1, 5, 6))

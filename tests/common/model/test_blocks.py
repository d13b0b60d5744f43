"""Norms and depth: the formulas, padding, the future, what is refused."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from seqarena.common.attention import ATTENTIONS
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.model.blocks import NORMS, Deescalated, NormConfig, PostNorm, PreNorm, norm_name
from seqarena.common.model.bounded import bounded_modules
from seqarena.common.model.deescalation import Deescalation, DeescalationState
from seqarena.common.model.positions import AbsolutePositions, sinusoids
from seqarena.common.model.transformer import Encoder, EncoderConfig, Layer

CONFIG = EncoderConfig(layers=2, dim=8, heads=2, ffn_dim=16, dropout=0.0, attention_dropout=0.0)

CAUSAL_NORMS: list[NormConfig] = [
    PostNorm(),
    PreNorm(),
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
    layer = Layer(replace(CONFIG, norm=PostNorm()))
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


@pytest.mark.parametrize("where", ["ffn_stream", "ffn_branch", "block_output"])
def test_deescalation_stands_where_it_says(where: str) -> None:
    torch.manual_seed(0)
    layer = Layer(replace(CONFIG, norm=Deescalated(where=where, tau=0.6)))  # type: ignore[arg-type]
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
        config = EncoderConfig(layers=80, dim=32, heads=4, ffn_dim=64, dropout=0.0, attention_dropout=0.0, norm=norm)
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

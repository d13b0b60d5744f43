"""Transformer-XL against its formula, written out; its sizes; its memory; what it cannot see."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from seqarena.common.attention import ATTENTIONS, PAPERS, softmax
from seqarena.common.attention.base import Kernel
from seqarena.common.attention.doubly_normalized import DoublyNormalized, DoublyNormalizedKernel
from seqarena.common.attention.recording import recorded_implementations
from seqarena.common.errors import WrongUseError
from seqarena.common.model.norms import NORMS, norm_name
from seqarena.common.model.norms.base import NormConfig
from seqarena.common.model.norms.deescalated import Deescalated
from seqarena.common.model.norms.pre import PreNorm
from seqarena.pretraining.transformer_xl import (
    Distances,
    LayerMemory,
    Model,
    RelativeAttention,
    Shift,
    TransformerXL,
    sinusoids,
)
from seqarena.pretraining.wikitext import original
from tests.marks import in_extras

BASE = Model(vocabulary=267_735)
TINY = Model(vocabulary=11, layers=2, dim=8, heads=2, ffn_dim=12, dropout=0.0, cutoffs=(4, 7))
CAUSAL = [name for name, config in PAPERS.items() if "causal" in config.orders]
RUNNING = Deescalated(mean="running")


def made(attention: str = "softmax", norm: NormConfig = NORMS["post"]) -> TransformerXL:
    torch.manual_seed(0)
    model = TransformerXL(replace(TINY, attention=ATTENTIONS[attention], norm=norm)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10 if parameter.ndim > 1 else 1)
    return model


def words(length: int = 12, streams: int = 3) -> torch.Tensor:
    return torch.randint(11, (streams, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("model", "count"),
    [(BASE, 151_107_538), (replace(BASE, layers=60, ffn_dim=820), 200_987_338),
     (replace(BASE, layers=60, ffn_dim=820, shared_biases=False), 201_035_718)],
)  # fmt: skip
def test_sizes_are_the_published_ones(model: Model, count: int) -> None:
    model.check()
    with torch.device("meta"):
        assert sum(each.numel() for each in TransformerXL(model).parameters()) == count


def test_attention_is_its_four_terms_written_out() -> None:
    """A loop over pairs; queries of a segment behind a memory."""
    torch.manual_seed(2)
    attention = RelativeAttention(replace(TINY, projection_bias=False), ATTENTIONS["softmax"]).double()
    hidden, memory = torch.randn(2, 4, 8, dtype=torch.float64), torch.randn(2, 3, 8, dtype=torch.float64)
    u, v = torch.randn(2, 2, 4, dtype=torch.float64)
    table = sinusoids(torch.arange(6.0, -1.0, -1.0), 8).double()
    found, _, _ = attention(hidden, memory, Distances(table, u, v, None), None)
    source = torch.cat([memory, hidden], dim=1)
    heads = torch.zeros(2, 4, 2, 4, dtype=torch.float64)
    for batch in range(2):
        for head in range(2):
            part = slice(4 * head, 4 * head + 4)
            for i in range(4):
                q = attention.query.weight[part] @ hidden[batch, i]
                scores, values = [], []
                for j in range(3 + i + 1):
                    k = attention.key.weight[part] @ source[batch, j]
                    distance = float(3 + i - j)
                    rate = [10_000 ** (-2 * n / 8) for n in range(4)]
                    s = torch.tensor([distance * each for each in rate], dtype=torch.float64)
                    r = attention.position.weight[part] @ torch.cat([s.sin(), s.cos()])
                    scores.append((q @ k + q @ r + u[head] @ k + v[head] @ r) / 2)
                    values.append(attention.value.weight[part] @ source[batch, j])
                heads[batch, i, head] = torch.stack(scores).softmax(0) @ torch.stack(values)
    torch.testing.assert_close(found, attention.output(heads.flatten(2)), rtol=0, atol=1e-6)


def test_the_shift_is_that_of_the_published_code_where_it_counts() -> None:
    products = torch.randn(2, 3, 4, 7, dtype=torch.float64, requires_grad=True)
    padded = F.pad(products, (1, 0)).view(2, 3, 8, 4)[:, :, 1:].reshape(2, 3, 4, 7)
    seen = torch.ones(4, 7, dtype=torch.bool).tril(3)
    found = Shift.apply(products)
    assert torch.equal(found[..., seen], padded[..., seen])
    weights = torch.randn(2, 3, 4, 7, dtype=torch.float64) * seen
    ours, theirs = (torch.autograd.grad((each * weights).sum(), products)[0] for each in (found, padded))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("attention", CAUSAL)
@pytest.mark.parametrize("norm", [NORMS["post"], PreNorm(final=False), NORMS["peri"], RUNNING], ids=norm_name)
def test_segments_with_a_memory_are_one_long_pass(attention: str, norm: NormConfig) -> None:
    """Also the first segment, a short last one, and memories longer than a segment."""
    model, tokens = made(attention, norm), words()
    with torch.no_grad():
        whole, _ = model.read(tokens, model.empty_memory(3), memory_length=0)
        memory, parts = model.empty_memory(3), []
        for part in tokens.split([5, 1, 4, 2], dim=1):
            hidden, memory = model.read(part, memory, memory_length=12)
            parts.append(hidden)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-9)
    assert all(own.past.shape == (3, 12, 8) for own in memory)


class FormulaKernel(DoublyNormalizedKernel):
    """DNAS by its formula alone, as a user would write it."""

    rule = None


@dataclass(frozen=True, kw_only=True)
class FormulaAlone(DoublyNormalized):
    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        return FormulaKernel(self, dropout)


def test_the_state_of_a_variant_without_a_rule_is_kept_too() -> None:
    torch.manual_seed(0)
    model, tokens = TransformerXL(replace(TINY, attention=FormulaAlone())).double().eval(), words()
    with torch.no_grad():
        whole, _ = model.read(tokens, model.empty_memory(3), memory_length=0)
        memory, parts = model.empty_memory(3), []
        for part in tokens.split([5, 3, 4], dim=1):
            hidden, memory = model.read(part, memory, memory_length=12)
            parts.append(hidden)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("attention", "implementation"), [("softmax", "fused"), ("dnas", "blockwise")])
def test_the_implementation_is_recorded(attention: str, implementation: str) -> None:
    """With a state, which dnas has, or without one."""
    model = made(attention)
    with torch.no_grad(), recorded_implementations(model) as chosen:
        model.read(words(), model.empty_memory(3), memory_length=0)
    assert chosen == {implementation}


@pytest.mark.parametrize("attention", ["softmax", "dnas"])
def test_what_is_older_than_the_memory_is_forgotten(attention: str) -> None:
    model, tokens = made(attention), words()
    other = tokens.clone()
    other[:, :3] = (other[:, :3] + 1) % 11

    def last(sequence: torch.Tensor, kept: int) -> torch.Tensor:
        memory = model.empty_memory(3)
        for part in sequence.split(4, dim=1):
            hidden, memory = model.read(part, memory, memory_length=kept)
        return hidden

    assert not torch.allclose(last(tokens, 4), last(other, 4))  # through two layers it still came along
    for kept in (0, 12):
        assert torch.allclose(last(tokens, kept), last(other, kept)) == (kept == 0)


def test_the_memory_carries_no_gradient_and_is_cut_to_its_length() -> None:
    model, tokens = made("hnas", RUNNING), words()
    _, memory = model.read(tokens, model.empty_memory(3), memory_length=7)
    for own in memory:
        assert isinstance(own, LayerMemory)
        assert own.past.shape[1] == 7
        assert own.attention_state is not None
        assert own.attention_state.shape[2] == 7
        assert own.norm_state is not None
        assert not own.past.requires_grad
        assert not own.attention_state.requires_grad
        assert not own.norm_state.total.requires_grad


def test_clamped_distances_are_all_the_same() -> None:
    model, tokens = made(), words()
    with torch.no_grad():
        far, _ = model.read(tokens, model.empty_memory(3), memory_length=0)
        same, _ = model.read(tokens, model.empty_memory(3), memory_length=0, clamp=11)
        near, _ = model.read(tokens, model.empty_memory(3), memory_length=0, clamp=3)
    assert torch.equal(far, same)
    torch.testing.assert_close(far[:, :4], near[:, :4])
    assert not torch.allclose(far[:, 5:], near[:, 5:])


NORM_LIST = [
    *(norm for name, norm in NORMS.items() if name != "deescalated"),
    PreNorm(final=False),
    Deescalated(mean="prefix"),
    RUNNING,
]


@pytest.mark.parametrize("attention", CAUSAL)
def test_no_word_is_told_from_later_ones(attention: str) -> None:
    for norm in NORM_LIST if attention in ("softmax", "dnas") else NORM_LIST[:1]:
        model, tokens = made(attention, norm), words(6, 1)
        _, memory = model.read(words(4, 1), model.empty_memory(1), memory_length=4)
        before, _ = model.read(tokens, memory, memory_length=0)
        for time in range(5):
            later = tokens.clone()
            later[:, time + 1 :] = (later[:, time + 1 :] + 3) % 11
            after, _ = model.read(later, memory, memory_length=0)
            torch.testing.assert_close(after[:, : time + 1], before[:, : time + 1], rtol=0, atol=1e-12)


def test_the_mean_over_the_segment_lets_the_future_through() -> None:
    """As it must, or the test above could not fail; and nobody gets it without asking."""
    with pytest.raises(WrongUseError, match="gives a causal model access to future tokens"):
        replace(TINY, norm=NORMS["deescalated"]).check()
    model, tokens = made(norm=Deescalated(leaky=True)), words(6, 1)
    later = tokens.clone()
    later[:, -1] = (later[:, -1] + 3) % 11
    first, _ = model.read(tokens, model.empty_memory(1), memory_length=0)
    second, _ = model.read(later, model.empty_memory(1), memory_length=0)
    assert not torch.allclose(first[:, 0], second[:, 0])


def test_cutoffs_that_cut_nothing_are_refused() -> None:
    for cutoffs in ((4, 4), (7, 4), (0, 4), (4, 11)):
        with pytest.raises(WrongUseError, match="expected increasing numbers"):
            replace(TINY, cutoffs=cutoffs).check()


def test_a_step_gives_the_numbers_of_the_published_formulation() -> None:
    """Loss, memory and every gradient, of a segment behind a memory."""
    model, tokens = made(), words(9)
    memory = model.empty_memory(3)
    with torch.no_grad():
        _, memory = model.read(tokens[:, :4], memory, memory_length=4)
    segment, targets = tokens[:, 4:-1], tokens[:, 5:]
    hidden, following = model.read(segment, memory, memory_length=8)
    ours = model.softmax(hidden.flatten(0, 1), model.word.weight, targets.flatten()) / targets.numel()
    theirs, streams = original.step(model, segment, targets, [own.past.transpose(0, 1) for own in memory])
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    for own, stream in zip(following, streams, strict=True):
        torch.testing.assert_close(own.past, stream.transpose(0, 1), rtol=0, atol=1e-6)
    parameters = dict(model.named_parameters())
    gradients = [torch.autograd.grad(loss, list(parameters.values())) for loss in (ours, theirs)]
    for name, one, other in zip(parameters, *gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("attention", CAUSAL)
def test_every_word_sees_equally_many_whatever_the_segments(attention: str) -> None:
    """A window over one long pass, and over segments whose memory is just long enough for it."""
    model, tokens = made(attention), words()
    with torch.no_grad():
        whole, _ = model.read(tokens, model.empty_memory(3), memory_length=0, window=4)
        memory, parts = model.empty_memory(3), []
        for part in tokens.split([5, 1, 4, 2], dim=1):
            hidden, memory = model.read(part, memory, memory_length=3, window=4)
            parts.append(hidden)
        free, _ = model.read(tokens, model.empty_memory(3), memory_length=0)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-9)
    torch.testing.assert_close(whole[:, :4], free[:, :4])
    assert not torch.allclose(whole[:, 4:], free[:, 4:])


@pytest.mark.parametrize("attention", CAUSAL)
@pytest.mark.parametrize("norm", [NORMS["post"], PreNorm(), NORMS["peri"], RUNNING], ids=norm_name)
def test_keys_and_values_that_are_kept_are_those_that_would_be_made_anew(attention: str, norm: NormConfig) -> None:
    model, tokens = made(attention, norm), words()
    with torch.no_grad():
        memory, projected = model.empty_memory(3), model.projected_memory(3, 5 + 4, 6)
        for part in tokens.split([5, 1, 4, 2], dim=1):
            expected, memory = model.read(part, memory, memory_length=4, clamp=6, window=4)
            found, projected = model.read(part, projected, memory_length=4, clamp=6, window=4)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
            assert [own.length for own in projected] == [own.length for own in memory]


def test_the_published_formulation_scores_a_window_and_clamped_distances_alike() -> None:
    model, tokens = made(), words(13)
    own, theirs = model.empty_memory(3), [torch.zeros(0, 3, 8, dtype=torch.float64)] * 2
    with torch.no_grad():
        for at in range(0, 12, 4):
            segment, targets = tokens[:, at : at + 4], tokens[:, at + 1 : at + 5]
            hidden, own = model.read(segment, own, memory_length=6, clamp=5, window=6)
            losses = model.softmax.losses(hidden.flatten(0, 1), model.word.weight, targets.flatten())
            mean, streams = original.step(model, segment, targets, theirs, clamp=5, window=6)
            theirs = [each[-6:] for each in streams]
            assert float(losses.mean()) == pytest.approx(float(mean), abs=1e-6)


class Recorder(nn.Module):
    """In the place of a dropout: how many numbers it was given, each time."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[int] = []

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        self.given.append(numbers.numel())
        return numbers


def test_dropout_falls_where_the_published_code_has_it() -> None:
    """Embeddings, sinusoids, the last stream; each sublayer's output; inside the feed-forward."""
    model, tokens = made(), words(5)
    recorders = [Recorder() for _ in range(5)]
    model.dropout = recorders[0]
    for number, layer in enumerate(model.layers):
        layer.dropout, layer.feed_forward[2] = recorders[1 + 2 * number : 3 + 2 * number]
    model.read(tokens, model.empty_memory(3), memory_length=5)
    ours = [sorted(each.given) for each in recorders]
    for each in recorders:
        each.given.clear()
    original.step(model, tokens, tokens, [torch.zeros(0, 3, 8, dtype=torch.float64)] * 2)
    assert ours == [sorted(each.given) for each in recorders]
    assert ours[0] == [5 * 8, 3 * 5 * 8, 3 * 5 * 8]


def test_initial_values_are_the_published_ones() -> None:
    torch.manual_seed(0)
    model = TransformerXL(Model(vocabulary=4_000, layers=2, dim=128, heads=4, ffn_dim=256, cutoffs=(1_000,)))
    for name, parameter in model.named_parameters():
        is_gain = "_norm.weight" in name
        if (name.endswith("bias") and parameter.ndim == 1) or name == "softmax.cluster_bias":
            assert not parameter.any(), name
        else:
            assert parameter.mean().item() == pytest.approx(float(is_gain), abs=0.01), name
            assert parameter.std().item() == pytest.approx(0.02, rel=0.25), name


def test_layers_may_have_biases_of_their_own() -> None:
    torch.manual_seed(0)
    model, tokens = TransformerXL(replace(TINY, shared_biases=False)), words()
    hidden, _ = model.read(tokens, model.empty_memory(3), memory_length=0)
    hidden.square().sum().backward()
    for bias in (model.content_bias, model.position_bias):
        assert bias.shape[0] == 2
        assert (bias.grad.abs().amax(dim=(1, 2)) > 0).all()


def test_half_precision_goes_to_the_fused_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained biases in float32 must not make queries wide, nor an empty memory keys."""
    seen: list[set[torch.dtype]] = []
    real = softmax.biased_softmax

    def watched(*given: object) -> torch.Tensor:
        seen.append({each.dtype for each in given if isinstance(each, torch.Tensor)})
        return real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(softmax, "biased_softmax", watched)
    model, tokens = made().float(), words()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        memory = model.projected_memory(3, 12, None)
        for part in tokens.split(4, dim=1):
            _, memory = model.read(part, memory, memory_length=8)
    assert seen == [{torch.bfloat16}] * 6


def advantage(norm: NormConfig, attention: str = "softmax", *, kinds: int = 8, length: int = 8) -> float:
    """By how many nats a trained model is better than chance at tokens that follow no rule, fresh at every step."""
    torch.manual_seed(0)
    config = replace(TINY, vocabulary=kinds, cutoffs=(kinds // 2,), dim=32, ffn_dim=64, norm=norm)
    model = TransformerXL(replace(config, attention=ATTENTIONS[attention]))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def loss(streams: int) -> torch.Tensor:
        drawn = torch.randint(kinds, (streams, length + 1))
        hidden, _ = model.read(drawn[:, :-1], model.empty_memory(streams), memory_length=0)
        found: torch.Tensor = model.softmax(hidden.flatten(0, 1), model.word.weight, drawn[:, 1:].flatten())
        return found / drawn[:, 1:].numel()

    for _ in range(250):
        optimizer.zero_grad()
        loss(32).backward()
        optimizer.step()
    with torch.no_grad():
        return math.log(kinds) - float(loss(2_000))


@pytest.mark.parametrize(
    ("norm", "attention"),
    [(RUNNING, "softmax"), *in_extras((NORMS["post"], "dnas"), (Deescalated(mean="prefix"), "x3"))],
    ids=lambda each: each if isinstance(each, str) else norm_name(each),
)  # fmt: skip
@pytest.mark.usefixtures("unchecked_shapes")
def test_no_causal_form_learns_what_cannot_be_known(norm: NormConfig, attention: str) -> None:
    assert advantage(norm, attention) < 0.005


@pytest.mark.usefixtures("unchecked_shapes")
def test_the_mean_over_the_segment_learns_it_by_looking_ahead() -> None:
    assert advantage(Deescalated(leaky=True)) > 0.1

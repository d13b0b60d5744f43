"""Token mixers of other papers against their formulas, and where they stand in a model."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from seqarena.common.attention import ATTENTIONS, attend
from seqarena.common.attention.mixer import LayerShape, MixerConfig
from seqarena.common.attention.module import MultiHeadAttention, self_attention
from seqarena.common.attention.rivals.differential import Differential
from seqarena.common.attention.rivals.gated import Gated
from seqarena.common.attention.rivals.linformer import Linformer
from seqarena.common.attention.rivals.state_space import StateSpace
from seqarena.common.attention.softmax import Softmax
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from seqarena.common.model.bert.start import replace_attention
from seqarena.lra.model import Classifier
from seqarena.lra.presets import PRESETS

SHAPE = LayerShape(dim=8, heads=2, width=8, length=9, number=2)
MIXERS = [name for name, config in ATTENTIONS.items() if isinstance(config, MixerConfig)]


def made(config: MixerConfig) -> nn.Module:
    return self_attention(config, SHAPE).double().eval()


def projected(attention: MultiHeadAttention, hidden: torch.Tensor) -> list[torch.Tensor]:
    """Returns queries, keys and values of each head; B H T D."""
    return [
        layer(hidden).view(*hidden.shape[:2], 2, 4).transpose(1, 2)
        for layer in (attention.query, attention.key, attention.value)
    ]


@pytest.mark.parametrize("order", ["none", "causal"])
def test_differential(order: str) -> None:
    mixer, hidden = made(Differential()), torch.randn(2, 5, 8, dtype=torch.float64)
    query, key, value = projected(mixer.attention, hidden)
    hidden_pairs = torch.ones(5, 5).triu(1).bool() if order == "causal" else torch.zeros(5, 5).bool()
    maps = [
        (query[..., half] @ key[..., half].mT / 2**0.5).masked_fill(hidden_pairs, -torch.inf).softmax(dim=-1)
        for half in (slice(0, 2), slice(2, 4))
    ]
    initial = 0.8 - 0.6 * math.exp(-0.3 * 2)
    a, b, c, d = mixer.vectors
    heads = (maps[0] - (torch.exp(a @ b) - torch.exp(c @ d) + initial) * maps[1]) @ value
    heads = heads / (heads.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt() * (1 - initial)
    expected = mixer.attention.output(heads.transpose(1, 2).flatten(2))
    torch.testing.assert_close(mixer(hidden, Visibility(order=order)), expected)


def test_gated() -> None:
    mixer, hidden = made(Gated()), torch.randn(2, 5, 8, dtype=torch.float64)
    query, key, value = projected(mixer.attention, hidden)
    heads = (query @ key.mT / 2).softmax(dim=-1) @ value
    gates = mixer.gate(hidden).sigmoid()
    expected = mixer.attention.output(heads.transpose(1, 2).flatten(2) * gates)
    torch.testing.assert_close(mixer(hidden, Visibility()), expected)


def test_linformer() -> None:
    mixer, hidden = made(Linformer(rank=3)), torch.randn(2, 5, 8, dtype=torch.float64)
    query, key, value = projected(mixer.attention, hidden)
    along = mixer.projection[:, :, :5]
    heads = (query @ (along @ key).mT / 2).softmax(dim=-1) @ (along @ value)
    expected = mixer.attention.output(heads.transpose(1, 2).flatten(2))
    torch.testing.assert_close(mixer(hidden, Visibility()), expected)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_state_space_is_its_recurrence(bidirectional: bool) -> None:
    """x_t = exp(dt A) x_(t-1) + (exp(dt A) - 1) / A u_t, y_t = 2 Re C x_t + D u_t, step by step."""
    mixer = made(StateSpace(state=6, bidirectional=bidirectional))
    hidden = torch.randn(2, 7, 8, dtype=torch.float64)
    poles = torch.complex(-mixer.log_decay.exp(), mixer.frequency).view(8, 3)
    step = mixer.log_step.exp()[:, None]
    maps = torch.view_as_complex(mixer.output_map.view(-1, 8, 3, 2))
    expected = hidden * mixer.skip
    for direction, output_map in enumerate(maps):
        state = torch.zeros(2, 8, 3, dtype=torch.complex128)
        for t in range(7) if direction == 0 else range(6, -1, -1):
            if direction == 1:  # the second filter begins one step away
                expected[:, t] = expected[:, t] + 2 * (state * output_map).sum(dim=-1).real
            state = (step * poles).exp() * state + ((step * poles).exp() - 1) / poles * hidden[:, t, :, None]
            if direction == 0:
                expected[:, t] = expected[:, t] + 2 * (state * output_map).sum(dim=-1).real
    expected = nn.functional.glu(mixer.output(nn.functional.gelu(expected)), dim=-1)
    torch.testing.assert_close(mixer(hidden, Visibility()), expected)


@pytest.mark.unhooked
@pytest.mark.parametrize("name", MIXERS)
def test_one_graph_of_any_length(name: str) -> None:
    mixer, hidden = made(ATTENTIONS[name]), torch.randn(2, 9, 8, dtype=torch.float64)
    torch.compiler.reset()
    compiled = torch.compile(mixer, fullgraph=True, backend="eager", dynamic=True)
    for length in (5, 9):
        given = hidden[:, :length], Visibility()
        torch.testing.assert_close(compiled(*given), mixer(*given))


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.filterwarnings("error")  # a slow form, or half precision where it was not meant
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    """Under autocast, and with weights in half precision."""
    mixer, hidden = self_attention(ATTENTIONS[name], SHAPE).eval(), torch.randn(2, 5, 8)
    expected = mixer(hidden, Visibility())
    with torch.autocast("cpu", dtype=dtype):
        found = mixer(hidden, Visibility())
    tolerance = 8 * torch.finfo(dtype).eps * float(expected.detach().abs().max())
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=tolerance)
    found = mixer.to(dtype)(hidden.to(dtype), Visibility())
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=2 * tolerance)


@pytest.mark.parametrize("name", MIXERS)
def test_the_other_weights_begin_as_under_softmax(name: str) -> None:
    def build(which: str) -> dict[str, torch.Tensor]:
        torch.manual_seed(1)
        model = replace(PRESETS["listops"]["quick"].run.model, attention=ATTENTIONS[which], layers=2, max_length=9)
        return Classifier(model).state_dict()

    softmax, mixer = build("softmax"), build(name)
    shared = [key for key in softmax if ".attention." not in key]
    assert len(shared) > 10
    assert all(torch.equal(mixer[key], softmax[key]) for key in shared)


@pytest.mark.parametrize("name", MIXERS)
def test_uses_that_need_queries_and_keys_are_refused(name: str) -> None:
    tokens = torch.randn(1, 2, 3, 4)
    with pytest.raises(WrongUseError, match="token mixer"):
        attend(name, tokens, tokens, tokens)
    with pytest.raises(WrongUseError, match="token mixer"):
        MultiHeadAttention(name, dim=8, heads=2)


@pytest.mark.parametrize("name", MIXERS)
def test_padding_changes_nothing_and_other_options_are_refused(name: str) -> None:
    config = ATTENTIONS[name]
    assert isinstance(config, MixerConfig)
    mixer, hidden = made(config), torch.randn(2, 6, 8, dtype=torch.float64)
    real = torch.arange(6).expand(2, -1) < 4
    found = mixer(hidden.masked_fill(~real[..., None], torch.nan), Visibility(query_real=real, key_real=real))
    torch.testing.assert_close(found[:, :4], mixer(hidden[:, :4], Visibility()))
    assert not found[:, 4:].any()
    for option in ("segments", "window"):
        if option not in config.supports:
            given = {"segments": torch.zeros(2, 6, dtype=torch.long)} if option == "segments" else {"window": 2}
            with pytest.raises(WrongUseError, match=f"does not support {option}"):
                mixer(hidden, Visibility(order="causal" if option == "window" else "none", **given))  # type: ignore[arg-type]


def test_a_mixer_does_not_replace_the_attention_of_a_checkpoint() -> None:
    with pytest.raises(WrongUseError, match="cannot replace the checkpoint's softmax"):
        replace_attention(Softmax(), Gated(), "attention", ["model.attention"])
    assert replace_attention(Gated(), Gated(), "attention", ["model.attention"]) == Gated()

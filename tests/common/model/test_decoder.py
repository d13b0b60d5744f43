"""A decoder sees no future, and step by step it gives what it gives whole, whichever beams go on."""

from dataclasses import replace

import pytest
import torch

from seqarena.common.attention import ATTENTIONS, PAPERS
from seqarena.common.attention.visibility import Visibility
from seqarena.common.model.norms import NORMS, norm_name
from seqarena.common.model.norms.base import NormConfig
from seqarena.common.model.norms.deescalated import Deescalated
from seqarena.common.model.transformer import Decoder
from tests.common.model.configs import ShortEncoderConfig

SMALL = ShortEncoderConfig(layers=2, dim=8, heads=2, ffn_dim=12, dropout=0.0, attention_dropout=0.0)
SOURCES, TIME, BEAMS = 3, 5, 3
OWN = [name for name, config in PAPERS.items() if "causal" in config.orders]
CROSS = [name for name, config in PAPERS.items() if "ordered_queries" in config.orders]
PLACES = [*((name, "softmax") for name in OWN), *(("softmax", name) for name in CROSS), ("dnas", "hnas")]
EVERY_NORM = [*NORMS.values(), Deescalated(where="block_output", tau=0.5), Deescalated(where="ffn_branch")]


def decoder(own: str = "softmax", cross: str = "softmax", norm: NormConfig = NORMS["pre"]) -> Decoder:
    torch.manual_seed(0)
    config = replace(SMALL, norm=norm)
    made = Decoder(config, layers=2, attention=ATTENTIONS[own], cross=ATTENTIONS[cross])
    return made.double().eval()


def sources() -> tuple[torch.Tensor, torch.Tensor]:
    real = torch.arange(6) < torch.tensor([[6], [2], [4]])
    return torch.randn(SOURCES, 6, 8, dtype=torch.float64), real


@pytest.mark.parametrize(
    ("own", "cross", "norm"),
    [*((own, cross, NORMS["pre"]) for own, cross in PLACES), *(("dnas", "x3", norm) for norm in EVERY_NORM)],
    ids=lambda each: each if isinstance(each, str) else norm_name(each),
)
def test_step_by_step_is_whole_whichever_beams_go_on(own: str, cross: str, norm: NormConfig) -> None:
    model = decoder(own, cross, norm)
    context, real = sources()
    choices = torch.Generator().manual_seed(1)
    memory = model.begin(context, real, steps=TIME, beams=BEAMS)
    streams = torch.zeros(SOURCES, 1, 0, 8, dtype=torch.float64)  # B W T C
    for time in range(TIME):
        if time == 3:  # the source in the middle is done
            memory.keep(torch.tensor([0, 2]))
            context, real, streams = context[[0, 2]], real[[0, 2]], streams[[0, 2]]
        beams = streams.shape[1]
        token = torch.randn(len(real), beams, 8, dtype=torch.float64, generator=choices)
        streams = torch.cat([streams, token[:, :, None]], dim=2)
        with torch.no_grad():
            found = model.step(token, memory)
            whole = model(
                streams.flatten(0, 1), Visibility(order="causal"),
                context.repeat_interleave(beams, dim=0), real.repeat_interleave(beams, dim=0),
            )  # fmt: skip
        torch.testing.assert_close(found, whole[:, -1].view_as(found), rtol=0, atol=1e-12)
        parents = torch.randint(beams, (len(real), BEAMS), generator=choices)
        memory.descend(parents)
        streams = streams.gather(1, parents[:, :, None, None].expand(-1, -1, time + 1, 8))


@pytest.mark.parametrize(("own", "cross"), PLACES)
def test_nothing_of_the_future_and_nothing_of_padding_comes_through(own: str, cross: str) -> None:
    model = decoder(own, cross, NORMS["deescalated"])
    context, real = sources()
    target = torch.randn(SOURCES, TIME, 8, dtype=torch.float64, requires_grad=True)
    context.requires_grad_()
    output = model(target, Visibility(order="causal"), context, real)
    for time in range(TIME):
        of_target, of_context = torch.autograd.grad(
            output[:, time].square().sum(), [target, context], retain_graph=True
        )
        assert not of_target[:, time + 1 :].any()
        assert of_target[:, time].any()
        assert not of_context[~real].any()
        assert of_context[real].any()


@pytest.mark.parametrize("name", ["dnas", "hnas"])
def test_prefix_normalised_attention_to_the_source_is_uniform_at_the_first_step(name: str) -> None:
    """Every key's mass is the first query's own: dnas weighs all alike whatever the scores, hnas half of it."""
    kernel = ATTENTIONS[name].build(heads=2).double()
    query, key = torch.randn(2, 2, 3, 4, dtype=torch.float64), 5 * torch.randn(2, 2, 6, 4, dtype=torch.float64)
    weights = kernel.weights(query, key, Visibility(order="ordered_queries"))
    alike = weights[:, :, 0] if name == "dnas" else 2 * weights[:, :, 0] - (query @ key.mT / 2).softmax(-1)[:, :, 0]
    torch.testing.assert_close(alike, torch.full_like(alike, 1 / 6))
    assert weights[:, :, 1].std() > 0.01


def test_keys_and_values_of_sources_are_shared_and_never_copied() -> None:
    model = decoder()
    context, real = sources()
    memory = model.begin(context, real, steps=TIME, beams=BEAMS)
    places = [layer.source_key.data_ptr() for layer in memory.layers]
    for _ in range(2):
        beams = memory.ancestry.shape[1]
        model.step(torch.randn(SOURCES, beams, 8, dtype=torch.float64), memory)
        held = [layer.key.data_ptr() for layer in memory.layers if layer.key is not None]
        memory.descend(torch.zeros(SOURCES, BEAMS, dtype=torch.long))
        assert [layer.key.data_ptr() for layer in memory.layers if layer.key is not None] == held
    assert [layer.source_key.data_ptr() for layer in memory.layers] == places
    assert all(layer.source_key.shape[:3] == (SOURCES, 2, 6) for layer in memory.layers)

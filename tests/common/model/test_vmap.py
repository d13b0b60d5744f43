"""Several seeds of a model at once, by ``torch.vmap``: each seed's loss and gradients are those of its own model."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

from seqarena.common.attention import ATTENTIONS
from seqarena.common.attention.base import AttentionConfig
from seqarena.common.attention.visibility import Order, Visibility
from seqarena.common.model.norms.base import NormConfig
from seqarena.common.model.transformer import Encoder
from tests.common.model.test_norms import CONFIG, EVERY_NORM

REAL = torch.ones(3, 7, dtype=torch.bool)
REAL[1, 4:] = False  # an example is padded
Gradients = dict[str, Tensor]


def encoders(attention: AttentionConfig, norm: NormConfig) -> list[Encoder]:
    """The models of three seeds."""
    found = []
    for seed in range(3):
        torch.manual_seed(seed)
        found.append(Encoder(replace(CONFIG, attention=attention, norm=norm)).double())
    return found


def check(attention: AttentionConfig, norm: NormConfig, order: Order) -> None:
    models, inputs = encoders(attention, norm), torch.randn(3, 7, 8, dtype=torch.float64)
    visibility = Visibility(query_real=REAL, key_real=REAL) if order == "none" else Visibility(order=order)

    def loss(parameters: Gradients, buffers: Gradients) -> Tensor:
        output: Tensor = functional_call(models[0], (parameters, buffers), (inputs, visibility))
        return output.square().sum()

    parameters, buffers = stack_module_state(models)  # type: ignore[arg-type]
    gradients, losses = vmap(grad_and_value(loss), randomness="different")(parameters, buffers)
    for number, model in enumerate(models):
        alone = model(inputs, visibility).square().sum()
        torch.testing.assert_close(losses[number], alone)
        names, own = zip(*model.named_parameters(), strict=True)
        for name, gradient in zip(names, torch.autograd.grad(alone, own, materialize_grads=True), strict=True):
            torch.testing.assert_close(gradients[name][number], gradient, msg=lambda told, name=name: f"{name}: {told}")


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # PyTorch's own attention, called by linformer
@pytest.mark.parametrize("name", ATTENTIONS)
def test_every_variant_trains_several_seeds_at_once(name: str) -> None:
    check(ATTENTIONS[name], CONFIG.norm, ATTENTIONS[name].orders[0])


@pytest.mark.parametrize("norm", EVERY_NORM, ids=str)
def test_every_norm_trains_several_seeds_at_once(norm: NormConfig) -> None:
    check(ATTENTIONS["hnas"], norm, "none")

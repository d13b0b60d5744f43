from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from seqarena.common.attention import Visibility, find_attention
from seqarena.common.attention.mixer import LayerShape
from seqarena.common.attention.module import MultiHeadAttention, can_be_joint, self_attention
from seqarena.common.model.norms.base import LayerPosition, Residual
from seqarena.common.model.norms.post import PostNorm, PostNormResidual
from seqarena.common.model.transformer import Encoder, EncoderConfig
from seqarena.common.training.half_weights import HalfWeights, linear_weights
from seqarena.common.training.processes import bare_model
from seqarena.common.training.runtime import make_accelerator
from seqarena.common.training.step import Stepper
from tests.common.runs.toy import OPTIM, ToyBatches, ToyModel, toy_loss


class Model(nn.Module):
    """A layer of attention, two layers with one table, and a head that is called twice."""

    def __init__(self, variant: str) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(variant, dim=8, heads=2, dropout=0.2)
        self.norm = nn.LayerNorm(8)
        self.table = nn.Embedding(5, 8)
        self.tied = nn.Linear(8, 5, bias=False)
        self.tied.weight = self.table.weight
        self.head = nn.Linear(8, 8)
        self.unused = nn.Linear(8, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)

    def forward(self, tokens: torch.Tensor, *, real: torch.Tensor) -> torch.Tensor:
        hidden = self.attention(self.norm(self.table(tokens)), Visibility(query_real=real, key_real=real))
        return self.tied(self.frozen(self.head(self.head(hidden))))


NAMES = [
    *(f"attention.{layer}.{part}" for layer in ("query", "key", "value", "output") for part in ("weight", "bias")),
    "head.weight", "head.bias", "unused.weight", "unused.bias",
]  # fmt: skip


class Conversions(TorchDispatchMode):
    """Counts the operators that convert a whole parameter, or a gradient of one."""

    def __init__(self, shapes: set[torch.Size]) -> None:
        super().__init__()
        self.shapes, self.single, self.joint, self.concatenated = shapes, 0, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.single += func is torch.ops.aten._to_copy.default and args[0].shape in self.shapes
        self.joint += func is torch.ops.aten._foreach_copy_.default
        self.concatenated += func is torch.ops.aten.cat.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("variant", ["softmax", "dnas", "hnas", "x3"])
@pytest.mark.parametrize("is_joint", [False, True])
def test_outputs_and_gradients_have_the_bits_of_autocast(
    variant: str, is_joint: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of joint products of queries, keys and values, as on a GPU."""
    if is_joint:
        monkeypatch.setattr("seqarena.common.attention.module.are_joint", are_joint)
    torch.manual_seed(0)
    model = Model(variant)
    tokens, real = torch.randint(5, (3, 6)), torch.arange(6) < torch.tensor([[6], [4], [1]])
    found = []
    for called in (model, HalfWeights(model)):
        model.zero_grad()
        torch.manual_seed(1)
        counted = Conversions({torch.Size([8, 8])})
        with counted, torch.autocast("cpu", torch.bfloat16):
            output = called(tokens, real=real)
            output.float().square().sum().backward()
        found.append((output, [parameter.grad for parameter in model.parameters()], counted))
    (output, gradients, separate), (same_output, same_gradients, together) = found
    assert output.dtype == torch.bfloat16
    assert torch.equal(output, same_output)
    for gradient, same in zip(gradients, same_gradients, strict=True):
        assert (gradient is None) == (same is None)
        assert gradient is None or torch.equal(gradient, same)
    # Five weights and their gradients; a joint product has three in one of another shape; the frozen one stays.
    assert (separate.single, together.single, together.joint) == (5 if is_joint else 11, 1, 2)
    assert (separate.concatenated, together.concatenated) == (2 if is_joint else 0, 0)


def are_joint(_: torch.Tensor, layers: Sequence[nn.Linear]) -> bool:
    """As on a GPU."""
    return len(layers) > 1 and can_be_joint(layers)


def test_layers_that_are_applied_several_times_keep_their_weights() -> None:
    """The gradients of their joint products would be added in half precision."""

    class Stack(EncoderConfig):
        longest = 9

    class Repeated(Stack):
        distinct_layers = 2

    assert linear_weights(Encoder(Stack(layers=4, dim=8, heads=2, ffn_dim=8))) != []
    assert linear_weights(Encoder(Repeated(layers=4, dim=8, heads=2, ffn_dim=8))) == []


def test_weights_of_plain_linear_layers_are_converted() -> None:
    assert linear_weights(Model("softmax")) == NAMES
    assert linear_weights(Model("softmax").double()) == []
    assert linear_weights(nn.Linear(2, 2)) == ["weight", "bias"]


def test_a_norm_of_the_users_keeps_its_weights() -> None:
    class Gate(PostNormResidual):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.gate = nn.Linear(8, 8)

    class Gated(PostNorm):
        def residual(self, dim: int, eps: float, position: LayerPosition) -> Residual:
            return Gate(self, dim, eps, position)

        def final_norm(self, dim: int, eps: float) -> nn.Module:
            return nn.Sequential(nn.Linear(dim, dim), nn.LayerNorm(dim))

    class Stack(EncoderConfig):
        longest = 9

    plain, gated = (
        linear_weights(Encoder(Stack(layers=2, dim=8, heads=2, ffn_dim=8, norm=norm))) for norm in (PostNorm(), Gated())
    )
    assert gated == plain != []


@pytest.mark.parametrize("variant", ["gated", "s4d", "linformer"])
def test_a_mechanism_of_its_own_keeps_its_weights(variant: str) -> None:
    """Its code may turn autocast off."""
    mixer = self_attention(find_attention(variant), LayerShape(dim=8, heads=2, width=8, length=4))
    assert linear_weights(nn.Sequential(mixer, nn.Linear(2, 2))) == ["1.weight", "1.bias"]


@pytest.mark.parametrize(
    ("precision", "processes", "is_wrapped"), [("bf16", 1, True), ("no", 1, False), ("bf16", 2, False)]
)
def test_a_process_alone_in_half_precision_converts_them_together(
    precision: str, processes: int, is_wrapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several processes exchange the gradients of one layer while those of another are computed."""
    accelerator = make_accelerator("float32")
    monkeypatch.setattr(type(accelerator), "mixed_precision", precision)
    monkeypatch.setattr(
        accelerator, "autocast", lambda: torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")
    )
    model = ToyModel()
    with monkeypatch.context() as patch:
        patch.setattr(type(accelerator), "num_processes", processes)
        patch.setattr(accelerator, "prepare", lambda *given: given)
        stepper = Stepper(model, toy_loss, OPTIM, accelerator, steps=9, seed=0)
    assert isinstance(stepper.trained, HalfWeights) == is_wrapped
    assert bare_model(stepper.trained) is model
    before = model.attention.query.weight.clone()
    stepper.take(stepper.share(ToyBatches()[0]), 0)
    assert not torch.equal(model.attention.query.weight, before)

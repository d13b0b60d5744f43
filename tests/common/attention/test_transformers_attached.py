"""Kernels attached to models of the transformers library: trained, saved and loaded with them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from seqarena.common.attention import reference
from seqarena.common.attention.base import AttentionConfig, Kernel
from seqarena.common.errors import BadDataError, WrongUseError
from seqarena.common.model.bounded import bounded_modules
from seqarena.common.training.optim import Optim, Schedule
from tests.common.attention.library_models import TINY, made, tokens

pytestmark = pytest.mark.extras


@dataclass(frozen=True, kw_only=True)
class Scaled(AttentionConfig):
    """Softmax weights times a trained number of each head."""

    start: float = 1.0

    def build(self, heads: int, dropout: float = 0.0) -> Kernel:
        return ScaledKernel(self, heads, dropout)


class ScaledKernel(Kernel):
    def __init__(self, config: Scaled, heads: int, dropout: float) -> None:
        super().__init__(config, dropout)
        self.scale = nn.Parameter(torch.full((heads, 1, 1), config.start))

    def normalize(self, scores: Tensor, visible: Tensor, visibility: Any, state: Any) -> tuple[Tensor, None]:
        return self.scale * reference.softmax(scores, visible), None


SCALED = f"{__name__}:Scaled"


@pytest.fixture
def scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers ``SCALED``, a variant with a trained parameter that is not part of the project."""
    from transformers import AttentionInterface, AttentionMaskInterface  # noqa: PLC0415

    from seqarena.common.attention.transformers import register  # noqa: PLC0415

    for interface in (AttentionInterface, AttentionMaskInterface):
        monkeypatch.setattr(interface, "_global_mapping", dict(interface._global_mapping))
    register(external=(SCALED,))


@pytest.mark.usefixtures("scaled")
def test_parameters_of_any_variant_are_trained_saved_and_loaded(tmp_path: Path) -> None:
    from transformers import BertModel  # noqa: PLC0415

    from seqarena.common.attention.transformers import attach, load, optimizer_of, save  # noqa: PLC0415

    model = made("Bert", SCALED, attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0)
    with pytest.raises(WrongUseError, match=rf"'{SCALED}' has parameters, which this model lacks; call attach"):
        model(tokens())
    attach(model, start=0.5).float()
    scales = {name: each for name, each in model.named_parameters() if name.endswith("kernel.scale")}
    assert len(scales) == 2
    assert all(each.shape == (3, 1, 1) for each in scales.values())
    whole = made("Bert", "softmax").float()
    assert (model(tokens()).last_hidden_state - whole(tokens()).last_hidden_state).abs().max() > 1e-3
    optimizer = optimizer_of(model, Optim(lr=1e-2))
    assert {id(each) for each in scales.values()} <= {
        id(each) for group in optimizer.param_groups for each in group["params"]
    }
    model(tokens()).last_hidden_state.square().sum().backward()
    optimizer.step()
    assert all(each.grad is not None and bool((each != 0.5).all()) for each in scales.values())
    save(model, tmp_path)
    again = load(BertModel, tmp_path)
    torch.testing.assert_close(again.eval()(tokens()).last_hidden_state, model.eval()(tokens()).last_hidden_state)
    model.set_attn_implementation("softmax")  # the kernel stays where it is, and is not softmax's
    expected = model(tokens()).last_hidden_state
    again.set_attn_implementation("sdpa")
    torch.testing.assert_close(expected, again(tokens()).last_hidden_state)
    model.to("meta")
    assert {each.device.type for each in scales.values()} <= {"cpu", "meta"}
    assert all(each.device.type == "meta" for each in model.parameters())


@pytest.mark.parametrize(
    "optim",
    [Optim(lr=1e-3, name="bert_adam"), Optim(lr=1e-3, clip=1.0), Optim(lr=1e-3, schedule=Schedule(shape="linear"))],
)
def test_an_optimiser_that_needs_our_training_loop_is_refused(optim: Optim) -> None:
    from seqarena.common.attention.transformers import optimizer_of  # noqa: PLC0415

    with pytest.raises(WrongUseError, match="use adamw, and give the Trainer max_grad_norm and a scheduler"):
        optimizer_of(torch.nn.Linear(2, 2), optim)


@pytest.mark.usefixtures("scaled")
def test_a_compiled_model_without_its_parameters_says_so() -> None:
    torch._dynamo.reset()
    model = torch.compile(made("Bert", SCALED), fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match=r"has parameters, which this model lacks; call attach\(model\)"):
        model(tokens())


def test_heads_that_differ_by_layer_have_a_u_each() -> None:
    import transformers  # noqa: PLC0415

    from seqarena.common.attention.transformers import attach, register  # noqa: PLC0415

    register()
    settings = {"image_size": 16, "patch_size": 2, "num_channels": 1, "embed_dim": 8, "depths": [1, 1],
                "num_heads": [2, 4], "window_size": 4}  # fmt: skip
    model = transformers.SwinModel(transformers.SwinConfig(**settings, attn_implementation="hnas"))
    attach(model, per_head=True)
    assert [each.raw.shape[0] for _, each in bounded_modules(model)] == [2, 4]
    model(torch.zeros(1, 1, 16, 16)).last_hidden_state.sum().backward()
    assert all(each.raw.grad is not None for _, each in bounded_modules(model))
    for module in model.modules():
        if hasattr(module, "num_attention_heads"):
            del module.num_attention_heads
    for each in [module for module in model.modules() if hasattr(module, "attention_kernel")]:
        del each.attention_kernel
    with pytest.raises(WrongUseError, match="SwinAttention: its number of heads is unknown"):
        attach(model, per_head=True)


def test_what_cannot_be_attached_is_refused() -> None:
    from seqarena.common.attention.transformers import attach  # noqa: PLC0415

    with pytest.raises(WrongUseError, match=r"has attention 'sdpa'; .* model\.set_attn_implementation"):
        attach(made("Bert", "sdpa"))
    with pytest.raises(WrongUseError, match=r"attention 'dnas': .*unexpected keyword argument 'u'; .*: iterations"):
        attach(made("Bert", "dnas"), u=0.5)
    model = attach(made("Bert", "x3"), scale=2.0)  # any setting of any variant
    assert (model(tokens()).last_hidden_state - made("Bert", "x3")(tokens()).last_hidden_state).abs().max() > 1e-3


def test_a_model_is_saved_only_with_the_kernels_that_compute_it(tmp_path: Path) -> None:
    from seqarena.common.attention.transformers import attach, detach, load, save  # noqa: PLC0415

    model = attach(made("Bert", "x3"), scale=2.0)
    model.set_attn_implementation("relu")
    with pytest.raises(WrongUseError, match=r"kernels are those of x3, but the model computes 'relu': .*detach"):
        save(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    with pytest.raises(WrongUseError, match=r"already; .*: call detach\(model\)"):
        attach(model)
    model.set_attn_implementation("hnas")
    with pytest.raises(WrongUseError, match=r"lacks; call detach\(model\), which has kernels of x3, then attach"):
        model(tokens())
    attach(detach(model), u=0.3)
    expected = model.eval()(tokens()).last_hidden_state
    save(model, str(tmp_path / "model"))
    again = load(type(model), str(tmp_path / "model")).eval()
    torch.testing.assert_close(expected, again(tokens()).last_hidden_state)
    plain = made("Bert", "sdpa")
    with pytest.raises(WrongUseError, match="attention 'sdpa' is no registered variant; save this model by its "):
        save(plain, tmp_path / "plain")


@pytest.mark.parametrize("per_head", [False, True])
def test_u_is_saved_and_comes_back(per_head: bool, tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel  # noqa: PLC0415

    from seqarena.common.attention.transformers import attach, load, optimizer_of, register, save  # noqa: PLC0415

    register()
    model = attach(BertModel(BertConfig(**TINY, attn_implementation="hnas")), u=0.25, per_head=per_head)
    optimizer = optimizer_of(model, Optim(lr=1e-3, weight_decay=0.1, bounded_lr_multiplier=300.0))
    rates = sorted({(group["lr"], group["weight_decay"]) for group in optimizer.param_groups})
    assert rates == [(1e-3, 0.0), (1e-3, 0.1), (pytest.approx(0.3), 0.0)]
    for _ in range(3):
        optimizer.zero_grad()
        model(tokens()).last_hidden_state.square().sum().backward()
        optimizer.step()
    shares = [value for name, value in model.state_dict().items() if name.endswith("attention_kernel.kernel.u.raw")]
    assert len(shares) == 2
    assert all(share.numel() == (3 if per_head else 1) for share in shares)
    assert all(0 <= value <= 1 for share in shares for value in share.flatten().tolist())
    assert any(abs(value - 0.25) > 0.05 for share in shares for value in share.flatten().tolist())
    with pytest.raises(WrongUseError, match="has attached kernels already"):
        attach(model)
    (model(tokens()).last_hidden_state + model(tokens()).last_hidden_state).sum().backward()  # two calls, one graph
    with torch.no_grad():
        next(bounded_modules(model))[1].raw.fill_(1.3)
    save(model, tmp_path)
    stored = safetensors.torch.load_file(tmp_path / "attention.safetensors")
    assert {tuple(each.shape) for each in stored.values()} == {(3 if per_head else 1, 1, 1)}
    assert all(0 <= value <= 1 for each in stored.values() for value in each.flatten().tolist())
    again = load(BertModel, tmp_path)
    torch.testing.assert_close(again.eval()(tokens()).last_hidden_state, model.eval()(tokens()).last_hidden_state)
    assert again.config._attn_implementation == "hnas"
    stored.popitem()
    safetensors.torch.save_file(stored, tmp_path / "attention.safetensors")
    with pytest.raises(BadDataError, match="expected the parameters"):
        load(BertModel, tmp_path)
    told = json.loads((tmp_path / "attention.json").read_text())
    told["settings"]["other"] = 1
    (tmp_path / "attention.json").write_text(json.dumps(told))
    with pytest.raises(BadDataError, match=r"unexpected keyword argument 'other'"):
        load(BertModel, tmp_path)
    (tmp_path / "attention.json").write_text(json.dumps({"attention": "hnas", "u": {}}))
    with pytest.raises(BadDataError, match="expected settings, found none"):
        load(BertModel, tmp_path)
    (tmp_path / "attention.json").unlink()
    with pytest.raises(BadDataError, match="does not exist"):
        load(BertModel, tmp_path)

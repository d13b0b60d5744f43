"""DeiT and Swin of the transformers library: sizes, attention of the run, hidden pairs, and what is refused."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seqarena.common.attention import ATTENTIONS, find_attention
from seqarena.common.attention.base import AttentionConfig, Kernel
from seqarena.common.attention.elementwise import Elementwise, ElementwiseKernel
from seqarena.common.attention.hybrid import Hybrid
from seqarena.common.errors import WrongUseError
from seqarena.common.model.bounded import bounded_modules
from seqarena.lra.pictures.library import DeiTConfig, LibraryConfig, SwinConfig
from seqarena.lra.pictures.model import normalized
from seqarena.lra.pictures.presets import PRESETS

DEIT = DeiTConfig(side=8, classes=5, patch=4, layers=2, dim=12, heads=3, ffn_dim=20)
SWIN = SwinConfig(side=16, classes=5, patch=2, layers=(2, 2), dim=8, heads=(2, 4), window=4)
COUNTS = {
    "p1-deit-small": 22_050_664, "p1-deit-base": 86_567_656, "p1-swin-small": 49_606_258, "p1-swin-base": 87_768_224,
}  # fmt: skip
"""Parameters; Touvron et al. 2021 print 22M and 86M, Liu et al. 2021 50M and 88M."""
extras = pytest.mark.extras


@extras
@pytest.mark.parametrize("name", COUNTS)
def test_models_have_the_published_number_of_parameters(name: str) -> None:
    with torch.device("meta"):
        model = PRESETS["imagenet"][name].run.model.build()
    assert sum(each.numel() for each in model.parameters()) == COUNTS[name]


def kernels(model: nn.Module) -> list[Kernel]:
    return [each for each in model.modules() if isinstance(each, Kernel)]


@extras
@pytest.mark.parametrize("config", [DEIT, SWIN])
def test_softmax_is_that_of_the_library(config: LibraryConfig) -> None:
    torch.manual_seed(0)
    ours: Any = config.build().double().eval()
    pixels = torch.rand(2, 3, config.side, config.side, dtype=torch.float64)
    found = ours(pixels)
    theirs = type(ours.model)(replace_attention(ours.model.config, "sdpa")).double().eval()
    theirs.load_state_dict(ours.model.state_dict())
    torch.testing.assert_close(found, theirs(pixel_values=normalized(pixels)).logits, atol=1e-12, rtol=0)


def replace_attention(settings: Any, name: str) -> Any:
    return type(settings)(**{**settings.to_dict(), "attn_implementation": name})


@extras
@pytest.mark.parametrize("config", [DEIT, SWIN])
@pytest.mark.parametrize(
    "attention",
    [ATTENTIONS["x3-14"], Elementwise(power=3, scale=5.0), Elementwise(phi="relu", length_exponent=0.7),
     Hybrid(u=0.3, per_head=True), ATTENTIONS["hnas"]],
)  # fmt: skip
def test_the_attention_of_the_run_is_computed_and_trained(config: LibraryConfig, attention: AttentionConfig) -> None:
    config = replace(config, attention=attention)
    config.check_picture()
    torch.manual_seed(0)
    model = config.build()
    found = kernels(model)
    assert len(found) == config.depth_label
    for kernel in found:
        if isinstance(attention, Elementwise):
            assert isinstance(kernel, ElementwiseKernel)
            rule = kernel.rule
            assert (rule.phi, rule.power, rule.scale, rule.length_exponent) == (
                attention.phi, attention.power, attention.scale, attention.length_exponent
            )  # fmt: skip
    shares = [module.raw for _, module in bounded_modules(model)]
    if isinstance(attention, Hybrid):
        assert len(shares) == config.depth_label
        assert all(bool((each == attention.u).all()) for each in shares)
    model(torch.rand(3, 3, config.side, config.side)).square().sum().backward()
    assert all(each.grad is not None and bool(each.grad.any()) for each in shares)
    assert all(each.grad is not None for each in model.parameters())


@extras
def test_variants_begin_with_the_same_values() -> None:
    for config in (DEIT, SWIN):
        seen: dict[str, Tensor] = {}
        for name in ("softmax", "hnas", "x3-14"):
            torch.manual_seed(3)
            for path, value in replace(config, attention=ATTENTIONS[name]).build().state_dict().items():
                assert torch.equal(seen.setdefault(path, value), value)


@contextmanager
def formula_of_windows(attention: Elementwise) -> Iterator[None]:
    """The library's own attention replaced by x^3 / scale, with pairs hidden by minus infinity that are not 0 before.

    Written from the formula: weights of hidden pairs are 0.
    """
    from transformers.models.swin import modeling_swin  # noqa: PLC0415

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *_: Any, **named: Any) -> Any:
        scores = query @ key.transpose(2, 3) * named["scaling"] + mask
        assert attention.scale is not None
        weights = torch.where(scores == -torch.inf, 0.0, scores) ** attention.power / attention.scale
        return (weights @ value).transpose(1, 2), None

    def mask_of(self: Any, *rest: Any, **named: Any) -> Any:
        mask = original(self, *rest, **named)
        return None if mask is None else torch.where(mask == -100, -torch.inf, mask)

    original = modeling_swin.SwinLayer.get_attn_mask
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modeling_swin, "eager_attention_forward", attend)
        patch.setattr(modeling_swin.SwinLayer, "get_attn_mask", mask_of)
        yield


@extras
def test_shifted_windows_hide_pairs_under_x3() -> None:
    attention = Elementwise(power=3, scale=14.0)
    assert attention == ATTENTIONS["x3-14"]
    torch.manual_seed(0)
    ours: Any = replace(SWIN, attention=attention).build().double().eval()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    pixels = torch.rand(2, 3, 16, 16, dtype=torch.float64)
    theirs = type(ours.model)(replace_attention(ours.model.config, "eager")).double().eval()
    theirs.load_state_dict(ours.model.state_dict())
    with formula_of_windows(attention):
        expected = theirs(pixel_values=normalized(pixels)).logits
    torch.testing.assert_close(ours(pixels), expected, atol=1e-11, rtol=1e-11)
    assert expected.abs().max() < 100


EXTERNAL = '''
from dataclasses import dataclass
from seqarena.common.attention.base import AttentionConfig, Kernel

@dataclass(frozen=True, kw_only=True)
class Halved(AttentionConfig):
    """Scores over a number."""

    by: float = 2.0
    """The number."""

    def build(self, heads, dropout=0.0):
        return HalvedKernel(self, dropout)

class HalvedKernel(Kernel):
    def __init__(self, config, dropout):
        super().__init__(config, dropout)
        self.by = config.by

    def normalize(self, scores, visible, visibility, state):
        return scores.masked_fill(~visible, 0.0) / self.by, None
'''


@extras
def test_a_variant_of_a_users_file_is_computed(tmp_path: Path) -> None:
    """It is x / 3 by another name."""
    file = tmp_path / "halved_attention.py"
    file.write_text(EXTERNAL)
    changes: dict[str, Any] = {"by": 3.0}
    own = replace(find_attention(f"{file}:Halved"), **changes)
    for config in (DEIT, SWIN):
        outputs = []
        for attention in (own, Elementwise(power=1, scale=3.0)):
            chosen = replace(config, attention=attention)
            chosen.check_picture()
            torch.manual_seed(0)
            model = chosen.build().double().eval()
            outputs.append(model(torch.ones(1, 3, config.side, config.side, dtype=torch.float64)))
        torch.testing.assert_close(outputs[0], outputs[1], atol=1e-12, rtol=0)


@extras
def test_a_model_that_does_not_fit_is_refused() -> None:
    cases: list[tuple[LibraryConfig, dict[str, Any], str]] = [
        (DEIT, {"patch": 3}, "model.patch: expected a divisor of model.side 8, found 3"),
        (DEIT, {"heads": 5}, "model.dim 12 is not a multiple of model.heads 5"),
        (DEIT, {"layers": 0}, "model.layers: expected at least 1, found 0"),
        (DEIT, {"attention": ATTENTIONS["linformer"]}, "attention Linformer is a token mixer: it takes the place of"),
        (SWIN, {"attention": ATTENTIONS["linformer"]}, "attention Linformer is a token mixer: it takes the place of"),
        (DEIT, {"attention": ATTENTIONS["recency"]}, "attention 'recency' is not defined for order 'none'"),
        (SWIN, {"attention": ATTENTIONS["linear"]}, "attention 'linear' cannot be used in Swin: its weights are not a"),
        (SWIN, {"attention": ATTENTIONS["cosine"]}, "attention 'cosine' cannot be used in Swin"),
        (SWIN, {"heads": (2,)}, r"as many numbers in model.layers as in model.heads, found \(2, 2\) and \(2,\)"),
        (SWIN, {"heads": (2, 3)}, "model.heads: 3 does not divide the width 16 of its stage"),
        (SWIN, {"layers": (2, 0)}, "model.layers: expected at least 1, found 0"),
        (SWIN, {"window": 3}, "model.window 3: expected a multiple of 6 patches in a row, .* found 8"),
    ]
    for config, changes, expected in cases:
        with pytest.raises(WrongUseError, match=expected):
            replace(config, **changes).check_picture()


def test_a_missing_library_is_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        WrongUseError, match=r"DeiTConfig is a model of the transformers library: pip install 'seqarena"
    ):
        DEIT.check_picture()

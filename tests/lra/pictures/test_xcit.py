"""XCiT: the paper's formulas as an independent reference, sizes, and what is refused."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from seqarena.common.attention import ATTENTIONS
from seqarena.common.attention.mixer import MixerConfig
from seqarena.common.attention.visibility import Visibility
from seqarena.common.errors import WrongUseError
from seqarena.lra.pictures.model import DEVIATION, MEAN
from seqarena.lra.pictures.presets import PRESETS
from seqarena.lra.pictures.xcit import CrossCovarianceAttention, XCiT, XCiTConfig

TINY = XCiTConfig(side=16, classes=5, patch=4, layers=2, dim=24, heads=3, ffn_dim=20, eta=0.7)
COUNTS = {"p1-xcit-small": 26_253_304, "p1-xcit-medium": 84_395_752}
"""Parameters of XCiT-S12/16 and XCiT-M24/16; El-Nouby et al. 2021 print 26M and 84M."""
VARIANTS = [
    name for name, each in ATTENTIONS.items() if "none" in each.orders and not isinstance(each, MixerConfig)
]  # fmt: skip
Values = dict[str, Tensor]


@pytest.mark.parametrize("name", COUNTS)
def test_models_have_the_published_number_of_parameters(name: str) -> None:
    with torch.device("meta"):
        model = PRESETS["imagenet"][name].run.model.build()
    assert sum(each.numel() for each in model.parameters()) == COUNTS[name]


def varied(config: XCiTConfig) -> XCiT:
    """A model in float64 whose norms, factors, temperatures and statistics are not those of the beginning."""
    torch.manual_seed(0)
    model = XCiT(config).double()
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if value.is_floating_point() and name != "positions.waves":
                value.add_(torch.rand_like(value) * 0.3)
    return model


def linear(values: Values, name: str, tokens: Tensor) -> Tensor:
    return tokens @ values[f"{name}.weight"].T + values[f"{name}.bias"]


def layer_norm(values: Values, name: str, tokens: Tensor) -> Tensor:
    centred = tokens - tokens.mean(-1, keepdim=True)
    normed = centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    return normed * values[f"{name}.weight"] + values[f"{name}.bias"]


def batch_norm(values: Values, name: str, grid: Tensor, training: bool) -> Tensor:
    mean, variance = (values[f"{name}.running_{each}"][:, None, None] for each in ("mean", "var"))
    if training:
        mean = grid.mean((0, 2, 3), keepdim=True)
        variance = (grid - mean).square().mean((0, 2, 3), keepdim=True)
    weight, bias = (values[f"{name}.{each}"][:, None, None] for each in ("weight", "bias"))
    return (grid - mean) / (variance + 1e-5).sqrt() * weight + bias


def channelwise(values: Values, name: str, grid: Tensor) -> Tensor:
    """A 3 x 3 convolution of each channel, as a sum over the nine shifts of the padded grid."""
    rows, columns = grid.shape[2:]
    padded, weight = F.pad(grid, (1, 1, 1, 1)), values[f"{name}.weight"]
    output = values[f"{name}.bias"][:, None, None].expand_as(grid)
    for down in range(3):
        for right in range(3):
            output = (
                output + padded[:, :, down : down + rows, right : right + columns] * weight[:, :, down, right, None]
            )
    return output


def feed_forward(values: Values, name: str, tokens: Tensor) -> Tensor:
    return linear(values, f"{name}.3", F.gelu(linear(values, f"{name}.0", tokens)))


def positions(side: int) -> Tensor:
    """The 64 numbers of every patch, one by one."""
    found = torch.zeros(64, side, side, dtype=torch.float64)
    for row in range(side):
        for column in range(side):
            for number in range(32):
                speed = 10_000 ** (-(number // 2) / 16)
                wave = math.sin if number % 2 == 0 else math.cos
                found[number, row, column] = wave(2 * math.pi * (row + 1) / side * speed)
                found[32 + number, row, column] = wave(2 * math.pi * (column + 1) / side * speed)
    return found


def cross_covariance(values: Values, name: str, tokens: Tensor, heads: int) -> Tensor:
    """softmax(t Q K^T) V of each head and picture, Q, K and V with a row per channel."""
    query, key, value = linear(values, f"{name}.query_key_value", tokens).chunk(3, dim=-1)
    width, rows = tokens.shape[-1] // heads, []
    for picture in range(len(tokens)):
        outputs = []
        for head in range(heads):
            some = slice(head * width, (head + 1) * width)
            q, k, v = (each[picture, :, some].T for each in (query, key, value))
            q, k = (each / each.square().sum(1, keepdim=True).sqrt() for each in (q, k))
            scores = values[f"{name}.temperature"][head] * q @ k.T
            weights = scores.exp() / scores.exp().sum(1, keepdim=True)
            outputs.append((weights @ v).T)
        rows.append(torch.cat(outputs, dim=1))
    return linear(values, f"{name}.output", torch.stack(rows))


def class_attention(values: Values, name: str, tokens: Tensor, heads: int) -> Tensor:
    query = linear(values, f"{name}.query", tokens[:, 0]).unflatten(1, (heads, -1))
    key, value = (linear(values, f"{name}.{each}", tokens).unflatten(2, (heads, -1)) for each in ("key", "value"))
    scores = torch.einsum("bhd,bthd->bht", query, key) / query.shape[-1] ** 0.5
    weights = scores.exp() / scores.exp().sum(2, keepdim=True)
    return linear(values, f"{name}.output", torch.einsum("bht,bthd->bhd", weights, value).flatten(1))


def reference(values: Values, config: XCiTConfig, pixels: Tensor, training: bool) -> Tensor:
    """The logits, from the formulas of the paper."""
    mean, deviation = (torch.tensor(each, dtype=torch.float64)[:, None, None] for each in (MEAN, DEVIATION))
    grid, count = (pixels - mean) / deviation, config.patch.bit_length() - 1
    for number in range(count):
        grid = F.conv2d(grid, values[f"embedding.{3 * number}.weight"], stride=2, padding=1)
        grid = batch_norm(values, f"embedding.{3 * number + 1}", grid, training)
        grid = F.gelu(grid) if number < count - 1 else grid
    side = config.side // config.patch
    assert grid.shape[2:] == (side, side)
    projection = values["positions.projection.weight"][:, :, 0, 0]
    encoded = torch.einsum("cw,wij->cij", projection, positions(side))
    tokens = (grid + encoded + values["positions.projection.bias"][:, None, None]).flatten(2).transpose(1, 2)
    for number in range(config.layers):
        name = f"layers.{number}"
        normed = layer_norm(values, f"{name}.norms.0", tokens)
        attended = cross_covariance(values, f"{name}.attention", normed, config.heads)
        tokens = tokens + values[f"{name}.factors.0"] * attended
        local = layer_norm(values, f"{name}.norms.1", tokens).transpose(1, 2).unflatten(2, (side, side))
        local = batch_norm(
            values, f"{name}.local.norm", F.gelu(channelwise(values, f"{name}.local.first", local)), training
        )
        local = channelwise(values, f"{name}.local.second", local).flatten(2).transpose(1, 2)
        tokens = tokens + values[f"{name}.factors.1"] * local
        further = feed_forward(values, f"{name}.feed_forward", layer_norm(values, f"{name}.norms.2", tokens))
        tokens = tokens + values[f"{name}.factors.2"] * further
    cls = values["cls"].expand(len(tokens), -1)
    for number in range(config.class_layers):
        name = f"class_layers.{number}"
        normed = layer_norm(values, f"{name}.norms.0", torch.cat([cls[:, None], tokens], dim=1))
        cls = cls + values[f"{name}.factors.0"] * class_attention(values, name, normed, config.heads)
        further = feed_forward(values, f"{name}.feed_forward", layer_norm(values, f"{name}.norms.1", cls))
        cls = cls + values[f"{name}.factors.1"] * further
    return linear(values, "head", layer_norm(values, "norm", cls))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("patch", [4, 8, 16])
def test_it_computes_the_formulas_of_the_paper(patch: int, training: bool) -> None:
    config = replace(TINY, side=3 * patch, patch=patch)
    model = varied(config).train(training)
    pixels = torch.rand(4, 3, config.side, config.side, dtype=torch.float64)
    expected = reference({name: value.clone() for name, value in model.state_dict().items()}, config, pixels, training)
    torch.testing.assert_close(model(pixels), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ["x3-14", "dnas", "relu"])
def test_a_variant_gets_the_scores_of_the_paper(name: str) -> None:
    """Its formula is applied to t times the cosine of two channels."""
    torch.manual_seed(0)
    model = CrossCovarianceAttention(replace(TINY, attention=ATTENTIONS[name])).double()
    torch.nn.init.uniform_(model.temperature, 0.5, 3.0)
    tokens = torch.randn(2, 9, 24, dtype=torch.float64)
    query, key, value = (
        each.unflatten(2, (3, 8)).permute(0, 2, 3, 1) for each in model.query_key_value(tokens).chunk(3, dim=-1)
    )
    cosines = torch.cosine_similarity(query[:, :, :, None], key[:, :, None], dim=-1)
    visible = torch.ones(1, 1, 8, 8, dtype=torch.bool)
    weights = model.kernel.normalize(model.temperature[:, None, None] * cosines, visible, Visibility(), None)[0]
    expected = model.output((weights @ value).permute(0, 3, 1, 2).flatten(2))
    torch.testing.assert_close(model(tokens), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_gives_logits_and_gradients(name: str) -> None:
    config = replace(TINY, attention=ATTENTIONS[name])
    config.check_picture()
    model = config.build()
    logits = model(torch.rand(3, 3, 16, 16))
    assert logits.shape == (3, 5)
    logits.square().sum().backward()
    lacking = {path.rpartition(".")[2] for path, each in model.named_parameters() if each.grad is None}
    assert lacking == ({"temperature"} if name in ("convolution", "average") else set())  # these have no scores
    assert (config.longest, config.depth_label, config.norm_label) == (16, 2, "pre")


def test_variants_begin_with_the_same_values() -> None:
    seen: dict[str, Tensor] = {}
    for name in ("softmax", "hnas", "x3-14", "dnas"):
        torch.manual_seed(3)
        for path, value in XCiT(replace(TINY, attention=ATTENTIONS[name])).state_dict().items():
            assert torch.equal(seen.setdefault(path, value), value)


def test_a_model_that_does_not_fit_is_refused() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"patch": 3}, "model.patch: expected a power of two from 2 on, found 3"),
        ({"side": 18}, "model.patch: expected a divisor of model.side 18, found 4"),
        ({"heads": 5}, "model.dim 24 is not a multiple of model.heads, 5"),
        ({"patch": 16, "dim": 12}, "model.dim 12 is not a multiple of model.patch / 2, 8"),
        ({"class_layers": 0}, "model.class_layers: expected at least 1, found 0"),
        ({"attention": ATTENTIONS["linformer"]}, "attention Linformer is a token mixer: it takes the place of"),
        ({"attention": ATTENTIONS["recency"]}, "attention 'recency' is not defined for order 'none'"),
    ]
    for changes, expected in cases:
        with pytest.raises(WrongUseError, match=expected):
            replace(TINY, **changes).check_picture()

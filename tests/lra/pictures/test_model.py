"""The vision transformer: its size, its tokens, and the library's as an independent reference."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from seqarena.common.attention import ATTENTIONS
from seqarena.common.errors import WrongUseError
from seqarena.common.model.norms import NORMS
from seqarena.lra.pictures.model import VisionTransformer, normalized, patches
from seqarena.lra.pictures.presets import PRESETS, SMALL

TINY = replace(SMALL, side=8, patch=4, dim=8, heads=2, ffn_dim=12, layers=2)
COUNTS = {"p1-vit-base": 86_567_656, "p1-vit-small": 22_050_664}
"""Parameters of ViT-B/16 and ViT-S/16 (Steiner et al. 2021, Touvron et al. 2021 print 86M and 22M)."""


@pytest.mark.parametrize("name", COUNTS)
def test_models_have_the_published_number_of_parameters(name: str) -> None:
    with torch.device("meta"):
        model = PRESETS["imagenet"][name].run.model.build()
    assert sum(each.numel() for each in model.parameters()) == COUNTS[name]


def test_patches_are_squares_of_the_picture_row_by_row() -> None:
    picture = torch.arange(2 * 3 * 4 * 6, dtype=torch.float32).view(2, 3, 4, 6)
    found = patches(picture, 2)
    assert found.shape == (2, 6, 12)
    assert torch.equal(found[1, 4], picture[1, :, 2:4, 2:4].reshape(-1))


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("norm", ["post", "pre", "deescalated"])
def test_every_norm_and_pooling_gives_logits_and_gradients(norm: str, pooling: str) -> None:
    config = replace(TINY, norm=NORMS[norm], pooling=pooling)  # type: ignore[arg-type]
    config.check_picture()
    model = config.build()
    logits = model(torch.rand(3, 3, 8, 8))
    assert logits.shape == (3, 10)
    logits.square().sum().backward()
    assert all(each.grad is not None for each in model.parameters())
    assert config.longest == 4 + (pooling == "cls")


@pytest.mark.parametrize("name", ["softmax", "dnas", "hnas", "x3", "x3-14", "relu", "linformer"])
def test_the_order_of_patches_matters_only_by_their_positions(name: str) -> None:
    """Without positions, a class token that attends to all patches does not see their order. Linformer's
    projections do."""
    torch.manual_seed(0)
    model = VisionTransformer(replace(TINY, attention=ATTENTIONS[name])).eval()
    nn.init.zeros_(model.positions.table)
    pixels = torch.rand(2, 3, 8, 8)
    moved = pixels.roll(4, dims=3)
    same = torch.allclose(model(pixels), model(moved), atol=1e-5)
    assert same == (name != "linformer")


def test_a_model_that_does_not_fit_is_refused() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"patch": 3}, "model.patch: expected a divisor of model.side 8, found 3"),
        ({"heads": 3}, "model.dim 8 is not a multiple of model.heads 3"),
        ({"position_std": -1.0}, "model.position_std: expected at least 0, found -1.0"),
    ]
    for changes, expected in cases:
        with pytest.raises(WrongUseError, match=expected):
            replace(TINY, **changes).check_picture()


def test_a_run_has_the_size_of_its_data_unless_another_is_typed() -> None:
    run = PRESETS["cifar10-patches"]["quick"].run
    larger = replace(run, data=replace(run.data, side=24))
    assert larger.completed([]).model.side == 24
    with pytest.raises(WrongUseError, match=r"model.side: expected data.side 24, found 16"):
        larger.completed(["model.side"]).check()


NAMES = {"attention.query": "attention.q_proj", "attention.key": "attention.k_proj",
         "attention.value": "attention.v_proj", "attention.output": "attention.o_proj",
         "residual.attention_norm": "layernorm_before",
         "residual.feed_forward_norm": "layernorm_after", "feed_forward.0": "mlp.fc1", "feed_forward.3": "mlp.fc2",
         "encoder.layers": "vit.layers", "encoder.final_norm": "vit.layernorm", "head": "classifier",
         "embedding": "vit.embeddings.patch_embeddings.projection"}  # fmt: skip
"""Part of a name of ours -> part of the library's name."""


def in_the_library(weights: dict[str, torch.Tensor], patch: int) -> dict[str, torch.Tensor]:
    """Returns our weights by the library's names."""
    found = {}
    for name, value in weights.items():
        theirs = name
        for own, other in NAMES.items():
            theirs = theirs.replace(f"{own}.", f"{other}.")
        found[theirs] = value.view(len(value), 3, patch, patch) if name == "embedding.weight" else value
    cls, positions = found.pop("cls"), found.pop("positions.table")
    return {
        **found,
        "vit.embeddings.cls_token": cls.view(1, 1, -1),
        "vit.embeddings.position_embeddings": positions[None],
    }


@pytest.mark.extras
def test_it_computes_what_the_library_computes() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = replace(TINY, norm_eps=1e-6)
    ours = VisionTransformer(config).double().eval()
    theirs = transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12, image_size=8, patch_size=4,
            layer_norm_eps=1e-6, num_labels=10, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip
    theirs.load_state_dict(in_the_library(ours.state_dict(), 4))
    theirs.double().eval()
    pixels = torch.rand(3, 3, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(ours(pixels), theirs(pixel_values=normalized(pixels)).logits, atol=1e-12, rtol=0)

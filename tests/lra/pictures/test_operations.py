"""Operations of AutoAugment and RandAugment compute what Pillow's do, with the magnitudes of the published code."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from seqarena.lra.pictures import operations
from seqarena.lra.pictures.operations import OPERATIONS, amount, auto_augment, changed, rand_augment

SIDE = 16
BORDER = 4
"""Pixels near the border, where Pillow does not interpolate with what is outside."""
ENHANCED = {
    "brightness": ImageEnhance.Brightness,
    "color": ImageEnhance.Color,
    "contrast": ImageEnhance.Contrast,
    "sharpness": ImageEnhance.Sharpness,
}
ENTRIES: dict[str, Callable[[float], tuple[float, ...]]] = {
    "shear_x": lambda tangent: (1, tangent, 0, 0, 1, 0),
    "shear_y": lambda tangent: (1, 0, 0, tangent, 1, 0),
    "translate_x": lambda fraction: (1, 0, fraction * SIDE, 0, 1, 0),
    "translate_y": lambda fraction: (1, 0, 0, 0, 1, fraction * SIDE),
}


def smooth_picture() -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 256, (6, 6, 3)).astype(np.uint8)
    return Image.fromarray(noise).resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def tensor_of(picture: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.asarray(picture).transpose(2, 0, 1).copy())[None] / 255


def by_pillow(name: str, value: float, picture: Image.Image) -> Image.Image:
    simple: dict[str, Callable[[], Any]] = {
        "auto_contrast": lambda: ImageOps.autocontrast(picture),
        "equalize": lambda: ImageOps.equalize(picture),
        "invert": lambda: ImageOps.invert(picture),
        "posterize": lambda: ImageOps.posterize(picture, int(value)),
        "solarize": lambda: ImageOps.solarize(picture, value * 255),
        "solarize_add": lambda: picture.point(lambda level: level + round(value * 255) if level < 128 else level),
        "rotate": lambda: picture.rotate(value, Image.Resampling.BILINEAR),
    }
    if name in simple:
        found: Image.Image = simple[name]()
        return found
    if name in ENHANCED:
        return ENHANCED[name](picture).enhance(value)
    affine, bilinear = Image.Transform.AFFINE, Image.Resampling.BILINEAR
    return picture.transform(picture.size, affine, ENTRIES[name](value), bilinear)


@pytest.mark.parametrize("level", [0.3, 0.9])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_computes_what_pillow_does(name: str, sign: int, level: float) -> None:
    picture = smooth_picture()
    value = 8.0 - round(4 * level) if name == "posterize" else amount(name, level, sign)
    found = changed(tensor_of(picture), [name], [value])
    wanted = tensor_of(by_pillow(name, value, picture))
    difference = (255 * (found - wanted)).abs()
    is_moved = name in operations.LARGEST
    assert (difference > 1.5).float().mean() < (0.15 if is_moved else 1e-9)  # the border of the part that moved in
    if name == "rotate":
        assert difference[:, :, BORDER:-BORDER, BORDER:-BORDER].max() < 1.5


def test_only_the_chosen_pictures_are_changed() -> None:
    pixels = tensor_of(smooth_picture()).expand(3, -1, -1, -1)
    found = changed(pixels, [None, "invert", None], [0.0, 0.0, 0.0])
    assert torch.equal(found[::2], pixels[::2])
    torch.testing.assert_close(found[1], 1 - pixels[1])


def recorded(monkeypatch: pytest.MonkeyPatch, draw: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, set[float]]:
    """Returns the amounts, rounded, of each applied operation in a policy's draws for 4,000 pictures."""
    found: dict[str, set[float]] = {}

    def record(pixels: torch.Tensor, names: list[str | None], amounts: list[float]) -> torch.Tensor:
        for name, value in zip(names, amounts, strict=True):
            if name is not None:
                found.setdefault(name, set()).add(round(float(value), 2))
        return pixels

    monkeypatch.setattr(operations, "changed", record)
    torch.manual_seed(0)
    draw(torch.zeros(4_000, 3, 1, 1))
    return found


def test_magnitudes_of_auto_augment_are_those_of_its_published_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy of Cubuk et al. 2019 with magnitudes as in torchvision: a ninth of the range each, both directions."""
    found = recorded(monkeypatch, lambda pixels: auto_augment(pixels, "cifar10"))
    assert found["rotate"] == {6.67, -6.67}  # magnitude 2
    assert found["translate_y"] == {0.15, -0.15, 0.45, -0.45}  # 3 and 9
    assert found["shear_y"] == {0.23, -0.23, 0.27, -0.27}  # 7 and 8
    assert found["posterize"] == {5}  # 7
    assert found["solarize"] == {0.78, 0.67, 0.44, 0.11}  # 2, 3, 5, 8
    assert found["brightness"] == {1.3, 0.7, 1.6, 0.4, 1.7, 0.3, 1.9, 0.1}  # 3, 6, 7, 9
    assert set(found) < set(OPERATIONS)


def test_both_policies_of_auto_augment_are_the_published_ones() -> None:
    """kornia's tables; the hashes are of torchvision's, with its names in this spelling (autoaugment.py, 25 pairs)."""
    from kornia.augmentation.auto.autoaugment import autoaugment  # noqa: PLC0415

    policies = {"18f644da17fe3adb": autoaugment.cifar10_policy, "0a70b3ad122a16fa": autoaugment.imagenet_policy}
    for expected, policy in policies.items():
        assert len(policy) == 25
        assert hashlib.sha256(json.dumps(policy).encode()).hexdigest()[:16] == expected


def test_magnitudes_of_rand_augment_are_tenths_of_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    found = recorded(monkeypatch, lambda pixels: rand_augment(pixels, 2, 9))
    assert set(found) == set(OPERATIONS)
    degrees = sorted(abs(each) for each in found["rotate"])
    assert 26 < float(np.median(degrees)) < 28
    assert max(degrees) == 30
    assert min(found["rotate"]) < 0 < max(found["rotate"])
    assert found["posterize"] <= {0, 1, 2}
    assert max(found["solarize"]) < 0.4


def test_half_of_the_operations_of_rand_augment_are_applied() -> None:
    torch.manual_seed(0)
    pixels = torch.rand(1_000, 3, 4, 4)
    unchanged = (rand_augment(pixels, 1, 9) == pixels).flatten(1).all(dim=1).float().mean()
    assert 0.45 < unchanged < 0.55

"""The policies of AutoAugment and RandAugment, whose operations are those of Pillow, with a magnitude per picture.

Both papers' code calls Pillow. Kornia's policies are not the same: brightness adds a constant, contrast multiplies
without the mean, and AutoAugment shifts, turns and shears in one direction only, and solarizes most at magnitude 0.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional as F

from seqarena.common.data.batches import moved
from seqarena.common.shapes import Pixels

LARGEST: Mapping[str, float] = MappingProxyType(
    {"shear_x": 0.3, "shear_y": 0.3, "translate_x": 0.45, "translate_y": 0.45, "rotate": 30.0}
)
"""Largest amount of each operation that moves pixels: tangent of the angle, fraction of the side, degrees."""
ENHANCEMENTS, CHANGE = ("brightness", "color", "contrast", "sharpness"), 0.9
"""Operations that multiply a property of the picture by a factor, and the factor's largest distance from 1."""
ADDITION = 110 / 255
"""Largest amount of solarize_add."""
PROBABILITY, DEVIATION = 0.5, 0.5
"""RandAugment in timm: probability that a drawn operation is applied, and standard deviation of its magnitude."""


def auto_augment(pixels: Pixels, policy: str) -> Pixels:
    """Returns pictures from 0 to 1 changed by AutoAugment's policy ``cifar10`` or ``imagenet`` (Cubuk et al. 2019).

    Each picture gets one of 25 pairs of operations. Their magnitudes, from 0 to 9, mean what they mean in torchvision,
    except that the largest move is 0.45 of the side, as in timm, in place of 150/331.
    """
    from kornia.augmentation.auto.autoaugment import autoaugment  # noqa: PLC0415  # takes a second to import

    pairs = autoaugment.cifar10_policy if policy == "cifar10" else autoaugment.imagenet_policy
    drawn = torch.randint(len(pairs), (len(pixels),)).tolist()
    for number in range(2):
        names: list[str | None] = []
        amounts = []
        uniform = torch.rand(len(pixels)).tolist()
        for pair, one, sign in zip(drawn, uniform, _signs(len(pixels)), strict=True):
            name, probability, magnitude = pairs[pair][number]
            level = (magnitude or 0) / 9
            names.append(name if one < probability else None)
            amounts.append(8.0 - round(4 * level) if name == "posterize" else amount(name, level, sign))
        pixels = changed(pixels, names, amounts)
    return pixels


def rand_augment(pixels: Pixels, operations: int, magnitude: int) -> Pixels:
    """Returns pictures from 0 to 1 changed by RandAugment (Cubuk et al. 2020), as in the recipes of DeiT and Swin.

    With two operations and a magnitude of 9, of 10, this is rand-m9-mstd0.5-inc1 of the library timm.
    """
    for _ in range(operations):
        drawn = torch.randint(len(OPERATIONS), (len(pixels),)).tolist()
        levels = (magnitude + DEVIATION * torch.randn(len(pixels))).clamp(0, 10) / 10
        uniform = torch.rand(len(pixels)).tolist()
        names: list[str | None] = []
        amounts = []
        for number, level, one, sign in zip(drawn, levels.tolist(), uniform, _signs(len(pixels)), strict=True):
            name = tuple(OPERATIONS)[number]
            names.append(name if one < PROBABILITY else None)
            amounts.append(4.0 - int(4 * level) if name == "posterize" else amount(name, level, sign))
        pixels = changed(pixels, names, amounts)
    return pixels


def _signs(count: int) -> list[int]:
    signs: list[int] = (2 * torch.randint(2, (count,)) - 1).tolist()
    return signs


def amount(name: str, level: float, sign: int) -> float:
    """Returns the amount of an operation, other than posterize, at a level from 0 to 1.

    ``sign``: direction, 1 or -1, of an operation that has two.
    """
    if name in ENHANCEMENTS:
        return 1 + sign * CHANGE * level
    if name == "solarize":
        return 1 - level
    return ADDITION * level if name == "solarize_add" else sign * LARGEST.get(name, 0.0) * level


def changed(pixels: Pixels, names: Sequence[str | None], amounts: Sequence[float]) -> Pixels:
    """Returns pictures, each changed by its operation, if any, by its amount."""
    output = pixels.clone()
    for name, change in OPERATIONS.items():
        rows = [row for row, each in enumerate(names) if each == name]
        if rows:
            some = moved(torch.tensor([amounts[row] for row in rows]), pixels.device)
            own = moved(torch.tensor(rows), pixels.device)
            output[own] = change(pixels[own], some[:, None, None, None]).clamp(0, 1)
    return output


def _auto_contrast(pixels: Tensor, _: Tensor) -> Tensor:
    low, high = pixels.amin(dim=(2, 3), keepdim=True), pixels.amax(dim=(2, 3), keepdim=True)
    return torch.where(high > low, (pixels - low) / (high - low).clamp(min=1e-6), pixels)


def _equalize(pixels: Tensor, _: Tensor) -> Tensor:
    from kornia.enhance import equalize  # noqa: PLC0415

    equal: Tensor = equalize(pixels)
    return equal


def _invert(pixels: Tensor, _: Tensor) -> Tensor:
    return 1 - pixels


def _posterize(pixels: Tensor, bits: Tensor) -> Tensor:
    step = 2 ** (8 - bits)
    return (pixels * 255).round().div(step, rounding_mode="floor") * step / 255


def _solarize(pixels: Tensor, threshold: Tensor) -> Tensor:
    return torch.where(pixels < threshold, pixels, 1 - pixels)


def _solarize_add(pixels: Tensor, addition: Tensor) -> Tensor:
    return torch.where(pixels < 128 / 255, pixels + addition, pixels)


def _brightness(pixels: Tensor, factor: Tensor) -> Tensor:
    return factor * pixels


def _color(pixels: Tensor, factor: Tensor) -> Tensor:
    return _grey(pixels).lerp(pixels, factor)


def _contrast(pixels: Tensor, factor: Tensor) -> Tensor:
    return _grey(pixels).mean(dim=(2, 3), keepdim=True).lerp(pixels, factor)


def _sharpness(pixels: Tensor, factor: Tensor) -> Tensor:
    kernel = moved(torch.tensor([[1, 1, 1], [1, 5, 1], [1, 1, 1]], dtype=pixels.dtype) / 13, pixels.device)
    smooth = pixels.clone()
    smooth[:, :, 1:-1, 1:-1] = F.conv2d(pixels, kernel.expand(3, 1, 3, 3), groups=3)  # the border stays as it is
    return smooth.lerp(pixels, factor)


def _grey(pixels: Tensor) -> Tensor:
    """Returns the luma of ITU-R 601; (B, 1, rows, columns)."""
    red, green, blue = pixels.unbind(dim=1)
    return (0.299 * red + 0.587 * green + 0.114 * blue)[:, None]


def _rotate(pixels: Tensor, degrees: Tensor) -> Tensor:
    angle = torch.deg2rad(degrees)
    return _moved(pixels, (angle.cos(), -angle.sin(), 0.0), (angle.sin(), angle.cos(), 0.0))


def _shear_x(pixels: Tensor, tangent: Tensor) -> Tensor:
    return _moved(pixels, (1.0, tangent, tangent), (0.0, 1.0, 0.0))


def _shear_y(pixels: Tensor, tangent: Tensor) -> Tensor:
    return _moved(pixels, (1.0, 0.0, 0.0), (tangent, 1.0, tangent))


def _translate_x(pixels: Tensor, fraction: Tensor) -> Tensor:
    return _moved(pixels, (1.0, 0.0, 2 * fraction), (0.0, 1.0, 0.0))


def _translate_y(pixels: Tensor, fraction: Tensor) -> Tensor:
    return _moved(pixels, (1.0, 0.0, 0.0), (0.0, 1.0, 2 * fraction))


Factors = tuple[float | Tensor, float | Tensor, float | Tensor]


def _moved(pixels: Tensor, column: Factors, row: Factors) -> Tensor:
    """Returns square pictures whose pixels come from elsewhere in the picture, by bilinear interpolation, or are black.

    Columns and rows go from -1 to 1. ``column``: the factors of column, row and 1 that add up to the column of origin;
    ``row``: those of its row.
    """
    zeros = pixels.new_zeros(len(pixels), 1, 1, 1)
    parts = [torch.cat([zeros + each for each in factors], dim=3) for factors in (column, row)]  # each B 1 1 3
    matrix = torch.cat(parts, dim=2)[:, 0]  # B 2 3
    grid = F.affine_grid(matrix, list(pixels.shape), align_corners=False)
    return F.grid_sample(pixels, grid, align_corners=False)


OPERATIONS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {
        "auto_contrast": _auto_contrast,
        "equalize": _equalize,
        "invert": _invert,
        "rotate": _rotate,
        "posterize": _posterize,
        "solarize": _solarize,
        "solarize_add": _solarize_add,
        "color": _color,
        "contrast": _contrast,
        "brightness": _brightness,
        "sharpness": _sharpness,
        "shear_x": _shear_x,
        "shear_y": _shear_y,
        "translate_x": _translate_x,
        "translate_y": _translate_y,
    }
)
"""Name -> operation on pictures (B, 3, side, side), given an amount for each (B, 1, 1, 1); the operations of
RandAugment, which include all of AutoAugment's."""

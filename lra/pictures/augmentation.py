"""Random changes of training pictures, on the device of the model, as a function of each batch's seeds.

The operations are those of the library kornia. It draws one sequence of operations for a whole batch; here every
picture has its own, as in AutoAugment (Cubuk et al. 2019) and RandAugment (Cubuk et al. 2020).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import Labels, PerClass, Pixels
from seqarena.common.training.runtime import seed_torch
from seqarena.lra.pictures.data import PictureBatch

SHEAR = 16.7 / 54
"""AutoAugment shears by at most atan(0.3) = 16.7 degrees, kornia by 0.3 x 180 = 54."""
SCALE = 30
"""Largest magnitude of RandAugment."""


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Random changes of each training picture, in the order of the fields."""

    crop: Literal["none", "padded", "resized"] = "none"
    """none: the centre of the picture; padded: a random part of the picture with a black border of an eighth of its
    side; resized: a random part, resized."""
    flip: bool = False
    """Whether half of the pictures are mirrored."""
    policy: Literal["none", "cifar10", "imagenet", "rand"] = "none"
    """cifar10 and imagenet: AutoAugment's policy for that data set; rand: RandAugment."""
    operations: int = 2
    """Number of RandAugment's operations per picture."""
    magnitude: int = 9
    """Magnitude of RandAugment's operations, from 1 to 29."""
    erase: float = 0.0
    """Probability that a random rectangle of a picture is replaced by black."""
    mixup: float = 0.0
    """Both parameters of MixUp's beta distribution; 0: no MixUp. With CutMix, each batch has one of the two."""
    cutmix: float = 0.0
    """Both parameters of CutMix's beta distribution; 0: no CutMix."""
    label_smoothing: float = 0.0
    """Probability that is spread over all classes in the target of the loss."""

    def check(self) -> None:
        """Raises a ``WrongUseError`` for invalid values."""
        for name in ("erase", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise WrongUseError(f"augmentation.{name}: expected 0 to below 1, found {getattr(self, name)}")
        for name in ("mixup", "cutmix"):
            if getattr(self, name) < 0:
                raise WrongUseError(f"augmentation.{name}: expected at least 0, found {getattr(self, name)}")
        if self.operations < 1 or not 1 <= self.magnitude < SCALE:
            raise WrongUseError(
                "augmentation: expected operations of at least 1 and magnitude from 1 to 29, found "
                f"{self.operations} and {self.magnitude}"
            )
        if self.policy != "none" or self.crop == "padded" or self.flip or self.erase or self.cutmix:
            _kornia()


def augmented(augmentation: Augmentation, batch: PictureBatch, classes: int) -> tuple[Pixels, PerClass]:
    """Returns a batch's pictures as numbers from 0 to 1, changed at random, and the target probability of each class.

    The same batch always gives the same result. Torch's random state is left as it was.
    """
    pixels = batch.pictures.float() / 255
    targets = nn.functional.one_hot(batch.labels, classes).float()
    devices = [pixels.device] if pixels.device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.autocast(pixels.device.type, enabled=False):
        seed_torch(int(batch.seeds[0]))
        for change in _changes(augmentation, pixels.shape[-1]):
            pixels = change(pixels)
        pixels, targets = _mixed(augmentation, pixels, targets, batch.labels)
    smooth = augmentation.label_smoothing
    return pixels, targets * (1 - smooth) + smooth / classes


@cache
def _changes(augmentation: Augmentation, side: int) -> Sequence[Any]:
    """Returns the functions that change pictures (B, 3, side, side) one by one."""
    found: list[Any] = []
    if augmentation.crop == "padded":
        found.append(_kornia().RandomCrop((side, side), padding=max(side // 8, 1)))
    if augmentation.flip:
        found.append(_kornia().RandomHorizontalFlip(p=0.5))
    if augmentation.policy == "rand":
        operations = _rand_augment(augmentation.magnitude)
        found += [_OnePerPicture(operations) for _ in range(augmentation.operations)]
    elif augmentation.policy != "none":
        found.append(_OnePerPicture(_auto_augment(augmentation.policy)))
    if augmentation.erase:
        found.append(_kornia().RandomErasing(p=augmentation.erase))
    return found


class _OnePerPicture:
    """Applies one of several changes to each picture, drawn with equal probability."""

    def __init__(self, changes: Sequence[Any]) -> None:
        self.changes = changes

    def __call__(self, pixels: Tensor) -> Tensor:
        chosen = torch.randint(len(self.changes), (len(pixels),)).to(pixels.device)
        output = pixels.clone()
        for number, change in enumerate(self.changes):
            rows = (chosen == number).nonzero()[:, 0]
            if len(rows):
                output[rows] = change(pixels[rows]).clamp(0, 1)
        return output


def _mixed(augmentation: Augmentation, pixels: Tensor, targets: Tensor, labels: Labels) -> tuple[Tensor, Tensor]:
    """Returns pictures and targets mixed with those of another picture of the batch."""
    kinds = [kind for kind in ("mixup", "cutmix") if getattr(augmentation, kind)]
    if not kinds:
        return pixels, targets
    kind = kinds[int(torch.randint(len(kinds), ()))]
    if kind == "cutmix":
        cutmix = _kornia().RandomCutMixV2(
            beta=augmentation.cutmix, p=1.0, data_keys=["input", "class"], use_correct_lambda=True
        )
        pixels, mixed = cutmix(pixels, labels)
        other, own = mixed[0, :, 1].long(), mixed[0, :, 2:]
        return pixels, targets * own + nn.functional.one_hot(other, targets.shape[1]) * (1 - own)
    # Kornia's MixUp draws its weights uniformly, not from a beta distribution.
    weight = torch.distributions.Beta(augmentation.mixup, augmentation.mixup).sample().to(pixels.device)
    order = torch.randperm(len(pixels)).to(pixels.device)
    return weight * pixels + (1 - weight) * pixels[order], weight * targets + (1 - weight) * targets[order]


@cache
def _auto_augment(policy: str) -> Sequence[nn.Module]:
    from kornia.augmentation.auto.autoaugment import autoaugment, ops  # noqa: PLC0415  # see _kornia
    from kornia.augmentation.auto.operations.policy import PolicySequential  # noqa: PLC0415

    named: Any = autoaugment.cifar10_policy if policy == "cifar10" else autoaugment.imagenet_policy
    return [PolicySequential(*(_operation(ops, *each) for each in steps)) for steps in named]


def _operation(ops: Any, name: str, probability: float, magnitude: int | None) -> Any:
    """Returns an operation of AutoAugment with the angle of a shear as in the paper."""
    operation = getattr(ops, name)(probability, magnitude)
    if not name.startswith("shear"):
        return operation
    low, high = operation.magnitude_range
    return type(operation)(None, probability, magnitude_range=(low * SHEAR, high * SHEAR), symmetric_megnitude=False)


@cache
def _rand_augment(magnitude: int) -> Sequence[nn.Module]:
    from kornia.augmentation.auto import RandAugment  # noqa: PLC0415
    from kornia.augmentation.auto.rand_augment.rand_augment import default_policy  # noqa: PLC0415

    named: Any = default_policy
    policies = [
        [(name, low * SHEAR, high * SHEAR) if name.startswith("shear") else (name, low, high)]
        for ((name, low, high),) in named
    ]
    return [RandAugment(n=1, m=magnitude, policy=[each]) for each in policies]


@cache
def _kornia() -> Any:
    """Returns ``kornia.augmentation``, which takes a second to import."""
    import kornia.augmentation  # noqa: PLC0415

    return kornia.augmentation

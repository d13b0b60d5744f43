"""Random changes of training pictures, on the device of the model, as a function of each batch's seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from seqarena.common.data.batches import moved
from seqarena.common.errors import WrongUseError
from seqarena.common.shapes import PerClass, Pixels
from seqarena.common.training.runtime import seed_torch
from seqarena.lra.pictures.data import PictureBatch
from seqarena.lra.pictures.operations import auto_augment, rand_augment


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
    """Number of operations that RandAugment draws for each picture."""
    magnitude: int = 9
    """Magnitude of RandAugment's operations, from 1 to 10."""
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
        if self.operations < 1 or not 1 <= self.magnitude <= 10:
            raise WrongUseError(
                "augmentation: expected operations of at least 1 and magnitude from 1 to 10, found "
                f"{self.operations} and {self.magnitude}"
            )
        if self.policy != "none" or self.crop == "padded" or self.flip or self.erase or self.cutmix:
            _kornia()


def augmented(augmentation: Augmentation, batch: PictureBatch, classes: int) -> tuple[Pixels, PerClass]:
    """Returns a batch's pictures as numbers from 0 to 1, changed at random, and the target probability of each class.

    The same batch always gives the same result. Torch's random state is left as it was.

    Raises:
        WrongUseError: MixUp or CutMix of a single picture, which has no other one to be mixed with.
    """
    pixels = batch.pictures.float() / 255
    targets = nn.functional.one_hot(batch.labels, classes).float()
    devices = [pixels.device] if pixels.device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.autocast(pixels.device.type, enabled=False):
        seed_torch(int(batch.seeds[0]))
        for change in _changes(augmentation, pixels.shape[-1]):
            pixels = change(pixels)
        pixels, targets = _mixed(augmentation, pixels, targets)
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
        found.append(partial(rand_augment, operations=augmentation.operations, magnitude=augmentation.magnitude))
    elif augmentation.policy != "none":
        found.append(partial(auto_augment, policy=augmentation.policy))
    if augmentation.erase:
        found.append(_kornia().RandomErasing(p=augmentation.erase))
    return found


def _mixed(augmentation: Augmentation, pixels: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Returns pictures and targets mixed with those of another picture of the batch."""
    kinds = [kind for kind in ("mixup", "cutmix") if getattr(augmentation, kind)]
    if not kinds:
        return pixels, targets
    if len(pixels) < 2:
        raise WrongUseError(
            f"augmentation.{kinds[0]} mixes pictures of a forward pass, which has one picture: make the batch or "
            f"train.micro_batch_size larger, or set augmentation.{kinds[0]} to 0"
        )
    kind = kinds[int(torch.randint(len(kinds), ()))]
    if kind == "cutmix":
        cutmix = _kornia().RandomCutMixV2(
            beta=augmentation.cutmix, p=1.0, data_keys=["input", "class"], use_correct_lambda=True
        )
        # Kornia's CutMix waits for a GPU. It therefore mixes the numbers of the pictures, on the host.
        numbers = torch.arange(len(pixels))
        each_pixel = numbers[:, None, None, None].expand(-1, 1, *pixels.shape[2:])
        source, mixed = cutmix(each_pixel.float(), numbers)
        is_own, other, own = (
            moved(each, pixels.device) for each in (source.long() == each_pixel, mixed[0, :, 1].long(), mixed[0, :, 2:])
        )
        return torch.where(is_own, pixels, pixels[other]), targets * own + targets[other] * (1 - own)
    # Kornia's MixUp draws its weights uniformly, not from a beta distribution.
    weight = moved(torch.distributions.Beta(augmentation.mixup, augmentation.mixup).sample(), pixels.device)
    order = moved(torch.randperm(len(pixels)), pixels.device)
    return weight * pixels + (1 - weight) * pixels[order], weight * targets + (1 - weight) * targets[order]


@cache
def _kornia() -> Any:
    """Returns ``kornia.augmentation``, which takes a second to import."""
    import kornia.augmentation  # noqa: PLC0415

    return kornia.augmentation

"""Random changes of pictures are a function of the batch's seeds, one sequence per picture, as the papers define."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from seqarena.common.errors import WrongUseError
from seqarena.lra.pictures.augmentation import Augmentation, augmented
from seqarena.lra.pictures.data import PictureBatch

CLASSES = 5
EVERY: dict[str, Augmentation] = {
    "padded": Augmentation(crop="padded"),
    "flip": Augmentation(flip=True),
    "cifar10": Augmentation(policy="cifar10"),
    "imagenet": Augmentation(policy="imagenet"),
    "rand": Augmentation(policy="rand", magnitude=5),
    "erase": Augmentation(erase=0.9),
    "mixup": Augmentation(mixup=0.8),
    "cutmix": Augmentation(cutmix=1.0),
}


def batch_of(count: int = 12, side: int = 16, seed: int = 1) -> PictureBatch:
    draws = torch.Generator().manual_seed(0)
    return PictureBatch(
        pictures=torch.randint(0, 256, (count, 3, side, side), generator=draws, dtype=torch.uint8),
        labels=torch.arange(count) % CLASSES,
        seeds=torch.arange(count) + 1_000 * seed,
        tokens=torch.full((count,), 4),
    )


def test_without_changes_pictures_are_numbers_from_0_to_1() -> None:
    batch = batch_of()
    pixels, targets = augmented(Augmentation(), batch, CLASSES)
    assert torch.equal(pixels, batch.pictures / 255)
    assert torch.equal(targets, torch.nn.functional.one_hot(batch.labels, CLASSES).float())


@pytest.mark.parametrize("name", EVERY)
def test_changes_depend_on_the_seeds_alone_and_leave_the_random_state(name: str) -> None:
    torch.manual_seed(3)
    first = augmented(EVERY[name], batch_of(), CLASSES)
    after = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(after, torch.rand(1))
    again = augmented(EVERY[name], batch_of(), CLASSES)
    assert all(torch.equal(*pair) for pair in zip(first, again, strict=True))
    other = augmented(EVERY[name], batch_of(seed=2), CLASSES)
    assert not torch.equal(first[0], other[0])


@pytest.mark.parametrize("name", EVERY)
def test_pictures_change_and_stay_between_0_and_1(name: str) -> None:
    batch = batch_of()
    pixels, targets = augmented(EVERY[name], batch, CLASSES)
    assert pixels.shape == batch.pictures.shape
    assert not torch.equal(pixels, batch.pictures / 255)
    assert pixels.min() >= 0
    assert pixels.max() <= 1
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(len(batch)))


@pytest.mark.parametrize("name", ["cifar10", "imagenet", "rand"])
def test_each_picture_has_its_own_operations(name: str) -> None:
    """Kornia alone draws one sequence of operations for the whole batch."""
    batch = batch_of(64)
    one = replace(batch, pictures=batch.pictures[:1].expand(64, -1, -1, -1))
    pixels, _ = augmented(EVERY[name], one, CLASSES)
    assert len({each.numpy().tobytes() for each in pixels}) > 20


def test_a_flip_mirrors_about_half_of_the_pictures() -> None:
    batch = batch_of(200, side=4)
    pixels, _ = augmented(EVERY["flip"], batch, CLASSES)
    plain = batch.pictures / 255
    mirrored = [bool(torch.equal(one, other.flip(-1))) for one, other in zip(pixels, plain, strict=True)]
    same = [bool(torch.equal(one, other)) for one, other in zip(pixels, plain, strict=True)]
    assert all(one or other for one, other in zip(mirrored, same, strict=True))
    assert 70 < sum(mirrored) < 130


def test_mixed_targets_are_those_of_the_mixed_pictures() -> None:
    """Pictures of one value per class: the mean of a mixed picture tells the weights."""
    batch = batch_of(10, side=16)
    values = torch.tensor([0, 50, 100, 150, 250])
    plain = values[batch.labels].to(torch.uint8)[:, None, None, None].expand(-1, 3, 16, 16).clone()
    for name in ("mixup", "cutmix"):
        for seed in range(5):
            pixels, targets = augmented(EVERY[name], replace(batch, pictures=plain, seeds=batch.seeds + seed), CLASSES)
            torch.testing.assert_close(pixels.mean(dim=(1, 2, 3)) * 255, targets @ values.float(), atol=1e-3, rtol=0)


def test_a_batch_has_mixup_or_cutmix_when_both_are_on() -> None:
    batch = batch_of(4)
    pixels = torch.zeros(4, 3, 16, 16)
    pixels[::2] = 1
    seen = set()
    for seed in range(12):
        both = Augmentation(mixup=0.8, cutmix=1.0)
        bytes_of = (pixels * 255).to(torch.uint8)
        mixed, _ = augmented(both, replace(batch, pictures=bytes_of, seeds=batch.seeds + seed), CLASSES)
        seen.add("cutmix" if {0.0, 1.0} >= set(mixed.unique().tolist()) else "mixup")
    assert seen == {"cutmix", "mixup"}


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_a_single_picture_cannot_be_mixed(name: str) -> None:
    with pytest.raises(WrongUseError, match=rf"augmentation\.{name} mixes .* train\.micro_batch_size larger"):
        augmented(EVERY[name], batch_of(count=1), CLASSES)


def test_label_smoothing_spreads_a_part_of_the_target() -> None:
    _, targets = augmented(Augmentation(label_smoothing=0.1), batch_of(), CLASSES)
    assert targets.max().item() == pytest.approx(0.92)
    assert targets.min().item() == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"erase": 1.0}, "augmentation.erase: expected 0 to below 1, found 1.0"),
        ({"label_smoothing": -0.1}, "augmentation.label_smoothing: expected 0 to below 1, found -0.1"),
        ({"mixup": -1.0}, "augmentation.mixup: expected at least 0, found -1.0"),
        ({"magnitude": 11}, "expected operations of at least 1 and magnitude from 1 to 10, found 2 and 11"),
    ],
)
def test_invalid_values_are_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(WrongUseError, match=expected):
        replace(Augmentation(), **changes).check()

"""The record of each task of pictures."""

from types import MappingProxyType

from seqarena.common.runs.tasks import Task
from seqarena.lra import checksums
from seqarena.lra.pictures import published

SPLITS = "test: {test}; validation: the {held_out} training pictures with the smallest hashes; train: the others"

CIFAR10_PATCHES = Task(
    package="lra",
    name="cifar10-patches",
    title="the class of a colour picture of 32 x 32 pixels, one token per patch (CIFAR-10); not a task of LRA",
    version=1,
    metric="accuracy",
    higher_is_better=True,
    chance=0.1,
    splits=SPLITS.format(test="CIFAR-10's 10,000", held_out="5,000"),
    source="cifar-10-python.tar.gz, the binary version, pictures, arrays (--data.path), or uoft-cs/cifar10 of the hub",
    revision="CIFAR-10 in colour",
    licence="no formal licence (cite Krizhevsky 2009); read from your copy or the hub, never shipped",
    checksums=MappingProxyType(
        dict.fromkeys(("hour", "hour-deep", "p3-vit80", "p3-vit80-post"), checksums.CIFAR10)
        | {"quick": checksums.DRAWN_DIGITS}
    ),
)

TINY_IMAGENET = Task(
    package="lra",
    name="tiny-imagenet",
    title="the class, of 200, of a colour picture of 64 x 64 pixels, one token per patch; not a task of LRA",
    version=1,
    metric="accuracy",
    higher_is_better=True,
    chance=0.005,
    splits=SPLITS.format(test="the 10,000 pictures of val, since the labels of test are not public", held_out="10,000"),
    source="tiny-imagenet-200.zip of Stanford's course CS231n or its folder (--data.path), or zh-plus/tiny-imagenet of "
    "the hub",
    revision="not recorded: we could not read these data",
    licence="ImageNet's terms of access (research, not commercial); read from your copy or the hub, never shipped",
    checksums=MappingProxyType({"quick": checksums.DRAWN_DIGITS}),
    published=published.tiny_imagenet(),
)

IMAGENET = Task(
    package="lra",
    name="imagenet",
    title="the class, of 1,000, of a colour picture (ImageNet-1k), one token per patch; not a task of LRA",
    version=1,
    metric="accuracy",
    higher_is_better=True,
    chance=0.001,
    splits=SPLITS.format(test="the 50,000 pictures of val, since the labels of test are not public", held_out="50,000"),
    source="a folder or zip archive with train/CLASS/ and val/CLASS/ (--data.path), or ILSVRC/imagenet-1k of the hub",
    revision="ILSVRC 2012; not recorded: we could not read these data",
    licence="ImageNet's terms of access (research, not commercial); read from your copy or the hub, never shipped",
    checksums=MappingProxyType({"quick": checksums.DRAWN_DIGITS}),
    published=published.imagenet(),
)

TASKS = MappingProxyType({task.name: task for task in (CIFAR10_PATCHES, TINY_IMAGENET, IMAGENET)})

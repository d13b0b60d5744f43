"""What is measured: the record of each task of Long Range Arena."""

from dataclasses import replace
from types import MappingProxyType

from common.tasks import Task
from lra.published import PUBLISHED

BOOK_SHA256 = "7dc1bcfb29d5efd88b9597c52aa37c0c2ae079f8cbe0d40e1454c921674d84ff"
CHAPTERS_SHA256 = "75664360aa4c5ca8d706a9fda12ebb86f092b69b7a22b864b517571dde3b141a"
DIGITS_SHA256 = "57ffe2057cf3ff9cf5ac9d2aa44000d36e8049d382e2e1201cd4ce61b5c22a4e"
TEXT_SHA256 = "53a2fa1d47681000eee7d356729735d5d743ddb40a359bf83b7c9cbb56bde36f"
RETRIEVAL_IMDB_SHA256 = "d93e850bb677c1ae4e7a8bdb8219cf15fb49e575d187ffe7e1e78411bc17e548"
IMAGE_SHA256 = "c507c3bb321e863488d85bac4928820aa5c7d6406e25d49ebd2b5e157202034b"
IMDB = "no formal licence (cite Maas et al. 2011); read from your copy or the hub, never shipped"


LISTOPS = Task(
    package="lra",
    name="listops",
    title="the value, 0 to 9, of a nested expression of MIN, MAX, MED and SM over digits",
    version=1,
    metric="accuracy",
    higher_is_better=True,
    chance=0.1,
    splits="distinct expressions of one generator, shuffled by the data's seed; 96,000 / 2,000 / 2,000",
    source="generated (common/counter.py seeds every draw), or basic_{train,val,test}.tsv of the official release",
    revision="generator 1",
    licence="generated data: none needed; the official generator is Apache-2.0",
    checksums=MappingProxyType(
        {
            "quick": "264cf2fd86eab98b10ed75f1672ee42fee690b444911fe45476957b2a77c0978",
            "hour": "2881a4e21859f818cb087b904501dfe1f65c071b6a12ede19726040be7795bab",
            "xiong2021": "52024eb4b2761f9a6bb75abf80c5135e47f3bf29be7e9391c875811381cb4d9d",
            "lra-jax": "52024eb4b2761f9a6bb75abf80c5135e47f3bf29be7e9391c875811381cb4d9d",
        }
    ),
    published=PUBLISHED["listops"],
)

TEXT = Task(
    package="lra",
    name="text",
    title="whether a film review, read byte by byte, is for or against the film",
    version=1,
    metric="accuracy",
    higher_is_better=True,
    chance=0.5,
    splits="IMDB's own test of 25,000; of its training reviews the 5,000 whose hash is least validate, 20,000 train",
    source="aclImdb_v1.tar.gz of the authors (--data.path), or stanfordnlp/imdb of the hub",
    revision="aclImdb v1",
    licence=IMDB,
    checksums=MappingProxyType(
        dict.fromkeys(("hour", "xiong2021", "xiong2021-1k", "lra-jax"), TEXT_SHA256) | {"quick": BOOK_SHA256}
    ),
    published=PUBLISHED["text"],
)

TEXT_LEGACY = replace(
    TEXT,
    name="text-legacy",
    title="text as published code measured it: the checkpoint is chosen on the test set itself",
    splits="IMDB's own 25,000 to train; its test of 25,000 both chooses the checkpoint and scores it",
    checksums=MappingProxyType({"quick": BOOK_SHA256}),
)

RETRIEVAL = Task(
    package="lra",
    name="retrieval",
    title="whether one of two papers cites the other, both read byte by byte (AAN)",
    version=1,
    metric="accuracy",
    higher_is_better=True,
    chance=0.5,
    splits="the official files: 147,086 / 18,090 / 17,437 pairs",
    source="new_aan_pairs.{train,eval,test}.tsv of the official release, your own copy (--data.path)",
    revision="official release",
    licence="may not be redistributed, say its makers; never shipped",
    checksums=MappingProxyType({"quick": CHAPTERS_SHA256}),
    published=PUBLISHED["retrieval"],
)

RETRIEVAL_IMDB = Task(
    package="lra",
    name="retrieval-imdb",
    title="whether two reviews, read byte by byte, are of one film; ours, not to be averaged with papers",
    version=1,
    metric="accuracy",
    higher_is_better=True,
    chance=0.5,
    splits="films of IMDB's test, and a fifth of its training films by hash, are kept apart; 18,776 / 4,140 / 22,912",
    source="aclImdb_v1.tar.gz of the authors with its lists of films (--data.path)",
    revision="aclImdb v1, pairing 1",
    licence=IMDB,
    checksums=MappingProxyType(
        dict.fromkeys(("xiong2021", "lra-jax"), RETRIEVAL_IMDB_SHA256) | {"quick": CHAPTERS_SHA256}
    ),
)

IMAGE = Task(
    package="lra",
    name="image",
    title="what is in a grey picture of 32 x 32 pixels, read row by row (CIFAR-10)",
    version=1,
    metric="accuracy",
    higher_is_better=True,
    chance=0.1,
    splits="CIFAR-10's own test of 10,000; of its training images the 5,000 whose hash is least validate, 45,000 train",
    source="cifar-10-python.tar.gz, the binary version, pictures, arrays (--data.path), or uoft-cs/cifar10 of the hub",
    revision="CIFAR-10, grey by ITU-R 601 as Pillow's mode L",
    licence="no formal licence (cite Krizhevsky 2009); read from your copy or the hub, never shipped",
    checksums=MappingProxyType({"quick": DIGITS_SHA256, "xiong2021": IMAGE_SHA256, "lra-jax": IMAGE_SHA256}),
    published=PUBLISHED["image"],
)

PATHFINDER = Task(
    package="lra",
    name="pathfinder",
    title="whether two markers in a picture of dashed contours stand on one contour; 32 x 32 pixels, 14 dashes",
    version=1,
    metric="accuracy",
    higher_is_better=True,
    chance=0.5,
    splits="images of one generator in their order: 160,000 / 20,000 / 20,000",
    source="generated as drewlinsley/pathfinder did in 2019, or a level of the official release (--data.path)",
    revision="generator 1",
    licence="generated data: none needed; the published generator is MIT",
    checksums=MappingProxyType(
        {
            "quick": "d339df2bdb2741d354ac39745f90618b8ffb901616bbac795573d76a648d140e",
            "xiong2021": "2eaaee503e5a3a014ce363875852b43d599bb36dec3af677a714a5816e3e2b09",
            "lra-jax": "2eaaee503e5a3a014ce363875852b43d599bb36dec3af677a714a5816e3e2b09",
        }
    ),
    published=PUBLISHED["pathfinder"],
)

PATHX = replace(
    PATHFINDER,
    name="pathx",
    title="whether two markers in a picture of dashed contours stand on one contour; 128 x 128 pixels, 14 dashes",
    checksums=MappingProxyType({"quick": "ed628e881a3020417c264128c766ce482a73b8ed18c5601af971c79e27778b65"}),
    published=PUBLISHED["pathx"],
)

TASKS = MappingProxyType(
    {task.name: task for task in (LISTOPS, TEXT, TEXT_LEGACY, RETRIEVAL, RETRIEVAL_IMDB, IMAGE, PATHFINDER, PATHX)}
)

"""The record of each task."""

from dataclasses import replace
from types import MappingProxyType

from seqarena.common.runs.tasks import Task
from seqarena.lra import checksums
from seqarena.lra.pictures import tasks as pictures
from seqarena.lra.published import PUBLISHED
from seqarena.lra.recall import tasks as recall

IMDB = "no formal licence (cite Maas et al. 2011); read from your copy or the hub, never shipped"


LISTOPS = Task(
    package="lra",
    name="listops",
    title="the value, 0 to 9, of a nested expression of MIN, MAX, MED and SM over digits",
    version=1,
    metric="accuracy",
    higher_is_better=True,
    chance=0.1,
    ceilings=("depth 1", "depth 2", "depth 3"),
    splits="generated expressions, distinct under reordering of arguments, shuffled; 96,000 / 2,000 / 2,000",
    source="generated (common/data/counter.py seeds every draw), or basic_{train,val,test}.tsv of the official release",
    revision="generator 2",
    licence="generated data: none needed; the official generator is Apache-2.0",
    checksums=MappingProxyType(
        dict.fromkeys(("xiong2021", "xiong2021-legacy", "lra-jax"), checksums.LISTOPS)
        | {"quick": checksums.LISTOPS_QUICK, "hour": checksums.LISTOPS_HOUR}
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
    splits="test: IMDB's 25,000; validation: the 5,000 training reviews with the smallest hashes; train: 20,000",
    source="aclImdb_v1.tar.gz of the authors (--data.path), or stanfordnlp/imdb of the hub",
    revision="aclImdb v1",
    licence=IMDB,
    checksums=MappingProxyType(
        dict.fromkeys(("hour", "xiong2021", "xiong2021-1k", "lra-jax"), checksums.TEXT) | {"quick": checksums.BOOK}
    ),
    published=PUBLISHED["text"],
)

TEXT_LEGACY = replace(
    TEXT,
    name="text-legacy",
    title="text with the splits of published code: all training reviews, validation on the test set",
    splits="train: IMDB's 25,000; validation and test: IMDB's test of 25,000 (xiong2021: it chooses the checkpoint)",
    checksums=MappingProxyType(
        dict.fromkeys(("xiong2021", "xiong2021-legacy", "lra-jax"), checksums.TEXT_LEGACY)
        | {"quick": checksums.BOOK_LEGACY}
    ),
)

RETRIEVAL = Task(
    package="lra",
    name="retrieval",
    title="whether one of two papers cites the other, both read byte by byte (AAN)",
    version=2,
    metric="accuracy",
    higher_is_better=True,
    chance=0.5,
    splits="the official files: 147,086 / 18,090 / 17,437 pairs",
    source="new_aan_pairs.{train,eval,test}.tsv of the official release, your own copy (--data.path)",
    revision="official release",
    licence="no redistribution, according to its authors; never shipped",
    checksums=MappingProxyType({"quick": checksums.CHAPTERS}),
    published=PUBLISHED["retrieval"],
)

RETRIEVAL_IMDB = Task(
    package="lra",
    name="retrieval-imdb",
    title="whether two reviews, read byte by byte, are of one film; ours, not to be averaged with published scores",
    version=2,
    metric="accuracy",
    higher_is_better=True,
    chance=0.5,
    splits="by film: test: IMDB's test; validation: a fifth of the training films by hash; 18,776 / 4,140 / 22,912",
    source="aclImdb_v1.tar.gz of the authors with its lists of films (--data.path)",
    revision="aclImdb v1, pairing 1",
    licence=IMDB,
    checksums=MappingProxyType(
        dict.fromkeys(("xiong2021", "lra-jax"), checksums.RETRIEVAL_IMDB) | {"quick": checksums.CHAPTERS}
    ),
)

IMAGE = Task(
    package="lra",
    name="image",
    title="the class of a grey image of 32 x 32 pixels, read row by row (CIFAR-10)",
    version=1,
    metric="accuracy",
    higher_is_better=True,
    chance=0.1,
    splits="test: CIFAR-10's 10,000; validation: the 5,000 training images with the smallest hashes; train: 45,000",
    source="cifar-10-python.tar.gz, the binary version, pictures, arrays (--data.path), or uoft-cs/cifar10 of the hub",
    revision="CIFAR-10, grey by ITU-R 601 as Pillow's mode L",
    licence="no formal licence (cite Krizhevsky 2009); read from your copy or the hub, never shipped",
    checksums=MappingProxyType(
        dict.fromkeys(("xiong2021", "xiong2021-legacy", "lra-jax", "lra-jax-legacy"), checksums.IMAGE)
        | {"quick": checksums.DIGITS}
    ),
    published=PUBLISHED["image"],
)

PATHFINDER = Task(
    package="lra",
    name="pathfinder",
    title="whether two markers in an image of dashed contours are on one contour; 32 x 32 pixels, 14 dashes",
    version=1,
    metric="accuracy",
    higher_is_better=True,
    chance=0.5,
    splits="generated images in the order drawn; 160,000 / 20,000 / 20,000",
    source="generated as drewlinsley/pathfinder did in 2019, or a level of the official release (--data.path)",
    revision="generator 2",
    licence="generated data: none needed; the published generator is MIT",
    checksums=MappingProxyType(
        dict.fromkeys(("xiong2021", "xiong2021-legacy", "lra-jax", "lra-jax-legacy"), checksums.PATHFINDER)
        | {"quick": checksums.PATHFINDER_QUICK}
    ),
    published=PUBLISHED["pathfinder"],
)

PATHX = replace(
    PATHFINDER,
    name="pathx",
    title="whether two markers in an image of dashed contours are on one contour; 128 x 128 pixels, 14 dashes",
    checksums=MappingProxyType({"quick": checksums.PATHFINDER_QUICK}),
    published=PUBLISHED["pathx"],
)

SEQUENCE_TASKS = MappingProxyType(
    {task.name: task for task in (LISTOPS, TEXT, TEXT_LEGACY, RETRIEVAL, RETRIEVAL_IMDB, IMAGE, PATHFINDER, PATHX)}
)
"""The tasks of Long Range Arena, and ours beside them."""
TASKS = MappingProxyType({**SEQUENCE_TASKS, **recall.TASKS, **pictures.TASKS})

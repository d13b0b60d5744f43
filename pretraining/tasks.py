"""The record of each task of pretraining."""

import math
from dataclasses import replace
from types import MappingProxyType

from seqarena.common.runs.tasks import Published, Task

MLM = Task(
    package="pretraining",
    name="mlm",
    title="prediction of the hidden tokens of a text; fraction predicted correctly, averaged over sequences",
    version=1,
    metric="accuracy",
    higher_is_better=True,
    splits="documents split by a hash of their number: 90 / 5 / 5 %; the evaluation masks are the same for all runs",
    source="text of your own (--data.path) or of the hub (--data.hub, such as wikimedia/wikipedia:20231101.en)",
    revision="your copy; the checksum of its tokens identifies it",
    licence="that of the text; the bundled King James Bible is in the public domain",
    checksums=MappingProxyType({"quick": "3ed35de0a798e494ecc042e33127b91b641b56b45fb79f31fa5509158e1e2db6"}),
)

BOOK = "2d601cf5781ad6dd88e82cd59d02239dc6cafb6110dbac4baf2642ee5c850524"
"""Checksum of the words of the bundled text."""


def _published(perplexity: float, source: str) -> Published:
    """Returns a published perplexity as a loss in nats."""
    return Published(name="softmax", value=math.log(perplexity), source=f"perplexity {perplexity} in {source}")


WIKITEXT103 = Task(
    package="pretraining",
    name="wikitext103",
    title="prediction of the next word of a text; nats per word, lower is better (exp(loss) is the perplexity)",
    version=1,
    metric="loss",
    higher_is_better=False,
    secondary=("perplexity", "perplexity_as_validated"),
    unit="nats",
    splits="as published: 28,475 / 60 / 60 articles",
    source="wiki.{train,valid,test}.tokens of wikitext-103-v1 (--data.path), or the hub's Salesforce/wikitext",
    revision="v1; word counts and vocabulary are compared with the published ones; the checksum of the ids is stored",
    licence="CC BY-SA 3.0 (Wikipedia); not distributed with seqarena",
    checksums=MappingProxyType({"quick": BOOK}),
    published=(
        _published(24.0, "Dai et al. 2019, base, 151 M parameters, 1.8 G tokens"),
        _published(23.68, "kimiyoung/transformer-xl, issue 99, a user's run; as validated 24.25"),
        _published(23.70, "fairseq's example, fp16, 4 GPUs"),
    ),
)
WIKITEXT2 = replace(
    WIKITEXT103,
    name="wikitext2",
    splits="as published: 600 / 60 / 60 articles; the last two are WikiText-103's",
    source="wiki.{train,valid,test}.tokens of wikitext-2-v1 (--data.path), or the hub's Salesforce/wikitext",
    checksums=MappingProxyType(
        {"quick": BOOK, "small": "9bbb8ec567b43b927d5298a3c1ccbdcd4cc4e4985237298c1129e9cf38df5db3"}
    ),
    published=(),
)

TASKS = MappingProxyType({each.name: each for each in (MLM, WIKITEXT103, WIKITEXT2)})

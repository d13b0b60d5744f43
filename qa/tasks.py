"""The record of each task of finetuning."""

from dataclasses import replace
from types import MappingProxyType

from seqarena.common.runs.tasks import Published, Task

PAPER = "P2, Table 3, from its own pretraining"
DEEPSET = "deepset/bert-base-uncased-squad2, verified by the hub"


def _published(base: float, lnas: float, hnas: float, google: float, source: str) -> tuple[Published, ...]:
    return (
        Published(name="BERT-base", value=base, source=PAPER),
        Published(name="softmax", value=lnas, source=PAPER),
        Published(name="hnas", value=hnas, source=PAPER),
        Published(name="bert-base-uncased", value=google, source=source),
    )


SQUAD1 = Task(
    package="qa",
    name="squad1",
    title="the span of a paragraph that answers a question (SQuAD 1.1); F1 of its words, secondary: exact match",
    version=1,
    metric="f1",
    secondary=("exact",),
    higher_is_better=True,
    splits="test: the official dev set, 10,570; validation: a hundredth of 87,599 training questions, by paragraph",
    source="train-v1.1.json and dev-v1.1.json of the authors (--data.train, --data.dev), or rajpurkar/squad of the hub",
    revision="SQuAD 1.1",
    licence="CC BY-SA 4.0; read from your copy or the hub, never shipped",
    checksums=MappingProxyType({"quick": "6e13616e12ccf01ec4bf9b88b68551525aa7802c8f192a0e04bdbddb0e31083d"}),
    published=_published(0.905, 0.905, 0.909, 0.8841, "google-research/bert README"),
    published_secondary=MappingProxyType(
        {"exact": _published(0.833, 0.836, 0.840, 0.8125, "google-research/bert README")}
    ),
)
SQUAD2 = replace(
    SQUAD1,
    name="squad2",
    version=2,
    title="the span of a paragraph that answers a question, or none (SQuAD 2.0); F1 of words, secondary: exact match",
    splits="test: the official dev set, 11,873; validation: a hundredth of 130,319 training questions, by paragraph",
    source="train-v2.0.json and dev-v2.0.json of the authors (--data.train, --data.dev), or rajpurkar/squad_v2",
    revision="SQuAD 2.0",
    checksums=MappingProxyType({"quick": "0aa94604ae0d1d51acb71e60695f62d08344b091bc7202425c2f67a7d23e99f7"}),
    published=_published(0.803, 0.803, 0.805, 0.7862, DEEPSET),
    published_secondary=MappingProxyType({"exact": _published(0.773, 0.770, 0.774, 0.7565, DEEPSET)}),
)
MNLI = Task(
    package="qa",
    name="mnli",
    title="whether a sentence follows from another, contradicts it, or neither (MNLI); matched, secondary: mismatched",
    version=1,
    metric="accuracy",
    secondary=("accuracy_mismatched",),
    higher_is_better=True,
    chance=1 / 3,
    splits="test: dev matched (9,815) and mismatched (9,832); validation: a hundredth of the 392,702 training pairs",
    source="multinli_1.0_*.jsonl or GLUE's tables (--data.train, .matched, .mismatched), or nyu-mll/glue:mnli",
    revision="MultiNLI 1.0",
    licence="mostly OANC terms, parts CC BY, CC BY-SA, public domain; read from your copy or the hub, never shipped",
    checksums=MappingProxyType({"quick": "22fe6bd1fba94c3a1ba9785f9f9c73b28f15608f8a88d5063caba2a1c1588646"}),
    published=(
        Published(name="BERT-base", value=0.841, source=PAPER),
        Published(name="softmax", value=0.843, source=PAPER),
        Published(name="hnas", value=0.847, source=PAPER),
        Published(name="bert-base-cased", value=0.8391, source="transformers, run_glue"),
    ),
    published_secondary=MappingProxyType(
        {"accuracy_mismatched": (Published(name="bert-base-cased", value=0.8410, source="transformers, run_glue"),)}
    ),
)

TASKS = MappingProxyType({task.name: task for task in (SQUAD1, SQUAD2, MNLI)})

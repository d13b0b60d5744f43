"""What is measured: the record of each task of pretraining."""

from types import MappingProxyType

from common.tasks import Task

MLM = Task(
    package="pretraining",
    name="mlm",
    title="what the hidden tokens of a text are; of a sequence's, the share that is guessed",
    version=1,
    metric="accuracy",
    higher_is_better=True,
    chance=0.0,
    splits="documents by a hash of their number: 90 / 5 / 5 %; masks of evaluation are the same for all runs",
    source="text of your own (--data.path) or of the hub (--data.hub, such as wikimedia/wikipedia:20231101.en)",
    revision="as you have it: the checksum of its tokens says which",
    licence="that of the text; the bundled King James Bible is in the public domain",
    checksums=MappingProxyType({"quick": "3ed35de0a798e494ecc042e33127b91b641b56b45fb79f31fa5509158e1e2db6"}),
)

TASKS = MappingProxyType({MLM.name: MLM})

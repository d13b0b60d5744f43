"""The record of associative recall."""

from types import MappingProxyType

from seqarena.common.runs.tasks import Task
from seqarena.lra import checksums

PAIRS = (4, 8, 12, 16, 32, 64)
"""Numbers of pairs that a table shows beside the mean."""

ASSOCIATIVE_RECALL = Task(
    package="lra",
    name="associative-recall",
    title="the value of each of several keys, given earlier in the sequence (MQAR of Zoology); not a task of LRA",
    version=1,
    metric="accuracy",
    higher_is_better=True,
    solved_from=0.95,
    secondary=tuple(f"pairs_{count}" for count in PAIRS),
    splits="training, validation and test sequences are generated independently",
    source="generated (common/data/counter.py seeds every draw) with the settings of HazyResearch/zoology",
    revision="generator 1",
    licence="generated data: none needed",
    checksums=MappingProxyType({"quick": checksums.RECALL_QUICK, "small": checksums.RECALL_SMALL}),
)

TASKS = MappingProxyType({ASSOCIATIVE_RECALL.name: ASSOCIATIVE_RECALL})

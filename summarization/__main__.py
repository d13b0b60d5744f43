"""Command line of headline generation: ``python -m seqarena.summarization`` is ``seqarena summarization``."""

import sys
from types import MappingProxyType

import seqarena.summarization
from seqarena.common.runs.cli import main
from seqarena.common.runs.package import Package
from seqarena.summarization import predict, score
from seqarena.summarization.presets import PRESETS
from seqarena.summarization.run import Run
from seqarena.summarization.tasks import TASKS
from seqarena.summarization.trainer import assemble

PACKAGE = Package(
    name="summarization", title=str(seqarena.summarization.__doc__), tasks=TASKS, presets=PRESETS,
    assemblies=MappingProxyType({Run: assemble}),
    commands=MappingProxyType({"predict": predict.run, "score": score.run}),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(PACKAGE))

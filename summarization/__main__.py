"""Headlines from the command line: ``python -m summarization TASK ...``, the same as ``seqarena summarization``."""

import sys
from types import MappingProxyType

import summarization
from common.runs.cli import main
from common.runs.package import Package
from summarization import predict, score
from summarization.presets import PRESETS
from summarization.tasks import TASKS
from summarization.trainer import assemble

PACKAGE = Package(
    name="summarization", title=str(summarization.__doc__), tasks=TASKS, presets=PRESETS, assemble=assemble,
    commands=MappingProxyType({"predict": predict.run, "score": score.run}),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(PACKAGE))

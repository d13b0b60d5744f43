"""Finetuning from the command line: ``python -m qa TASK ...``, the same as ``seqarena qa TASK ...``."""

import sys
from types import MappingProxyType

import qa
from common.runs.cli import main
from common.runs.package import Package
from qa import official, predict
from qa.presets import PRESETS
from qa.tasks import TASKS
from qa.trainer import assemble

PACKAGE = Package(
    name="qa", title=str(qa.__doc__), tasks=TASKS, presets=PRESETS, assemble=assemble,
    commands=MappingProxyType({"evaluate": official.run, "predict": predict.run}),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(PACKAGE))

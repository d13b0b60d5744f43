"""Finetuning from the command line: ``python -m seqarena.qa`` is ``seqarena qa``."""

import sys
from types import MappingProxyType

import seqarena.qa
from seqarena.common.runs.cli import main
from seqarena.common.runs.package import Package
from seqarena.qa import official, predict
from seqarena.qa.presets import PRESETS
from seqarena.qa.run import Run
from seqarena.qa.tasks import TASKS
from seqarena.qa.trainer import assemble

PACKAGE = Package(
    name="qa", title=str(seqarena.qa.__doc__), tasks=TASKS, presets=PRESETS,
    assemblies=MappingProxyType({Run: assemble}),
    commands=MappingProxyType({"evaluate": official.run, "predict": predict.run}),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(PACKAGE))

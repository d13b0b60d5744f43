"""Pretraining from the command line: ``python -m pretraining TASK``, the same as ``seqarena pretraining TASK``."""

import sys

import pretraining
from common.cli import main
from common.package import Package
from pretraining.presets import PRESETS
from pretraining.tasks import TASKS
from pretraining.trainer import assemble

PACKAGE = Package(name="pretraining", title=str(pretraining.__doc__), tasks=TASKS, presets=PRESETS, assemble=assemble)

if __name__ == "__main__":
    sys.exit(main(PACKAGE))

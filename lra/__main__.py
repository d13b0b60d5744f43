"""Long Range Arena from the command line: ``python -m lra TASK ...``, the same as ``seqarena lra TASK ...``."""

import sys

import lra
from common.runs.cli import main
from common.runs.package import Package
from lra.presets import PRESETS
from lra.tasks import TASKS
from lra.trainer import assemble

PACKAGE = Package(name="lra", title=str(lra.__doc__), tasks=TASKS, presets=PRESETS, assemble=assemble)

if __name__ == "__main__":
    sys.exit(main(PACKAGE))

"""Long Range Arena from the command line: ``python -m seqarena.lra`` is ``seqarena lra``."""

import sys
from types import MappingProxyType

import seqarena.lra
from seqarena.common.runs.cli import main
from seqarena.common.runs.package import Package
from seqarena.lra.pictures import presets as picture_presets
from seqarena.lra.pictures import trainer as picture_trainer
from seqarena.lra.pictures.run import PictureRun
from seqarena.lra.presets import PRESETS
from seqarena.lra.recall import presets as recall_presets
from seqarena.lra.recall import trainer as recall_trainer
from seqarena.lra.recall.run import RecallRun
from seqarena.lra.run import Run
from seqarena.lra.tasks import TASKS
from seqarena.lra.trainer import assemble

PACKAGE = Package(
    name="lra",
    title=str(seqarena.lra.__doc__),
    tasks=TASKS,
    presets={**PRESETS, **recall_presets.PRESETS, **picture_presets.PRESETS},
    assemblies=MappingProxyType(
        {Run: assemble, RecallRun: recall_trainer.assemble, PictureRun: picture_trainer.assemble}
    ),
)

if __name__ == "__main__":
    sys.exit(main(PACKAGE))
